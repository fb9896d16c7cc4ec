//! Computes the node's score and its causes from what successive ticks measured. Pure: the time is
//! part of a tick. `docs/score.md` explains it.

mod absence;
mod worst_half;

mod smoothing;

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::contract::{Basis, Level, NodePressure};
use crate::identity::Workload;
pub use crate::kernel::cgroup_dir::Resource;
use crate::kernel::cgroup_tree::CgroupId;
pub use crate::kernel::resource::PerResource;
use crate::sample::{NodeRates, Tick};
use crate::waiting::{CpuSource, Measurement, Population, Ratio, Wait, WaitResult};
pub use absence::{Absence, MissingScore};
pub use smoothing::MovingAverage;
pub use worst_half::WorstHalf;

/// The estimator's source and version: values of different bases are not comparable. Every change
/// of the estimator needs a new version.
pub fn basis(source: CpuSource) -> Basis {
    match source {
        CpuSource::Psi => Basis::Psi(10),
        CpuSource::RunDelay => Basis::RunDelay(6),
    }
}

/// Share of all demand whose waiting may be unknown: with more, the mean of the others says too little.
const UNKNOWN: f64 = 0.25;

/// CPU ready or memory contention from which a workload counts as waiting, 0 to 1.
const WAITING: f64 = 0.05;

/// The node's score at one moment, with its causes.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeScore {
    /// When the tick began.
    pub moment: Moment,
    /// Source and version of the estimator.
    pub basis: Basis,
    /// What is scored; `None` where that is not known yet.
    pub population: Option<Population>,
    /// The largest contention of the counted resources; `None` with too little history, or if one
    /// of them is unknown.
    pub score: Option<Ratio>,
    /// Contention of the node's workloads, smoothed; `None` as for the score.
    pub contention: PerResource<Option<Ratio>>,
    /// Why `contention` is `None`.
    pub absence: PerResource<Option<Absence>>,
    /// Contention of the last window alone.
    pub latest: PerResource<Option<Ratio>>,
    /// The part of `contention.cpu` that counts for the levels medium and high, smoothed.
    pub cpu_for_levels: Option<[Ratio; 2]>,
    /// Share of the CPUs' time in use, smoothed.
    pub cpu_utilization: Option<Ratio>,
    /// Share of memory that is not available.
    pub memory_utilization: Option<Ratio>,
    /// Share of the node's demand for CPU time that its hypervisor gave to other guests, smoothed.
    pub steal: Option<Ratio>,
    /// CPUs that are busy beside another one of their core, smoothed; `None` if cores are unknown.
    pub smt_overlap: Option<f64>,
    /// Workloads whose CPU ready or memory contention is 5 % or more.
    pub contended: usize,
    /// Workloads whose waiting has been unknown for more than one window.
    pub hidden: PerResource<usize>,
    /// The scored containers or units.
    pub containers: Vec<ContainerScore>,
}

impl NodeScore {
    /// The scored VMs; none where others are scored.
    pub fn vms(&self) -> &[ContainerScore] {
        if self.population == Some(Population::Vms) { &self.containers } else { &[] }
    }

    /// Why there is no score; `None` if there is one. A resource that limits explain is the reason only
    /// if it is the only one.
    pub fn missing(&self, counted: &[Resource]) -> Option<MissingScore> {
        let missing = Resource::ALL.into_iter().filter(|resource| counted.contains(resource));
        let missing = missing.filter_map(|resource| {
            Some(MissingScore { resource, absence: (*self.absence.of(resource))? })
        });
        missing
            .filter(|_| self.score.is_none())
            .min_by_key(|missing| missing.absence == Absence::OwnLimits)
    }
}

/// The contention of a scored container or unit.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerScore {
    /// What the last tick measured of it.
    pub measured: Measurement,
    /// Share of its demand that it waited for because of the node, smoothed over 30 s.
    pub contention: PerResource<Option<Ratio>>,
    /// CPU ready, smoothed over 30 s: share of its busy vCPUs' time.
    pub cpu_ready: Option<Ratio>,
    /// Time waited since the agent started.
    pub waited: PerResource<WaitSeconds>,
    /// Seconds that each of its I/O threads waited since the agent started, added up.
    pub iothreads_waited_s: f64,
}

/// Seconds waited, by cause; for CPU, of all vCPUs together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WaitSeconds {
    /// Because of contention on the node.
    pub node_s: f64,
    /// Because of its own limit or its pod's.
    pub own_limit_s: f64,
}

/// Computes scores from successive ticks.
#[derive(Debug, Default)]
pub struct Scorer {
    /// Resources that make up the score.
    pub(crate) counted: Vec<Resource>,
    population: Option<Population>,
    node: PerResource<MovingAverage>,
    cpu_for_levels: [MovingAverage; 2],
    steal: MovingAverage,
    utilization: MovingAverage,
    smt_overlap: MovingAverage,
    /// Of each container, also what it and its I/O threads waited since the agent started.
    containers: HashMap<CgroupId, (History, PerResource<WaitSeconds>, f64)>,
}

