//! The flags of serving, scoring, publishing and logging, in groups of one subject.

use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use strum::{IntoStaticStr, VariantNames};

use super::source::{PodSource, SourceFlags};
use crate::client::flags::parse_duration;
use crate::contract::{Level, Thresholds};
use crate::kernel::cgroup_dir::Resource;
use crate::serve::tls::CertificateFiles;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct ListenAddress {
    /// Address of the agent's HTTP server
    #[arg(long, env, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9942")]
    pub listen_address: SocketAddr,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    #[command(flatten)]
    pub listen: ListenAddress,

    /// Address of a second HTTP server, for probes
    ///
    /// It serves only /livez and /readyz, without TLS. Clients of the first server cannot delay probes
    /// there.
    #[arg(long, env, value_name = "ADDRESS:PORT")]
    pub probe_address: Option<SocketAddr>,

    /// `None` for plain HTTP.
    #[command(flatten)]
    pub certificate: Option<CertificateFiles>,
}

/// Authentication for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// No authentication
    None,
    /// A bearer token whose account may get /metrics
    Kubernetes,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Score")]
pub struct ScoreFlags {
    /// Scores at which the levels medium and high begin, 1 to 100
    #[arg(long, env, value_name = "MEDIUM,HIGH", default_value_t)]
    pub levels: Thresholds,

    /// Resources in the score, which is the largest of their contentions
    #[arg(long, env, value_name = "RESOURCES", value_delimiter = ',', default_value = "cpu,memory",
          value_parser = PossibleValuesParser::new(Resource::VARIANTS).try_map(|word| word.parse::<Resource>()))]
    pub score_resources: Vec<Resource>,
}

#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Publishing")]
pub struct PublishFlag {
    /// Publication of the score on this Node [default: on in a cluster, else dry-run]
    #[arg(long, env, value_enum)]
    publish: Option<Publish>,
}

/// Whether the score is published on the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum Publish {
    /// The score is written on the Node
    On,
    /// The score is logged and counted as if it were written
    DryRun,
    /// The score is not written
    Off,
}

impl PublishFlag {
    pub fn mode(&self, source: &SourceFlags) -> Publish {
        let in_cluster = matches!(source.pods(), PodSource::Cluster(_));
        self.publish.unwrap_or(if in_cluster { Publish::On } else { Publish::DryRun })
    }
}

/// Where the level is shown.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Publishing")]
pub struct OutputFlags {
    /// Labels PREFIX/pressure with the level and PREFIX/headroom, beside the annotations
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub label: bool,

    /// Levels at which the Node gets a PreferNoSchedule taint, beside the annotations
    #[arg(long, env, value_delimiter = ',', value_name = "LEVELS",
          value_parser = PossibleValuesParser::new(["medium", "high"]).try_map(|word| word.parse::<Level>()))]
    pub taint_levels: Vec<Level>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Publishing")]
pub struct PublishingFlags {
    #[command(flatten)]
    pub publish: PublishFlag,

    /// Time after which an unchanged value on the Node is renewed, 5m to 30m
    ///
    /// A value is stale when it is twice as old. Set --stale-after of nodes and bridge, and --older-than
    /// of reap, accordingly.
    // The longer the interval, the longer the last value of a stopped agent counts as fresh.
    #[arg(long, env, value_name = "DURATION", default_value = "5m",
          value_parser = duration_within([300, 1_800], "a heartbeat interval is 5m to 30m"))]
    pub heartbeat_interval: Duration,

    #[command(flatten)]
    pub outputs: OutputFlags,

    /// History of demand that headroom and candidates need, 1s to 30m
    ///
    /// They are averages over 30 min. Until a VM has this history, its waiting does not count.
    #[arg(long, env, value_name = "DURATION", default_value = "5m",
          value_parser = duration_within([1, 1_800], "this history is 1s to 30m long"))]
    pub settle: Duration,

    /// Label PREFIX/migrate-first on the virt-launcher pod of the VM to move first
    ///
    /// At most one pod of this node has the label, and only while the level is medium or high.
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub mark_candidate: bool,

    /// Age from which a VM can be named as the one to move first
    ///
    /// Set it to the minPodAge of the descheduler's policy.
    #[arg(long, env, value_name = "DURATION", value_parser = parse_duration, default_value = "6h")]
    pub candidate_min_age: Duration,
}

// No doc comment: it would become the description of each command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
#[command(next_help_heading = "Log")]
pub struct LogConfig {
    /// Lowest severity to log
    #[arg(long = "log-level", id = "log_level", env, value_name = "LEVEL", default_value = "info",
          value_parser = PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"]).try_map(|word| word.parse::<tracing::Level>()))]
    pub level: tracing::Level,

    /// Format of log lines
    #[arg(long = "log-format", id = "log_format", env, value_name = "FORMAT",
          value_enum, default_value_t = LogFormat::Auto)]
    pub format: LogFormat,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, else JSON
    Auto,
    /// Text
    Text,
    /// JSON
    Json,
}

/// A duration from `shortest` to `longest` seconds; `rule` is the error for others.
pub(super) fn duration_within(
    [shortest, longest]: [u64; 2],
    rule: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    let allowed = Duration::from_secs(shortest)..=Duration::from_secs(longest);
    move |text| {
        let duration = parse_duration(text)?;
        if allowed.contains(&duration) { Ok(duration) } else { Err(rule.into()) }
    }
}
