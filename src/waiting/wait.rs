//! The waiting of one container in one window, for one resource.

use super::series::Ratio;

/// A container that waits for less than this, in CPUs or as a share of the window, counts as not
/// waiting: the files that separate the causes are not read.
pub(super) const NEGLIGIBLE: f64 = 0.01;

/// Waiting of a container for one resource, as shares of the window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wait {
    /// All waiting. For CPU by run delay: of the average busy vCPU; else pressure `some`.
    pub raw: Ratio,
    /// The part that the container's own limit or its pod's explains.
    pub own_limit: Ratio,
    /// The part that the node explains. For CPU: of the average busy vCPU (CPU ready), of which there
    /// are as many as CPUs of demand, and at least one. It can be more than `raw` where that is a
    /// pressure, which is an average over CPUs.
    pub node: Ratio,
    /// Contention: share of demand that waited because of the node.
    pub contention: Ratio,
    /// Weight among the containers: demand in CPUs, or bytes of memory; for I/O 1, or 0 with an
    /// `io.max`.
    pub demand: f64,
    /// CPUs' worth of waiting because of the node: 1 for a task that waits all the time.
    pub cpus: f64,
    /// The same because of its own limit or its pod's; where it is not known, that of the average busy vCPU for
    /// each CPU of demand.
    pub own_limit_cpus: f64,
}

/// A container whose waiting is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unknown {
    /// The most demand that can have waited, in the unit of [`Wait::demand`]; infinite without a
    /// bound.
    pub most_demand: f64,
}

/// A container's waiting, or that it is unknown.
pub type WaitResult = Result<Wait, Unknown>;

impl Wait {
    /// CPU wait of a container that used `used` CPUs and waited for `waited` CPUs. `None` if a number
    /// is not finite.
    pub fn of_cpu(used: f64, waited: f64, raw: Ratio, own_limit: Ratio) -> Option<Self> {
        let demand = used + waited;
        let node = Ratio::of(waited, demand.max(1.0))?;
        let contention = if waited > 0.0 { Ratio::of(waited, demand)? } else { Ratio::ZERO };
        let own_limit_cpus = own_limit.get() * demand.max(1.0);
        Some(Self { raw, own_limit, node, contention, demand, cpus: waited, own_limit_cpus })
    }

    /// I/O wait. The demand is unknown, so contention is the share of the window.
    pub fn of_stall(raw: Ratio, own_limit: Ratio, node: Ratio, weight: f64) -> Self {
        let (cpus, own_limit_cpus) = (node.get(), own_limit.get());
        Self { raw, own_limit, node, contention: node, demand: weight, cpus, own_limit_cpus }
    }
}
