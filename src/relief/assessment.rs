//! The score of each tick, and how a move would change it.

use std::collections::HashMap;
use std::time::Duration;

use super::departure::Departures;
use super::node::{Contention, Demand, Node};
use super::slow_demand::{DemandAverages, average};
use crate::contract::{NodePressure, Thresholds};
use crate::kernel::cgroup_tree::CgroupId;
use crate::sample::Tick;
use crate::score::{ContainerScore, MovingAverage, NodeScore, PerResource, Resource, Scorer};
use crate::waiting::{Population, Ratio};

/// If the VMs together wait for less than this number of CPUs, relief is 0.
const NEGLIGIBLE: f64 = 0.01;

/// A score, and predictions.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    pub score: NodeScore,
    /// Busy vCPUs that can be added before the level is `medium`; `None` without a score, or if CPU
    /// is not part of it.
    pub headroom_cpus: Option<f64>,
    /// What would change if a VM left, by its container; empty without a score.
    pub relief: HashMap<CgroupId, Relief>,
    /// Predictions by slow demand; `None` without a score, while the agent has too little history, and while the
    /// demand of a VM is unknown.
    pub slow: Option<SlowAssessment>,
}

impl From<NodeScore> for Assessment {
    /// An assessment without predictions.
    fn from(score: NodeScore) -> Self {
        Self { score, headroom_cpus: None, relief: HashMap::new(), slow: None }
    }
}

/// Predictions by slow demand.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowAssessment {
    /// Busy vCPUs that can be added before the level is `medium`.
    pub headroom_cpus: f64,
    /// CPUs that the VMs would use if they did not wait.
    pub vms: f64,
    /// CPUs that all else uses.
    pub others: f64,
    /// CPUs' worth of time that the VMs wait for CPUs and for memory because of the node.
    pub waiting: f64,
    /// What would change if a VM left, by its container.
    pub relief: HashMap<CgroupId, Relief>,
}

/// What would change if a VM left the node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relief {
    /// CPUs that it would use if it did not wait.
    pub demand: f64,
    /// CPUs' worth of waiting for CPUs and for memory that would end: its own, and that of the other
    /// VMs.
    pub cpus: f64,
    /// The score that the node would have without the VM.
    pub score_without: Ratio,
}

/// Computes scores and predictions from the rates of successive ticks.
#[derive(Debug)]
pub struct Assessor {
    scorer: Scorer,
    /// Score at which the level `medium` begins, 0 to 1.
    medium: f64,
    /// Least history of slow demand.
    settle: Duration,
    /// Fast and slow averages of the scored containers, in the score's order.
    demands: Vec<(CgroupId, [DemandAverages; 2])>,
    population: Option<Population>,
    /// CPUs that all else than the VMs uses, averaged over 30 min.
    others: MovingAverage,
    /// CPUs that are busy beside another one of their core, averaged over 30 min.
    smt_overlap: MovingAverage,
}

impl Assessor {
    /// An assessor without history. Slow demand needs a history of `settle`, and of each VM for its waiting.
    pub fn new(counted: Vec<Resource>, thresholds: Thresholds, settle: Duration) -> Self {
        Self {
            scorer: Scorer::new(counted),
            medium: f64::from(thresholds.medium()) / 100.0,
            settle,
            demands: Vec::new(),
            population: None,
            others: average(),
            smt_overlap: average(),
        }
    }

    /// Continues from the values that an earlier agent published.
    pub fn adopt(&mut self, published: &NodePressure) {
        self.scorer.adopt(published);
    }

    /// The assessment of a single window, unsmoothed.
    pub fn of_one_window(
        counted: Vec<Resource>,
        thresholds: Thresholds,
        tick: &Tick,
    ) -> Assessment {
        let score = Scorer::of_one_window(counted.clone(), tick);
        Self::new(counted, thresholds, Duration::MAX).assess(score, tick)
    }

    /// The assessment after one more tick.
    pub fn advance(&mut self, tick: &Tick) -> Assessment {
        let score = self.scorer.advance(tick);
        self.assess(score, tick)
    }

    fn assess(&mut self, score: NodeScore, tick: &Tick) -> Assessment {
        let window = tick.window.unwrap_or_default();
        let mut before: HashMap<_, _> = std::mem::take(&mut self.demands).into_iter().collect();
        let averages = |ContainerScore { measured, .. }: &ContainerScore| {
            let id = measured.cgroup.id;
            let averages = before.remove(&id).unwrap_or_else(DemandAverages::fast_and_slow);
            (id, averages.map(|one| one.advanced(measured, window)))
        };
        self.demands = score.containers.iter().map(averages).collect();
        self.advance_others(&score, tick);
        self.smt_overlap.advance(tick.node.smt_overlap, window);
        let predicted = score.score.and_then(|now| Some((now, self.node(&score, tick)?)));
        let Some((now, node)) = predicted else { return score.into() };
        let counts_cpu = self.scorer.counted.contains(&Resource::Cpu);
        let headroom_cpus = counts_cpu.then(|| node.headroom_cpus(self.medium));
        let relief = self.relief(&score, now, &node);
        let slow = counts_cpu.then(|| self.slow(&score, now, &node)).flatten();
        Assessment { score, headroom_cpus, relief, slow }
    }

