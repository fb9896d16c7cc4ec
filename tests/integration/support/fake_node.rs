//! A node of plain files: `proc` and `cgroup` in a folder, which a test writes.

use std::fs;
use std::ops::Deref;

use psi_agent::collector::{Collector, Handles};
use psi_agent::identity::selection::Selection;
use psi_agent::kernel::cgroup_dir::CgroupRoot;
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::sample::{CpuSource, Groups};

use super::agent::Agent;
use super::cluster::Cluster;
use super::folder::Folder;
use super::staged_node::start_agent_on;
use super::written_files::pressure;

/// All cgroups.
pub(crate) const EVERYTHING: Selection =
    Selection { everything: true, root: true, pods: true, containers: true, vms_only: false };

/// The node; its folder is removed when it is dropped.
pub(crate) struct FakeNode(Folder);

impl FakeNode {
    /// A node with neither files in `/proc` nor cgroups.
    pub(crate) fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        for root in ["proc/pressure", "cgroup"] {
            fs::create_dir_all(folder.0.join(root)).unwrap();
        }
        Self(folder)
    }

    /// The same with these files, by their paths from its folder.
    pub(crate) fn with_files(name: &str, files: &[(&str, &str)]) -> Self {
        let node = Self::new(name);
        files.iter().for_each(|(file, text)| node.write(file, text));
        node
    }

    /// A node whose tasks have waited for nothing yet.
    pub(crate) fn with_pressure(name: &str) -> Self {
        let node = Self::new(name);
        for resource in ["cpu", "memory", "io"] {
            node.write(&format!("proc/pressure/{resource}"), &pressure(0.0));
        }
        node
    }

    /// A collector of these cgroups, with handles for so many processes and threads.
    pub(crate) fn collector(
        &self,
        selection: Selection,
        cpu_source: CpuSource,
        processes: usize,
    ) -> Collector {
        let proc = ProcRoot::open(&self.join("proc")).unwrap();
        let root = CgroupRoot::open(&self.join("cgroup")).unwrap();
        let (groups, handles) = (Groups::default(), Handles { cgroups: 100, processes });
        Collector::new(proc, root, Some(selection), groups, cpu_source, handles)
    }

    /// The flags by which an agent reads it.
    pub(crate) fn flags(&self) -> [String; 4] {
        let [proc, cgroups] = ["proc", "cgroup"].map(|root| self.path(root));
        ["--proc-root".into(), proc, "--cgroup-root".into(), cgroups]
    }

    /// Starts its agent in a cluster, as that Node's pod of this name.
    pub(crate) fn start_agent_of(
        &self,
        node: &str,
        cluster: &Cluster,
        pod: &str,
        more: &[&str],
    ) -> Agent {
        let kubeconfig = cluster.agent_kubeconfig(pod);
        let roots = ["cgroup", "proc"].map(|root| self.0.0.join(root));
        start_agent_on("127.0.0.1:0", node, &kubeconfig, roots.each_ref(), more)
    }
}

impl Deref for FakeNode {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.0
    }
}
