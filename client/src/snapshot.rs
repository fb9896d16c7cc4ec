//! `/snapshot.json`: the latest rates, counters and score of a node. Agents write it; the page and `top`
//! show it. Agents of other versions may have fewer or more fields: missing ones are `None`.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::resource::PerResource;

/// The node and its cgroups at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of the agent.
    pub version: String,
    /// Name of the Node, or of the host outside a cluster.
    pub node_name: Option<String>,
    #[serde(default)]
    pub levels: Levels,
    /// `--scope`: `all`, `pods` or `virt-launcher`.
    pub scope: Option<Cow<'static, str>>,
    /// When the counters were read, Unix time in milliseconds.
    pub observed_at_ms: u64,
    /// Window of the rates, seconds; absent before the second sample.
    pub window_s: Option<f64>,
    /// Source and version of the estimator, such as `run-delay/6`; absent before the first score.
    pub basis: Option<String>,
    /// Time until the first score, seconds; absent if there is one, or if it is overdue, or if something
    /// else than the short history prevents it.
    pub warm_up_left_s: Option<f64>,
    /// End of the score's latest window, Unix time in milliseconds; absent before the first score.
    pub scored_at_ms: Option<u64>,
    /// State of the agent; absent where `top` reads the kernel itself.
    pub agent: Option<Agent>,
    pub node: Node,
    /// Its cgroups, by path.
    pub cgroups: Vec<Cgroup>,
}

/// Scores at which the levels begin, 0 to 1.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Levels {
    pub medium: f64,
    pub high: f64,
}

/// State of a running agent: its ticks, errors, and what it published.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    /// Time of the last tick, Unix time in milliseconds.
    pub ticked_at_ms: Option<u64>,
    /// Window of the last tick, seconds; absent before the second tick.
    pub tick_window_s: Option<f64>,
    /// Whether the pods of this node are listed; absent without a source of pods.
    pub pods_listed: Option<bool>,
    /// `psi_agent_read_errors_total` by kind, since the agent started.
    pub read_errors: BTreeMap<Cow<'static, str>, u64>,
    /// The last of those errors; absent before the first.
    pub last_read_error: Option<DatedError>,
    /// Why the pods can't be listed or watched; absent while they can be.
    pub pods_error: Option<DatedError>,
    pub publish: PublishStatus,
    /// The node's score after each tick of the last ten minutes, 0 to 1, the oldest first; null without
    /// a score.
    pub history: VecDeque<Option<f64>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatedError {
    /// The message, with the path or the server's reason.
    pub message: String,
    /// The last time, milliseconds since the epoch.
    pub at_ms: u64,
}

