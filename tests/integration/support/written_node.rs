//! A node of a cluster whose files are written as the kernel writes them: as busy as a test says, with
//! memory to spare, and a VM that waits for nothing.

use std::fs;
use std::path::{Path, PathBuf};

use super::agent::Agent;
use super::cluster::Cluster;
use super::fake_node::FakeNode;
use super::written_files::{Writer, write_cgroup, write_node};

/// What the VM takes of one CPU.
const USED: f64 = 0.1;

/// The node.
pub(crate) struct WrittenNode {
    pub(crate) name: &'static str,
    _writer: Writer,
    files: FakeNode,
}

impl WrittenNode {
    /// A node that is busy for this share of its time, with a VM in the container of this cgroup.
    pub(crate) fn new(scene: &str, name: &'static str, busy: f64, cgroup: &str) -> Self {
        let files = FakeNode::with_pressure(&format!("{scene}-{name}"));
        let scratch = files.0.clone();
        let (proc, root) = (scratch.join("proc"), scratch.join("cgroup"));
        fs::create_dir_all(root.join(cgroup)).unwrap();
        let levels = Path::new(cgroup).ancestors().map(|level| root.join(level));
        let levels: Vec<PathBuf> = levels.collect();
        let writer = Writer::start(move |seconds| {
            write_node(&scratch, &proc, busy, seconds);
            for cgroup in &levels {
                write_cgroup(&scratch, cgroup, USED * seconds, 0.0);
            }
        });
        Self { name, _writer: writer, files }
    }

    /// Starts the agent of this node, as its pod of this name.
    pub(crate) fn start_agent(&self, cluster: &Cluster, pod: &str) -> Agent {
        self.files.start_agent_of(self.name, cluster, pod, &[])
    }
}
