//! Opens the host's `/proc` and cgroup root.

use std::path::Path;
use std::sync::Arc;

use crate::clock;
use crate::collector::{Collector, Sources};
use crate::config::{CpuSourceFlag, ExportFlags, PodSource, ScoreFlags, SourceFlags};
use crate::kernel::cgroup_dir::CgroupRoot;
use crate::kernel::mounts::find_cgroup2;
use crate::kernel::own_process::{host_name, raise_open_file_limit};
use crate::kernel::proc_root::ProcRoot;
use crate::snapshot::NodeIdentity;
use crate::waiting::CpuSource;

/// What was found, or the problem.
pub type Finding<T = String> = Result<T, Problem>;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {remedy}")]
pub struct Problem {
    /// Whether the agent cannot run, or has nothing to export or no score. Else it runs with limitations.
    pub is_fatal: bool,
    pub text: String,
    pub remedy: String,
}

pub fn warn<T>(text: impl ToString, remedy: impl ToString) -> Finding<T> {
    Err(Problem { is_fatal: false, text: text.to_string(), remedy: remedy.to_string() })
}

pub fn fail<T>(text: impl ToString, remedy: impl ToString) -> Finding<T> {
    Err(Problem { is_fatal: true, text: text.to_string(), remedy: remedy.to_string() })
}

/// The identity of this node: the name of the Node, or of the host outside a cluster, the levels,
/// and the current time as the start.
pub fn node_identity(source: &SourceFlags, score: &ScoreFlags) -> NodeIdentity {
    let name = match source.pods() {
        PodSource::Cluster(node_name) => Some(node_name),
        PodSource::Standalone | PodSource::File(_) => host_name(),
    };
    NodeIdentity {
        name,
        scope: source.scope_word(),
        levels: score.levels,
        counted: score.score_resources.clone(),
        started_at: clock::now().at,
    }
}

const NO_CGROUP2: &str = "boot with systemd.unified_cgroup_hierarchy=1; in a container, mount the \
    host's /sys/fs/cgroup and set --cgroup-root to it";

const HIDEPID_REMEDY: &str = "mount /proc on the node without hidepid, or with \
    hidepid=invisible,gid=GROUP, and add that group to supplementalGroups of the agent's pod";

const SELINUX_REMEDY: &str = "run the agent with the type spc_t: components/selinux, or \
    components/openshift with its SCC (chart: agent.seLinuxType, openshift.enabled)";

#[derive(Debug)]
pub struct Host {
    pub proc: ProcRoot,
    pub root: Arc<CgroupRoot>,
    /// Whether there is no cgroup v2, so that only files of the node can be read.
    pub node_alone: bool,
    pub cpu_source: CpuSource,
}

impl Host {
    /// Opens what the configuration sets, or finds it. In a cluster, a node without cgroup v2 is
    /// not an error, since the agent's pod would be restarted forever.
    pub fn open(source: &SourceFlags) -> Finding<Self> {
        let proc = ProcRoot::open(&source.proc_root).or_else(|error| {
            let text = format!("cannot open the proc file system: {error}");
            fail(text, "set --proc-root to its mount")
        })?;
        let cpu_source = match source.cpu_source {
            CpuSourceFlag::RunDelay => CpuSource::RunDelay,
            CpuSourceFlag::Auto if proc.counts_run_delay() && proc.shows_host_processes() => {
                CpuSource::RunDelay
            }
            CpuSourceFlag::Auto | CpuSourceFlag::Psi => CpuSource::Psi,
        };
        let in_cluster = matches!(source.pods(), PodSource::Cluster(_));
        let root = match &source.cgroup_root {
            Some(path) => open_root(path)?,
            None => match find_root(&source.proc_root)? {
                Some(root) => root,
                // The usual directory of cgroup mounts, of either version.
                None if in_cluster => open_root(Path::new("/sys/fs/cgroup"))?,
                None => return fail("cgroup v2 is not mounted", NO_CGROUP2),
            },
        };
        // Outside a cluster, an empty directory is read as a copy without cgroups.
        let node_alone = !root.has_cgroup2_files() && (in_cluster || root.has_cgroup1());
        let host = Self { proc, root, node_alone, cpu_source };
        if node_alone && !in_cluster {
            host.cgroups()?;
        }
        Ok(host)
    }