/// Contention and CPU ready of a container over the windows.
#[derive(Debug, Clone, Copy, Default)]
struct History {
    contention: PerResource<MovingAverage>,
    cpu_ready: MovingAverage,
}

impl Scorer {
    /// A scorer without history.
    pub fn new(counted: Vec<Resource>) -> Self {
        Self { counted, ..Self::default() }
    }

    /// Continues from the values that an earlier agent published. They are used for the time before
    /// the first window.
    pub fn adopt(&mut self, published: &NodePressure) {
        let NodePressure { cpu, memory, io, .. } = *published;
        for (resource, value) in Resource::ALL.into_iter().zip([cpu, memory, io]) {
            if let Some(value) = value {
                self.node.of_mut(resource).adopt(f64::from(value) / 100.0);
            }
        }
    }

    /// The score of a single window, unsmoothed.
    pub fn of_one_window(counted: Vec<Resource>, tick: &Tick) -> NodeScore {
        let mut scorer = Self::new(counted);
        let score = scorer.advance(tick);
        let absence = PerResource::by(|resource| worst_half(resource, tick, 0.0).err());
        let score = NodeScore { contention: score.latest, absence, ..score };
        NodeScore { score: scorer.largest(&score, tick), ..score }
    }

    /// The score after one more tick.
    pub fn advance(&mut self, tick: &Tick) -> NodeScore {
        self.start_anew_with(tick.scored.as_ref().map(|scored| scored.population));
        let window = tick.window.unwrap_or_default();
        self.steal.advance(steal_share(&tick.node), window);
        self.utilization.advance(tick.node.utilization.map(Ratio::get), window);
        self.smt_overlap.advance(tick.node.smt_overlap, window);
        let steal = steal_share(&tick.node).or(self.steal.now().map(Ratio::get)).unwrap_or(0.0);
        let latest = PerResource::by(|resource| worst_half(resource, tick, steal));
        for resource in Resource::ALL {
            self.node.of_mut(resource).advance(latest.of(resource).ok(), window);
        }
        let waits = known(Resource::Cpu, tick);
        for (smoothed, level) in self.cpu_for_levels.iter_mut().zip(Level::RAISED) {
            let worst = WorstHalf::of_cpu(level, &waits, steal);
            smoothed.advance(latest.cpu.ok().map(|_| worst.contention), window);
        }
        let containers = self.advance_containers(tick, window);
        let contention = self.node.map(|smoothed| smoothed.settled());
        let [medium, high] = self.cpu_for_levels.map(|smoothed| smoothed.settled());
        let absence = PerResource::by(|resource| match contention.of(resource) {
            Some(_) => latest.of(resource).err().filter(|why| *why == Absence::OwnLimits),
            None => Some(latest.of(resource).err().unwrap_or(Absence::WarmingUp)),
        });
        // In the first window of a wait its causes have no rate yet.
        let hidden = |resource| {
            if *latest.of(resource) == Err(Absence::PressureOff) {
                return 0;
            }
            let histories = self.containers.values().map(|(history, ..)| history);
            let absent = histories.map(|history| history.contention.of(resource).absent);
            absent.filter(|absent| *absent > window).count()
        };
        let score = NodeScore {
            moment: tick.moment,
            basis: basis(tick.cpu_source),
            population: self.population,
            score: None,
            contention,
            absence,
            latest: latest.map(|one| Ratio::of(one.ok()?, 1.0)),
            cpu_for_levels: medium.zip(high).map(Into::into),
            cpu_utilization: self.utilization.now(),
            memory_utilization: tick.node.memory_utilization,
            steal: self.steal.now(),
            smt_overlap: self.smt_overlap.mean(),
            contended: containers.iter().filter(|container| container.is_contended()).count(),
            hidden: PerResource::by(hidden),
            containers,
        };
        NodeScore { score: self.largest(&score, tick), ..score }
    }

    /// Values of another population are not comparable, so its history starts anew.
    fn start_anew_with(&mut self, population: Option<Population>) {
        if population.is_some() && self.population != population {
            if self.population.is_some() {
                *self = Self::new(std::mem::take(&mut self.counted));
            }
            self.population = population;
        }
    }

