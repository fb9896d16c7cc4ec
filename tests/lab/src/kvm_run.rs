//! A scenario whose VMs are KVM guests: windows in which one guest of each kind is alone on the node, all other
//! pods being frozen, before and after the judged time, in which all of them run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::{Context, bail};

use crate::agent::Agents;
use crate::counters::Point;
use crate::guest::{PODS_FILE, read_point, replace_pods_file};
use crate::kvm::{GuestProgress, Vm};
use crate::kvm_truth::{Needs, is_slowed_by_itself, needs};
use crate::load::{clock, now, sleep_until};
use crate::node;
use crate::process::{finish, start_load};
use crate::record::{Answer, GuestAlone, Guests, Record};
use crate::scenario::{JUDGED_FROM, Load, Pod, Scenario, WINDOW};
use crate::taskstats::Taskstats;
use crate::tree::{self, PodTree};

/// A guest that does not report after this time stands still, seconds. An emulated one needs some 20 s.
const BOOT: f64 = 60.0;
/// How often a guest that stands still is started.
const TRIES: usize = 5;
/// A guest that has reported so often does its load.
const BOOTED: usize = 6;
/// A guest alone: the time until it runs as always, and how long it is measured, seconds. One that needs memory
/// first has to touch all of it: KVM maps each page again.
const SETTLES: f64 = 2.0;
const SETTLES_WITH_MEMORY: f64 = 8.0;
const ALONE: f64 = 12.0;
/// The CPU of a guest of one vCPU that computes alone: how fast this one is emulated is known.
const ITS_CPU: &str = "0";
/// The judged time of a load outside KVM guests, which has no report.
const NEVER: (f64, f64) = (1e9, 1e9);

/// A pod of the scenario, and what runs in it.
struct Running<'a> {
    pod: &'a Pod,
    tree: PodTree,
    vm: Option<Vm>,
    processes: Vec<Child>,
}

/// The node and all that runs on it.
struct Node<'a> {
    scenario: &'a Scenario,
    pods: Vec<Running<'a>>,
    agents: Agents,
    taskstats: Taskstats,
    filler: Filler,
}

/// Keeps all CPUs busy while a guest that computes is alone, and makes its CPU switch as neighbours would: an
/// emulated CPU is faster while others sleep, and where it has one thing to do.
struct Filler {
    cgroup: PathBuf,
    process: Child,
}

/// What the judged time gave.
#[derive(Default)]
struct Judged {
    points: Vec<Point>,
    psi: Vec<Answer>,
    run_delay: Vec<Answer>,
    guests: Guests,
}

pub fn run(scenario: Scenario, kernel: &str) -> anyhow::Result<Record> {
    let taskstats = Taskstats::open()?;
    node::set_up(&scenario)?;
    let mut pods = Vec::new();
    for pod in &scenario.pods {
        for name in pod.names() {
            let tree = PodTree::make(pod, &name, pods.len() + 1)?;
            pods.push(Running { pod, tree, vm: None, processes: Vec::new() });
        }
    }
    replace_pods_file(pods.iter().map(|running| running.tree.described()).collect())?;
    boot(&mut pods)?;
    let agent_cgroup = tree::system("psi-agent")?;
    let agents = Agents::start(&scenario, &agent_cgroup, Path::new(PODS_FILE))?;
    let start_of_day = clock();
    let filler = Filler::start(&scenario)?;
    let mut node = Node { scenario: &scenario, pods, agents, taskstats, filler };
    let judged = node.run()?;
    let Node { pods, agents, filler, .. } = node;
    finish(filler.process, &filler.cgroup)?;
    for running in pods {
        running.end()?;
    }
    let published = agents.run_delay.as_ref().unwrap_or(&agents.psi).published(start_of_day)?;
    agents.finish(&agent_cgroup)?;
    node::clean_up(&scenario)?;
    let Judged { points, psi, run_delay, guests } = judged;
    Ok(Record {
        kernel: kernel.to_owned(),
        scenario: scenario.clone(),
        points,
        reports: BTreeMap::new(),
        alone: BTreeMap::new(),
        guests,
        psi,
        run_delay,
        answers: Vec::new(),
        published,
    })
}

/// Starts all guests, one after the other since they boot slowly, and then all other loads.
fn boot(pods: &mut [Running<'_>]) -> anyhow::Result<()> {
    let started = now();
    for running in &mut *pods {
        running.boot()?;
        running.tree.freeze(true)?;
    }
    println!("booted in {:.0} s", now() - started);
    for (number, running) in (0..).zip(pods) {
        let container = &running.tree.container;
        // In the container of a guest only what stands for more threads of its emulator.
        let threads = if running.vm.is_some() { 0 } else { running.pod.load.threads };
        if threads > 0 || running.pod.load.emulator.is_some() {
            let load = Load { threads, ..running.pod.load };
            running.processes.push(start_load(container, load, number, NEVER, None)?);
        }
        if let Some(less) = running.pod.short_mib {
            tree::limit_to_less(&running.tree.pod, less)?;
        }
    }
    Ok(())
}

impl Running<'_> {
    /// Starts its guest, if it has one, until it does its load.
    fn boot(&mut self) -> anyhow::Result<()> {
        let Some(guest) = self.pod.guest else { return Ok(()) };
        let (name, container) = (&self.tree.name, &self.tree.container);
        for _ in 0..TRIES {
            let vm = Vm::start(self.pod, guest, name, container)?;
            while vm.reports() < BOOTED && now() < vm.started + BOOT {
                sleep_until(now() + 0.2);
            }
            if vm.reports() >= BOOTED {
                self.vm = Some(vm);
                return Ok(());
            }
            vm.kill()?;
        }
        bail!("{name}: its guest does not report")
    }

    fn end(self) -> anyhow::Result<()> {
        self.tree.freeze(false)?;
        self.tree.remove()?;
        for mut process in self.processes {
            process.wait()?;
        }
        self.vm.map_or(Ok(()), Vm::wait)
    }
}

