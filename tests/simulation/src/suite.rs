//! Many runs at once, and the scenarios of docs/benefit.md.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::arm::{Arm, Overrides};
use crate::cluster::{Shape, Size};
use crate::judge::Outcome;
use crate::population::Population;
use crate::report::{Goal, Row};
use crate::simulation::run;
use crate::trace::Trace;

/// Nodes of a cluster, before their number is known.
#[derive(Debug, Clone, clap::Args)]
pub struct Nodes {
    /// CPUs of a node; if repeated, nodes have these sizes by turns
    #[arg(long, default_values_t = [32], value_parser = clap::value_parser!(u32).range(1..))]
    pub node_cpus: Vec<u32>,
    /// Memory of the first node, in GiB; others have as much for each CPU
    #[arg(long, default_value_t = 768)]
    pub node_memory_gib: u64,
    /// vCPUs of VMs for each CPU, which decides the number of nodes
    #[arg(long, default_value_t = 3.0)]
    pub overcommit: f64,
    /// Share of VMs beside which a container is throttled all the time, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    pub throttled: f64,
}

impl Nodes {
    pub fn shape(&self, trace: &Trace) -> Shape {
        let cpus = trace.most_vcpus() / self.overcommit;
        let memory_mib_per_cpu = self.node_memory_gib * 1024 / u64::from(self.node_cpus[0]);
        let mut shape = Shape { nodes: Vec::new(), throttled: self.throttled };
        for &cpus_of_one in self.node_cpus.iter().cycle() {
            if shape.nodes.len() >= 2 && shape.cpus() >= cpus {
                break;
            }
            let memory_mib = u64::from(cpus_of_one) * memory_mib_per_cpu;
            shape.nodes.push(Size { cpus: cpus_of_one, memory_mib });
        }
        shape
    }
}

/// A scenario of docs/benefit.md.
#[derive(Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub population: Population,
    pub overcommit: f64,
    pub throttled: f64,
    pub goal: Goal,
}

pub const SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "contended",
        about: "VMs of all kinds, three vCPUs for each CPU",
        population: Population::Mixed,
        overcommit: 3.0,
        throttled: 0.0,
        goal: Goal::Contended,
    },
    Scenario {
        name: "calm",
        about: "the same VMs, one vCPU for each CPU",
        population: Population::Mixed,
        overcommit: 1.0,
        throttled: 0.0,
        goal: Goal::Calm,
    },
    Scenario {
        name: "throttled",
        about: "two CPUs for each vCPU, and a throttled container beside every tenth VM",
        population: Population::Mixed,
        overcommit: 0.5,
        throttled: 0.1,
        goal: Goal::ThrottledAlone,
    },
];

/// Runs each rebalancer with each seed, on all CPUs. `trace_of` makes the demand of a seed.
pub fn run_all(
    arms: &[Arm],
    seeds: u64,
    nodes: &Nodes,
    overrides: Overrides,
    trace_of: impl Fn(u64) -> Trace + Sync,
) -> anyhow::Result<Vec<Row>> {
    let jobs: Vec<(u64, Arm)> =
        (1..=seeds).flat_map(|seed| arms.iter().map(move |arm| (seed, *arm))).collect();
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<anyhow::Result<Outcome>>>> =
        Mutex::new(jobs.iter().map(|_| None).collect());
    let work = || {
        let mut trace: Option<(u64, Trace)> = None;
        while let Some(&(seed, arm)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if trace.as_ref().is_none_or(|known| known.0 != seed) {
                trace = Some((seed, trace_of(seed)));
            }
            let Some((_, trace)) = &trace else { continue };
            let outcome = run(trace, &nodes.shape(trace), arm, overrides, seed);
            let at = jobs.iter().position(|job| *job == (seed, arm));
            if let (Some(at), Ok(mut all)) = (at, outcomes.lock()) {
                all[at] = Some(outcome);
            }
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let mut rows: Vec<Row> = arms.iter().map(|&arm| Row { arm, outcomes: Vec::new() }).collect();
    let outcomes = outcomes.into_inner().unwrap_or_default();
    for ((_, arm), outcome) in jobs.iter().zip(outcomes.into_iter().flatten()) {
        let row = rows.iter_mut().find(|row| row.arm == *arm);
        if let Some(row) = row {
            row.outcomes.push(outcome?);
        }
    }
    Ok(rows)
}
