//! A node of a cluster that is a part of this host: a subtree of its cgroups, whose pressure is
//! the node's, with real tasks in it, and VMs' pods that the API server knows.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::agent::{Agent, BINARY};
use super::cgroup::OwnCgroup;
use super::cluster::Cluster;
use super::fake_node::FakeNode;
use super::written_files::{Writer, write_node};

/// The node.
pub(crate) struct StagedNode {
    pub(crate) name: &'static str,
    pub(crate) own: OwnCgroup,
    writer: Option<Writer>,
    files: FakeNode,
}

impl StagedNode {
    pub(crate) fn new(scene: &str, name: &'static str) -> Self {
        let own = OwnCgroup::new(&format!("{scene}-{name}"));
        let files = FakeNode::new(&format!("{scene}-{name}"));
        let proc = files.0.join("proc");
        for resource in ["cpu", "memory", "io"] {
            let file = own.path.join(format!("{resource}.pressure"));
            symlink(file, proc.join("pressure").join(resource)).unwrap();
        }
        for file in ["stat", "vmstat", "meminfo", "diskstats"] {
            symlink(format!("/proc/{file}"), proc.join(file)).unwrap();
        }
        Self { name, own, writer: None, files }
    }

    /// From now on its CPUs are busy for this share of the time, whatever the host's are.
    pub(crate) fn be_busy(&mut self, share: f64) {
        let proc = self.files.0.join("proc");
        let write = move |seconds| write_node(&proc, &proc, share, seconds);
        self.writer = Some(Writer::start(write));
    }

    /// Starts the agent of this node, as its pod of this name.
    pub(crate) fn start_agent(&self, cluster: &Cluster, pod: &str, more: &[&str]) -> Agent {
        self.start_agent_of(self.name, cluster, pod, more)
    }

    /// Starts an agent that reads these cgroups as those of another Node.
    pub(crate) fn start_agent_of(
        &self,
        node: &str,
        cluster: &Cluster,
        pod: &str,
        more: &[&str],
    ) -> Agent {
        self.start(node, &cluster.agent_kubeconfig(pod), more)
    }

    /// Starts the agent of this node as whoever the kubeconfig says.
    pub(crate) fn start_agent_with(&self, kubeconfig: &Path) -> Agent {
        self.start_agent_by(kubeconfig, &[])
    }

    /// The same with more flags.
    pub(crate) fn start_agent_by(&self, kubeconfig: &Path, more: &[&str]) -> Agent {
        self.start(self.name, kubeconfig, more)
    }

    /// The same as [`Self::start_agent`], listening at this address.
    pub(crate) fn start_agent_at(
        &self,
        address: &str,
        cluster: &Cluster,
        pod: &str,
        more: &[&str],
    ) -> Agent {
        self.start_on(address, self.name, &cluster.agent_kubeconfig(pod), more)
    }

    fn start(&self, node: &str, kubeconfig: &Path, more: &[&str]) -> Agent {
        self.start_on("127.0.0.1:0", node, kubeconfig, more)
    }

    fn start_on(&self, address: &str, node: &str, kubeconfig: &Path, more: &[&str]) -> Agent {
        self.start_by(Command::new(BINARY), address, node, kubeconfig, more)
    }

    /// Starts another program as the agent of this node.
    pub(crate) fn start_agent_as(
        &self,
        program: PathBuf,
        cluster: &Cluster,
        pod: &str,
        more: &[&str],
    ) -> Agent {
        let kubeconfig = cluster.agent_kubeconfig(pod);
        self.start_by(Command::new(program), "127.0.0.1:0", self.name, &kubeconfig, more)
    }

    fn start_by(
        &self,
        program: Command,
        address: &str,
        node: &str,
        kubeconfig: &Path,
        more: &[&str],
    ) -> Agent {
        let roots = [&self.own.path, &self.files.0.join("proc")];
        start_agent_on(program, address, node, kubeconfig, roots, more)
    }

    /// A VM's pod as API server and kernel come to know it; answers the container's cgroup.
    pub(crate) fn start_vm(&self, cluster: &Cluster, vm: &str, container: u32) -> String {
        cluster.apply(&[launcher(vm, self.name)]);
        self.run_vm(cluster, &format!("virt-launcher-{vm}"), container)
    }

    /// The containers of a VM's pod that is there already.
    pub(crate) fn run_vm(&self, cluster: &Cluster, pod: &str, container: u32) -> String {
        let cgroup = container_cgroup(cluster, pod, container);
        self.own.make(&cgroup);
        cluster.set_status("vms", pod, &running(&container_id(container)));
        cgroup
    }
}

/// Starts an agent of a node's that reads these cgroups and this `/proc`.
pub(crate) fn start_agent_on(
    program: Command,
    address: &str,
    node: &str,
    kubeconfig: &Path,
    [cgroups, proc]: [&PathBuf; 2],
    more: &[&str],
) -> Agent {
    let mut flags = vec!["--node-name", node, "--kubeconfig"];
    flags.extend([kubeconfig.to_str().unwrap(), "--cgroup-root"]);
    flags.extend([cgroups.to_str().unwrap(), "--proc-root", proc.to_str().unwrap()]);
    flags.extend(more);
    Agent::start_at(address, program, &flags)
}

/// Where the kernel has a container of a VM's pod.
pub(crate) fn container_cgroup(cluster: &Cluster, pod: &str, number: u32) -> String {
    let uid = cluster.get(&["pod", pod, "-n", "vms"])["metadata"]["uid"].clone();
    let uid = uid.as_str().unwrap().replace('-', "_");
    let id = container_id(number);
    format!("kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{id}.scope")
}

pub(crate) fn container_id(number: u32) -> String {
    format!("{number:064x}")
}

/// The pod of a VM, as KubeVirt makes it.
pub(crate) fn launcher(vm: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("virt-launcher-{vm}"), "namespace": "vms",
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/nodeName": node},
            "annotations": {"kubevirt.io/domain": vm},
        },
        "spec": {"nodeName": node, "containers": [{"name": "compute", "image": "launcher:v1"}]},
    })
}

pub(crate) fn running(id: &str) -> Value {
    json!({"phase": "Running", "containerStatuses": [{
        "name": "compute", "image": "launcher:v1", "imageID": "", "ready": true, "restartCount": 0,
        "containerID": format!("containerd://{id}"), "state": {"running": {}},
    }]})
}

/// The agent's pod on a node, which its token is bound to.
pub(crate) fn agent_pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "psi-agent"},
        "spec": {
            "nodeName": node, "serviceAccountName": "psi-agent",
            "containers": [{"name": "agent", "image": "psi-agent"}],
        },
    })
}
