//! Compares the model of a node with what the lab measured.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, ensure};
use psi_agent::contract::Level;
use psi_agent::score::WorstHalf;
use psi_agent::waiting::{Ratio, Wait};

use crate::node::{Claimant, Share, share, some};

pub const HEADER: &str = "kernel,scenario,node_cpus,node_some,name,number,kind,threads,duty,together,\
busy_s,calm_s,calm_duty,emulator_threads,emulator_duty,quota,weight,has_cpuset,busy_console,from,to,ran,waited";

/// The lab's records, made by the command `extract`.
pub const RECORDED: &str = include_str!("../lab.csv");

/// Scenarios whose measured contention is at least this count as contended.
const CONTENDED: f64 = 0.05;
/// The judged time of a scenario, seconds, and the step in which phases are followed.
const JUDGED: (f64, f64) = (10.0, 30.0);
const STEP: f64 = 1.0;
/// Phases of copies start this fraction of a cycle apart, as in the lab.
const STAGGER: f64 = 0.618_033_988_75;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Counts for the contention of the node.
    Vm,
    Other,
    /// Outside the pods, with as much weight as all pods together.
    Daemon,
}

/// A pod of a scenario, or a daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub kernel: String,
    pub scenario: String,
    pub node_cpus: u32,
    pub node_some: f64,
    pub name: String,
    pub number: usize,
    pub kind: Kind,
    pub threads: u32,
    pub duty: f64,
    pub together: bool,
    pub phases: Option<(f64, f64, f64)>,
    pub emulator: Option<(u32, f64)>,
    pub quota: Option<f64>,
    pub weight: f64,
    pub has_cpuset: bool,
    pub busy_console: bool,
    pub from: f64,
    pub to: Option<f64>,
    pub ran: f64,
    pub waited: f64,
}

impl Pod {
    pub fn row(&self) -> String {
        let optional =
            |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        let kind = match self.kind {
            Kind::Vm => "vm",
            Kind::Other => "other",
            Kind::Daemon => "daemon",
        };
        let phases = self.phases;
        [
            self.kernel.clone(),
            self.scenario.clone(),
            self.node_cpus.to_string(),
            format!("{:.4}", self.node_some),
            self.name.clone(),
            self.number.to_string(),
            kind.to_owned(),
            self.threads.to_string(),
            self.duty.to_string(),
            self.together.to_string(),
            optional(phases.map(|phases| phases.0)),
            optional(phases.map(|phases| phases.1)),
            optional(phases.map(|phases| phases.2)),
            optional(self.emulator.map(|emulator| f64::from(emulator.0))),
            optional(self.emulator.map(|emulator| emulator.1)),
            optional(self.quota),
            self.weight.to_string(),
            self.has_cpuset.to_string(),
            self.busy_console.to_string(),
            self.from.to_string(),
            optional(self.to),
            format!("{:.4}", self.ran),
            format!("{:.4}", self.waited),
        ]
        .join(",")
    }

    fn parse(line: &str) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.split(',').collect();
        ensure!(fields.len() == HEADER.split(',').count(), "wrong number of fields");
        let number = |at: usize| fields[at].parse::<f64>();
        let optional = |at: usize| -> anyhow::Result<Option<f64>> {
            Ok(if fields[at].is_empty() { None } else { Some(number(at)?) })
        };
        let phases = match (optional(10)?, optional(11)?, optional(12)?) {
            (Some(busy), Some(calm), Some(duty)) => Some((busy, calm, duty)),
            (_, _, _) => None,
        };
        Ok(Self {
            kernel: fields[0].to_owned(),
            scenario: fields[1].to_owned(),
            node_cpus: fields[2].parse()?,
            node_some: number(3)?,
            name: fields[4].to_owned(),
            number: fields[5].parse()?,
            kind: match fields[6] {
                "vm" => Kind::Vm,
                "other" => Kind::Other,
                "daemon" => Kind::Daemon,
                other => anyhow::bail!("unknown kind {other}"),
            },
            threads: fields[7].parse()?,
            duty: number(8)?,
            together: fields[9] == "true",
            phases,
            emulator: optional(13)?.map(|threads| threads as u32).zip(optional(14)?),
            quota: optional(15)?,
            weight: number(16)?,
            has_cpuset: fields[17] == "true",
            busy_console: fields[18] == "true",
            from: number(19)?,
            to: optional(20)?,
            ran: number(21)?,
            waited: number(22)?,
        })
    }

    fn runs_at(&self, at: f64) -> bool {
        self.threads > 0 && self.from <= at && self.to.is_none_or(|to| at < to)
    }

    fn duty_at(&self, at: f64) -> f64 {
        self.phases.map_or(self.duty, |(busy_s, calm_s, calm_duty)| {
            let cycle = busy_s + calm_s;
            let stagger = if self.together { 0.0 } else { self.number as f64 * STAGGER % 1.0 };
            if (at + stagger * cycle) % cycle < busy_s { self.duty } else { calm_duty }
        })
    }

    /// Threads that always wait because of their own quota.
    fn throttled_at(&self, at: f64) -> f64 {
        let console = f64::from(u8::from(self.busy_console));
        let above = self
            .quota
            .map_or(0.0, |quota| (f64::from(self.threads) * self.duty_at(at) - quota).max(0.0));
        if self.runs_at(at) { console + above } else { console }
    }

    fn measured(&self) -> Share {
        Share { ran: self.ran, waited: self.waited }
    }
}

