//! A node of plain files: `proc` and `cgroup` in a folder, which a test writes.

use std::fs;
use std::ops::Deref;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use psi_agent::clock::{self, Clock, Moment};
use psi_agent::collector::{Collector, Sources};
use psi_agent::identity::selection::Selection;
use psi_agent::kernel::cgroup_dir::CgroupRoot;
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::waiting::CpuSource;

use super::agent::{Agent, BINARY};
use super::cluster::Cluster;
use super::folder::Folder;
use super::staged_node::start_agent_on;
use super::written_files::{pressure, write_cgroup, write_node};

/// All cgroups.
pub(crate) const EVERYTHING: Selection =
    Selection { everything: true, root: true, pods: true, containers: true, vms_only: false };

/// The node; its folder is removed when it is dropped.
pub(crate) struct FakeNode {
    folder: Folder,
    start: Moment,
    now: Arc<Mutex<Moment>>,
}

impl FakeNode {
    /// A node with neither files in `/proc` nor cgroups.
    pub(crate) fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        for root in ["proc/pressure", "cgroup"] {
            fs::create_dir_all(folder.0.join(root)).unwrap();
        }
        let start = clock::now();
        Self { folder, start, now: Arc::new(Mutex::new(start)) }
    }

    /// The clock of its collectors, which stands still until it is set.
    pub(crate) fn clock(&self) -> Clock {
        let now = Arc::clone(&self.now);
        Arc::new(move || *now.lock().unwrap())
    }

    /// The same, which goes on by so many seconds whenever it is read.
    pub(crate) fn slow_clock(&self, seconds: f64) -> Clock {
        let (now, step) = (Arc::clone(&self.now), Duration::from_secs_f64(seconds));
        Arc::new(move || {
            let mut now = now.lock().unwrap();
            now.at += step;
            *now
        })
    }

    /// Seconds since its start.
    pub(crate) fn now(&self) -> f64 {
        self.now.lock().unwrap().at.duration_since(self.start.at).as_secs_f64()
    }

    /// Sets its clock to so many seconds after its start.
    pub(crate) fn set_clock(&self, seconds: f64) {
        let since = Duration::from_secs_f64(seconds);
        let unix_ms = self.start.unix_ms + u64::try_from(since.as_millis()).unwrap();
        *self.now.lock().unwrap() = Moment { at: self.start.at + since, unix_ms };
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

    /// A host without pods that has these units, whose tasks wait for nothing.
    pub(crate) fn of_units(name: &str, units: &[&str]) -> Self {
        let node = Self::with_pressure(name);
        write_node(&node.0, &node.0.join("proc"), 0.5, 100.0);
        for unit in units {
            let unit = node.0.join("cgroup").join(unit);
            fs::create_dir_all(&unit).unwrap();
            write_cgroup(&node.0, &unit, 1.0, 0.0);
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
        Collector::new(self.sources(selection, cpu_source, processes), self.clock())
    }

    /// What such a collector reads.
    pub(crate) fn sources(
        &self,
        selection: Selection,
        cpu_source: CpuSource,
        processes: usize,
    ) -> Sources {
        Sources {
            proc: ProcRoot::open(&self.join("proc")).unwrap(),
            root: CgroupRoot::open(&self.join("cgroup")).unwrap(),
            selection: Some(selection),
            groups: Vec::new(),
            cpu_source,
            cgroup_handles: 100,
            task_handles: processes,
        }
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
        let roots = ["cgroup", "proc"].map(|root| self.folder.0.join(root));
        let program = Command::new(BINARY);
        start_agent_on(program, "127.0.0.1:0", node, &kubeconfig, roots.each_ref(), more)
    }
}

impl Deref for FakeNode {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}
