//! The waiting of one container in one window, for one resource.

use serde::Serialize;

use crate::rates::Ratio;

/// A container that waits for less than this, in CPUs or as a share of the window, counts as not
/// waiting: the files that separate the causes are not read.
pub(super) const NEGLIGIBLE: f64 = 0.01;

/// Waiting of a container for one resource, as shares of the window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Wait {
    /// All waiting. For CPU by run delay: of the average vCPU; else pressure `some`.
    pub raw: Ratio,
    /// The part that the container's own limit or its pod's explains.
    pub own_limit: Ratio,
    /// The part that the node explains. For CPU: of the average vCPU (CPU ready). It can be more than
    /// `raw` where that is a pressure, which is an average over CPUs.
    #[serde(rename = "left")]
    pub node: Ratio,
    /// Contention: share of demand that waited because of the node.
    pub contention: Ratio,
    /// Weight among the containers: demand in CPUs, or bytes of memory; 1 for I/O.
    pub demand: f64,
}

impl Wait {
    /// CPU wait of a container that used `used` CPUs and waited for `waited` CPUs. Shares of the
    /// window are per vCPU, or without `vcpus` per CPU of demand. `None` if a number is not finite.
    pub fn of_cpu(
        used: f64,
        waited: f64,
        vcpus: Option<f64>,
        raw: Ratio,
        own_limit: Ratio,
    ) -> Option<Self> {
        let demand = used + waited;
        let node = Ratio::of(waited, vcpus.unwrap_or(demand).max(1.0))?;
        let contention = if waited > 0.0 { Ratio::of(waited, demand)? } else { Ratio::ZERO };
        Some(Self { raw, own_limit, node, contention, demand })
    }

    /// Memory or I/O wait. The demand for these is unknown, so contention is the share of the
    /// window.
    pub fn of_stall(raw: Ratio, own_limit: Ratio, node: Ratio, weight: f64) -> Self {
        Self { raw, own_limit, node, contention: node, demand: weight }
    }
}
