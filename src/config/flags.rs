//! The flags as typed, with their help, in groups of one subject. `config.rs` checks their combinations.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::access::Auth;
use super::cluster::{CgroupLevel, Publish, Scope};
use super::error::ConfigError;
use super::values::{one_of, parse_heartbeat};
use crate::client::flags::{KubeconfigFlag, PrefixFlag, parse_duration};
use crate::contract::{Level, Thresholds};
use crate::export::families::FamilyGroup;
use crate::kernel::cgroup_dir::Resource;
use crate::serve::authorization::Page;
use crate::serve::tls::CertificateFiles;
use crate::waiting::CpuSource;

pub(super) const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9942);

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ListenAddress {
    /// Address of the agent's HTTP server
    #[arg(long, env = "PSI_AGENT_LISTEN_ADDRESS", value_name = "ADDRESS:PORT",
          default_value_t = DEFAULT_ADDRESS)]
    pub(super) listen_address: SocketAddr,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct TlsFlags {
    /// TLS certificate chain (PEM), reloaded when it changes
    ///
    /// Plain HTTP from loopback still works for all but the metrics, so `kubectl port-forward` and top
    /// need no certificate.
    #[arg(long, env = "PSI_AGENT_TLS_CERT_FILE", value_name = "FILE")]
    pub(super) tls_cert_file: Option<PathBuf>,

    /// Private key of the TLS certificate (PEM), reloaded when it changes
    #[arg(long, env = "PSI_AGENT_TLS_PRIVATE_KEY_FILE", value_name = "FILE")]
    pub(super) tls_private_key_file: Option<PathBuf>,
}

impl TlsFlags {
    pub(super) fn certificate(self) -> Result<Option<CertificateFiles>, ConfigError> {
        match (self.tls_cert_file, self.tls_private_key_file) {
            (Some(certificate), Some(key)) => Ok(Some(CertificateFiles { certificate, key })),
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => Err(ConfigError::HalfACertificate),
        }
    }
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ServerFlags {
    #[command(flatten)]
    pub(super) listen: ListenAddress,

    /// Address of a second HTTP server, for probes
    ///
    /// It serves only /livez and /readyz, without TLS. Clients of the first server cannot delay probes
    /// there.
    #[arg(long, env = "PSI_AGENT_PROBE_ADDRESS", value_name = "ADDRESS:PORT")]
    pub(super) probe_address: Option<SocketAddr>,

    #[command(flatten)]
    pub(super) tls: TlsFlags,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct AccessFlags {
    /// Authentication for /metrics
    ///
    /// kubernetes requires TLS, and a cluster whose API server reviews the tokens.
    #[arg(long, env = "PSI_AGENT_AUTH", value_enum, default_value_t = Auth::None)]
    pub(super) auth: Auth,

    /// Clients that may open the page and /snapshot.json
    ///
    /// loopback: clients on this host or in this pod, `kubectl port-forward` included. anywhere: all
    /// clients that may read the metrics. off: none.
    #[arg(long, env = "PSI_AGENT_PAGE", default_value = "loopback",
          value_parser = one_of(&[Page::Loopback, Page::Anywhere, Page::Off], page_word))]
    pub(super) page: Page,
}

fn page_word(page: Page) -> &'static str {
    match page {
        Page::Loopback => "loopback",
        Page::Anywhere => "anywhere",
        Page::Off => "off",
    }
}

/// Flags of the commands that read this node.
#[derive(Debug, Clone, Args)]
pub(super) struct SourceFlags {
    #[command(flatten)]
    pub(super) kubeconfig: KubeconfigFlag,

    /// Name of this node in the cluster
    #[arg(long, env = "PSI_AGENT_NODE_NAME", value_name = "NAME", help_heading = "Cluster")]
    pub(super) node_name: Option<String>,

    /// File of pods in place of the API server
    ///
    /// The format is that of `kubectl get pods -o json`. The file is reloaded when it changes.
    #[arg(long, env = "PSI_AGENT_PODS_FILE", value_name = "FILE", help_heading = "Cluster")]
    pub(super) pods_file: Option<PathBuf>,

    #[command(flatten)]
    pub(super) prefix: PrefixFlag,

    /// Cgroups to read [default: virt-launcher with a source of pods, else all]
    #[arg(long, env = "PSI_AGENT_SCOPE", value_enum, help_heading = "Scope")]
    pub(super) scope: Option<Scope>,

    /// The host's /proc
    #[arg(
        long,
        env = "PSI_AGENT_PROC_ROOT",
        value_name = "DIR",
        default_value = "/proc",
        help_heading = "Kernel"
    )]
    pub(super) proc_root: PathBuf,

    /// Root of the cgroup v2 hierarchy [default: the mount in /proc/self/mountinfo]
    #[arg(long, env = "PSI_AGENT_CGROUP_ROOT", value_name = "DIR", help_heading = "Kernel")]
    pub(super) cgroup_root: Option<PathBuf>,

    /// Source of CPU wait time, chosen once at start
    ///
    /// run-delay requires a --proc-root that shows all of the host's processes.
    #[arg(long, env = "PSI_AGENT_CPU_SOURCE", value_enum, value_name = "SOURCE", default_value_t = TypedCpuSource::Auto,
          help_heading = "Kernel")]
    pub(super) cpu_source: TypedCpuSource,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scope")]