    /// The largest contention of the counted resources; `None` unless all of them are known: the missing one might
    /// be the largest. A resource that limits explain for all workloads does not count. If PSI is off, CPU by run
    /// delay is the only resource.
    fn largest(&self, score: &NodeScore, tick: &Tick) -> Option<Ratio> {
        let has_pressure = tick.node.reports != PerResource::default();
        let cpu_only = tick.cpu_source == CpuSource::RunDelay && !has_pressure;
        let counted = self.counted.iter().filter(|resource| {
            (!cpu_only || **resource == Resource::Cpu)
                && *score.absence.of(**resource) != Some(Absence::OwnLimits)
        });
        let all: Option<Vec<_>> = counted.map(|one| *score.contention.of(*one)).collect();
        all?.into_iter().reduce(|largest, ratio| if ratio > largest { ratio } else { largest })
    }

    fn advance_containers(&mut self, tick: &Tick, window: Duration) -> Vec<ContainerScore> {
        let mut before = std::mem::take(&mut self.containers);
        let advance = |measured: &Measurement| {
            let id = measured.cgroup.id;
            let (mut history, mut waited, mut iothreads_s) = before.remove(&id).unwrap_or_default();
            let ready = measured.waits.cpu.ok().map(|wait| wait.node.get());
            history.cpu_ready.advance(ready, window);
            for resource in Resource::ALL {
                let wait = measured.waits.of(resource).ok();
                let smoothed = history.contention.of_mut(resource);
                smoothed.advance(wait.map(|wait| wait.contention.get()), window);
                let Some(wait) = wait else { continue };
                let waited = waited.of_mut(resource);
                let (node, own_limit) = match resource {
                    Resource::Cpu => (wait.cpus, wait.own_limit_cpus),
                    Resource::Memory | Resource::Io => (wait.node.get(), wait.own_limit.get()),
                };
                waited.node_s += node * window.as_secs_f64();
                waited.own_limit_s += own_limit * window.as_secs_f64();
            }
            iothreads_s += measured.iothreads_waited.unwrap_or(0.0) * window.as_secs_f64();
            self.containers.insert(id, (history, waited, iothreads_s));
            ContainerScore {
                measured: measured.clone(),
                contention: history.contention.map(|smoothed| smoothed.now()),
                cpu_ready: history.cpu_ready.now(),
                waited,
                iothreads_waited_s: iothreads_s,
            }
        };
        let measurements = tick.scored.iter().flat_map(|scored| &scored.measurements);
        measurements.map(advance).collect()
    }
}

impl ContainerScore {
    /// Whether it is a VM of KubeVirt, which has series by its name.
    pub fn is_kubevirt_vm(&self) -> bool {
        self.measured.workload.as_deref().is_some_and(Workload::is_vm)
    }

    fn is_contended(&self) -> bool {
        let waits = [self.cpu_ready, self.contention.memory].into_iter().flatten();
        waits.map(Ratio::get).any(|share| share >= WAITING)
    }
}

/// Contention of the node by a resource in one window, with this steal.
fn worst_half(resource: Resource, tick: &Tick, steal: f64) -> Result<f64, Absence> {
    let scored = tick.scored.as_ref().ok_or(Absence::WorkloadsUnknown)?;
    let by_run_delay = resource == Resource::Cpu && tick.cpu_source == CpuSource::RunDelay;
    if tick.node.pressure.of(resource).some.is_none() && !by_run_delay {
        let reports = *tick.node.reports.of(resource);
        return Err(if reports { Absence::WarmingUp } else { Absence::PressureOff });
    }
    let waits = || scored.measurements.iter().map(|measured| *measured.waits.of(resource));
    if waits().len() == 0 && scored.population == Population::Units {
        return Err(Absence::NothingToScore);
    }
    let known = known(resource, tick);
    let unknown: f64 = waits().filter_map(WaitResult::err).map(|wait| wait.most_demand).sum();
    let is_empty = known.is_empty();
    let worst = match resource {
        Resource::Cpu => WorstHalf::of_cpu(Level::Low, &known, steal),
        Resource::Memory | Resource::Io => WorstHalf::of(&known),
    };
    let is_undecided = unknown > 0.0 && unknown >= UNKNOWN * (worst.demand + unknown);
    if is_empty && waits().len() > 0 || is_undecided {
        return Err(Absence::HiddenContainers);
    }
    if resource == Resource::Io && worst.demand == 0.0 && waits().len() > 0 {
        return Err(Absence::OwnLimits);
    }
    Ok(worst.contention)
}

/// The waiting that is known.
fn known(resource: Resource, tick: &Tick) -> Vec<Wait> {
    let measurements = tick.scored.iter().flat_map(|scored| &scored.measurements);
    measurements.filter_map(|measured| measured.waits.of(resource).ok()).collect()
}

/// Share of the node's demand for CPU time that it did not get from its hypervisor.
fn steal_share(node: &NodeRates) -> Option<f64> {
    let (steal, busy) = (node.steal?.get(), node.utilization?.get());
    Some(if steal > 0.0 { steal / (steal + busy) } else { 0.0 })
}

#[cfg(test)]
mod tests;
