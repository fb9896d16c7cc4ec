//! Why there is no score, and what to do about it.

use std::fmt;

use strum::IntoStaticStr;

use crate::kernel::cgroup_dir::Resource;

/// Why a resource has no contention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Absence {
    /// The kernel reports no pressure of it.
    PressureOff,
    /// The pods are not listed yet, or the node has no cgroup v2.
    WorkloadsUnknown,
    /// The host has neither pods nor units.
    NothingToScore,
    /// The waiting of workloads is unknown that may have a quarter of the demand.
    HiddenContainers,
    /// Limits of the workloads explain all of it.
    OwnLimits,
    /// The history is shorter than 30 s.
    WarmingUp,
}

impl Absence {
    /// The reason, as the end of a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::PressureOff => "the kernel reports no pressure",
            Self::WorkloadsUnknown => "the node has no cgroup v2, or its pods are not listed",
            Self::NothingToScore => "there are no pods and no systemd units",
            Self::HiddenContainers => "files or processes of some workloads are not readable",
            Self::OwnLimits => "limits of the workloads explain all of it",
            Self::WarmingUp => "it was read for less than 30 s",
        }
    }
}

/// The resource without which there is no score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingScore {
    pub resource: Resource,
    pub absence: Absence,
}

impl fmt::Display for MissingScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = match self.resource {
            Resource::Cpu => "CPU",
            Resource::Memory => "memory",
            Resource::Io => "I/O",
        };
        write!(f, "{resource} contention is unknown, since {}", self.absence.text())
    }
}

impl MissingScore {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self.absence {
            Absence::PressureOff => "boot with psi=1",
            Absence::WorkloadsUnknown => "run `psi-agent check`",
            Absence::NothingToScore => "set --cgroup-root to the host's cgroup2 mount",
            Absence::HiddenContainers => {
                "run as root, and set --proc-root to the host's /proc, mounted without hidepid"
            }
            Absence::OwnLimits => "count another resource with --score-resources",
            Absence::WarmingUp => "wait",
        }
    }
}