impl Filler {
    fn start(scenario: &Scenario) -> anyhow::Result<Self> {
        let cgroup = tree::filler()?;
        let load = Load { threads: scenario.vcpus, ..Load::BUSY };
        let process = start_load(&cgroup, load, 0, NEVER, None)?;
        let filler = Self { cgroup, process };
        filler.run(None)?;
        Ok(filler)
    }

    /// Runs it beside a guest, or not at all. A guest that has a limit of its own leaves CPU time, which is all
    /// that the filler takes then.
    fn run(&self, beside: Option<&Pod>) -> anyhow::Result<()> {
        let Some(pod) = beside else { return tree::freeze(&self.cgroup, true) };
        let idle = if is_slowed_by_itself(pod) { "1" } else { "0" };
        fs::write(self.cgroup.join("cpu.idle"), idle).context("cpu.idle")?;
        tree::freeze(&self.cgroup, false)
    }
}

impl Node<'_> {
    /// Alone, beside others, and alone again.
    fn run(&mut self) -> anyhow::Result<Judged> {
        let before = self.alone()?;
        let mut judged = self.beside()?;
        judged.guests.alone = before;
        judged.guests.alone.extend(self.alone()?);
        Ok(judged)
    }

    /// One guest of each kind after the other, while all else is frozen.
    fn alone(&mut self) -> anyhow::Result<Vec<GuestAlone>> {
        let mut all: Vec<GuestAlone> = Vec::new();
        for at in 0..self.pods.len() {
            let Some(running) = self.pods.get(at) else { continue };
            let kind = running.pod.name.clone();
            if running.vm.is_none() || all.iter().any(|alone| alone.pod == kind) {
                continue;
            }
            for (number, other) in self.pods.iter().enumerate() {
                other.tree.freeze(number != at)?;
            }
            let needs = needs(self.scenario);
            let own = self.pods.get(at).and_then(|running| running.pod.cpus.clone());
            if let Some(running) = self.pods.get(at).filter(|_| needs == Needs::Cpu) {
                if running.pod.load.threads == 1 {
                    running.tree.move_to(ITS_CPU)?;
                }
                self.filler.run(Some(running.pod))?;
            }
            let memory = needs == Needs::Memory;
            sleep_until(now() + if memory { SETTLES_WITH_MEMORY } else { SETTLES });
            let (from, before) = (now(), self.point(0.0)?);
            sleep_until(from + ALONE);
            let (until, after) = (now(), self.point(ALONE)?);
            let progress = self.progress(at, from, until)?;
            println!("{kind} alone: {progress:?}");
            if let Some(running) = self.pods.get(at).filter(|_| needs == Needs::Cpu) {
                let all = format!("0-{}", self.scenario.vcpus - 1);
                running.tree.move_to(own.as_deref().unwrap_or(&all))?;
            }
            all.push(GuestAlone { pod: kind, progress, before, after });
        }
        self.filler.run(None)?;
        Ok(all)
    }

    /// All of them, with the shortage that the scenario has.
    fn beside(&mut self) -> anyhow::Result<Judged> {
        let kubepods = tree::kubepods();
        if let Some(less) = self.scenario.short_mib {
            // Reclaim would not keep up with guests that run.
            self.freeze_all(true)?;
            tree::limit_to_less(&kubepods, less)?;
            if let Some(seconds) = self.scenario.paused_s {
                tree::limit_kubepods(None)?;
                sleep_until(now() + seconds);
            }
        }
        self.freeze_all(false)?;
        let start = now() + 1.0;
        let mut judged = Judged::default();
        let mut at = 0.0;
        while at <= self.scenario.seconds {
            sleep_until(start + at);
            judged.points.push(self.point(now() - start)?);
            if at > JUDGED_FROM {
                let (first, second) = self.agents.snapshots();
                judged.psi.push(first);
                judged.run_delay.extend(second);
                for number in 0..self.pods.len() {
                    let Some(running) = self.pods.get(number) else { continue };
                    if running.vm.is_some() {
                        let name = running.tree.name.clone();
                        let progress = self.progress(number, start + at - WINDOW, start + at)?;
                        println!("{name} beside: {progress:?}");
                        judged.guests.beside.entry(name).or_default().push(progress);
                    }
                }
            }
            at += WINDOW;
        }
        if self.scenario.short_mib.is_some() {
            tree::limit_kubepods(None)?;
            self.freeze_all(true)?;
            node::empty_swap(self.scenario)?;
        }
        Ok(judged)
    }

    fn freeze_all(&self, frozen: bool) -> anyhow::Result<()> {
        self.pods.iter().try_for_each(|running| running.tree.freeze(frozen))
    }

    fn progress(&mut self, number: usize, from: f64, until: f64) -> anyhow::Result<GuestProgress> {
        let running = self.pods.get_mut(number).context("no such pod")?;
        let name = running.tree.name.clone();
        let vm = running.vm.as_mut().context("no guest")?;
        vm.check().with_context(|| name.clone())?;
        vm.progress(from, until).with_context(|| format!("{name}: no reports"))
    }

    fn point(&self, at: f64) -> anyhow::Result<Point> {
        let pods = self.pods.iter().map(|running| (running.pod, &running.tree));
        read_point(at, pods, Some(&self.taskstats))
    }
}
