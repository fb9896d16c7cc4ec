//! Opens the host's `/proc` and cgroup root.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::{self, Clock};
use crate::collector::{Collector, Handles, Sources};
use crate::config::{CpuSourceFlag, ExportFlags, PodSource, ScoreFlags, SourceFlags};
use crate::kernel::cgroup_dir::CgroupRoot;
use crate::kernel::mounts::{Cgroup2Mount, find_cgroup2};
use crate::kernel::own_process::{host_name, raise_open_file_limit};
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::{ReadBuffer, ReadError};
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

/// Why the host cannot be read. Each message ends with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("cannot open the proc file system: {0}: set --proc-root to its mount")]
    Proc(ReadError),
    #[error("cannot find the cgroup2 mount: {0}: set --cgroup-root to it")]
    Mounts(ReadError),
    #[error(
        "cgroup v2 is not mounted: boot with systemd.unified_cgroup_hierarchy=1, or set \
         --cgroup-root to the host's mount"
    )]
    NoCgroup2,
    #[error("cannot open the cgroup root: {0}: set --cgroup-root to the cgroup2 mount")]
    Root(ReadError),
    /// `--cgroup-root` is cgroup v1, or the directory of its hierarchies.
    #[error(
        "{} is cgroup v1: boot with systemd.unified_cgroup_hierarchy=1, or set --cgroup-root to the \
         cgroup2 mount", .0.display()
    )]
    Cgroup1(PathBuf),
}

/// The usual directory of cgroup mounts, of either version.
const ANY_CGROUPS: &str = "/sys/fs/cgroup";

#[derive(Debug)]
pub struct Host {
    pub proc: ProcRoot,
    pub root: Arc<CgroupRoot>,
    /// The mount that was found; `None` with `--cgroup-root`.
    pub mount: Option<Cgroup2Mount>,
    /// Whether there is no cgroup v2, so that only files of the node can be read.
    pub node_alone: bool,
    pub cpu_source: CpuSource,
    /// Whether the kernel counts run delay.
    pub counts_run_delay: bool,
}

impl Host {
    /// Opens what the configuration sets, or finds it. In a cluster, a node without cgroup v2 is
    /// not an error, since the agent's pod would be restarted forever.
    pub fn open(source: &SourceFlags) -> Result<Self, HostError> {
        let proc = ProcRoot::open(&source.proc_root).map_err(HostError::Proc)?;
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
            Some(path) => CgroupRoot::open(path).map_err(HostError::Root)?,
            None => match Self::find(&source.proc_root) {
                Ok((root, mount)) => {
                    let (mount, node_alone) = (Some(mount), false);
                    return Ok(Self {
                        proc,
                        root,
                        mount,
                        node_alone,
                        cpu_source,
                        counts_run_delay,
                    });
                }
                Err(HostError::NoCgroup2) if in_cluster => {
                    CgroupRoot::open(Path::new(ANY_CGROUPS)).map_err(HostError::Root)?
                }
                Err(error) => return Err(error),
            },
        };
        let has_cgroup2 = root.has_cgroup2_files();
        if !has_cgroup2 && !in_cluster && root.has_cgroup1() {
            return Err(HostError::Cgroup1(root.path().to_owned()));
        }
        // Outside a cluster, an empty directory is read as a copy without cgroups.
        let node_alone = in_cluster && !has_cgroup2;
        Ok(Self { proc, root, mount: None, node_alone, cpu_source, counts_run_delay })
    }

    /// Opens the cgroup2 mount that shows the largest part of the tree.
    fn find(proc_root: &Path) -> Result<(Arc<CgroupRoot>, Cgroup2Mount), HostError> {
        let mounts = find_cgroup2(proc_root).map_err(HostError::Mounts)?;
        let mut first_error = HostError::NoCgroup2;
        for mount in mounts {
            match CgroupRoot::open(&mount.mount_point) {
                Ok(root) if root.is_cgroup2() => {
                    return Ok((root, mount));
                }
                // Hidden by another mount, which comes later in the list.
                Ok(_) => {}
                Err(error) if matches!(first_error, HostError::NoCgroup2) => {
                    first_error = HostError::Root(error);
                }
                Err(_) => {}
            }
        }
        Err(first_error)
    }

    /// A collector of this host, which keeps as many directory handles as the process may have. Without
    /// `export`, it reads all files.
    pub fn into_collector(self, source: &SourceFlags, export: Option<&ExportFlags>) -> Collector {
        let handles = raise_open_file_limit().unwrap_or_else(|errno| {
            tracing::warn!(%errno, "Cannot raise the limit of open files");
            0
        });
        // Cgroups need fewer handles, since their files can also be opened by path.
        let handles = match self.cpu_source {
            CpuSource::Psi => Handles { cgroups: handles, processes: 0 },
            CpuSource::RunDelay => Handles { cgroups: handles / 4, processes: handles / 4 * 3 },
        };
        let sources = Sources {
            proc: self.proc,
            root: self.root,
            selection: (!self.node_alone).then(|| source.selection(export)),
            groups: ExportFlags::groups(export),
            cpu_source: self.cpu_source,
            counts_run_delay: self.counts_run_delay,
            handles,
        };
        Collector::new(sources, Clock::default())
    }
}
