//! Demand of VMs over time, as CSV: `vm,vcpus,memory_mib,minute,cpu_share`.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use anyhow::{Context, ensure};

const HEADER: &str = "vm,vcpus,memory_mib,minute,cpu_share";

#[derive(Debug, Clone, PartialEq)]
pub struct Vm {
    pub name: String,
    pub vcpus: u32,
    pub memory_mib: u64,
    /// By minute: share of its vCPUs' time that it wants, 0 to 1.
    pub shares: Vec<f32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub vms: Vec<Vm>,
    pub minutes: usize,
}

impl Trace {
    /// Reads rows in any order. A minute without a row has the value of the one before, and a VM wants
    /// nothing before its first row.
    pub fn read(text: impl BufRead) -> anyhow::Result<Self> {
        let mut vms: Vec<(Vm, Vec<(usize, f32)>)> = Vec::new();
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let mut minutes = 0;
        for (number, line) in text.lines().enumerate() {
            let line = line?;
            if number == 0 {
                ensure!(line.trim() == HEADER, "line 1: expected the header {HEADER}");
                continue;
            }
            if line.trim().is_empty() {
                continue;
            }
            let row = Row::parse(&line).with_context(|| format!("line {}: {line}", number + 1))?;
            minutes = minutes.max(row.minute + 1);
            let at = *numbers.entry(row.vm.clone()).or_insert_with(|| {
                let (vcpus, memory_mib) = (row.vcpus, row.memory_mib);
                let vm = Vm { name: row.vm.clone(), vcpus, memory_mib, shares: Vec::new() };
                vms.push((vm, Vec::new()));
                vms.len() - 1
            });
            let (vm, rows) = &mut vms[at];
            ensure!(
                (vm.vcpus, vm.memory_mib) == (row.vcpus, row.memory_mib),
                "line {}: VM {} has another size than before",
                number + 1,
                vm.name
            );
            rows.push((row.minute, row.cpu_share));
        }
        ensure!(!vms.is_empty(), "the trace has no VMs");
        let vms = vms.into_iter().map(|(vm, rows)| Vm { shares: filled(rows, minutes), ..vm });
        Ok(Self { vms: vms.collect(), minutes })
    }

    /// Writes a row where a value differs from that of the minute before.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "{HEADER}")?;
        for vm in &self.vms {
            let mut before = f32::NAN;
            for (minute, &share) in vm.shares.iter().enumerate() {
                // The last minute has a row, since it is the length of the trace.
                if share != before || minute + 1 == self.minutes {
                    writeln!(out, "{},{},{},{minute},{share}", vm.name, vm.vcpus, vm.memory_mib)?;
                }
                before = share;
            }
        }
        Ok(())
    }

    /// vCPUs of all VMs.
    pub fn vcpus(&self) -> f64 {
        self.vms.iter().map(|vm| f64::from(vm.vcpus)).sum()
    }

    /// CPU hours that all VMs want.
    pub fn demand_hours(&self) -> f64 {
        let hours = |vm: &Vm| vm.shares.iter().copied().map(f64::from).sum::<f64>() / 60.0;
        self.vms.iter().map(|vm| f64::from(vm.vcpus) * hours(vm)).sum()
    }
}

fn filled(mut rows: Vec<(usize, f32)>, minutes: usize) -> Vec<f32> {
    rows.sort_by_key(|row| row.0);
    let mut shares = vec![0.0; minutes];
    for (number, &(from, share)) in rows.iter().enumerate() {
        let until = rows.get(number + 1).map_or(minutes, |next| next.0);
        shares[from..until].fill(share);
    }
    shares
}

struct Row {
    vm: String,
    vcpus: u32,
    memory_mib: u64,
    minute: usize,
    cpu_share: f32,
}

impl Row {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.trim().split(',').map(str::trim).collect();
        let [vm, vcpus, memory_mib, minute, cpu_share] = fields[..] else {
            anyhow::bail!("expected five fields");
        };
        let row = Self {
            vm: vm.to_owned(),
            vcpus: vcpus.parse().context("vcpus")?,
            memory_mib: memory_mib.parse().context("memory_mib")?,
            minute: minute.parse().context("minute")?,
            cpu_share: cpu_share.parse().context("cpu_share")?,
        };
        ensure!(row.vcpus > 0, "vcpus must be at least 1");
        ensure!((0.0..=1.0).contains(&row.cpu_share), "cpu_share must be from 0 to 1");
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_without_a_row_has_the_value_of_the_one_before() {
        let text =
            "vm,vcpus,memory_mib,minute,cpu_share\nb,2,2048,1,0.5\na,1,1024,0,0.25\na,1,1024,3,1\n";
        let trace = Trace::read(text.as_bytes()).unwrap();
        assert_eq!(trace.minutes, 4);
        assert_eq!(trace.vms[0].shares, [0.0, 0.5, 0.5, 0.5]);
        assert_eq!(trace.vms[1].shares, [0.25, 0.25, 0.25, 1.0]);
        assert!((trace.demand_hours() - (3.0 + 1.75) / 60.0).abs() < 1e-9);
    }

    #[test]
    fn a_written_trace_reads_back() {
        let trace = crate::population::Population::Mixed.generate(12, 90, 7);
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        assert_eq!(Trace::read(&text[..]).unwrap(), trace);
    }

    #[test]
    fn errors_name_the_line() {
        let error = |rows: &str| {
            let text = format!("{HEADER}\n{rows}");
            format!("{:#}", Trace::read(text.as_bytes()).unwrap_err())
        };
        assert!(error("a,1,1024,0,1.5").contains("line 2: a,1,1024,0,1.5: cpu_share"));
        assert!(error("a,1,1024,0,0.5\na,2,1024,1,0.5").contains("line 3: VM a has another size"));
        assert!(error("a,1,1024").contains("expected five fields"));
        assert!(error("").contains("no VMs"));
    }
}