/// One scenario on one kernel.
pub struct Compared {
    pub kernel: String,
    pub scenario: String,
    pub has_cpuset: bool,
    /// The node's contention, as the score has it.
    pub measured: f64,
    pub predicted: f64,
    /// Mean error of single VMs, weighted by demand.
    pub vm_error: f64,
    pub measured_some: f64,
    pub predicted_some: f64,
}

pub fn read(text: &str) -> anyhow::Result<Vec<Pod>> {
    let mut lines = text.lines();
    ensure!(lines.next() == Some(HEADER), "lab.csv has another header");
    let pod = |line: &str| Pod::parse(line).with_context(|| line.to_owned());
    lines.map(pod).collect()
}

pub fn compare(pods: &[Pod]) -> Vec<Compared> {
    let mut scenarios: BTreeMap<(&str, &str), Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        scenarios.entry((&pod.kernel, &pod.scenario)).or_default().push(pod);
    }
    let vms = |pods: &[&Pod]| pods.iter().any(|pod| pod.kind == Kind::Vm);
    scenarios.into_values().filter(|pods| vms(pods)).map(|pods| compare_one(&pods)).collect()
}

fn compare_one(pods: &[&Pod]) -> Compared {
    let mut predicted = vec![Share::default(); pods.len()];
    let (mut at, mut steps, mut pressure) = (JUDGED.0 + STEP / 2.0, 0.0, 0.0);
    while at < JUDGED.1 {
        let (shares, all) = predict(pods, at);
        for (sum, share) in predicted.iter_mut().zip(shares) {
            sum.ran += share.ran;
            sum.waited += share.waited;
        }
        let throttled = pods.iter().map(|pod| pod.throttled_at(at)).sum();
        pressure += some(f64::from(pods[0].node_cpus), all.ran, all.waited, throttled);
        steps += 1.0;
        at += STEP;
    }
    let vms = || pods.iter().zip(&predicted).filter(|(pod, _)| pod.kind == Kind::Vm);
    let demand: f64 = vms().map(|(pod, _)| pod.ran + pod.waited).sum();
    let errors = vms().map(|(pod, share)| {
        let error = (pod.measured().contention() - share.contention()).abs();
        error * (pod.ran + pod.waited) / demand.max(1e-9)
    });
    Compared {
        kernel: pods[0].kernel.clone(),
        scenario: pods[0].scenario.clone(),
        has_cpuset: pods.iter().any(|pod| pod.has_cpuset),
        measured: of_node(vms().map(|(pod, _)| pod.measured())),
        predicted: of_node(vms().map(|(_, share)| *share)),
        vm_error: errors.sum(),
        measured_some: pods[0].node_some,
        predicted_some: pressure / steps,
    }
}

