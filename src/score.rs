//! Computes the node's score and its causes from the rates of successive ticks. Pure: the time is
//! part of the rates. `docs/score.md` explains it.

mod cpu_pressure;
mod quartile;
mod run_delay;
mod stalls;
mod wait;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::contract::{Basis, NodePressure};
use crate::identity::Workload;
pub use crate::kernel::cgroup_dir::Resource;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
pub use crate::kernel::resource::PerResource;
use crate::rates::{ContainerRates, MovingAverage, PressureRates, Ratio, TickRates};
use crate::sample::CpuSource;
pub use quartile::Quartile;
use stalls::{io_wait, memory_wait};
pub use wait::Wait;

/// The estimator's source and version: values of different bases are not comparable. Every change
/// of the estimator needs a new version.
pub fn basis(source: CpuSource) -> Basis {
    match source {
        CpuSource::Psi => Basis::Psi(9),
        CpuSource::RunDelay => Basis::RunDelay(5),
    }
}

/// CPU ready or memory contention from which a VM counts as waiting, 0 to 1.
const WAITING: f64 = 0.05;

/// The node's score at one moment, with its causes.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeScore {
    /// When the later sample was taken.
    pub moment: Moment,
    /// Source and version of the estimator.
    pub basis: Basis,
    /// The largest contention of the counted resources; `None` with too little history, or if one
    /// of them is unknown.
    pub score: Option<Ratio>,
    /// Contention of the node's VMs, smoothed; `None` as for the score.
    pub contention: PerResource<Option<Ratio>>,
    /// Contention of the last window alone.
    pub latest: PerResource<Option<Ratio>>,
    /// CPU ready of the VM that `contention.cpu` is taken from, smoothed: share of its vCPUs' time.
    pub cpu_ready: Option<Ratio>,
    /// Share of the node's demand for CPU time that its hypervisor gave to other guests, smoothed.
    pub steal: Option<Ratio>,
    /// Share of the CPUs' time in use, smoothed.
    pub cpu_utilization: Option<Ratio>,
    /// Share of memory that is not available.
    pub memory_utilization: Option<Ratio>,
    /// VMs whose CPU ready or memory contention is 5 % or more.
    pub waiting_vms: usize,
    /// The scored containers.
    pub containers: Vec<ContainerScore>,
}

/// The contention of a scored container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerScore {
    /// The container's cgroup.
    pub cgroup: Arc<Cgroup>,
    /// Its pod and container; `None` without a source of pods.
    pub workload: Option<Arc<Workload>>,
    /// CPUs used in the last window.
    pub usage: Option<f64>,
    /// Pressures of the last window.
    pub pressure: PressureRates,
    /// Waiting in the last window, with its causes.
    pub wait: Waits,
    /// Contention, smoothed.
    pub contention: PerResource<Option<Ratio>>,
    /// CPU ready, smoothed: share of its vCPUs' time.
    pub cpu_ready: Option<Ratio>,
    /// Time waited since the agent started.
    pub waited: PerResource<WaitSeconds>,
}

/// Waiting in one window; `None` where it is not known.
type Waits = PerResource<Option<Wait>>;

/// Seconds waited, by cause; for CPU, of the average vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WaitSeconds {
    /// Because of contention on the node.
    pub node_s: f64,
    /// Because of its own limit or its pod's.
    pub own_limit_s: f64,
}

/// Computes scores from the rates of successive ticks.
#[derive(Debug, Default)]
pub struct Scorer {
    /// Resources that make up the score.
    counted: Vec<Resource>,
    node: History,
    steal: MovingAverage,
    utilization: MovingAverage,
    containers: HashMap<CgroupId, (History, PerResource<WaitSeconds>)>,
}

/// Contention of the node or of a container over the windows.
#[derive(Debug, Clone, Copy, Default)]
struct History {
    contention: PerResource<MovingAverage>,
    cpu_ready: MovingAverage,
}

impl History {
    fn advance(&mut self, last: &Contention, window: Duration) {
        for resource in Resource::ALL {
            self.contention.of_mut(resource).advance(*last.shares.of(resource), window);
        }
        self.cpu_ready.advance(last.cpu_ready, window);
    }
}

