//! Opens the host's `/proc` and cgroup root.

use std::path::Path;
use std::sync::Arc;

use anyhow::{anyhow, bail};

use crate::clock::{self, Clock};
use crate::collector::{Collector, Sources};
use crate::config::{CpuSourceFlag, ExportFlags, PodSource, ScoreFlags, SourceFlags};
use crate::kernel::ReadBuffer;
use crate::kernel::cgroup_dir::CgroupRoot;
use crate::kernel::mounts::find_cgroup2;
use crate::kernel::own_process::{host_name, raise_open_file_limit};
use crate::kernel::proc_root::ProcRoot;
use crate::snapshot::NodeIdentity;
use crate::waiting::CpuSource;

/// The identity of this node: the name of the Node, or of the host outside a cluster, the levels,
/// and the current time as the start.
pub fn node_identity(pods: &PodSource, score: &ScoreFlags) -> NodeIdentity {
    let name = match pods {
        PodSource::Cluster(cluster) => Some(cluster.node_name.clone()),
        PodSource::Standalone | PodSource::File(_) => host_name(),
    };
    NodeIdentity {
        name,
        levels: score.levels,
        counted: score.score_resources.clone(),
        started_at: clock::now().at,
    }
}

const NO_CGROUP2: &str = "cgroup v2 is not mounted: boot with \
    systemd.unified_cgroup_hierarchy=1, or set --cgroup-root to the host's mount";

/// The usual directory of cgroup mounts, of either version.
const ANY_CGROUPS: &str = "/sys/fs/cgroup";

#[derive(Debug)]
pub struct Host {
    pub proc: ProcRoot,
    pub root: Arc<CgroupRoot>,
    /// Whether there is no cgroup v2, so that only files of the node can be read.
    pub node_alone: bool,
    pub cpu_source: CpuSource,
    /// Whether the kernel counts run delay.
    pub counts_run_delay: bool,
}

impl Host {
    /// Opens what the configuration sets, or finds it. In a cluster, a node without cgroup v2 is
    /// not an error, since the agent's pod would be restarted forever. Each error ends with a remedy.
    pub fn open(source: &SourceFlags) -> anyhow::Result<Self> {
        let proc = ProcRoot::open(&source.proc_root).map_err(|error| {
            anyhow!("cannot open the proc file system: {error}: set --proc-root to its mount")
        })?;
        let buffer = &mut ReadBuffer::default();
        let counts_run_delay = proc.counts_run_delay(buffer);
        let cpu_source = match source.cpu_source {
            CpuSourceFlag::RunDelay => CpuSource::RunDelay,
            CpuSourceFlag::Auto if counts_run_delay && proc.shows_host_processes(buffer) => {
                CpuSource::RunDelay
            }
            CpuSourceFlag::Auto | CpuSourceFlag::Psi => CpuSource::Psi,
        };
        let in_cluster = matches!(source.pods(), PodSource::Cluster(_));
        let root = match &source.cgroup_root {
            Some(path) => open_root(path)?,
            None => match find_root(&source.proc_root)? {
                Some(root) => root,
                None if in_cluster => open_root(Path::new(ANY_CGROUPS))?,
                None => bail!(NO_CGROUP2),
            },
        };
        let has_cgroup2 = root.has_cgroup2_files();
        if !has_cgroup2 && !in_cluster && root.has_cgroup1() {
            bail!(
                "{} is cgroup v1: boot with systemd.unified_cgroup_hierarchy=1, or set \
                 --cgroup-root to the cgroup2 mount",
                root.path.display()
            );
        }
        // Outside a cluster, an empty directory is read as a copy without cgroups.
        let node_alone = in_cluster && !has_cgroup2;
        Ok(Self { proc, root, node_alone, cpu_source, counts_run_delay })
    }

    /// A collector of this host, which keeps as many directory handles as the process may have. Without
    /// `export`, it reads all files.
    pub fn into_collector(self, source: &SourceFlags, export: Option<&ExportFlags>) -> Collector {
        let handles = raise_open_file_limit().unwrap_or_else(|errno| {
            tracing::warn!(%errno, "Cannot raise the limit of open files");
            0
        });
        // Cgroups need fewer handles, since their files can also be opened by path.
        let (cgroup_handles, task_handles) = match self.cpu_source {
            CpuSource::Psi => (handles, 0),
            // Without handles of its threads, the run delay of a container is unknown.
            CpuSource::RunDelay if !self.counts_run_delay => (handles, 0),
            CpuSource::RunDelay => (handles / 4, handles / 4 * 3),
        };
        let sources = Sources {
            proc: self.proc,
            root: self.root,
            selection: (!self.node_alone).then(|| source.selection(export)),
            groups: ExportFlags::groups(export),
            cpu_source: self.cpu_source,
            cgroup_handles,
            task_handles,
        };
        Collector::new(sources, Clock::default())
    }
}

fn open_root(path: &Path) -> anyhow::Result<Arc<CgroupRoot>> {
    CgroupRoot::open(path).map_err(|error| {
        anyhow!("cannot open the cgroup root: {error}: set --cgroup-root to the cgroup2 mount")
    })
}

/// Opens the cgroup2 mount that shows the largest part of the tree. Those that another mount hides
/// come later in the list.
fn find_root(proc_root: &Path) -> anyhow::Result<Option<Arc<CgroupRoot>>> {
    let mounts = find_cgroup2(proc_root).map_err(|error| {
        anyhow!("cannot find the cgroup2 mount: {error}: set --cgroup-root to it")
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