/// What the model says of each pod at a moment, and of all together.
fn predict(pods: &[&Pod], at: f64) -> (Vec<Share>, Share) {
    let running: Vec<usize> = (0..pods.len()).filter(|&number| pods[number].runs_at(at)).collect();
    let is_daemon = |number: &&usize| pods[**number].kind == Kind::Daemon;
    let daemons = running.iter().filter(is_daemon).count().max(1) as f64;
    let in_pods: f64 =
        running.iter().filter(|number| !is_daemon(number)).map(|&number| pods[number].weight).sum();
    let mut claimants = Vec::new();
    let mut emulators = Vec::new();
    for &number in &running {
        let pod = pods[number];
        let weight =
            if pod.kind == Kind::Daemon { in_pods.max(100.0) / daemons } else { pod.weight };
        let claimant = Claimant {
            vcpus: f64::from(pod.threads),
            duty: pod.duty_at(at),
            weight,
            quota: pod.quota,
            together: pod.together,
        };
        // Threads of the emulator have their part of the weight, and wait like a claimant of their own.
        if let Some((threads, duty)) = pod.emulator {
            let all = f64::from(pod.threads + threads);
            let part = |count: u32| weight * f64::from(count) / all;
            claimants.push(Claimant { weight: part(pod.threads), ..claimant });
            emulators.push(Claimant {
                vcpus: f64::from(threads),
                duty,
                weight: part(threads),
                quota: None,
                ..claimant
            });
        } else {
            claimants.push(claimant);
        }
    }
    let count = claimants.len();
    claimants.extend(emulators);
    let shares = share(f64::from(pods[0].node_cpus), &claimants);
    let mut each = vec![Share::default(); pods.len()];
    for (&number, share) in running.iter().zip(&shares[..count]) {
        each[number] = *share;
    }
    let sum = |of: fn(&Share) -> f64| shares.iter().map(of).sum();
    (each, Share { ran: sum(|share| share.ran), waited: sum(|share| share.waited) })
}

/// The node's contention, by the agent's own code.
fn of_node(vms: impl Iterator<Item = Share>) -> f64 {
    let wait = |vm: Share| Wait::of_cpu(vm.ran, vm.waited, Ratio::ZERO, Ratio::ZERO);
    WorstHalf::of_cpu(Level::Low, &vms.filter_map(wait).collect::<Vec<_>>(), 0.0).contention
}

/// Mean errors over scenarios of one kernel that have contention: of the node's number, and of VMs.
pub struct Errors {
    pub scenarios: usize,
    pub node: f64,
    pub vms: f64,
}

pub fn contended_errors(compared: &[Compared], kernel: &str) -> Errors {
    let judged: Vec<&Compared> = compared
        .iter()
        .filter(|one| one.kernel == kernel && one.measured >= CONTENDED && !one.has_cpuset)
        .collect();
    let mean = |of: &dyn Fn(&Compared) -> f64| {
        judged.iter().map(|one| of(one)).sum::<f64>() / judged.len().max(1) as f64
    };
    Errors {
        scenarios: judged.len(),
        node: mean(&|one| (one.measured - one.predicted).abs()),
        vms: mean(&|one| one.vm_error),
    }
}

/// The comparison as a table, with its summary.
pub fn table(compared: &[Compared]) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    writeln!(
        out,
        "| scenario | kernel | measured | model | error | error of VMs | node some | model |"
    )?;
    writeln!(out, "|---|---|---:|---:|---:|---:|---:|---:|")?;
    for one in compared.iter().filter(|one| one.measured >= CONTENDED) {
        writeln!(
            out,
            "| {}{} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} |",
            one.scenario,
            if one.has_cpuset { " (cpuset, not judged)" } else { "" },
            one.kernel,
            one.measured,
            one.predicted,
            (one.measured - one.predicted).abs(),
            one.vm_error,
            one.measured_some,
            one.predicted_some,
        )?;
    }
    writeln!(out)?;
    for kernel in kernels(compared) {
        let Errors { scenarios, node, vms } = contended_errors(compared, kernel);
        writeln!(
            out,
            "Linux {kernel}: {scenarios} contended scenarios, mean error of the node's contention \
             {node:.3}, of VMs {vms:.3}"
        )?;
    }
    Ok(out)
}

pub fn kernels(compared: &[Compared]) -> Vec<&str> {
    let mut kernels: Vec<&str> = compared.iter().map(|one| one.kernel.as_str()).collect();
    kernels.dedup();
    kernels.sort_unstable();
    kernels.dedup();
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_predicts_contention_in_the_lab_within_a_twentieth() {
        let compared = compare(&read(RECORDED).unwrap());
        let kernels = kernels(&compared);
        assert!(kernels.len() >= 2, "{kernels:?}");
        for kernel in kernels {
            let Errors { scenarios, node, vms } = contended_errors(&compared, kernel);
            assert!(scenarios >= 60, "{kernel}: {scenarios}");
            assert!(node <= 0.05 && vms <= 0.055, "{kernel}: {node} {vms}");
        }
    }

    #[test]
    fn rows_read_back() {
        let pods = read(RECORDED).unwrap();
        assert_eq!(Pod::parse(&pods[7].row()).unwrap(), pods[7]);
    }
}