/// Contention of the node or of a container in one window.
#[derive(Debug, Clone, Copy, Default)]
struct Contention {
    shares: PerResource<Option<f64>>,
    cpu_ready: Option<f64>,
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
                self.node.contention.of_mut(resource).adopt(f64::from(value) / 100.0);
            }
        }
    }

    /// The score of a single window, unsmoothed.
    pub fn of_one_window(counted: Vec<Resource>, moment: Moment, rates: &TickRates) -> NodeScore {
        let mut scorer = Self::new(counted);
        let score = scorer.advance(moment, rates);
        let contention = score.latest;
        NodeScore { score: scorer.score(&contention, rates), contention, ..score }
    }

    /// The score after one more window.
    pub fn advance(&mut self, moment: Moment, rates: &TickRates) -> NodeScore {
        let window = rates.node.window;
        self.steal.advance(steal_share(rates), window);
        self.utilization.advance(rates.node.utilization.map(Ratio::get), window);
        let (scale, containers) = (cpu_pressure::scale(rates), rates.containers.as_deref());
        let waits = containers
            .into_iter()
            .flatten()
            .map(|one| waits(one, rates, scale))
            .collect::<Vec<_>>();
        let node = containers.map(|_| node_contention(&waits, rates)).unwrap_or_default();
        self.node.advance(&node, window);
        let containers = containers.unwrap_or_default().iter().zip(waits);
        let containers = self.advance_containers(containers, window);
        let settled = self.node.contention.map(|smoothed| smoothed.settled());
        NodeScore {
            moment,
            basis: basis(rates.cpu_source),
            score: self.score(&settled, rates),
            contention: settled,
            latest: node.shares.map(|value| Ratio::of(value?, 1.0)),
            cpu_ready: self.node.cpu_ready.settled(),
            steal: self.steal.now(),
            cpu_utilization: self.utilization.now(),
            memory_utilization: rates.memory_utilization,
            waiting_vms: containers.iter().filter(|container| container.is_waiting_vm()).count(),
            containers,
        }
    }

    /// `None` unless all counted resources are known: the missing one might be the largest. If PSI
    /// is off, CPU by run delay is the only resource.
    fn score(&self, contention: &PerResource<Option<Ratio>>, rates: &TickRates) -> Option<Ratio> {
        let cpu_only = rates.cpu_source == CpuSource::RunDelay && !rates.has_pressure;
        let counted =
            self.counted.iter().filter(|resource| !cpu_only || **resource == Resource::Cpu);
        let all: Option<Vec<Ratio>> = counted.map(|&resource| *contention.of(resource)).collect();
        all?.into_iter().reduce(|largest, ratio| if ratio > largest { ratio } else { largest })
    }

    fn advance_containers<'a>(
        &mut self,
        containers: impl Iterator<Item = (&'a ContainerRates, Waits)>,
        window: Duration,
    ) -> Vec<ContainerScore> {
        let mut before = std::mem::take(&mut self.containers);
        let advance = |(rates, wait): (&ContainerRates, Waits)| {
            let (mut history, mut waited) = before.remove(&rates.cgroup.id).unwrap_or_default();
            let shares = wait.map(|wait| Some(wait?.contention.get()));
            let cpu_ready = wait.cpu.map(|wait| wait.node.get());
            history.advance(&Contention { shares, cpu_ready }, window);
            for resource in Resource::ALL {
                let Some(wait) = wait.of(resource) else { continue };
                waited.of_mut(resource).node_s += wait.node.get() * window.as_secs_f64();
                waited.of_mut(resource).own_limit_s += wait.own_limit.get() * window.as_secs_f64();
            }
            self.containers.insert(rates.cgroup.id, (history, waited));
            ContainerScore {
                cgroup: Arc::clone(&rates.cgroup),
                workload: rates.workload.clone(),
                usage: rates.threads.map(|threads| threads.ran).or(rates.cpu.usage),
                pressure: rates.pressure,
                wait,
                contention: history.contention.map(|smoothed| smoothed.now()),
                cpu_ready: history.cpu_ready.now(),
                waited,
            }
        };
        containers.map(advance).collect()
    }
}

impl ContainerScore {
    fn is_waiting_vm(&self) -> bool {
        let waits = [self.cpu_ready, self.contention.memory].into_iter().flatten();
        let is_vm = self.workload.as_deref().is_some_and(Workload::is_vm);
        is_vm && waits.map(Ratio::get).any(|share| share >= WAITING)
    }
}

fn waits(container: &ContainerRates, rates: &TickRates, scale: f64) -> Waits {
    PerResource {
        cpu: match rates.cpu_source {
            CpuSource::Psi => cpu_pressure::cpu_wait(&container.cpu, rates.cpus, scale),
            CpuSource::RunDelay => run_delay::cpu_wait(container, rates.cpus),
        },
        memory: memory_wait(container, rates),
        io: io_wait(container, rates.cpus),
    }
}

/// The quartiles of one window. A resource that the node reports, but no container, is unknown.
fn node_contention(waits: &[Waits], rates: &TickRates) -> Contention {
    let quartile = |resource: Resource, is_known: bool| {
        let known: Vec<Wait> = waits.iter().filter_map(|wait| *wait.of(resource)).collect();
        let is_unknown = !is_known || known.is_empty() && !waits.is_empty();
        (!is_unknown).then(|| Quartile::of(known))
    };
    let has_pressure = |resource| rates.node.pressure.of(resource).some.is_some();
    let cpu_is_known = rates.cpu_source == CpuSource::RunDelay || has_pressure(Resource::Cpu);
    let cpu = quartile(Resource::Cpu, cpu_is_known);
    let stall = |resource| Some(quartile(resource, has_pressure(resource))?.contention);
    let steal = steal_share(rates).unwrap_or(0.0);
    let stolen = rates.node.steal.map_or(0.0, Ratio::get);
    Contention {
        shares: PerResource {
            cpu: cpu.map(|cpu| cpu.cpu_contention(rates.cpus, steal)),
            memory: stall(Resource::Memory),
            io: stall(Resource::Io),
        },
        cpu_ready: cpu.map(|cpu| cpu.ready.max(stolen)),
    }
}

/// Share of the node's demand for CPU time that it did not get from its hypervisor.
fn steal_share(rates: &TickRates) -> Option<f64> {
    let (steal, busy) = (rates.node.steal?.get(), rates.node.utilization?.get());
    Some(if steal > 0.0 { steal / (steal + busy) } else { 0.0 })
}

/// CPU wait of the workloads that are not scored.
pub fn waits_of_others(rates: &TickRates) -> Vec<Option<Wait>> {
    let (scale, others) = (cpu_pressure::scale(rates), rates.others.iter().flatten());
    others.map(|cpu| cpu_pressure::cpu_wait(cpu, rates.cpus, scale)).collect()
}

#[cfg(test)]
mod tests;
