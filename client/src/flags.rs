//! The flags of `nodes`, `reap`, `plan` and `planner`, with their help.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, Args, ColorChoice, ValueEnum};
use psi_agent_plan::Rules;
use strum::{IntoStaticStr, VariantArray};

use crate::cluster::ApiClient;
use crate::contract::Prefix;

/// Names the environment variable of a flag that has the attribute `env`: PSI_AGENT_LEVELS for `--levels`, which clap
/// alone names LEVELS.
pub fn with_variable(flag: Arg) -> Arg {
    if flag.get_env().is_none() {
        return flag;
    }
    let name = flag.get_id().as_str().to_uppercase();
    flag.env(format!("PSI_AGENT_{name}"))
}

/// Flags of the agent's commands that use the API server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ApiFlags {
    /// Kubeconfig for access to the API server from outside a pod
    #[arg(long, env, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Prefix of keys on Nodes and pods, a DNS subdomain
    #[arg(long, env, default_value_t)]
    pub prefix: Prefix,
}

impl ApiFlags {
    pub async fn connect(&self) -> anyhow::Result<ApiClient> {
        ApiClient::connect_as_kubectl(self.kubeconfig.as_ref(), None).await
    }
}

/// How `top` is shown.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Terminal")]
pub struct ColorFlag {
    /// Colours by level. auto: in a terminal, unless NO_COLOR is set
    #[arg(long, env, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Nodes")]
pub struct StaleAfter {
    /// Age from which a score is stale: twice the agents' --heartbeat-interval
    #[arg(long, env, value_name = "DURATION", value_parser = parse_duration, default_value = "10m")]
    pub stale_after: Duration,
}

/// Which Nodes `nodes` lists, how, and whether stale scores are an error.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Nodes")]
pub struct NodesFlags {
    #[command(flatten)]
    pub stale: StaleAfter,
    /// Form of the list [default: a table]
    #[arg(short, long, value_enum)]
    pub output: Option<NodesOutput>,
    /// Column to sort by, the largest number first
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "score")]
    pub sort_by: NodesColumn,
    /// After the list, each node that changes
    #[arg(short, long)]
    pub watch: bool,
    /// Label selector of Nodes, in kubectl's syntax
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Exit code 1 unless at least one node has a score and no score is stale
    #[arg(long, env)]
    pub require_fresh: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodesOutput {
    /// The same values as JSON
    Json,
    /// A table with all columns
    Wide,
    /// The names, such as node/worker-1
    Name,
}

/// A column of `nodes`, in the order of the table; the header is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum NodesColumn {
    Name,
    Level,
    Score,
    Headroom,
    Candidate,
    Age,
    Cpu,
    Memory,
    Io,
    Demand,
    Waiting,
    Basis,
}

/// What `reap` removes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Nodes", group = clap::ArgGroup::new("what").required(true))]
pub struct ReapFlags {
    /// Age from which a score is stale, such as 15m
    #[arg(long, group = "what", value_name = "DURATION", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// All keys of the agents, to uninstall
    #[arg(long, group = "what")]
    pub all: bool,
    /// Removal of values even if more than half of the nodes are stale, which suggests an outage
    #[arg(long)]
    pub force: bool,
    /// Removal of the label PREFIX/migrate-first as well, from pods on these nodes
    ///
    /// For agents with --mark-candidate. It needs the right to list and patch pods.
    #[arg(long)]
    pub candidates: bool,
    /// Namespace whose agents must end first, for up to a minute
    ///
    /// It needs the right to list pods there.
    #[arg(long, requires = "all", value_name = "NAMESPACE")]
    pub wait_for_agents: Option<String>,
}

/// What `plan` prints and does.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Plan")]
pub struct PlanFlags {
    /// Form of the plan
    #[arg(short, long, value_enum, default_value_t = PlanOutput::Table)]
    pub output: PlanOutput,
    /// Creation of the plan's migrations, after a question
    #[arg(long)]
    pub apply: bool,
    /// Creation of the migrations without a question
    #[arg(long, requires = "apply")]
    pub yes: bool,
    /// Start of a planner that has stopped
    ///
    /// It needs the right to get and update the planner's Lease.
    #[arg(long, conflicts_with_all = ["output", "apply"])]
    pub resume: bool,
    #[command(flatten)]
    pub rules: RuleFlags,
}

