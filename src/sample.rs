//! One reading of the node and its cgroups: raw counters in the kernel's words. `None` is what
//! could not be read; it is never zero.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use crate::clock::Moment;
use crate::identity::Workload;
use crate::kernel::ReadError;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId, TreeHealth};
use crate::kernel::counters::{CpuStat, MemoryEvents, MemoryStat};
use crate::kernel::io_stat::{Device, IoCounters};
use crate::kernel::limits::{CpuMax, IoMax, Limit};
use crate::kernel::node_text::{CpuTimes, DiskCounters, NodeMemory, Reclaim};
use crate::kernel::pressure::Pressure;
use crate::kernel::task_text::TaskTimes;

/// Where a tick has from for how long containers waited for a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CpuSource {
    /// Their pressure, which any node with PSI tells.
    #[default]
    Psi,
    /// The run delay of their threads, which takes the host's `/proc`.
    RunDelay,
}

/// How much a sample reads. Later ones include earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The containers that the score is about: what a tick needs.
    Score,
    /// What is exported to Prometheus.
    Exported,
    /// Also what only people look at: limits and the events of a cgroup's own limit.
    Everything,
}

/// The three pressures of a cgroup or of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressures {
    /// CPU time.
    pub cpu: Option<Pressure>,
    /// Memory.
    pub memory: Option<Pressure>,
    /// Block I/O.
    pub io: Option<Pressure>,
}

impl Pressures {
    /// That of one resource.
    #[must_use]
    pub fn of(&self, resource: Resource) -> Option<Pressure> {
        match resource {
            Resource::Cpu => self.cpu,
            Resource::Memory => self.memory,
            Resource::Io => self.io,
        }
    }

    /// Whether the kernel tells any of them.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    pub(crate) fn slot(&mut self, resource: Resource) -> &mut Option<Pressure> {
        match resource {
            Resource::Cpu => &mut self.cpu,
            Resource::Memory => &mut self.memory,
            Resource::Io => &mut self.io,
        }
    }
}

/// A reading of pressures, and when it was made: at most one a second for each cgroup, since
/// reading changes what other readers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureReading {
    /// When.
    pub at: Instant,
    /// What.
    pub pressures: Pressures,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSample {
    /// Its pressures: all absent where PSI is off.
    pub pressure: PressureReading,
    /// Time in which tasks waited for interrupts, where the kernel accounts for it.
    pub irq: Option<Pressure>,
    /// Where the CPUs' time went.
    pub cpu_times: Option<CpuTimes>,
    /// For how long tasks waited for a CPU since boot, nanoseconds, all tasks together. `None` also
    /// where others than those of the tree run on the node.
    pub run_delay_ns: Option<u64>,
    /// What the node itself reclaims.
    pub reclaim: Option<Reclaim>,
    /// Times that a limit of kubepods, or of a QoS class below it, made its pods reclaim: of memory
    /// that pods may use there is too little then, which is the node's doing. `None` where it was
    /// not asked for.
    pub pods_limit_hits: Option<u64>,
    /// What all pods have of memory, bytes, when tasks last waited for some. `None` where it was not asked
    /// for.
    pub pods_memory: Option<u64>,
    /// Memory and swap.
    pub memory: Option<NodeMemory>,
    /// What each block device did since boot; `None` where it was not asked for.
    pub disks: Option<BTreeMap<Device, DiskCounters>>,
    /// Names of block devices, such as `vda`.
    pub devices: Arc<BTreeMap<Device, String>>,
}

/// A cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupSample {
    /// Which.
    pub cgroup: Arc<Cgroup>,
    /// Whose it is; `None` outside pods, and where nobody tells of pods.
    pub workload: Option<Arc<Workload>>,
    /// Its pressures.
    pub pressure: PressureReading,
    /// The rest; `None` where pressures alone were asked for.
    pub stats: Option<Box<CgroupStats>>,
}