pub(super) struct ExportFlags {
    /// Levels of cgroups to export in the scopes pods and virt-launcher
    #[arg(
        long,
        env = "PSI_AGENT_CGROUP_LEVELS",
        value_enum,
        value_name = "LEVELS",
        value_delimiter = ',',
        default_value = "root,pod,container"
    )]
    pub(super) cgroup_levels: Vec<CgroupLevel>,

    /// Groups of metrics to export
    #[arg(
        long,
        env = "PSI_AGENT_FAMILIES",
        value_enum,
        value_delimiter = ',',
        default_value = "pressure,cpu,memory,io,processes,spec,node"
    )]
    pub(super) families: Vec<FamilyGroup>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Score")]
pub(super) struct ScoreFlags {
    /// Scores at which the levels medium and high begin, 1 to 100
    #[arg(long, env = "PSI_AGENT_LEVELS", value_name = "MEDIUM,HIGH", default_value_t)]
    pub(super) levels: Thresholds,

    /// Resources in the score, which is the largest of their contentions
    #[arg(long, env = "PSI_AGENT_SCORE_RESOURCES", value_name = "RESOURCES",
          value_delimiter = ',', default_value = "cpu,memory", value_parser = one_of(&Resource::ALL, Resource::word))]
    pub(super) score_resources: Vec<Resource>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Publishing")]
pub(super) struct PublishFlag {
    /// Publication of the score on this Node [default: on in a cluster, else dry-run]
    #[arg(long, env = "PSI_AGENT_PUBLISH", value_enum)]
    pub(super) publish: Option<Publish>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Publishing")]
pub(super) struct PublishingFlags {
    /// Time after which an unchanged value on the Node is renewed, 5m to 30m
    ///
    /// A value is stale when it is twice as old. Set --stale-after of nodes and bridge, and --older-than
    /// of reap, accordingly.
    #[arg(long, env = "PSI_AGENT_HEARTBEAT_INTERVAL", value_name = "DURATION",
          value_parser = parse_heartbeat, default_value = "5m")]
    pub(super) heartbeat_interval: Duration,

    /// Label PREFIX/pressure with the level, beside the annotations
    #[arg(long, env = "PSI_AGENT_LABEL", value_parser = BoolishValueParser::new())]
    pub(super) label: bool,

    /// Levels at which the Node gets a PreferNoSchedule taint, beside the annotations
    #[arg(long, env = "PSI_AGENT_TAINT_LEVELS", value_delimiter = ',', value_name = "LEVELS",
          value_parser = one_of(&[Level::Medium, Level::High], Level::word))]
    pub(super) taint_levels: Vec<Level>,

    /// Label PREFIX/migrate-first on the virt-launcher pod of the VM whose move helps most
    ///
    /// At most one pod of this node has the label, and only while the level is medium or high.
    #[arg(long, env = "PSI_AGENT_MARK_CANDIDATE", value_parser = BoolishValueParser::new())]
    pub(super) mark_candidate: bool,

    /// Age from which a VM can be named as the one to move first
    ///
    /// Set it to the minPodAge of the descheduler's policy.
    #[arg(long, env = "PSI_AGENT_CANDIDATE_MIN_AGE", value_name = "DURATION", value_parser = parse_duration,
          default_value = "15m")]
    pub(super) candidate_min_age: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TypedCpuSource {
    /// run-delay where --proc-root shows the host's processes, else psi
    Auto,
    /// Run delay of the VMs' threads
    RunDelay,
    /// CPU pressure of the VMs' cgroups
    Psi,
}

impl From<TypedCpuSource> for Option<CpuSource> {
    fn from(typed: TypedCpuSource) -> Self {
        match typed {
            TypedCpuSource::Auto => None,
            TypedCpuSource::RunDelay => Some(CpuSource::RunDelay),
            TypedCpuSource::Psi => Some(CpuSource::Psi),
        }
    }
}

/// Logging, to stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
#[command(next_help_heading = "Log")]
pub struct LogConfig {
    /// Lowest severity to log
    #[arg(long = "log-level", id = "log_level", env = "PSI_AGENT_LOG_LEVEL", value_name = "LEVEL", default_value = "info",
          value_parser = PossibleValuesParser::new(LOG_LEVELS).try_map(|word| word.parse::<tracing::Level>()))]
    pub level: tracing::Level,

    /// Format of log lines
    #[arg(long = "log-format", id = "log_format", env = "PSI_AGENT_LOG_FORMAT", value_name = "FORMAT",
          value_enum, default_value_t = LogFormat::Auto)]
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: tracing::Level::INFO, format: LogFormat::Auto }
    }
}

const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

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