impl DatedError {
    pub fn new(error: &(impl Display + ?Sized), at_ms: u64) -> Self {
        Self { message: error.to_string(), at_ms }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishStatus {
    /// `--publish`: `on`, `dry-run` or `off`.
    pub mode: Option<Cow<'static, str>>,
    /// The level after the last score: `low`, `medium` or `high`; absent before the first, and with
    /// `--publish off`.
    pub level: Option<Cow<'static, str>>,
    /// The last value that was published or, in a dry run, would have been; absent before the first.
    pub last: Option<PublishedValue>,
    /// The VM whose move helps the node most; absent if none is named.
    pub candidate: Option<CandidateName>,
    /// Why publishing fails; absent while it works.
    pub error: Option<DatedError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedValue {
    /// The score, 0 to 100.
    pub score: u8,
    /// The time of the score, milliseconds since the epoch.
    pub observed_at_ms: u64,
}

/// The VM to move first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateName {
    pub namespace: String,
    /// Name of the VM.
    pub name: String,
}

/// The node's score, its causes and its resources.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Contention score, 0 to 1; absent in the first 30 s.
    pub score: Option<f64>,
    /// Why there is no score, and what to do; absent while `warm_up_left_s` is the reason.
    pub no_score: Option<String>,
    /// Share of their demand that workloads waited for because of the node, smoothed over 30 s.
    pub contention: PerResource<Option<f64>>,
    /// The same in the last tick, not smoothed.
    pub latest: PerResource<Option<f64>>,
    /// What is scored: `VMs`, `containers` or `units`; absent before the first score.
    pub population: Option<String>,
    /// Scored workloads whose CPU ready or memory contention is 5 % or more.
    pub contended: usize,
    /// Busy vCPUs that can be added before the level is `medium`; absent without a score.
    pub headroom_cpus: Option<f64>,
    pub pressure: PerResource<Pressure>,
    /// Share of the CPUs' time in use.
    pub utilization: Option<f64>,
    /// Share of the CPUs' time that the hypervisor gave to others.
    pub steal: Option<f64>,
    pub cpus: Option<u64>,
    /// `MemTotal`, bytes.
    pub memory_total: Option<u64>,
    /// `MemAvailable`, bytes.
    pub memory_available: Option<u64>,
}

/// Shares of the window in which tasks waited (PSI).
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Option<f64>,
    /// All tasks waited at once.
    pub full: Option<f64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cgroup {
    /// Path from the root of the hierarchy.
    pub id: String,
    /// `root`, `host`, `pod`, `container` or, in a pod, `other`.
    pub level: Cow<'static, str>,
    /// Unescaped name of the systemd unit; absent in pods, and for units below others.
    pub unit: Option<String>,
    /// Namespace of the pod; absent until the pod is listed.
    pub namespace: Option<String>,
    /// Name of the pod.
    pub pod: Option<String>,
    /// Name of the container in the pod; empty for the pod itself.
    pub container: Option<String>,
    /// Name of the VM that the pod runs, or the unit, from its name.
    pub vm: Option<String>,
    /// CPU request of the container, in CPUs.
    pub cpu_request: Option<f64>,
    /// CPU ready that the owner of the VM accepts, 0 to 1; absent without the annotation.
    pub cpu_wait_budget: Option<f64>,
    /// Whether the pod is the target of a live migration whose VM still runs on another node.
    pub awaits_handover: Option<bool>,
    /// Whether this is a container, or a top-level cgroup outside pods: the cgroups whose CPU use
    /// adds up to the node's.
    pub is_user: bool,
    /// Whether this is a VM container of KubeVirt, or a scored VM of another stack.
    pub is_vm: bool,
    pub pressure: PerResource<Pressure>,
    /// Its part in the score; absent for cgroups that are not scored.
    pub scored: Option<Scored>,
    /// CPU time used since the cgroup was created, seconds.
    pub cpu_seconds: Option<f64>,
    /// CPUs used since the snapshot before, which the reader computes.
    #[serde(skip)]
    pub used: Option<f64>,
    /// CPUs that its quota allows.
    pub cpu_limit: Option<Limit>,
    /// `memory.current`, bytes.
    pub memory_bytes: Option<u64>,
    /// `memory.max`, bytes.
    pub memory_max: Option<Limit>,
}

/// A number, or `"max"` without a limit.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    Max,
    #[serde(untagged)]
    At(f64),
}

/// A container's or unit's part in the score.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Scored {
    /// CPUs used in the last window.
    pub usage: Option<f64>,
    /// Share of its demand that it waited for because of the node, smoothed over 30 s.
    pub contention: PerResource<Option<f64>>,
    /// CPU ready, smoothed over 30 s: share of its busy vCPUs' time.
    pub cpu_ready: Option<f64>,
    /// Pressures of the last window.
    #[serde(default)]
    pub pressure: PerResource<Pressure>,
    /// Waiting in the last window, by cause; absent where it is unknown.
    pub waiting: PerResource<Option<Waiting>>,
    /// CPUs that its I/O threads waited for in the last window, whatever the cause; absent without any.
    pub iothreads_waiting: Option<f64>,
    /// What would change if it left; absent for containers that are not VMs, and without a score.
    pub relief: Option<Relief>,
}

/// Waiting for one resource, as shares of the window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Waiting {
    /// All waiting. For CPU by run delay: of the average vCPU; else pressure `some`.
    pub raw: f64,
    /// The part that the container's own limit or its pod's explains.
    pub own_limit: f64,
    /// The part that the node explains. For CPU: of the average vCPU (CPU ready).
    pub node: Option<f64>,
    /// Share of demand that waited because of the node.
    pub contention: Option<f64>,
    /// Demand in CPUs, or bytes of memory; for I/O 1, or 0 with an `io.max`.
    pub demand: Option<f64>,
}

/// What would change if a VM left the node.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Relief {
    /// CPUs' worth of waiting that would end: its own, and that of the other VMs.
    pub cpus: f64,
    /// Score that the node would have, 0 to 1.
    pub score_without: Option<f64>,
}