/// When a move is worth it, how many there are, and where a planner keeps its state.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Plan")]
pub struct RuleFlags {
    /// Namespace of the planner's Lease, psi-agent-planner
    #[arg(long, env, value_name = "NAMESPACE", default_value = "psi-agent")]
    pub lease_namespace: String,
    /// Most migrations of plans at the same time
    #[arg(long, env, value_name = "MIGRATIONS", default_value_t = 2)]
    pub most_active: usize,
    /// Most migrations of plans that begin within an hour
    #[arg(long, env, value_name = "MIGRATIONS", default_value_t = 10)]
    pub moves_per_hour: usize,
    /// Least CPUs' worth of waiting that a move ends on both nodes together
    ///
    /// Nodes with few CPUs want less.
    #[arg(long, env, value_name = "CPUS", value_parser = parse_cpus,
          default_value_t = Rules::default().least_gain)]
    pub least_gain: f64,
    /// Time after its start or a migration in which a VM does not move
    #[arg(long, env, value_name = "DURATION", value_parser = parse_duration, default_value = "6h")]
    pub min_age: Duration,
}

impl RuleFlags {
    pub fn rules(&self) -> Rules {
        let &Self { least_gain, most_active, moves_per_hour, .. } = self;
        let rest = i64::try_from(self.min_age.as_secs()).unwrap_or(i64::MAX);
        Rules { least_gain, rest, most_active, moves_per_hour }
    }
}

/// What `planner` does.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Plan")]
pub struct PlannerFlags {
    /// Creation of migrations, for VMs in namespaces with the label PREFIX/plan: "true"
    ///
    /// Without it, each proposed move is an Event of the VM.
    #[arg(long)]
    pub apply: bool,
    /// Time between two plans
    #[arg(long, env, value_name = "DURATION", value_parser = parse_duration, default_value = "2m")]
    pub interval: Duration,
    /// Name of this process in the Lease, such as that of its pod
    #[arg(long, env, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub lease_holder: String,
    #[command(flatten)]
    pub rules: RuleFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanOutput {
    /// A table of moves, with the reasons why other VMs and nodes are left out
    Table,
    /// The same as JSON
    Json,
    /// The migrations as manifests
    Yaml,
}

/// Parses a duration such as `90s`, `5m` or `1h30m`, which must be longer than 0.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = text.parse::<jiff::SignedDuration>().map_err(|_| {
        "a duration is a number with its unit (s, m or h), such as 90s, 5m or 1h30m".to_owned()
    })?;
    let duration = Duration::try_from(duration).ok().filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| "a duration must be longer than 0s".into())
}

/// Parses a number of CPUs, such as `0.5`.
fn parse_cpus(text: &str) -> Result<f64, String> {
    let cpus = text.parse().ok().filter(|cpus: &f64| cpus.is_finite() && *cpus > 0.0);
    cpus.ok_or_else(|| "a number of CPUs is larger than 0, such as 0.5".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Plan {
        #[command(flatten)]
        flags: RuleFlags,
    }

    #[test]
    fn the_rules_of_a_plan_can_be_set() {
        let parse = |typed: &[&str]| Plan::try_parse_from(["plan"].iter().chain(typed));
        let rules = |typed: &[&str]| parse(typed).unwrap().flags.rules();
        assert_eq!(rules(&[]), Rules::default());
        let changed = rules(&["--least-gain=0.25", "--min-age=1h"]);
        assert_eq!((changed.least_gain, changed.rest), (0.25, 3_600));
        for typed in ["0", "-1", "NaN", "inf", "few"] {
            let error = parse(&[&format!("--least-gain={typed}")]).unwrap_err().to_string();
            assert!(error.contains("a number of CPUs is larger than 0, such as 0.5"), "{error}");
        }
    }

    #[test]
    fn durations_have_a_unit_and_are_explained_in_errors() {
        for (typed, seconds) in [("90s", 90), ("5m", 300), ("1h", 3_600), ("1h30m", 5_400)] {
            let duration = parse_duration(typed);
            assert_eq!(duration, Ok(Duration::from_secs(seconds)), "{typed}");
        }
        for typed in ["5", "soon", "5 parsecs", ""] {
            let error = parse_duration(typed).unwrap_err();
            assert!(error.ends_with("such as 90s, 5m or 1h30m"), "{typed}: {error}");
        }
        for typed in ["0s", "-5m"] {
            assert_eq!(parse_duration(typed).unwrap_err(), "a duration must be longer than 0s");
        }
    }
}
