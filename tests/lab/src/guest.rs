//! The guest's program: one scenario after the other, with the agents beside it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::agent::Agents;
use crate::alone;
use crate::clock::shorten_turns;
use crate::counters::{
    Cgroup, MemoryIo, Node, PodCounters, Point, delays, emulator_threads, text, threads,
};
use crate::kvm_run;
use crate::load::{clock, now, sleep_until};
use crate::node;
use crate::process::{finish, report_of, start_load, work_of};
use crate::progress::{LoadReport, Windows};
use crate::record::{Guests, Record};
use crate::scenario::{JUDGED_FROM, Load, Pod, Scenario, WINDOW};
use crate::taskstats::Taskstats;
use crate::tree::{self, PodTree};

pub const PODS_FILE: &str = "/pods.json";

/// Runs all scenarios of a folder and writes a record of each, one a line.
pub fn run_all(folder: &Path, records: &mut dyn Write) -> anyhow::Result<()> {
    // A node's root cgroup has only kernel threads.
    fs::write(tree::system("psi-lab")?.join("cgroup.procs"), "0").context("cgroup.procs")?;
    let scenarios = Scenario::read_all(folder, &[])?;
    if scenarios.iter().any(|scenario| scenario.vcpus > 2) {
        shorten_turns()?;
    }
    wait_for_calm();
    let kernel = text(Path::new("/proc/sys/kernel/osrelease")).trim().to_owned();
    for scenario in scenarios {
        let name = scenario.name.clone();
        println!("{name}: from {:.0} s", now());
        let run = if scenario.has_guests() { kvm_run::run } else { run };
        let record = run(scenario, &kernel).with_context(|| name)?;
        serde_json::to_writer(&mut *records, &record)?;
        records.write_all(b"\n")?;
    }
    Ok(())
}

/// After boot the kernel is busy for some seconds.
fn wait_for_calm() {
    for _ in 0..20 {
        let before = Node::read(&tree::kubepods(), false);
        std::thread::sleep(Duration::from_secs(1));
        let after = Node::read(&tree::kubepods(), false);
        if (after.busy - before.busy) * 50 < after.total - before.total {
            return;
        }
    }
}

/// A pod of the scenario, and its load while it runs.
struct Running<'a> {
    pod: &'a Pod,
    tree: PodTree,
    load: Option<Child>,
    console: Option<Child>,
    ended: bool,
}

fn run(scenario: Scenario, kernel: &str) -> anyhow::Result<Record> {
    let taskstats = if scenario.real_time { Some(Taskstats::open()?) } else { None };
    node::set_up(&scenario)?;
    let alone = match &taskstats {
        Some(taskstats) => alone::run_all(&scenario, taskstats)?,
        None => BTreeMap::new(),
    };
    let mut pods = Vec::new();
    for pod in &scenario.pods {
        for name in pod.names() {
            let tree = PodTree::make(pod, &name, pods.len() + 1)?;
            pods.push(Running { pod, tree, load: None, console: None, ended: false });
        }
    }
    write_pods(&pods, 0.0)?;
    let agent_cgroup = tree::system("psi-agent")?;
    let agents = Agents::start(&scenario, &agent_cgroup, Path::new(PODS_FILE))?;
    let (start, start_of_day) = (now() + 1.0, clock() + 1.0);
    let mut daemons = Vec::new();
    for daemon in &scenario.daemons {
        let cgroup = tree::system(&daemon.name)?;
        let judged = (start + JUDGED_FROM, start + scenario.seconds);
        let child = start_load(&cgroup, daemon.load, 0, judged, None)?;
        daemons.push((child, cgroup));
    }
    let (mut points, mut psi, mut run_delay) = (Vec::new(), Vec::new(), Vec::new());
    let mut answers = Vec::new();
    let mut at = 0.0;
    while at <= scenario.seconds {
        sleep_until(start + at);
        let changed = begin_and_end(&mut pods, &scenario, at, start)?;
        points.push(point(now() - start, &pods, taskstats.as_ref())?);
        if changed {
            write_pods(&pods, at)?;
        }
        // An answer is of the agent's latest tick, and a load on an emulated CPU.
        if at > JUDGED_FROM && !scenario.is_long() {
            let (first, second) = agents.snapshots();
            psi.push(first);
            run_delay.extend(second);
        }
        // The first sample has no window.
        if let Some(agent) = agents.run_delay.as_ref().filter(|_| scenario.answers && at > 0.0) {
            answers.push((agent.get("/metrics")?, agent.get("/snapshot.json")?));
        }
        at += WINDOW;
    }
    // The loads count to the very end.
    sleep_until(start + scenario.seconds + 0.5);
    if scenario.real_time {
        wait_for_reports(&mut pods)?;
    }
    let reports = pods.iter().map(|running| {
        let name = running.tree.name.clone();
        let report = report(&running.pod.load, &name).with_context(|| name.clone())?;
        Ok((name, report))
    });
    let reports = reports.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
    for running in &mut pods {
        end(running)?;
    }
    for (child, cgroup) in daemons {
        finish(child, &cgroup)?;
    }
    let published = agents.run_delay.as_ref().unwrap_or(&agents.psi).published(start_of_day)?;
    agents.finish(&agent_cgroup)?;
    node::clean_up(&scenario)?;
    let (kernel, scenario) = (kernel.to_owned(), scenario.clone());
    Ok(Record {
        kernel,
        scenario,
        points,
        reports,
        alone,
        guests: Guests::default(),
        psi,
        run_delay,
        answers,
        published,
    })
}

