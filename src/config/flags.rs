//! The flags as typed, with their help. `config.rs` checks their combinations.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::access::Auth;
use super::bridge::parse_age;
use super::cluster::{CgroupLevel, Publish, Scope};
use crate::contract::{Level, Prefix, Thresholds};
use crate::export::families::FamilyGroup;
use crate::kernel::cgroup_dir::Resource;
use crate::sample::CpuSource;
use crate::serve::authorization::Page;

/// One of `values`, typed as its `word`.
fn one_of<T: Copy + Send + Sync + 'static>(
    values: &'static [T],
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().map(move |&value| word(value))).try_map(move |typed| {
        let mut values = values.iter().copied();
        values.find(|&value| word(value) == typed).ok_or("not one of the possible values")
    })
}

fn page_word(page: Page) -> &'static str {
    match page {
        Page::Loopback => "loopback",
        Page::Anywhere => "anywhere",
        Page::Off => "off",
    }
}

/// The shortest and the longest heartbeat interval. The longer it is, the longer the value of an agent
/// that has ended counts as fresh.
const HEARTBEATS: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(1_800)];

fn parse_heartbeat(text: &str) -> Result<Duration, String> {
    let interval = parse_age(text)?;
    let [shortest, longest] = HEARTBEATS;
    if (shortest..=longest).contains(&interval) {
        Ok(interval)
    } else {
        Err("a heartbeat interval is 5m to 30m".into())
    }
}