    /// What others use is what the VMs do not: unknown while a VM's use is, and all where no VMs are scored.
    fn advance_others(&mut self, score: &NodeScore, tick: &Tick) {
        if self.population != score.population {
            (self.population, self.others) = (score.population, average());
        }
        let used = || {
            tick.scored.as_ref()?;
            let of_vms: Option<f64> = score.vms().iter().map(|vm| vm.measured.used).sum();
            Some(tick.node.cpus? as f64 * tick.node.utilization?.get() - of_vms?)
        };
        let used = used().map(|used| used.max(0.0));
        self.others.advance(used, tick.window.unwrap_or_default());
    }

    /// Predictions for the same node by slow demand. Others share no CPUs that become free: what they
    /// use is not available. Without VMs, all are others, as they are once a VM has arrived.
    fn slow(&self, score: &NodeScore, now: Ratio, node: &Node) -> Option<SlowAssessment> {
        let vms = || score.vms().iter().zip(&self.demands).map(|(vm, (_, [_, slow]))| (vm, slow));
        if vms().any(|(_, slow)| slow.is_unknown()) {
            return None;
        }
        let others = self.others.mean().filter(|_| self.others.covers(self.settle))?;
        // What a VM would use in addition counts as its waiting, so that the CPUs that become free are given
        // to those that need them.
        let demand = |(vm, slow): (&ContainerScore, &DemandAverages)| {
            let demand = slow.demand(vm);
            let waiting = (slow.undelayed() - demand.used).max(0.0);
            // A VM that waits while it starts is no reason for a move.
            Demand { waiting: if slow.covers(self.settle) { waiting } else { 0.0 }, ..demand }
        };
        let demands: Vec<Demand> = vms().map(demand).collect();
        let used: f64 = demands.iter().map(|demand| demand.used).sum();
        let idle = (f64::from(node.cpus) - used - others).max(0.0);
        let smt_overlap = self.smt_overlap.mean().unwrap_or(0.0);
        // Of containers, too, which are not among the demands.
        let memory_now = node.memory(None).memory;
        let node = Node { idle, demands, smt_overlap, ..node.clone() };
        Some(SlowAssessment {
            headroom_cpus: if memory_now < self.medium {
                node.headroom_cpus(self.medium)
            } else {
                0.0
            },
            vms: vms().map(|(_, slow)| slow.undelayed()).sum(),
            others,
            waiting: vms().map(|(_, slow)| slow.all_waiting()).sum(),
            relief: self.relief(score, now, &node),
        })
    }

    fn relief(&self, score: &NodeScore, now: Ratio, node: &Node) -> HashMap<CgroupId, Relief> {
        let contention = node.contention();
        let departures =
            (contention.waiting >= NEGLIGIBLE).then(|| Departures::new(node, contention));
        let relief_of = |one: &Demand| match &departures {
            None => Relief { demand: one.wanted(), cpus: 0.0, score_without: now },
            Some(departures) => {
                let (left, cpus) = departures.without(one);
                let score_without = self.score_without(score, &departures.now, &left);
                Relief { demand: one.wanted(), cpus, score_without }
            }
        };
        let vms = score.vms().iter().zip(&node.demands);
        vms.map(|(vm, demand)| (vm.measured.cgroup.id, relief_of(demand))).collect()
    }

    /// The score minus the predicted decrease, so that it equals the score if nothing changes. It can
    /// increase: without a calm VM, those that wait are a larger part of the demand.
    fn score_without(&self, score: &NodeScore, now: &Contention, without: &Contention) -> Ratio {
        let ends = PerResource {
            cpu: now.cpu - without.cpu,
            memory: now.memory - without.memory,
            io: 0.0,
        };
        let left = self.scorer.counted.iter().filter_map(|resource| {
            let contention = (*score.contention.of(*resource))?.get();
            Ratio::of(contention - ends.of(*resource), 1.0)
        });
        left.reduce(|largest, ratio| if ratio > largest { ratio } else { largest })
            .unwrap_or(Ratio::ZERO)
    }

    /// The node with the demands of its workloads. The scored containers come first, in the score's
    /// order.
    fn node(&self, score: &NodeScore, tick: &Tick) -> Option<Node> {
        let cpus = u32::try_from(tick.node.cpus?).ok()?;
        let containers = score.containers.iter().zip(&self.demands);
        let scored = containers.map(|(container, (_, [fast, _]))| fast.demand(container));
        // These are not smoothed: nothing is known of the time in which no scored container waited.
        let others = tick.scored.as_ref()?.others.iter().map(|other| Demand {
            used: other.used.unwrap_or(0.0),
            waiting: other.waits.cpu.map_or(0.0, |wait| wait.cpus),
            ..Demand::with_limits(other)
        });
        Some(Node {
            cpus,
            idle: f64::from(cpus) * (1.0 - score.cpu_utilization?.get()),
            steal: score.steal.map_or(0.0, Ratio::get),
            smt_overlap: score.smt_overlap.unwrap_or(0.0),
            demands: scored.chain(others).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
