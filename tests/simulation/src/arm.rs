//! The rebalancers that are compared.

use clap::ValueEnum;

use crate::consumers::descheduler::Policy;
use crate::consumers::planner::Limits;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Arm {
    /// VMs stay where kube-scheduler placed them.
    Nothing,
    /// The descheduler by requests.
    Requests,
    /// The descheduler by CPU utilization.
    Usage,
    /// The descheduler by the node's CPU pressure.
    NodePsi,
    /// OpenShift's KubeVirtRelieveAndMigrate with its soft tainter.
    Openshift,
    /// The same less often.
    OpenshiftSlow,
    /// The same with the cooldown of its plugin KubevirtMigrationAware (4.23).
    OpenshiftCooldown,
    /// The same by the rules that its operator has since April 2026.
    OpenshiftPriority,
    /// ProxLB by pressure.
    Proxlb,
    /// The descheduler by psi-agent's score, with the agent's taint at level high.
    Score,
    /// The same by psi-agent's load.
    Load,
    /// By the current score, and only the VM that the agent names is evicted.
    Candidate,
    /// The same, and VMs prefer Nodes by the class of their headroom.
    Headroom,
    /// psi-agent's planner, which chooses the VM and its target.
    Planner,
}

/// What the descheduler compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    None,
    Requests,
    Usage,
    NodePsi,
    IdealPoint,
    ActuationPriority,
    /// Averages over ten minutes.
    Score,
    Load,
    CurrentScore,
    Demand,
}

/// The policy of docs/consumers/descheduler.md by contention. Arms with another signal have it too, so that
/// they differ by the signal alone.
const RECOMMENDED: Policy =
    Policy { interval_s: 600, per_node: 1, total: 5, least_age_s: 900, deviation: (0.0, 10.0) };

/// The policy there for only the VM to move first.
const CANDIDATE: Policy =
    Policy { interval_s: 120, least_age_s: 6 * 3600, deviation: (0.0, 20.0), ..RECOMMENDED };

/// The defaults of OpenShift's profile, with the interval of its documentation.
const OPENSHIFT: Policy =
    Policy { interval_s: 60, per_node: 2, total: 5, least_age_s: 0, deviation: (0.0, 10.0) };

/// ProxLB reads means of an hour, so it runs each hour here. Its default is every 12 hours.
pub const PROXLB_INTERVAL_S: u32 = 3600;

/// Other values than those of the policies, to find out what bounds them.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Overrides {
    /// Evictions in a run of the descheduler
    #[arg(long)]
    pub total: Option<usize>,
    /// Seconds between runs of the descheduler
    #[arg(long)]
    pub interval_s: Option<u32>,
    /// VMs prefer Nodes by the label of their headroom, with psi-agent's rebalancers and with none
    #[arg(long)]
    pub prefer_headroom: bool,
    /// psi-agent's bridge extends the scheduler, with psi-agent's rebalancers and with none
    #[arg(long)]
    pub extender: bool,
    /// Agents set a taint at level medium, too
    #[arg(long)]
    pub taint_medium: bool,
    /// Agents set a taint while less than a fifth of the CPUs is idle, too
    #[arg(long)]
    pub taint_full: bool,
    #[command(flatten)]
    pub planner: Limits,
}

impl Overrides {
    pub fn apply(&self, arm: Arm) -> Policy {
        let policy = arm.policy();
        Policy {
            total: self.total.unwrap_or(policy.total),
            interval_s: self.interval_s.unwrap_or(policy.interval_s),
            ..policy
        }
    }
}

impl Arm {
    pub fn title(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Requests => "requests only",
            Self::Usage => "usage",
            Self::NodePsi => "node PSI",
            Self::Openshift => "OpenShift",
            Self::OpenshiftSlow => "OpenShift, every 600 s",
            Self::OpenshiftCooldown => "OpenShift, with cooldown",
            Self::OpenshiftPriority => "OpenShift, rules of April 2026",
            Self::Proxlb => "ProxLB",
            Self::Score => "psi-agent, score",
            Self::Load => "psi-agent, load",
            Self::Candidate => "psi-agent, candidate",
            Self::Headroom => "psi-agent, candidate, headroom",
            Self::Planner => "psi-agent, planner",
        }
    }

    pub fn signal(self) -> Signal {
        match self {
            Self::Nothing | Self::Proxlb => Signal::None,
            Self::Requests => Signal::Requests,
            Self::Usage => Signal::Usage,
            Self::NodePsi => Signal::NodePsi,
            Self::Openshift | Self::OpenshiftSlow | Self::OpenshiftCooldown => Signal::IdealPoint,
            Self::OpenshiftPriority => Signal::ActuationPriority,
            Self::Score => Signal::Score,
            Self::Candidate | Self::Headroom => Signal::CurrentScore,
            Self::Load => Signal::Load,
            Self::Planner => Signal::Demand,
        }
    }

    pub fn policy(self) -> Policy {
        match self {
            Self::Openshift | Self::OpenshiftCooldown | Self::OpenshiftPriority => OPENSHIFT,
            Self::OpenshiftSlow => Policy { interval_s: 600, ..OPENSHIFT },
            // Of it, the planner uses the least age alone.
            Self::Candidate | Self::Headroom | Self::Planner => CANDIDATE,
            _ => RECOMMENDED,
        }
    }

    /// Whether OpenShift's soft tainter writes taints.
    pub fn has_soft_tainter(self) -> bool {
        matches!(self.signal(), Signal::IdealPoint | Signal::ActuationPriority)
    }

    pub fn has_agents(self) -> bool {
        self.has_taints() || self.signal() == Signal::Demand
    }

    /// Whether agents set taints by level.
    pub fn has_taints(self) -> bool {
        matches!(self.signal(), Signal::Score | Signal::CurrentScore | Signal::Load)
    }

    pub fn names_a_vm(self) -> bool {
        self.signal() == Signal::CurrentScore
    }

    /// Whether nothing moves while most moves of a day did not help.
    pub fn has_brake(self) -> bool {
        matches!(self.signal(), Signal::Score | Signal::CurrentScore)
    }
}
