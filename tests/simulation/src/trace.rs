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
    /// By minute: share of its vCPUs' time that it wants, 0 to 1. `None` while it does not exist.
    pub shares: Vec<Option<f32>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub vms: Vec<Vm>,
    pub minutes: usize,
}

/// Minutes and shares.
type Rows = Vec<(usize, Option<f32>)>;

impl Trace {
    /// Reads rows in any order. A minute without a row has the value of the one before. A VM exists from its
    /// first row on, until one without a share.
    pub fn read(text: impl BufRead) -> anyhow::Result<Self> {
        let mut vms: Vec<(Vm, Rows)> = Vec::new();
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
            let mut before = None;
            for (minute, &share) in vm.shares.iter().enumerate() {
                // The last minute has a row, since it is the length of the trace.
                if share != before || minute + 1 == self.minutes {
                    let share = share.map_or(String::new(), |share| share.to_string());
                    writeln!(out, "{},{},{},{minute},{share}", vm.name, vm.vcpus, vm.memory_mib)?;
                }
                before = share;
            }
        }
        Ok(())
    }

    /// vCPUs of the VMs that exist at the same time, at most.
    pub fn most_vcpus(&self) -> f64 {
        let vcpus = |minute: usize| -> u32 {
            let vms = self.vms.iter().filter(|vm| vm.shares[minute].is_some());
            vms.map(|vm| vm.vcpus).sum()
        };
        f64::from((0..self.minutes).map(vcpus).max().unwrap_or_default())
    }

    /// Days that all VMs exist, added up.
    pub fn vm_days(&self) -> f64 {
        self.vms.iter().flat_map(|vm| vm.shares.iter().flatten()).count() as f64 / 1440.0
    }

    /// CPU hours that all VMs want.
    pub fn demand_hours(&self) -> f64 {
        let hours =
            |vm: &Vm| vm.shares.iter().flatten().copied().map(f64::from).sum::<f64>() / 60.0;
        self.vms.iter().map(|vm| f64::from(vm.vcpus) * hours(vm)).sum()
    }
}

fn filled(mut rows: Rows, minutes: usize) -> Vec<Option<f32>> {
    rows.sort_by_key(|row| row.0);
    let mut shares = vec![None; minutes];
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
    cpu_share: Option<f32>,
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
            cpu_share: match cpu_share {
                "" => None,
                share => Some(share.parse().context("cpu_share")?),
            },
        };
        ensure!(row.vcpus > 0, "vcpus must be at least 1");
        let is_share = |share: f32| (0.0..=1.0).contains(&share);
        ensure!(row.cpu_share.is_none_or(is_share), "cpu_share must be from 0 to 1");
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_without_a_row_has_the_value_of_the_one_before() {
        let rows = "b,2,2048,1,0.5\na,1,1024,0,0.25\na,1,1024,3,1\nb,2,2048,3,\n";
        let trace = Trace::read(format!("{HEADER}\n{rows}").as_bytes()).unwrap();
        assert_eq!(trace.minutes, 4);
        assert_eq!(trace.vms[0].shares, [None, Some(0.5), Some(0.5), None]);
        assert_eq!(trace.vms[1].shares, [0.25, 0.25, 0.25, 1.0].map(Some));
        assert!((trace.demand_hours() - (2.0 + 1.75) / 60.0).abs() < 1e-9);
        assert_eq!((trace.most_vcpus(), trace.vm_days()), (3.0, 6.0 / 1440.0));
    }

    #[test]
    fn a_written_trace_reads_back() {
        let trace = crate::population::Population::Mixed.generate(12, 90, Some(0.5), 7);
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
