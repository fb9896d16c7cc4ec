//! How much the node holds its VMs back: rates to a score with its reasons. Pure; the clock is in
//! the rates. `docs/score.md` says what it means and why.
//!
//! A VM waits for CPU when one of its threads does. What its own limit took from it is not the
//! node's doing; what is left counts as a share of all that it wanted. On how many CPUs it waits its
//! pressure does not say: the node's own total of waiting does. VMs count by what they want, and the
//! node's contention is a high quantile of theirs.

mod calibration;
mod contention;
mod cpu_range;
mod quantile;
mod run_delay;
mod smoothing;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::clock::Moment;
use crate::contract::{Basis, NodePressure};
use crate::identity::Workload;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::rates::{MemberRates, PressureRates, Rates, Ratio};
use crate::sample::CpuSource;
use calibration::{Calibration, Spread};
pub use contention::Waiting;
use contention::{cpu_waiting, io_waiting, memory_waiting};
use quantile::upper_quartile;
use run_delay::run_delay_waiting;
use smoothing::Smoothed;

/// What the values of this version are worked out from. A change of the estimator changes it.
#[must_use]
pub fn basis(source: CpuSource) -> Basis {
    match source {
        CpuSource::Psi => Basis::Psi(8),
        CpuSource::RunDelay => Basis::RunDelay(4),
    }
}

/// VMs that together want less than this share of the node's CPUs...
const DEMAND_FLOOR_SHARE: f64 = 0.02;
/// ...and less than this many, want hardly anything: nobody is held back then. From there on to twice
/// as much contention comes to count, so that a little more of wanting decides little.
const DEMAND_FLOOR_CPUS: f64 = 0.5;

/// A VM that has to wait for this share of what it wants is held back...
const HELD_BACK: f64 = 0.1;
/// ...if that is this share of its time too: one that is nearly idle misses nothing.
const HELD_BACK_TIME: f64 = 0.01;

/// A value for each resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PerResource<T> {
    /// CPU time.
    pub cpu: T,
    /// Memory.
    pub memory: T,
    /// Block I/O.
    pub io: T,
}

impl<T> PerResource<T> {
    /// That of one resource.
    pub fn of(&self, resource: Resource) -> &T {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
            Resource::Io => &self.io,
        }
    }

    /// The same with each value changed.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> PerResource<U> {
        PerResource { cpu: change(self.cpu), memory: change(self.memory), io: change(self.io) }
    }
}

/// The node's score at one moment, with its reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeScore {
    /// When the later sample was made.
    pub moment: Moment,
    /// What it is worked out from.
    pub basis: Basis,
    /// The largest contention of those resources that count; `None` while there is too little
    /// history, or one of them cannot be told.
    pub score: Option<Ratio>,
    /// Share of what VMs wanted that they had to wait for, smoothed; `None` as for the score.
    pub contention: PerResource<Option<Ratio>>,
    /// The same of the last window alone.
    pub latest: PerResource<Option<Ratio>>,
    /// Share of the CPU time that this node wanted from below and did not get, smoothed.
    pub steal: Option<Ratio>,
    /// Share of the CPUs' time in which they ran something, smoothed.
    pub cpu_utilization: Option<Ratio>,
    /// Share of memory that is not to be had.
    pub memory_utilization: Option<Ratio>,
    /// VMs that wait for a tenth of what they want or more, and want something.
    pub held_back: usize,
    /// The containers that it is about, with what each waited for.
    pub members: Vec<MemberScore>,
}

/// What a container waited for.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberScore {
    /// Which.
    pub cgroup: Arc<Cgroup>,
    /// Whose it is; `None` where nobody tells of pods.
    pub workload: Option<Arc<Workload>>,
    /// CPUs used in the last window.
    pub usage: Option<f64>,
    /// Shares of the last window in which its tasks waited, whoever was to blame.
    pub pressure: PressureRates,
    /// In the last window: raw pressure, what its own limit explains, what is left.
    pub waiting: PerResource<Option<Waiting>>,
    /// Share of what it wanted that it had to wait for, smoothed.
    pub contention: PerResource<Option<Ratio>>,
    /// Share of time in which it waited for each CPU of the node that it wanted, smoothed: the
    /// field's CPU ready.
    pub wait: Option<Ratio>,
    /// Time waited since the agent knows it, by cause.
    pub waited: PerResource<Waited>,
}

/// Seconds waited, by who was the cause; for CPU, for each CPU that was wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waited {
    /// The node was short.
    pub node_s: f64,
    /// Its own limit, or its pod's, held it back.
    pub own_limit_s: f64,
}

