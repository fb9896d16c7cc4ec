//! Raw counters that one pass over the node and its cgroups has read, in the kernel's units. A
//! value that could not be read is `None`, and never 0.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use crate::clock::Moment;
use crate::identity::Workload;
use crate::identity::matching::Matching;
use crate::kernel::ReadError;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId, TreeHealth};
use crate::kernel::counters::{CpuStat, MemoryEvents, MemoryStat};
use crate::kernel::io_stat::{Device, IoCounters};
use crate::kernel::limits::{CpuMax, CpuSet, IoMax, Limit};
use crate::kernel::node_text::{CpuTimes, DiskCounters, NodeMemory, Reclaim};
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;
use crate::kernel::task_text::TaskTimes;

/// Source of the CPU wait time in the score. It is chosen once, at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuSource {
    /// `cpu.pressure` of containers, which any node with PSI has.
    Psi,
    /// Run delay of the containers' threads, which needs the host's `/proc`.
    RunDelay,
}

impl CpuSource {
    /// The source's name in flags, metrics and the log.
    pub fn word(self) -> &'static str {
        match self {
            CpuSource::Psi => "psi",
            CpuSource::RunDelay => "run-delay",
        }
    }
}

/// How much an export pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// What is exported to Prometheus.
    Exported,
    /// Also limits, events and cgroups that only the page and `top` show.
    Everything,
}

/// Groups of files that an export pass reads besides pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Groups {
    /// `cpu.stat`.
    pub cpu: bool,
    /// `memory.current`, `memory.stat` and similar files.
    pub memory: bool,
    /// `io.stat`.
    pub io: bool,
    /// `cgroup.procs`, `pids.*`.
    pub processes: bool,
    /// `cpu.max`, `cpu.weight`, `memory.max`.
    pub spec: bool,
}

/// The three pressures of a cgroup or of the node; `None` where PSI is off.
pub type Pressures = PerResource<Option<Pressure>>;

/// Pressures and when they were read: at most once a second for each cgroup, since each read
/// changes the totals that other readers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureReading {
    pub at: Instant,
    pub pressures: Pressures,
}

/// The node, as both passes read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSample {
    /// Its pressures; all absent where PSI is off.
    pub pressure: PressureReading,
    /// Interrupt pressure, where the kernel accounts for it.
    pub irq: Option<Pressure>,
    pub cpu_times: Option<CpuTimes>,
    pub reclaim: Option<Reclaim>,
    pub memory: Option<NodeMemory>,
    /// Names of block devices, such as `vda`.
    pub devices: Arc<BTreeMap<Device, String>>,
}

/// The report of a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Cgroups in scope, read or not.
    pub in_scope: usize,
    pub errors: Vec<ReadError>,
    /// Rows of `io.stat` that were malformed.
    pub dropped_io_rows: u64,
    pub tree: TreeHealth,
    /// How pods and cgroups match; `None` without a source of pods.
    pub matching: Option<Matching>,
}

/// Result of an export pass (scrape).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrapeSample {
    /// When the pass began.
    pub moment: Moment,
    pub detail: Detail,
    pub node: NodeSample,
    /// Cgroups in scope, by path.
    pub cgroups: Vec<CgroupSample>,
    /// Those of `workloads` that are not in scope.
    pub beside: Vec<CgroupSample>,
    /// Cgroups whose usage adds up to that of the node: containers, and the topmost cgroups outside
    /// pods. Empty unless the detail is [`Detail::Everything`].
    pub workloads: HashSet<CgroupId>,
    /// Source of CPU wait time of the ticks.
    pub cpu_source: CpuSource,
    pub report: PassReport,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupSample {
    pub cgroup: Arc<Cgroup>,
    /// Its pod and container; `None` outside pods, and without a source of pods.
    pub workload: Option<Arc<Workload>>,
    pub pressure: PressureReading,
    /// The other files; `None` if only pressure was read.
    pub stats: Option<Box<CgroupStats>>,
}

/// Usage and limits of a cgroup, from the files of the same names. Memory is in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupStats {
    pub cpu: Option<CpuStat>,
    /// `cpu.stat.local`: time throttled here or above, microseconds, summed over CPUs.
    pub throttled_local_us: Option<u64>,
    pub cpu_max: Option<CpuMax>,
    pub cpu_weight: Option<u64>,
    pub memory_current: Option<u64>,
    pub memory: Option<MemoryStat>,
    /// `memory.events`: this cgroup and all below.
    pub memory_events: Option<MemoryEvents>,
    /// `memory.events.local`: this cgroup's own limit alone.
    pub memory_events_local: Option<MemoryEvents>,
    pub memory_max: Option<Limit>,
    pub memory_high: Option<Limit>,
    pub swap_current: Option<u64>,
    pub memory_peak: Option<u64>,
    /// `io.stat`; `None` where the controller is off, empty before the first transfer.
    pub io: Option<Vec<IoCounters>>,
    /// `io.max`: limited devices.
    pub io_max: Option<Vec<IoMax>>,
    /// `pids.current`: tasks here and below.
    pub pids_current: Option<u64>,
    pub pids_max: Option<Limit>,
    /// Processes of this cgroup itself.
    pub processes: Option<u64>,
}