/// What a pod's load measured.
fn report(load: &Load, name: &str) -> anyhow::Result<LoadReport> {
    let report = report_of(name);
    Ok(if load.is_cpu() {
        LoadReport { work: 0.0, windows: Windows::read(&fs::read(report)?) }
    } else {
        LoadReport { work: work_of(name)?, windows: Vec::new() }
    })
}

/// A load that sleeps for memory or a disk reports after that: within 20 s, or not at all.
fn wait_for_reports(pods: &mut [Running<'_>]) -> anyhow::Result<()> {
    for _ in 0..200 {
        if pods.iter().all(|running| !text(&report_of(&running.tree.name)).is_empty()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for running in pods {
        if let Some(load) = &mut running.load
            && let Some(status) = load.try_wait()?
        {
            bail!("{}: its load ended: {status}", running.tree.name);
        }
    }
    Ok(())
}

/// Starts and ends the pods that are due. Returns whether there were any.
fn begin_and_end(
    pods: &mut [Running<'_>],
    scenario: &Scenario,
    at: f64,
    start: f64,
) -> anyhow::Result<bool> {
    let mut changed = false;
    for (number, running) in (0..).zip(pods) {
        let pod = running.pod;
        let ends = pod.ends(scenario);
        let judged = (start + JUDGED_FROM, start + scenario.seconds);
        if running.load.is_none() && !running.ended && pod.from <= at && at < ends {
            let report = report_of(&running.tree.name);
            let container = &running.tree.container;
            running.load = Some(start_load(container, pod.load, number, judged, Some(&report))?);
            if let Some(console) = running.tree.console.as_ref().filter(|_| pod.busy_console) {
                let writes = Load::BUSY;
                running.console = Some(start_load(console, writes, 0, judged, None)?);
            }
            changed = true;
        }
        if !running.ended && at >= ends && ends < scenario.seconds {
            end(running)?;
            changed = true;
        }
    }
    Ok(changed)
}

fn end(running: &mut Running<'_>) -> anyhow::Result<()> {
    if !running.ended {
        running.ended = true;
        running.tree.remove()?;
        for mut child in running.load.take().into_iter().chain(running.console.take()) {
            child.wait()?;
        }
    }
    Ok(())
}

/// Replaces the agents' list of pods by those that run now.
fn write_pods(pods: &[Running<'_>], at: f64) -> anyhow::Result<()> {
    let here = pods.iter().filter(|running| running.pod.from <= at && !running.ended);
    replace_pods_file(here.map(|running| running.tree.described()).collect())
}

/// Replaces the agents' list of pods, atomically.
pub fn replace_pods_file(items: Vec<Value>) -> anyhow::Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let new = format!("{PODS_FILE}.new");
    fs::write(&new, list.to_string())?;
    fs::rename(new, PODS_FILE)?;
    Ok(())
}

fn point(at: f64, pods: &[Running<'_>], taskstats: Option<&Taskstats>) -> anyhow::Result<Point> {
    let there = pods.iter().filter(|running| running.load.is_some() && !running.ended);
    read_point(at, there.map(|running| (running.pod, &running.tree)), taskstats)
}

/// The counters of the node and of these pods.
pub fn read_point<'a>(
    at: f64,
    pods: impl Iterator<Item = (&'a Pod, &'a PodTree)>,
    taskstats: Option<&Taskstats>,
) -> anyhow::Result<Point> {
    let counters = |(pod, tree): (&Pod, &PodTree)| {
        let all = taskstats.is_some();
        let limited = pod.cpu_limit().is_some();
        let emulator = pod.load.emulator.is_some() || pod.guest.is_some();
        let threads = threads(&tree.container, emulator);
        let (pod_counters, container) = if limited || emulator || all {
            (Cgroup::read(&tree.pod, all), Cgroup::read(&tree.container, all))
        } else {
            (Cgroup::default(), Cgroup::read_unlimited(&tree.container, &threads))
        };
        let mut counters = PodCounters {
            pod: pod_counters,
            container,
            threads,
            emulator: BTreeMap::new(),
            memory_io: None,
            delays: BTreeMap::new(),
        };
        if pod.guest.is_some() {
            counters.emulator = emulator_threads(&tree.container);
        }
        if let Some(taskstats) = taskstats {
            counters.memory_io = Some(MemoryIo::of_container(&tree.container));
            counters.delays = delays(counters.threads.keys(), taskstats)?;
        }
        Ok((tree.name.clone(), counters))
    };
    let kubepods = tree::kubepods();
    let mut node = Node::read(&kubepods, taskstats.is_some());
    node.memory_io = taskstats.map(|_| MemoryIo::of_node(&kubepods));
    let pods = pods.map(counters).collect::<anyhow::Result<_>>()?;
    Ok(Point { at, clock: clock(), emulated: Vec::new(), node, pods })
}
