//! What the two passes over the node and its cgroups return: a tick what it measured, a scrape raw
//! counters in the kernel's units. A value that could not be read is `None`, and never 0.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::Moment;
use crate::identity::Workload;
use crate::identity::matching::Matching;
use crate::kernel::ReadError;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::kernel::counters::{CpuStat, MemoryEvents, MemoryStat};
use crate::kernel::io_stat::IoCounters;
use crate::kernel::limits::CpuMax;
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;
use crate::waiting::node::NodeReadings;
use crate::waiting::series::{PressureReadings, PressureShares, increase};
use crate::waiting::{CpuSource, Measurement, Population, Ratio};

/// Result of a scoring pass (tick).
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// When the pass began.
    pub moment: Moment,
    /// Time since the tick before; `None` at the first.
    pub window: Option<Duration>,
    pub cpu_source: CpuSource,
    pub node: NodeRates,
    /// What is scored; `None` where the list of pods is not known yet, or cgroups can't be read.
    pub scored: Option<Scored>,
    pub report: PassReport,
}

/// The scored containers or units, and what else runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    pub population: Population,
    pub measurements: Vec<Measurement>,
    /// CPU usage and CPU wait of all other workloads; empty while no scored container waits.
    pub others: Vec<Measurement>,
    /// Containers whose threads are needed and could not be read in full.
    pub hidden_threads: usize,
}

/// Rates of the node between two ticks or two scrapes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeRates {
    pub pressure: PerResource<PressureShares>,
    /// Whether the kernel reports pressure.
    pub reports: PerResource<bool>,
    pub cpus: Option<u64>,
    /// Share of the CPUs' time in use.
    pub utilization: Option<Ratio>,
    /// Share of the CPUs' time that the node's hypervisor gave to other guests.
    pub steal: Option<Ratio>,
    /// Share of memory that is not available without swapping.
    pub memory_utilization: Option<Ratio>,
    /// CPUs that are busy beside another one of their core; `None` if cores are unknown.
    pub smt_overlap: Option<f64>,
}

impl NodeRates {
    pub fn of(readings: &NodeReadings) -> Self {
        let pressure = &readings.pressure;
        let times = readings.cpu_times.value();
        Self {
            pressure: PerResource::by(|resource| pressure.of(resource).shares()),
            reports: readings.reports,
            cpus: times.map(|times| times.each.len() as u64),
            utilization: readings.cpu_share(|times| times.busy),
            steal: readings.cpu_share(|times| times.steal),
            memory_utilization: readings.memory.and_then(|memory| {
                let (total, available) = (memory.total?, memory.available?);
                Ratio::of(increase(available, total)?, increase(0, total)?)
            }),
            smt_overlap: readings.smt_overlap(),
        }
    }
}

/// The report of a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassReport {
    /// How long the pass took.
    pub took: Duration,
    /// Cgroups in scope, read or not.
    pub in_scope: usize,
    pub errors: Vec<ReadError>,
    /// How pods and cgroups match; `None` without a source of pods.
    pub matching: Option<Matching>,
}

/// How much an export pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// What is exported to Prometheus.
    Exported,
    /// Also usage, limits and cgroups that only the page and `top` show.
    Everything,
}

/// A group of exported families, selected by `--families`. It also selects the files that an export
/// pass reads besides pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum FamilyGroup {
    /// container_pressure_*
    Pressure,
    /// container_cpu_*
    Cpu,
    /// container_memory_*, container_oom_events_total
    Memory,
    /// container_fs_*
    Io,
    /// container_pressure_irq_*
    Irq,
    /// container_spec_*, container_start_time_seconds
    Spec,
    /// node_pressure_*
    Node,
    /// no metrics of cgroups or of the node's pressure
    None,
}

/// Result of an export pass (scrape).
#[derive(Debug, Clone)]
pub struct ScrapeSample {
    /// When the pass began.
    pub moment: Moment,
    pub detail: Detail,
    /// The node's pressures, also of interrupts, CPU times and memory, and its disks, if they are exported.
    pub node: NodeReadings,
    /// Time since the last sample of everything; `None` if that was long ago, or this is not one. Rates are
    /// over this time, and without it there are none.
    pub window: Option<Duration>,
    /// Cgroups in scope, by path.
    pub cgroups: Vec<CgroupSample>,
    /// Those of `workloads` that are not in scope.
    pub beside: Vec<CgroupSample>,
    /// Cgroups whose usage adds up to that of the node: containers, and the topmost cgroups outside
    /// pods. Empty unless the detail is [`Detail::Everything`].
    pub workloads: HashSet<CgroupId>,
    pub report: PassReport,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CgroupSample {
    pub cgroup: Arc<Cgroup>,
    /// Its pod and container; `None` outside pods, and without a source of pods.
    pub workload: Option<Arc<Workload>>,
    /// Shared by the samples of a cgroup, while its workload is the same.
    pub labels: Arc<OnceLock<RenderedLabels>>,
    pub pressure: PressureReadings,
    pub rates: PerResource<PressureShares>,
    /// The other files; `None` if only pressure was read.
    pub stats: Option<Box<CgroupStats>>,
}

/// The labels of a cgroup's series, as `export/` has rendered them.
#[derive(Debug, PartialEq)]
pub struct RenderedLabels {
    pub text: Box<[u8]>,
    /// Where the label of the container ends.
    pub container_end: usize,
}

/// Usage and limits of a cgroup, by the names of the files; `None` where the controller is off. Memory
/// is in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupStats {
    pub cpu_stat: Option<CpuStat>,
    pub cpu_max: Option<CpuMax>,
    pub memory_current: Option<u64>,
    pub memory_stat: Option<MemoryStat>,
    /// This cgroup and all below.
    pub memory_events: Option<MemoryEvents>,
    /// The inner `None` is `max`.
    pub memory_max: Option<Option<u64>>,
    pub memory_swap_current: Option<u64>,
    /// Empty before the first transfer.
    pub io: Option<Vec<IoCounters>>,
    /// Interrupt pressure, where the kernel accounts for it.
    pub irq_pressure: Option<Pressure>,
}