/// Which resources make up the score.
pub type Counted = Vec<Resource>;

/// Makes scores out of rates, one after another.
#[derive(Debug)]
pub struct Scorer {
    counted: Counted,
    contention: PerResource<Smoothed>,
    steal: Smoothed,
    utilization: Smoothed,
    calibration: Calibration,
    members: HashMap<CgroupId, MemberState>,
}

#[derive(Debug, Clone, Copy, Default)]
struct MemberState {
    contention: PerResource<Smoothed>,
    wait: Smoothed,
    waited: PerResource<Waited>,
}

impl Scorer {
    /// One that has seen nothing yet.
    #[must_use]
    pub fn new(counted: Counted) -> Self {
        Self {
            counted,
            contention: PerResource::default(),
            steal: Smoothed::default(),
            utilization: Smoothed::default(),
            calibration: Calibration::default(),
            members: HashMap::new(),
        }
    }

    /// Takes over where another agent on this node left off: its values stand for the time before
    /// this one's own.
    pub fn adopt(&mut self, published: &NodePressure) {
        let adopt = |smoothed: &mut Smoothed, value: Option<u8>| {
            if let Some(value) = value {
                smoothed.adopt(f64::from(value) / 100.0);
            }
        };
        adopt(&mut self.contention.cpu, published.cpu);
        adopt(&mut self.contention.memory, published.memory);
        adopt(&mut self.contention.io, published.io);
    }

    /// The score of a single window, unsmoothed.
    #[must_use]
    pub fn of_one_window(counted: Counted, moment: Moment, rates: &Rates) -> NodeScore {
        let mut scorer = Self::new(counted);
        let score = scorer.advance(moment, rates);
        let contention = score.latest;
        NodeScore { score: scorer.score(&contention, rates), contention, ..score }
    }

    /// The score after one more window.
    pub fn advance(&mut self, moment: Moment, rates: &Rates) -> NodeScore {
        let window = rates.window;
        self.steal.advance(steal_share(rates), window);
        self.utilization.advance(rates.utilization.map(Ratio::get), window);
        let spread = self.calibration.advance(rates);
        let members = rates.members.as_ref().map(|members| {
            let waiting = |member| MemberWaiting::of(member, rates, spread);
            members.iter().map(waiting).collect::<Vec<_>>()
        });
        let contention = members.as_deref().map(|members| node_contention(members, rates));
        let contention = contention.unwrap_or_default();
        self.contention.cpu.advance(contention.cpu, window);
        self.contention.memory.advance(contention.memory, window);
        self.contention.io.advance(contention.io, window);
        let members = self.advance_members(members.unwrap_or_default(), window);
        let settled = self.contention.map(|smoothed| smoothed.settled());
        NodeScore {
            moment,
            basis: basis(rates.cpu_source),
            score: self.score(&settled, rates),
            contention: settled,
            latest: contention.map(|value| value.and_then(|value| Ratio::of(value, 1.0))),
            steal: self.steal.now(),
            cpu_utilization: self.utilization.now(),
            memory_utilization: rates.memory_utilization,
            held_back: members.iter().filter(|member| member.is_held_back()).count(),
            members,
        }
    }

    /// Absent rather than wrong: a resource that cannot be told might be the largest. Where PSI is
    /// off no node tells it but of CPU.
    fn score(&self, contention: &PerResource<Option<Ratio>>, rates: &Rates) -> Option<Ratio> {
        let without_psi = rates.cpu_source == CpuSource::RunDelay && !rates.tells_pressure;
        let counted =
            self.counted.iter().filter(|resource| !without_psi || **resource == Resource::Cpu);
        let all: Option<Vec<Ratio>> = counted.map(|&resource| *contention.of(resource)).collect();
        all?.into_iter().reduce(|largest, ratio| if ratio > largest { ratio } else { largest })
    }

    fn advance_members(
        &mut self,
        members: Vec<MemberWaiting<'_>>,
        window: Duration,
    ) -> Vec<MemberScore> {
        let mut states = HashMap::with_capacity(members.len());
        let scores = members
            .into_iter()
            .map(|MemberWaiting { member, waiting }| {
                let id = member.cgroup.id;
                let mut state = self.members.remove(&id).unwrap_or_default();
                state.advance(&waiting, window);
                states.insert(id, state);
                MemberScore {
                    cgroup: Arc::clone(&member.cgroup),
                    workload: member.workload.clone(),
                    usage: member.cpu.usage,
                    pressure: member.pressure,
                    waiting,
                    contention: state.contention.map(|smoothed| smoothed.now()),
                    wait: state.wait.now(),
                    waited: state.waited,
                }
            })
            .collect();
        self.members = states;
        scores
    }
}

