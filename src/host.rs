//! The host that the agent looks at: opens its roots, or says in one sentence why not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::collector::{Collector, Handles};
use crate::config::{Config, PodSource};
use crate::kernel::ReadError;
use crate::kernel::cgroup_dir::CgroupRoot;
use crate::kernel::mounts::{Cgroup2Mount, find_cgroup2};
use crate::kernel::own_process::raise_open_file_limit;
use crate::kernel::proc_root::ProcRoot;
use crate::sample::CpuSource;

/// Why the host cannot be looked at. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// `--proc-root` is not there or not ours to read.
    #[error("cannot open the proc file system: {0}: name it with --proc-root")]
    Proc(ReadError),
    /// mountinfo does not read.
    #[error("cannot look for the cgroup2 mount: {0}: name it with --cgroup-root")]
    Mounts(ReadError),
    /// There is no cgroup2 mount.
    #[error(
        "cgroup v2 is not mounted: boot with systemd.unified_cgroup_hierarchy=1, or name the \
         host's mount with --cgroup-root"
    )]
    NoCgroup2,
    /// The root that was named cannot be opened.
    #[error("cannot open the cgroup root: {0}: name the cgroup2 mount with --cgroup-root")]
    Root(ReadError),
    /// The root that was named is one of the old hierarchies, or the folder in which they are.
    #[error(
        "{} is cgroup v1: boot with systemd.unified_cgroup_hierarchy=1, or name the cgroup2 mount \
         with --cgroup-root", .0.display()
    )]
    Cgroup1(PathBuf),
}

/// Where the cgroup mounts of any version are.
const ANY_CGROUPS: &str = "/sys/fs/cgroup";

/// The host's roots, opened.
#[derive(Debug)]
pub struct Host {
    /// Its `/proc`.
    pub proc: ProcRoot,
    /// The top of its cgroup2 tree.
    pub root: Arc<CgroupRoot>,
    /// The mount that was found; `None` where the root was named.
    pub mount: Option<Cgroup2Mount>,
    /// Whether there is no cgroup v2: then nothing but the node itself can be read.
    pub node_alone: bool,
}

impl Host {
    /// Opens what the configuration names, or finds it. A node of a cluster that has no cgroup v2
    /// is no error: to end there would be to end again and again.
    ///
    /// # Errors
    /// [`HostError`], each a sentence for people.
    pub fn open(config: &Config) -> Result<Self, HostError> {
        let proc = ProcRoot::open(&config.proc_root).map_err(HostError::Proc)?;
        let in_cluster = matches!(config.pods, PodSource::Cluster(_));
        let root = match &config.cgroup_root {
            Some(path) => CgroupRoot::open(path).map_err(HostError::Root)?,
            None => match Self::find(config) {
                Ok((root, mount)) => {
                    return Ok(Self { proc, root, mount: Some(mount), node_alone: false });
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
        // Outside a cluster a folder without any file is a replay that holds nothing.
        Ok(Self { proc, root, mount: None, node_alone: in_cluster && !has_cgroup2 })
    }

    /// The cgroup2 mount that shows most.
    fn find(config: &Config) -> Result<(Arc<CgroupRoot>, Cgroup2Mount), HostError> {
        let mounts = find_cgroup2(&config.proc_root).map_err(HostError::Mounts)?;
        let mut first_error = HostError::NoCgroup2;
        for mount in mounts {
            match CgroupRoot::open(&mount.mount_point) {
                Ok(root) if root.is_cgroup2() => {
                    return Ok((root, mount));
                }
                // Hidden by a mount over it: the next may be the one that hides it.
                Ok(_) => {}
                Err(error) if matches!(first_error, HostError::NoCgroup2) => {
                    first_error = HostError::Root(error);
                }
                Err(_) => {}
            }
        }
        Err(first_error)
    }

    /// A collector of it, which keeps as many directory handles as the process may have.
    #[must_use]
    pub fn into_collector(self, config: &Config) -> Collector {
        if self.node_alone {
            return Collector::of_node_alone(self.proc, self.root, config.cpu_source);
        }
        let handles = raise_open_file_limit().unwrap_or_else(|errno| {
            tracing::warn!(%errno, "Cannot raise the limit of open files");
            0
        });
        // What is left for cgroups is enough: their files can also be opened by path.
        let handles = match config.cpu_source {
            CpuSource::Psi => Handles { cgroups: handles, processes: 0 },
            CpuSource::RunDelay => Handles { cgroups: handles / 4, processes: handles / 4 * 3 },
        };
        let (selection, groups) = (config.selection, config.groups());
        Collector::new(self.proc, self.root, selection, groups, config.cpu_source, handles)
    }
}