#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Address of the HTTP server; for `top`, the address of the agent
    /// [default: 127.0.0.1:9942, for the bridge 127.0.0.1:9943]
    #[arg(long, global = true, env = "PSI_AGENT_LISTEN_ADDRESS", value_name = "ADDRESS:PORT")]
    pub(super) listen_address: Option<SocketAddr>,

    /// Address of a second HTTP server, for /livez and /readyz alone, without TLS: clients of the first
    /// cannot delay probes there
    #[arg(long, global = true, env = "PSI_AGENT_PROBE_ADDRESS", value_name = "ADDRESS:PORT")]
    pub(super) probe_address: Option<SocketAddr>,

    /// TLS certificate chain (PEM), reloaded when it changes
    #[arg(long, global = true, env = "PSI_AGENT_TLS_CERT_FILE", value_name = "FILE")]
    pub(super) tls_cert_file: Option<PathBuf>,

    /// Private key of the TLS certificate (PEM)
    #[arg(long, global = true, env = "PSI_AGENT_TLS_PRIVATE_KEY_FILE", value_name = "FILE")]
    pub(super) tls_private_key_file: Option<PathBuf>,

    /// Authentication for /metrics
    #[arg(long, global = true, env = "PSI_AGENT_AUTH", value_enum, default_value_t = Auth::None)]
    pub(super) auth: Auth,

    /// Clients that may open the page and /snapshot.json: those on this host or in this pod
    /// (includes `kubectl port-forward`), all that may read the metrics, or none
    #[arg(long, global = true, env = "PSI_AGENT_PAGE", default_value = "loopback",
          value_parser = one_of(&[Page::Loopback, Page::Anywhere, Page::Off], page_word))]
    pub(super) page: Page,

    /// The host's /proc
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_PROC_ROOT",
        value_name = "DIR",
        default_value = "/proc"
    )]
    pub(super) proc_root: PathBuf,

    /// Source of CPU wait time, chosen once at start; run-delay requires a --proc-root that shows
    /// all of the host's processes
    #[arg(long, global = true, env = "PSI_AGENT_CPU_SOURCE", value_enum, default_value_t = TypedCpuSource::Auto)]
    pub(super) cpu_source: TypedCpuSource,

    /// Root of the cgroup v2 hierarchy [default: the mount in /proc/self/mountinfo]
    #[arg(long, global = true, env = "PSI_AGENT_CGROUP_ROOT", value_name = "DIR")]
    pub(super) cgroup_root: Option<PathBuf>,

    /// Name of this node in the cluster
    #[arg(long, global = true, env = "PSI_AGENT_NODE_NAME", value_name = "NAME")]
    pub(super) node_name: Option<String>,

    /// Kubeconfig for access to the API server from outside a pod
    #[arg(long, global = true, env = "PSI_AGENT_KUBECONFIG", value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// Prefix of keys on Nodes, a DNS subdomain
    #[arg(long, global = true, env = "PSI_AGENT_PREFIX", default_value_t)]
    pub(super) prefix: Prefix,

    /// File of pods in place of the API server, in the format of `kubectl get pods -o json`
    #[arg(long, global = true, env = "PSI_AGENT_PODS_FILE", value_name = "FILE")]
    pub(super) pods_file: Option<PathBuf>,

    /// Cgroups to read [default: virt-launcher with a source of pods, else all]
    #[arg(long, global = true, env = "PSI_AGENT_SCOPE", value_enum)]
    pub(super) scope: Option<Scope>,

    /// Levels of cgroups in the scopes `pods` and `virt-launcher`
    #[arg(long, global = true, env = "PSI_AGENT_CGROUP_LEVELS", value_enum, value_delimiter = ',',
          default_values_t = CgroupLevel::value_variants().to_vec())]
    pub(super) cgroup_levels: Vec<CgroupLevel>,

    /// Groups of metrics to export
    #[arg(long, global = true, env = "PSI_AGENT_FAMILIES", value_enum, value_delimiter = ',',
          default_values_t = FamilyGroup::value_variants().to_vec())]
    pub(super) families: Vec<FamilyGroup>,

    /// Scores at which the levels medium and high begin, 1 to 100
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_LEVELS",
        value_name = "MEDIUM,HIGH",
        default_value_t
    )]
    pub(super) levels: Thresholds,

    /// Resources in the score, which is the largest of their contentions
    #[arg(long, global = true, env = "PSI_AGENT_SCORE_RESOURCES", value_delimiter = ',',
          default_values = ["cpu", "memory"], value_parser = one_of(&Resource::ALL, Resource::word))]
    pub(super) score_resources: Vec<Resource>,

    /// Publication of the score on this Node [default: on in a cluster, else dry-run]
    #[arg(long, global = true, env = "PSI_AGENT_PUBLISH", value_enum)]
    pub(super) publish: Option<Publish>,

    /// Time after which an unchanged value on the Node is renewed, 5m to 30m; readers take a value for
    /// stale when it is twice as old
    #[arg(long, global = true, env = "PSI_AGENT_HEARTBEAT_INTERVAL", value_name = "TIME",
          value_parser = parse_heartbeat, default_value = "5m")]
    pub(super) heartbeat_interval: Duration,

    /// Label PREFIX/pressure with the level, beside the annotations
    #[arg(long, global = true, env = "PSI_AGENT_LABEL")]
    pub(super) label: bool,

    /// Levels at which the Node gets a PreferNoSchedule taint, beside the annotations
    #[arg(long, global = true, env = "PSI_AGENT_TAINT_LEVELS", value_delimiter = ',', value_name = "LEVELS",
          value_parser = one_of(&[Level::Medium, Level::High], Level::word))]
    pub(super) taint_levels: Vec<Level>,

    #[command(flatten)]
    pub(super) log: LogConfig,
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
pub struct LogConfig {
    /// Lowest severity to log
    #[arg(long = "log-level", id = "log_level", global = true, env = "PSI_AGENT_LOG_LEVEL", default_value = "info",
          value_parser = PossibleValuesParser::new(LOG_LEVELS).try_map(|word| word.parse::<tracing::Level>()))]
    pub level: tracing::Level,

    /// Log format: `auto` is text on a terminal, else JSON
    #[arg(long = "log-format", id = "log_format", global = true, env = "PSI_AGENT_LOG_FORMAT",
          value_enum, default_value_t = LogFormat::Auto)]
    pub format: LogFormat,
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