/// What a cgroup used, and what it may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupStats {
    /// `cpu.stat`.
    pub cpu: Option<CpuStat>,
    /// `cpu.stat.local`: time throttled here or above, microseconds, summed over CPUs.
    pub throttled_local_us: Option<u64>,
    /// `cpu.max`.
    pub cpu_max: Option<CpuMax>,
    /// `cpu.weight`, 1 to 10000.
    pub cpu_weight: Option<u64>,
    /// `memory.current`, bytes.
    pub memory_current: Option<u64>,
    /// `memory.stat`.
    pub memory: Option<MemoryStat>,
    /// `memory.events`: this cgroup and all below.
    pub memory_events: Option<MemoryEvents>,
    /// `memory.events.local`: this cgroup's own limit alone.
    pub memory_events_local: Option<MemoryEvents>,
    /// `memory.max`, bytes.
    pub memory_max: Option<Limit>,
    /// `memory.high`, bytes.
    pub memory_high: Option<Limit>,
    /// `memory.swap.current`, bytes.
    pub swap_current: Option<u64>,
    /// `memory.peak`, bytes.
    pub memory_peak: Option<u64>,
    /// `io.stat`; `None` where the controller is off, empty where nothing was moved yet.
    pub io: Option<Vec<IoCounters>>,
    /// `io.max`: limited devices.
    pub io_max: Option<Vec<IoMax>>,
    /// `pids.current`: tasks here and below.
    pub pids_current: Option<u64>,
    /// `pids.max`.
    pub pids_max: Option<Limit>,
    /// Processes of this cgroup itself.
    pub processes: Option<u64>,
}

/// A container that the score is about. Counters are of its whole life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSample {
    /// Which.
    pub cgroup: Arc<Cgroup>,
    /// Whose it is; `None` where nobody tells of pods.
    pub workload: Option<Arc<Workload>>,
    /// Its pressures.
    pub pressure: PressureReading,
    /// What it used of CPUs, and what held it back.
    pub cpu: CpuUse,
    /// Its virtual CPUs' threads, or all of its own where it has none; `None` where they are not
    /// asked for, or not to be seen.
    pub threads: Option<Vec<ThreadTimes>>,
    /// What tells whose doing it is when it waits for memory.
    pub memory: MemoryUse,
    /// What tells whose doing it is when it waits for a disk.
    pub io: IoUse,
}

/// What tells whose doing it is when a container waits for memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Times that `memory.max` or `memory.high` of its own or of its pod made it reclaim.
    pub limit_hits: Option<u64>,
    /// Pages of its that were looked at to free memory; `None` also where no limit was hit of late,
    /// so that it was not read.
    pub scanned: Option<Scanned>,
}

/// Pages that were looked at to free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanned {
    /// By the node's background thread, which only the node's shortage wakes.
    pub by_kswapd: u64,
    /// By tasks that needed memory at once, for the node's sake or for a limit's.
    pub directly: u64,
}

/// What tells whose doing it is when a container waits for a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IoUse {
    /// Whether it or its pod has an `io.max`.
    pub has_max: Option<bool>,
    /// Operations that it asked for, by device; `None` also where it hardly waited of late, so that
    /// they were not read.
    pub operations: Option<DiskOperations>,
    /// What it had to read once more; `None` also where it hardly waited of late, or the node freed no
    /// memory of late.
    pub refaults: Option<Refaults>,
    /// What its pod has of memory, bytes; `None` as above.
    pub pod_memory: Option<u64>,
}

/// Of a container's memory, what was taken and came back since it was made, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refaults {
    /// Its own, from swap.
    pub anon: u64,
    /// Of that, what the kernel called a stall.
    pub anon_stalled: u64,
    /// Of files.
    pub file: u64,
}

/// What a container asked disks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskOperations {
    /// By device, since it was made.
    Counted(BTreeMap<Device, IoCounters>),
    /// Nobody counts: the io controller is off.
    Uncounted,
}