impl MemberScore {
    /// Whether it is a VM that waits for much of what it wants.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        let PerResource { cpu, memory, .. } = self.contention;
        let reaches = |ratio: Option<Ratio>, at| ratio.is_some_and(|ratio| ratio.get() >= at);
        let for_cpu = reaches(cpu, HELD_BACK) && reaches(self.wait, HELD_BACK_TIME);
        let is_vm = self.workload.as_deref().is_some_and(Workload::is_vm);
        is_vm && (for_cpu || reaches(memory, HELD_BACK))
    }
}

impl MemberState {
    fn advance(&mut self, waiting: &PerResource<Option<Waiting>>, window: Duration) {
        let one = |smoothed: &mut Smoothed, waited: &mut Waited, waiting: Option<Waiting>| {
            smoothed.advance(waiting.map(|waiting| waiting.contention.get()), window);
            if let Some(waiting) = waiting {
                waited.node_s += waiting.left.get() * window.as_secs_f64();
                waited.own_limit_s += waiting.own_limit.get() * window.as_secs_f64();
            }
        };
        one(&mut self.contention.cpu, &mut self.waited.cpu, waiting.cpu);
        one(&mut self.contention.memory, &mut self.waited.memory, waiting.memory);
        one(&mut self.contention.io, &mut self.waited.io, waiting.io);
        self.wait.advance(waiting.cpu.map(|waiting| waiting.left.get()), window);
    }
}

/// A member and what it waited for.
struct MemberWaiting<'a> {
    member: &'a MemberRates,
    waiting: PerResource<Option<Waiting>>,
}

impl<'a> MemberWaiting<'a> {
    fn of(member: &'a MemberRates, rates: &Rates, spread: Spread) -> Self {
        let waiting = PerResource {
            cpu: match rates.cpu_source {
                CpuSource::Psi => cpu_waiting(member, rates.cpus, spread),
                CpuSource::RunDelay => run_delay_waiting(member, rates.cpus),
            },
            memory: memory_waiting(member, rates.reclaims, rates.cpus),
            io: io_waiting(member, rates.cpus),
        };
        Self { member, waiting }
    }
}

/// The node's contention in one window.
fn node_contention(members: &[MemberWaiting<'_>], rates: &Rates) -> PerResource<Option<f64>> {
    let told = |resource, told: Option<Ratio>| {
        let waiting: Vec<Waiting> =
            members.iter().filter_map(|member| *member.waiting.of(resource)).collect();
        // With members of which none could be read there is nothing to say.
        (told.is_some() && (members.is_empty() || !waiting.is_empty())).then_some(waiting)
    };
    let quantile = |waiting: Vec<Waiting>| {
        let weighted = waiting.iter().map(|one| (one.contention.get(), one.demand)).collect();
        upper_quartile(weighted).unwrap_or(0.0)
    };
    let cpu = match rates.cpu_source {
        CpuSource::Psi => told(Resource::Cpu, rates.node.cpu.some).filter(|waiting| {
            // In the first window nobody's CPU time is known yet.
            let known = || members.iter().any(|one| one.member.cpu.usage.is_some());
            waiting.len() == members.len() || known()
        }),
        CpuSource::RunDelay => told(Resource::Cpu, Some(Ratio::ZERO)),
    };
    let cpu = cpu.map(|waiting| {
        let demand: f64 = waiting.iter().map(|one| one.demand).sum();
        let contention = quantile(waiting).max(steal_share(rates).unwrap_or(0.0));
        contention * (demand / demand_floor(rates.cpus) - 1.0).clamp(0.0, 1.0)
    });
    PerResource {
        cpu,
        memory: told(Resource::Memory, rates.node.memory.some).map(quantile),
        io: told(Resource::Io, rates.node.io.some).map(quantile),
    }
}

#[allow(clippy::cast_precision_loss, reason = "nobody has 2^52 CPUs")]
fn demand_floor(cpus: Option<u64>) -> f64 {
    (DEMAND_FLOOR_SHARE * cpus.unwrap_or(1) as f64).min(DEMAND_FLOOR_CPUS)
}

/// Of the CPU time that the node wanted from the hypervisor below, the share that it did not get.
fn steal_share(rates: &Rates) -> Option<f64> {
    let (steal, busy) = (rates.steal?.get(), rates.utilization?.get());
    Some(if steal > 0.0 { steal / (steal + busy) } else { 0.0 })
}

#[cfg(test)]
#[allow(clippy::cast_precision_loss, reason = "a simulation counts far below 2^52")]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
mod simulated_tests;
#[cfg(test)]
mod tests;