    /// The cgroups that are read.
    pub fn cgroups(&self) -> Finding {
        let path = self.root.path.display();
        if self.node_alone {
            return fail(
                format!("{path} is not cgroup v2: no pods can be read, and there is no score"),
                NO_CGROUP2,
            );
        }
        if !self.root.is_cgroup2 {
            return warn(
                format!("{path} is not a cgroup2 mount; its files are read as a copy"),
                "omit --cgroup-root to read the cgroups of this host",
            );
        }
        if self.root.is_namespaced() {
            return warn(format!("{path} shows only part of the host's cgroups"), NO_CGROUP2);
        }
        Ok(path.to_string())
    }

    /// The source of CPU wait time.
    pub fn cpu_wait(&self, source: &SourceFlags) -> Finding {
        let is_auto = source.cpu_source == CpuSourceFlag::Auto;
        let chosen = if is_auto { ", chosen by auto" } else { "" };
        match (self.cpu_source, self.proc.counts_run_delay(), self.denial()) {
            (CpuSource::Psi, true, Some((cause, remedy))) if is_auto => {
                warn(format!("PSI{chosen}: {cause}"), remedy)
            }
            (CpuSource::Psi, true, _) => Ok(format!("PSI{chosen}")),
            (CpuSource::Psi, false, _) => Ok(format!(
                "PSI{chosen}: this kernel counts no run delay (kernel.task_delayacct is off)"
            )),
            (CpuSource::RunDelay, true, Some((cause, remedy))) => {
                warn(format!("run delay{chosen}: {cause}"), remedy)
            }
            (CpuSource::RunDelay, true, None) => Ok(format!(
                "run delay{chosen}: the host's processes are visible in {}",
                source.proc_root.display()
            )),
            (CpuSource::RunDelay, false, _) => fail(
                "run delay is not counted by this kernel, so there is no CPU score",
                "boot with delayacct, or with a kernel that has CONFIG_SCHEDSTATS; or choose --cpu-source=psi",
            ),
        }
    }

    /// Why the host's processes are not readable, with the remedy, if the cause is known.
    fn denial(&self) -> Option<(String, &'static str)> {
        if self.proc.shows_first_process() {
            return None;
        }
        if let Some(options) = self.proc.hiding_options() {
            let cause =
                format!("/proc is mounted with {options}, which hides the host's processes");
            return Some((cause, HIDEPID_REMEDY));
        }
        let denied = self.proc.selinux_type().filter(|name| name != "spc_t")?;
        let cause =
            format!("SELinux denies the agent's type {denied} access to the host's processes");
        Some((cause, SELINUX_REMEDY))
    }

    /// A collector of this host, which keeps as many directory handles as the process may have. Without
    /// `export`, it reads cgroups of all levels.
    pub fn into_collector(self, source: &SourceFlags, export: Option<&ExportFlags>) -> Collector {
        let handles = raise_open_file_limit().unwrap_or_else(|errno| {
            tracing::warn!(%errno, "Cannot raise the limit of open files");
            0
        });
        // Cgroups need fewer handles, since their files can also be opened by path.
        let reads_tasks = self.cpu_source == CpuSource::RunDelay;
        let task_handles = if reads_tasks { handles / 4 * 3 } else { 0 };
        let sources = Sources {
            proc: self.proc,
            root: self.root,
            selection: (!self.node_alone).then(|| source.selection(export)),
            groups: export.map(ExportFlags::families).unwrap_or_default(),
            cpu_source: self.cpu_source,
            cgroup_handles: handles - task_handles,
            task_handles,
        };
        Collector::new(sources, Arc::new(clock::now))
    }
}

fn open_root(path: &Path) -> Finding<Arc<CgroupRoot>> {
    CgroupRoot::open(path).or_else(|error| {
        let text = format!("cannot open the cgroup root: {error}");
        fail(text, "set --cgroup-root to the cgroup2 mount")
    })
}

/// Opens the cgroup2 mount that shows the largest part of the tree. Those that another mount hides
/// come later in the list.
fn find_root(proc_root: &Path) -> Finding<Option<Arc<CgroupRoot>>> {
    let mounts = find_cgroup2(proc_root).or_else(|error| {
        fail(format!("cannot find the cgroup2 mount: {error}"), "set --cgroup-root to it")
    })?;
    let mut first_error = None;
    for mount in mounts {
        match open_root(&mount) {
            Ok(root) if root.is_cgroup2 => return Ok(Some(root)),
            Ok(_) => {}
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    first_error.map_or(Ok(None), Err)
}
