//! A node of a cluster whose files are written as the kernel writes them: as busy as a test says, with
//! memory to spare, and a VM that waits for nothing.

use std::fs;
use std::path::{Path, PathBuf};

use super::agent::Agent;
use super::cluster::Cluster;
use super::staged_node::start_agent_on;
use super::written_files::{Writer, pressure, write_cgroup, write_node};

/// What the VM takes of one CPU.
const USED: f64 = 0.1;

/// The node.
pub(crate) struct WrittenNode {
    pub(crate) name: &'static str,
    folder: PathBuf,
    writer: Option<Writer>,
}

impl WrittenNode {
    /// A node that is busy for this share of its time, with a VM in the container of this cgroup.
    pub(crate) fn new(scene: &str, name: &'static str, busy: f64, cgroup: &str) -> Self {
        let folder = format!("psi-agent-test-{}-{scene}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let (proc, root) = (folder.join("proc"), folder.join("cgroup"));
        fs::create_dir_all(proc.join("pressure")).unwrap();
        fs::create_dir_all(root.join(cgroup)).unwrap();
        for resource in ["cpu", "memory", "io"] {
            fs::write(proc.join("pressure").join(resource), pressure(0.0)).unwrap();
        }
        let scratch = folder.clone();
        let levels = Path::new(cgroup).ancestors().map(|level| root.join(level));
        let levels: Vec<PathBuf> = levels.collect();
        let writer = Writer::start(move |seconds| {
            write_node(&scratch, &proc, busy, seconds);
            for cgroup in &levels {
                write_cgroup(&scratch, cgroup, USED * seconds, 0.0);
            }
        });
        Self { name, folder, writer: Some(writer) }
    }

    /// Starts the agent of this node, as its pod of this name.
    pub(crate) fn start_agent(&self, cluster: &Cluster, pod: &str) -> Agent {
        let kubeconfig = cluster.write_kubeconfig(pod, &cluster.bound_token("psi-agent", pod));
        let roots = ["cgroup", "proc"].map(|root| self.folder.join(root));
        start_agent_on("127.0.0.1:0", self.name, &kubeconfig, roots.each_ref(), &[])
    }
}

impl Drop for WrittenNode {
    fn drop(&mut self) {
        drop(self.writer.take());
        let _ = fs::remove_dir_all(&self.folder);
    }
}
