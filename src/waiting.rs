//! Measures how long containers wait, and how much of it the node explains. One file reads
//! (`reader.rs`), and each kind of waiting has a meter of its own: what it needs from the next
//! reading (for CPUs, `cpu_limits.rs`), and the formula over two readings (pure).

use std::sync::Arc;

use strum::IntoStaticStr;

use crate::identity::Workload;
use crate::kernel::cgroup_tree::Cgroup;
use crate::kernel::resource::{PerResource, Resource};
pub use cpu_pressure::pressure_scale;
use node::NodeReadings;
use readings::{CpuLimits, Readings, Threads};
use run_delay::ThreadTimes;
use series::PressureShares;
pub use series::Ratio;
use wait::NEGLIGIBLE;
pub use wait::{Unknown, Wait, WaitResult};

mod cpu_limits;
mod cpu_pressure;
pub mod disk_rates;
mod disks;
pub(crate) mod files;
mod io;
mod memory;
pub mod node;
pub(crate) mod reader;
pub mod readings;
mod run_delay;
pub mod series;
mod wait;

/// Source of the CPU wait time of VMs. It is chosen once, at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum CpuSource {
    /// `cpu.pressure`, which any node with PSI has.
    Psi,
    /// Run delay of the vCPU threads, which needs the host's `/proc`.
    RunDelay,
}

/// The kind of workloads that is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Population {
    /// VMs of KubeVirt or, outside a cluster, of libvirt or Proxmox.
    Vms,
    /// Containers of pods.
    Containers,
    /// Units of systemd, and cgroups outside units.
    Units,
}

impl Population {
    /// The plural, in texts.
    pub fn plural(self) -> &'static str {
        if self == Population::Vms { "VMs" } else { self.into_str() }
    }
}

/// What a tick measured of a container or unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    pub cgroup: Arc<Cgroup>,
    /// Its pod and container; `None` for units, and without a source of pods.
    pub workload: Option<Arc<Workload>>,
    /// CPUs in use by all threads: of a VM, also those of its emulator and for its I/O.
    pub used: Option<f64>,
    /// CPUs that it would use if it did not wait for the node's CPUs; `None` if that is unknown.
    pub undelayed: Option<f64>,
    /// Variance of the number of its vCPUs that would then run at a moment: 0 for vCPUs that always or
    /// never run, 0.25 for one that runs half of the time. `None` if its threads are not read.
    pub variance: Option<f64>,
    /// CPUs that the VM's I/O threads waited for, whatever the cause; `None` without any.
    pub iothreads_waited: Option<f64>,
    pub limits: Option<CpuLimits>,
    /// Memory in use and swapped out, bytes; `None` while no task of the node waits for memory.
    pub memory: Option<f64>,
    pub pressure: PerResource<PressureShares>,
    pub waits: PerResource<WaitResult>,
}

impl Measurement {
    pub fn of(
        cgroup: &Arc<Cgroup>,
        workload: Option<Arc<Workload>>,
        readings: &Readings,
        node: &NodeReadings,
        scale: f64,
    ) -> Self {
        let threads = ThreadTimes::of(readings);
        let requested = workload.as_ref().and_then(|workload| workload.cpu_request);
        let cpu = match &readings.threads {
            Threads::Read { threads, .. } => run_delay::wait(readings, threads, requested, node),
            Threads::Hidden => None,
            Threads::NotRead => cpu_pressure::wait(readings, requested, node, scale),
        };
        let ran_and_waited = threads.map(|times| times.ran + times.delayed);
        let most_demand = || cpu_limits::most_demand(readings, node.cpus(), ran_and_waited);
        let cpu = cpu.ok_or_else(|| Unknown { most_demand: most_demand() });
        let (usage, beside) = (cpu_limits::usage(readings), cpu_limits::used_beside(readings));
        // While a VM does not wait, its usage is read rarely, and the times of its vCPUs at each tick.
        let used = threads.map_or(usage, |ThreadTimes { ran, .. }| {
            let by_all = beside.map(|beside| ran + beside);
            by_all.or(Some(usage.unwrap_or(0.0).max(ran)))
        });
        Self {
            cgroup: Arc::clone(cgroup),
            workload,
            used,
            undelayed: used.zip(cpu.ok()).map(|(used, wait)| undelayed(used, &wait, threads)),
            variance: threads.map(|threads| threads.variance),
            iothreads_waited: run_delay::of_iothreads(readings),
            limits: readings.limits().cloned(),
            memory: readings.memory.in_use.flatten().map(|bytes| bytes as f64),
            pressure: PerResource::by(|resource| readings.pressure.of(resource).shares()),
            waits: PerResource {
                cpu,
                memory: memory::wait(readings, node),
                io: io::wait(readings, node).ok_or(Unknown { most_demand: 1.0 }),
            },
        }
    }

    /// Of a container of which nothing is known, so neither whether its waiting counts. `None` if it does not wait:
    /// then it does not matter what it is.
    #[must_use]
    pub fn hidden(self) -> Option<Self> {
        let most_demand = |resource| match self.waits.of(resource) {
            Ok(wait) if wait.cpus >= NEGLIGIBLE => wait.demand,
            Ok(_) => 0.0,
            Err(unknown) => unknown.most_demand,
        };
        let waits = PerResource::by(|resource| Err(Unknown { most_demand: most_demand(resource) }));
        let may_wait = Resource::ALL.iter().any(|resource| most_demand(*resource) > 0.0);
        may_wait.then_some(Self { waits, ..self })
    }
}

/// CPUs that a container would use if it did not wait because of the node. What its own limit explains
/// would stay.
fn undelayed(used: f64, wait: &Wait, threads: Option<ThreadTimes>) -> f64 {
    let by_all_causes = match threads {
        Some(threads) => threads.undelayed + (used - threads.ran),
        // CPU ready is the delay of the average busy vCPU.
        None => used / (1.0 - wait.node.get()),
    };
    by_all_causes.min(used + wait.cpus).max(used)
}

#[cfg(test)]
mod tests;
