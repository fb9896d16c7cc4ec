//! The flags as they are typed, with their help. What they mean together is `config.rs`'.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::access::Auth;
use super::publish::Publish;
use super::scope::{CgroupLevel, Scope};
use crate::contract::{Level, Prefix, Thresholds};
use crate::export::families::FamilyGroup;
use crate::kernel::cgroup_dir::Resource;
use crate::sample::CpuSource;
use crate::serve::authorization::Page;

#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Where to serve /metrics, /livez, /readyz and the page for people; where `top` asks
    /// [default: 127.0.0.1:9942, of the bridge 127.0.0.1:9943]
    #[arg(long, global = true, env = "PSI_AGENT_LISTEN_ADDRESS", value_name = "ADDRESS:PORT")]
    pub(super) listen_address: Option<SocketAddr>,

    /// The certificate to serve TLS with, as PEM; read again when it changes
    #[arg(long, global = true, env = "PSI_AGENT_TLS_CERT_FILE", value_name = "FILE")]
    pub(super) tls_cert_file: Option<PathBuf>,

    /// The private key of the certificate, as PEM
    #[arg(long, global = true, env = "PSI_AGENT_TLS_PRIVATE_KEY_FILE", value_name = "FILE")]
    pub(super) tls_private_key_file: Option<PathBuf>,

    /// Who may have the metrics: everybody, or whose token the API server lets get /metrics
    #[arg(long, global = true, env = "PSI_AGENT_AUTH", value_enum, default_value_t = Auth::None)]
    pub(super) auth: Auth,

    /// Who gets the page for people: who comes from this host (`kubectl port-forward` does),
    /// everybody who may have the metrics too, or nobody
    #[arg(long, global = true, env = "PSI_AGENT_PAGE", value_enum, default_value_t = TypedPage::Loopback)]
    pub(super) page: TypedPage,

    /// The host's /proc
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_PROC_ROOT",
        value_name = "DIR",
        default_value = "/proc"
    )]
    pub(super) proc_root: PathBuf,

    /// Source of CPU wait time: the run delay of threads, for which --proc-root must show the host's
    /// processes, or CPU pressure. auto is run delay where they are visible
    #[arg(long, global = true, env = "PSI_AGENT_CPU_SOURCE", value_enum, default_value_t = TypedCpuSource::Auto)]
    pub(super) cpu_source: TypedCpuSource,

    /// The top of the cgroup2 tree [default: the mount that /proc/self/mountinfo shows]
    #[arg(long, global = true, env = "PSI_AGENT_CGROUP_ROOT", value_name = "DIR")]
    pub(super) cgroup_root: Option<PathBuf>,

    /// This node's name in the cluster
    #[arg(long, global = true, env = "PSI_AGENT_NODE_NAME", value_name = "NAME")]
    pub(super) node_name: Option<String>,

    /// How to reach the API server from outside a pod
    #[arg(long, global = true, env = "PSI_AGENT_KUBECONFIG", value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// What keys on nodes begin with, a DNS subdomain
    #[arg(long, global = true, env = "PSI_AGENT_PREFIX", default_value_t)]
    pub(super) prefix: Prefix,

    /// Pods from a file in place of the API server, as `kubectl get pods -o json` prints them
    #[arg(long, global = true, env = "PSI_AGENT_PODS_FILE", value_name = "FILE")]
    pub(super) pods_file: Option<PathBuf>,

    /// Which cgroups [default: virt-launcher where pods are known, else all]
    #[arg(long, global = true, env = "PSI_AGENT_SCOPE", value_enum)]
    pub(super) scope: Option<Scope>,

    /// Which levels of the scopes `pods` and `virt-launcher`
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_CGROUP_LEVELS",
        value_enum,
        value_delimiter = ',',
        default_values_t = [CgroupLevel::Root, CgroupLevel::Pod, CgroupLevel::Container]
    )]
    pub(super) cgroup_levels: Vec<CgroupLevel>,

    /// Which metrics
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_FAMILIES",
        value_enum,
        value_delimiter = ',',
        default_values_t = FamilyGroup::value_variants().to_vec()
    )]
    pub(super) families: Vec<FamilyGroup>,

    /// Where the levels medium and high begin, in points of the score
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_LEVELS",
        value_name = "MEDIUM,HIGH",
        default_value_t
    )]
    pub(super) levels: Thresholds,

    /// Which resources make up the score: the largest counts
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_SCORE_RESOURCES",
        value_enum,
        value_delimiter = ',',
        default_values_t = [ScoreResource::Cpu, ScoreResource::Memory]
    )]
    pub(super) score_resources: Vec<ScoreResource>,

    /// Whether to write the score on this Node [default: on in a cluster, else dry-run]
    #[arg(long, global = true, env = "PSI_AGENT_PUBLISH", value_enum)]
    pub(super) publish: Option<Publish>,

    /// Also write the level as the label PREFIX/pressure
    #[arg(long, global = true, env = "PSI_AGENT_LABEL")]
    pub(super) label: bool,

    /// Also taint the Node, PreferNoSchedule, at these levels
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_TAINT_LEVELS",
        value_enum,
        value_delimiter = ',',
        value_name = "LEVELS"
    )]
    pub(super) taint_levels: Vec<TaintLevel>,

    /// How much to log, to stderr
    #[arg(long, global = true, env = "PSI_AGENT_LOG_LEVEL", value_enum, default_value_t = LogLevel::Info)]
    pub(super) log_level: LogLevel,

    /// How to log: text on a terminal and JSON otherwise, or always the one
    #[arg(long, global = true, env = "PSI_AGENT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Auto)]
    pub(super) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TypedPage {
    Loopback,
    Anywhere,
    Off,
}

impl From<TypedPage> for Page {
    fn from(page: TypedPage) -> Self {
        match page {
            TypedPage::Loopback => Page::Loopback,
            TypedPage::Anywhere => Page::Anywhere,
            TypedPage::Off => Page::Off,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TypedCpuSource {
    Auto,
    RunDelay,
    Psi,
}

impl From<TypedCpuSource> for Option<CpuSource> {
    fn from(source: TypedCpuSource) -> Self {
        match source {
            TypedCpuSource::Auto => None,
            TypedCpuSource::RunDelay => Some(CpuSource::RunDelay),
            TypedCpuSource::Psi => Some(CpuSource::Psi),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ScoreResource {
    Cpu,
    Memory,
    Io,
}

impl From<ScoreResource> for Resource {
    fn from(resource: ScoreResource) -> Self {
        match resource {
            ScoreResource::Cpu => Resource::Cpu,
            ScoreResource::Memory => Resource::Memory,
            ScoreResource::Io => Resource::Io,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TaintLevel {
    /// From medium on
    Medium,
    /// At high
    High,
}

impl From<TaintLevel> for Level {
    fn from(level: TaintLevel) -> Self {
        match level {
            TaintLevel::Medium => Level::Medium,
            TaintLevel::High => Level::High,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    Auto,
    Text,
    Json,
}
