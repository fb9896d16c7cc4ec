//! The flags of the commands that read this node: which files they read, and where pods come from.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use strum::IntoStaticStr;

use crate::client::flags::ApiFlags;
use crate::identity::selection::Selection;
use crate::sample::FamilyGroup;

#[derive(Debug, Clone, Args)]
pub struct SourceFlags {
    #[command(flatten)]
    pub api: ApiFlags,

    /// Name of this node in the cluster
    #[arg(long, env, value_name = "NAME", help_heading = "Cluster",
          value_parser = NonEmptyStringValueParser::new())]
    node_name: Option<String>,

    /// File of pods in place of the API server
    ///
    /// The format is that of `kubectl get pods -o json`. The file is reloaded when it changes.
    #[arg(long, env, value_name = "FILE", help_heading = "Cluster")]
    pods_file: Option<PathBuf>,

    /// Cgroups to read [default: virt-launcher with a source of pods, else all]
    #[arg(long, env, value_enum, help_heading = "Scope")]
    scope: Option<Scope>,

    /// The host's /proc
    #[arg(long, env, value_name = "DIR", default_value = "/proc", help_heading = "Kernel")]
    pub proc_root: PathBuf,

    /// Root of the cgroup v2 hierarchy [default: the mount in /proc/self/mountinfo]
    #[arg(long, env, value_name = "DIR", help_heading = "Kernel")]
    pub cgroup_root: Option<PathBuf>,

    /// Source of CPU wait time, chosen once at start
    ///
    /// run-delay requires a --proc-root that shows all of the host's processes.
    #[arg(long, env, value_enum, value_name = "SOURCE", default_value_t = CpuSourceFlag::Auto,
          help_heading = "Kernel")]
    pub cpu_source: CpuSourceFlag,
}

/// Source of this node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSource {
    /// None: the agent runs stand-alone on a host.
    Standalone,
    File(PathBuf),
    /// The API server, for the Node of this name.
    Cluster(String),
}

/// The cgroups that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
enum Scope {
    /// All cgroups except systemd's mount units
    All,
    /// The node, pods and their containers
    Pods,
    /// The node, and the pods that run VMs with their containers
    VirtLauncher,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CpuSourceFlag {
    /// run-delay where --proc-root shows the host's processes, else psi
    Auto,
    /// Run delay of threads
    RunDelay,
    /// CPU pressure of cgroups
    Psi,
}

impl SourceFlags {
    pub fn pods(&self) -> PodSource {
        match (&self.pods_file, &self.node_name) {
            (Some(file), _) => PodSource::File(file.clone()),
            (None, Some(node_name)) => PodSource::Cluster(node_name.clone()),
            (None, None) => PodSource::Standalone,
        }
    }

    /// The word of `--scope`.
    pub fn scope_word(&self) -> &'static str {
        self.scope().into()
    }

    fn scope(&self) -> Scope {
        let has_pods = self.pods() != PodSource::Standalone;
        self.scope.unwrap_or(if has_pods { Scope::VirtLauncher } else { Scope::All })
    }

    /// The cgroups to read. Without `export`, those of all levels.
    pub fn selection(&self, export: Option<&ExportFlags>) -> Selection {
        let scope = self.scope();
        let has = |level| export.is_none_or(|export| export.cgroup_levels.contains(&level));
        Selection {
            everything: scope == Scope::All,
            root: has(CgroupLevel::Root),
            pods: has(CgroupLevel::Pod),
            containers: has(CgroupLevel::Container),
            vms_only: scope == Scope::VirtLauncher,
        }
    }
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scope")]
pub struct ExportFlags {
    /// Levels of cgroups to export in the scopes pods and virt-launcher
    #[arg(
        long,
        env,
        value_enum,
        value_name = "LEVELS",
        value_delimiter = ',',
        default_value = "root,pod,container"
    )]
    cgroup_levels: Vec<CgroupLevel>,

    /// Groups of metrics to export
    #[arg(
        long,
        env,
        value_enum,
        value_delimiter = ',',
        default_value = "pressure,cpu,memory,io,irq,spec,node"
    )]
    families: Vec<FamilyGroup>,
}

impl ExportFlags {
    /// Groups of metrics to export. `none` wins: manifests list others, and arguments can only be added to them.
    pub fn families(&self) -> Vec<FamilyGroup> {
        let has_none = self.families.contains(&FamilyGroup::None);
        if has_none { Vec::new() } else { self.families.clone() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CgroupLevel {
    /// The root cgroup, which is the node
    Root,
    /// Pods
    Pod,
    /// Containers
    Container,
}