/// A thread, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Its number.
    pub id: u32,
    /// How long it ran and waited.
    pub times: TaskTimes,
}

/// Who is on the node besides members: other containers, and what runs outside pods. Their CPU time
/// and what held them back tells how much of the node's waiting is theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BystanderSample {
    /// Which.
    pub id: CgroupId,
    /// Its CPU pressure, alone, when it was last read.
    pub pressure: PressureReading,
    /// And the time before; `None` of one that is new, or that began to wait at an unknown moment
    /// in between.
    pub before: Option<PressureReading>,
    /// Nothing of one that hardly waited of late.
    pub cpu: CpuUse,
}

/// What a container used of CPUs, and what held it back: its last two readings. Who hardly waits is
/// not read at every tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// The last reading.
    pub last: Option<CpuCounters>,
    /// The one before it.
    pub before: Option<CpuCounters>,
    /// What it may use.
    pub room: Option<CpuRoom>,
}

/// A container's counters of CPU time at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuCounters {
    /// When they were read.
    pub at: Instant,
    /// CPU time used, microseconds.
    pub usage_us: Option<u64>,
    /// What its own quota took from it.
    pub throttled: Option<Throttled>,
}

/// What a container may use of the node's CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuRoom {
    /// Its own `cpu.max`; `None` where the cpu controller is off.
    pub container_max: Option<CpuMax>,
    /// Its pod's.
    pub pod_max: Option<CpuMax>,
    /// On how many CPUs it may run; `None` where the cpuset controller is off.
    pub cpus: Option<u64>,
    /// Tasks in it; `None` where the pids controller is off.
    pub tasks: Option<u64>,
}

/// CPU time that a container could not use because of a quota, microseconds, summed over CPUs. The
/// same time may be told at several levels. Zero where the cpu controller is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttled {
    /// By the container's own quota.
    pub container_us: u64,
    /// By its pod's quota; `None` where the pod has none.
    pub pod_us: Option<u64>,
    /// By whichever level, as the container itself tells it since Linux 6.6.
    pub here_or_above_us: u64,
}

/// What one reading found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// When it began.
    pub moment: Moment,
    /// How much was read.
    pub depth: Depth,
    /// The node.
    pub node: NodeSample,
    /// Cgroups in scope, by path. Empty at [`Depth::Score`].
    pub cgroups: Vec<CgroupSample>,
    /// Those of `users` that are not in scope.
    pub beside: Vec<CgroupSample>,
    /// Who uses the node, each once, at [`Depth::Everything`]: containers, and what stands highest
    /// outside pods.
    pub users: HashSet<CgroupId>,
    /// How many cgroups are in scope, read or not.
    pub in_scope: usize,
    /// The containers that the score is about, at [`Depth::Score`] only; `None` also where it is
    /// not yet known which they are.
    pub members: Option<Vec<MemberSample>>,
    /// Where the members' waiting for a CPU is from.
    pub cpu_source: CpuSource,
    /// Members with tasks of which no process is seen, with [`CpuSource::RunDelay`].
    pub hidden_members: usize,
    /// All others, at [`Depth::Score`]; `None` where the node does not tell how much waiting there
    /// is in all, and where nobody asks.
    pub bystanders: Option<Vec<BystanderSample>>,
    /// What could not be read.
    pub errors: Vec<ReadError>,
    /// Rows of `io.stat` that did not read.
    pub dropped_io_rows: u64,
    /// The tree that it was read from.
    pub tree: TreeHealth,
    /// How pods and cgroups match; `None` where nobody tells of pods.
    pub matching: Option<Matching>,
}

/// Pods and cgroups that have not found each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Matching {
    /// Pods that are known.
    pub pods: usize,
    /// Pods without any cgroup here: not started yet, or ended.
    pub pods_without_cgroup: usize,
    /// Cgroups of pods and containers that nobody told of: pause containers, and what is too new.
    pub cgroups_without_pod: usize,
}
