//! Makes `lab.csv` of records that `tests/lab/run --records` wrote: what each pod of each CPU scenario
//! wants, and how long it ran and waited because of the node.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use anyhow::Context;
use serde::Deserialize;

use crate::lab::{HEADER, Kind, Pod};

/// The part of a record that is needed. `tests/lab/src/record.rs` has all of it.
#[derive(Deserialize)]
struct Record {
    kernel: String,
    scenario: Scenario,
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Scenario {
    name: String,
    vcpus: u32,
    real_time: bool,
    seconds: f64,
    pod: Vec<LabPod>,
    daemon: Vec<LabPod>,
}

#[derive(Deserialize)]
struct LabPod {
    name: String,
    #[serde(default)]
    vm: bool,
    copies: Option<u32>,
    threads: u32,
    duty: f64,
    wake_together: bool,
    phases: Option<Phases>,
    emulator: Option<Emulator>,
    container_cpus: Option<f64>,
    pod_cpus: Option<f64>,
    weight: Option<f64>,
    cpus: Option<String>,
    #[serde(default)]
    busy_console: bool,
    #[serde(default)]
    from: f64,
    to: Option<f64>,
    #[serde(default)]
    arriving: bool,
}

#[derive(Deserialize, Clone, Copy)]
struct Phases {
    busy_s: f64,
    calm_s: f64,
    calm_duty: f64,
}

#[derive(Deserialize, Clone, Copy)]
struct Emulator {
    threads: u32,
    duty: f64,
}

#[derive(Deserialize)]
struct Point {
    at: f64,
    node: Node,
    pods: BTreeMap<String, Counters>,
}

#[derive(Deserialize)]
struct Node {
    pressure: Pressure,
}

#[derive(Deserialize)]
struct Pressure {
    cpu: (u64, u64),
}

#[derive(Deserialize)]
struct Counters {
    pod: Cgroup,
    container: Cgroup,
    threads: BTreeMap<u32, (u64, u64)>,
}

#[derive(Deserialize)]
struct Cgroup {
    throttled_us: u64,
}

/// Judged from this second on, as in the lab.
const JUDGED_FROM: f64 = 9.0;
/// Scenarios of reaction are longer than this, and change on purpose.
const LONGEST: f64 = 31.0;

pub fn extract(records: impl BufRead, out: &mut impl Write) -> anyhow::Result<()> {
    for (number, line) in records.lines().enumerate() {
        let record: Record =
            serde_json::from_str(&line?).with_context(|| format!("record {}", number + 1))?;
        if record.scenario.real_time || record.scenario.seconds > LONGEST {
            continue;
        }
        for pod in pods(&record) {
            writeln!(out, "{}", pod.row())?;
        }
    }
    Ok(())
}

pub fn header(out: &mut impl Write) -> anyhow::Result<()> {
    Ok(writeln!(out, "{HEADER}")?)
}

fn pods(record: &Record) -> Vec<Pod> {
    let judged: Vec<&Point> =
        record.points.iter().filter(|point| point.at >= JUDGED_FROM).collect();
    let some = judged.first().zip(judged.last()).map_or(0.0, |(first, last)| {
        let micros = last.node.pressure.cpu.0.saturating_sub(first.node.pressure.cpu.0);
        micros as f64 / 1e6 / (last.at - first.at)
    });
    let mut all = Vec::new();
    for pod in &record.scenario.pod {
        let copies = pod.copies.unwrap_or(1);
        for copy in 0..copies {
            let name = if copies == 1 { pod.name.clone() } else { format!("{}-{copy}", pod.name) };
            let kind = match (pod.vm, pod.arriving) {
                (true, false) => Kind::Vm,
                (_, _) => Kind::Other,
            };
            let (ran, waited) = measured(record, &judged, pod, &name);
            all.push(described(record, pod, kind, (name, all.len()), (some, ran, waited)));
        }
    }
    for daemon in &record.scenario.daemon {
        let place = (daemon.name.clone(), all.len());
        all.push(described(record, daemon, Kind::Daemon, place, (some, 0.0, 0.0)));
    }
    all
}

fn described(
    record: &Record,
    pod: &LabPod,
    kind: Kind,
    (name, number): (String, usize),
    (some, ran, waited): (f64, f64, f64),
) -> Pod {
    let release = record.kernel.split('.').take(2).collect::<Vec<_>>().join(".");
    Pod {
        kernel: release,
        scenario: record.scenario.name.clone(),
        node_cpus: record.scenario.vcpus,
        node_some: some,
        name,
        number,
        kind,
        threads: pod.threads,
        duty: pod.duty,
        together: pod.wake_together,
        phases: pod.phases.map(|phases| (phases.busy_s, phases.calm_s, phases.calm_duty)),
        emulator: pod.emulator.map(|emulator| (emulator.threads, emulator.duty)),
        quota: pod.quota(),
        weight: pod.weight.unwrap_or(100.0),
        has_cpuset: pod.cpus.is_some(),
        busy_console: pod.busy_console,
        from: pod.from,
        to: pod.to,
        ran,
        waited,
    }
}

impl LabPod {
    fn quota(&self) -> Option<f64> {
        [self.container_cpus, self.pod_cpus].into_iter().flatten().reduce(f64::min)
    }
}

/// CPUs that the vCPU threads ran on and waited for because of the node, over all judged windows. As in
/// the lab, what the own quota explains is subtracted, and no more counts than the quota leaves.
fn measured(record: &Record, judged: &[&Point], pod: &LabPod, name: &str) -> (f64, f64) {
    let (mut ran, mut waited, mut windows) = (0.0, 0.0, 0.0);
    for pair in judged.windows(2) {
        let [before, after] = pair else { continue };
        let (Some(old), Some(new)) = (before.pods.get(name), after.pods.get(name)) else {
            continue;
        };
        let window = after.at - before.at;
        let seconds =
            |old: u64, new: u64, per_second: f64| new.saturating_sub(old) as f64 / per_second;
        let (mut run, mut delay) = (0.0, 0.0);
        for (thread, &(ran_ns, delayed_ns)) in &new.threads {
            let Some(&(old_ran, old_delayed)) = old.threads.get(thread) else { continue };
            let thread_ran = seconds(old_ran, ran_ns, 1e9);
            run += thread_ran / window;
            delay +=
                seconds(old_delayed, delayed_ns, 1e9).min((window - thread_ran).max(0.0)) / window;
        }
        let throttled = seconds(old.container.throttled_us, new.container.throttled_us, 1e6)
            .max(seconds(old.pod.throttled_us, new.pod.throttled_us, 1e6));
        let queued = (f64::from(pod.threads) / f64::from(record.scenario.vcpus)).max(1.0);
        let above_quota =
            pod.quota().map_or(0.0, |quota| f64::from(pod.threads) * pod.mean_duty() - quota);
        let own = (throttled / window * queued).max(above_quota).clamp(0.0, delay);
        let left = pod.quota().map_or(f64::INFINITY, |quota| (quota - run).max(0.0));
        ran += run;
        waited += (delay - own).min(left);
        windows += 1.0;
    }
    if windows > 0.0 { (ran / windows, waited / windows) } else { (0.0, 0.0) }
}

impl LabPod {
    fn mean_duty(&self) -> f64 {
        self.phases.map_or(self.duty, |phases| {
            let cycle = phases.busy_s + phases.calm_s;
            (phases.busy_s * self.duty + phases.calm_s * phases.calm_duty) / cycle
        })
    }
}
