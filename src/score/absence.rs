//! Why there is no score, and what to do about it.

use strum::IntoStaticStr;

use crate::kernel::cgroup_dir::Resource;

/// Why a resource has no contention: a word for metrics, and the end of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, thiserror::Error)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Absence {
    /// The kernel reports no pressure of it.
    #[error("the kernel reports no pressure")]
    PressureOff,
    /// The pods are not listed yet, or their cgroups are not found.
    #[error("the node's pods are not listed, or their cgroups are not found")]
    WorkloadsUnknown,
    /// The host has neither pods nor units.
    #[error("there are no pods and no systemd units")]
    NothingToScore,
    /// The waiting of workloads is unknown that may have a quarter of the demand.
    #[error(
        "some workloads are not in the list of pods, or their files or processes are not readable"
    )]
    HiddenContainers,
    /// Limits of the workloads explain all of it.
    #[error("limits of the workloads explain all of it")]
    OwnLimits,
    /// The history is shorter than 30 s.
    #[error("it was read for less than 30 s")]
    WarmingUp,
}

/// The resource without which there is no score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} contention is unknown, since {absence}", name(.resource))]
pub struct MissingScore {
    pub resource: Resource,
    pub absence: Absence,
}

fn name(resource: &Resource) -> &'static str {
    match resource {
        Resource::Cpu => "CPU",
        Resource::Memory => "memory",
        Resource::Io => "I/O",
    }
}

impl MissingScore {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self.absence {
            Absence::PressureOff => "boot with psi=1",
            Absence::WorkloadsUnknown => {
                "let the agent list the pods of its node, and set --cgroup-root to the host's cgroup2 mount"
            }
            Absence::NothingToScore => "set --cgroup-root to the host's cgroup2 mount",
            Absence::HiddenContainers => {
                "let the agent list its node's pods; run as root, with the host's /proc (--proc-root) without hidepid"
            }
            Absence::OwnLimits => "count another resource with --score-resources",
            Absence::WarmingUp => "wait",
        }
    }
}
