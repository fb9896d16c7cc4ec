//! Ticks of VMs with given measurements. The unit tests and the simulation include this file, too.

use std::sync::Arc;
use std::time::Duration;

use psi_agent::clock::Moment;
use psi_agent::identity::Workload;
use psi_agent::kernel::cgroup_tree::Cgroup;
use psi_agent::kernel::resource::PerResource;
use psi_agent::sample::{NodeRates, PassReport, Scored, Tick};
use psi_agent::waiting::readings::CpuLimits;
use psi_agent::waiting::series::PressureShares;
use psi_agent::waiting::{CpuSource, Measurement, Population, Ratio, Unknown, Wait};

/// A VM that used and waited for these numbers of CPUs, and waited for nothing else.
pub(crate) fn measured_vm(
    cgroup: Arc<Cgroup>,
    workload: Option<Arc<Workload>>,
    used: f64,
    waited: f64,
) -> Measurement {
    let raw = Ratio::of(waited, (used + waited).max(1.0)).unwrap_or(Ratio::ZERO);
    let cpu = Wait::of_cpu(used, waited, raw, Ratio::ZERO);
    let none = Wait::of_stall(Ratio::ZERO, Ratio::ZERO, Ratio::ZERO, 1.0);
    let unknown = Unknown { most_demand: f64::INFINITY };
    Measurement {
        cgroup,
        workload,
        used: Some(used),
        undelayed: Some(used + waited),
        variance: Some(0.0),
        iothreads_waited: None,
        limits: Some(CpuLimits::default()),
        memory: None,
        pressure: PerResource::default(),
        waits: PerResource { cpu: cpu.ok_or(unknown), memory: Ok(none), io: Ok(none) },
    }
}

/// A tick of a node with this number of CPUs on which these VMs run, and nothing else.
pub(crate) fn tick_of_vms(
    moment: Moment,
    window: Duration,
    cpus: u32,
    measurements: Vec<Measurement>,
) -> Tick {
    let used: f64 = measurements.iter().filter_map(|measured| measured.used).sum();
    let scored =
        Scored { population: Population::Vms, measurements, others: Vec::new(), hidden_threads: 0 };
    let none = PressureShares { some: Some(Ratio::ZERO), full: Some(Ratio::ZERO) };
    Tick {
        moment,
        window: Some(window),
        cpu_source: CpuSource::RunDelay,
        node: NodeRates {
            pressure: PerResource::by(|_| none),
            reports: PerResource::by(|_| true),
            cpus: Some(u64::from(cpus)),
            utilization: Ratio::of(used, f64::from(cpus)),
            steal: Some(Ratio::ZERO),
            memory_utilization: None,
            smt_overlap: None,
        },
        scored: Some(scored),
        report: PassReport::default(),
    }
}