/// Result of a scoring pass (tick).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TickSample {
    /// When the pass began.
    pub moment: Moment,
    pub node: NodeSample,
    /// Run delay of all tasks of the node since boot, nanoseconds; read only while a scored
    /// container waits. `None` also if the tree does not cover the whole node.
    pub run_delay_ns: Option<u64>,
    /// I/O of each block device since boot.
    pub disks: Option<BTreeMap<Device, DiskCounters>>,
    pub pods: AllPods,
    pub cpu_source: CpuSource,
    /// The scored containers; `None` where the list of pods is not known yet, or cgroups can't be
    /// read.
    pub containers: Option<Vec<ContainerSample>>,
    /// All other workloads of the node; read only while a scored container waits.
    pub others: Option<Vec<OtherSample>>,
    /// Scored containers that have tasks whose threads could not be read, with
    /// [`CpuSource::RunDelay`].
    pub hidden_containers: usize,
    pub report: PassReport,
}

/// All pods together, from the cgroups above them: kubepods and its QoS classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllPods {
    /// Times that a memory limit of these cgroups caused reclaim, which counts as reclaim by the
    /// node.
    pub limit_hits: Option<u64>,
    /// Memory of all pods, bytes.
    pub memory: Option<u64>,
}

/// A scored container. Its counters count from its creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSample {
    pub cgroup: Arc<Cgroup>,
    /// Its pod and container; `None` without a source of pods.
    pub workload: Option<Arc<Workload>>,
    pub pressure: PressureReading,
    pub cpu: CpuUse,
    /// Its threads; read only with [`CpuSource::RunDelay`]. `None` where they could not be read in
    /// full.
    pub threads: Option<Vec<ThreadSample>>,
    pub memory: MemoryUse,
    pub io: IoUse,
}

/// A workload that is not scored: a container, or a topmost cgroup outside pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherSample {
    pub id: CgroupId,
    /// Its CPU pressure.
    pub pressure: PressureReading,
    /// CPU usage, throttling and limits; empty where it hardly waited.
    pub cpu: CpuUse,
}

/// CPU usage, throttling and limits: the last two readings, since these files are not read at
/// every tick.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// The newest reading.
    pub last: Option<CpuCounters>,
    /// The reading before it.
    pub before: Option<CpuCounters>,
    /// Limits, when they were last read.
    pub limits: Option<CpuLimits>,
}

/// CPU counters of one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuCounters {
    pub at: Instant,
    /// CPU time used, microseconds.
    pub usage_us: Option<u64>,
    pub throttled: Option<ThrottledTime>,
}

/// CPU limits of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuLimits {
    /// Its own `cpu.max`; `None` where the cpu controller is off.
    pub container_max: Option<CpuMax>,
    /// Its pod's `cpu.max`.
    pub pod_max: Option<CpuMax>,
    /// Its cpuset; `None` where the cpuset controller is off.
    pub cpus: Option<Arc<CpuSet>>,
    /// `cpu.weight` of its pod, or its own outside pods; `None` where the cpu controller is off.
    pub weight: Option<u64>,
    /// Tasks in it, as of the newest counters; `None` where the pids controller is off, and with
    /// [`CpuSource::RunDelay`].
    pub tasks: Option<u64>,
}

impl CpuLimits {
    /// CPUs that the tighter of the two quotas allows; `None` without a quota.
    pub fn quota(&self) -> Option<f64> {
        let quotas = [self.container_max, self.pod_max].into_iter().flatten();
        quotas.filter_map(CpuMax::cpus).reduce(f64::min)
    }
}

/// CPU time lost to quotas, microseconds, summed over CPUs. Several levels can report the same
/// time. Zero where the cpu controller is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThrottledTime {
    /// By the container's own quota.
    pub container_us: u64,
    /// By its pod's quota; `None` where the pod has none.
    pub pod_us: Option<u64>,
    /// By any level, from the container's `cpu.stat.local` (since Linux 6.6).
    pub here_or_above_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSample {
    pub id: u32,
    pub is_vcpu: bool,
    /// Time run and run delay since its start.
    pub times: TaskTimes,
    /// Whether it has been runnable without running since the tick before. This is not in `times`,
    /// since the kernel adds a delay only when it ends.
    pub starved: bool,
}

/// Memory reclaim of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// `memory.current`, bytes; read only while tasks of the node wait for memory.
    pub current: Option<u64>,
    /// Times that `memory.max` or `memory.high` of the container or its pod caused reclaim.
    pub limit_hits: Option<u64>,
    /// Its pages scanned by reclaim; read only after one of these limits was hit.
    pub scanned: Option<ScannedPages>,
}

/// Pages scanned by reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedPages {
    /// By kswapd, which runs only when the node is short of memory.
    pub by_kswapd: u64,
    /// By allocating tasks, because the node is short of memory, or because of a limit.
    pub directly: u64,
}

/// Disk I/O of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IoUse {
    /// Whether the container or its pod has an `io.max`.
    pub has_max: Option<bool>,
    /// Operations by device; read only while the container waits for I/O.
    pub operations: Option<DiskOperations>,
    /// Refaults; read only while the container waits for I/O and the node reclaims memory.
    pub refaults: Option<Refaults>,
    /// Memory of its pod, bytes; read with `refaults`.
    pub pod_memory: Option<u64>,
}

/// Pages that were reclaimed from a container and read again, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refaults {
    /// Anonymous memory, from swap.
    pub anon: u64,
    /// The part of `anon` that the kernel counts as a memory stall.
    pub anon_stalled: u64,
    /// Page cache.
    pub file: u64,
}

/// Operations of a container on block devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskOperations {
    /// By device, since the container was created.
    Counted(BTreeMap<Device, IoCounters>),
    /// The io controller is off.
    Uncounted,
}
