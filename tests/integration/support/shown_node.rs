//! A node to be looked at: VMs in real cgroups, with real tasks that wait for each other and for a
//! pod that runs none, and beside them one that its own limit holds back. This one's files are written as the kernel
//! writes them, since the cgroup v2 of a host that has v1 too has no controller that would limit.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::cgroup::OwnCgroup;
use super::cpu::BusyCpu;
use super::fake_node::FakeNode;
use super::written_files::{Writer, write_cgroup};

const MIB: u64 = 1 << 20;
const PODS: &str = "pods.json";

/// VMs in real cgroups: how many loops each has on the one CPU that they all share, and its memory.
const REAL: [(&str, usize, u64); 3] = [("web", 1, 900), ("db", 1, 1400), ("cache", 0, 300)];

/// What each VM asks for, and the pod that runs none and has a loop there too.
const VM_ASKS: &str = "250m";
const REPORT_ASKS: &str = "50m";

/// What its quota leaves `shop/batch` of the one CPU that it wants all the time.
const BATCH_CPUS: f64 = 0.4;

/// The share of time for which the console log's quota holds it back.
const LOG_THROTTLED: f64 = 0.6;

/// The node: folders of links to real files, and of written ones.
pub(crate) struct ShownNode {
    own: OwnCgroup,
    cpu: BusyCpu,
    writer: Option<Writer>,
    files: FakeNode,
}

impl ShownNode {
    pub(crate) fn new(name: &str) -> Self {
        let own = OwnCgroup::new(name);
        let files = FakeNode::new(name);
        let proc = files.0.join("proc");
        link_pressure(&own.path, &proc.join("pressure"), "");
        for file in ["stat", "vmstat", "meminfo", "diskstats"] {
            symlink(format!("/proc/{file}"), proc.join(file)).unwrap();
        }
        let mut node = Self { own, cpu: BusyCpu::share(), writer: None, files };
        link_pressure(&node.own.path, &node.root(), ".pressure");
        for (number, (_, loops, mib)) in (1..).zip(REAL) {
            node.start_real(&container(number, 0), loops, mib);
        }
        node.tell(&["web", "db", "cache", "batch"]);
        node.start_real(&container(5, 0), 1, 100);
        node.start_batch(&container(4, 0), &container(4, 1));
        node
    }

    /// What an agent is told of it.
    pub(crate) fn flags(&self) -> Vec<String> {
        let pods = ["--pods-file".to_owned(), self.files.path(PODS)];
        [self.files.flags().as_slice(), &pods].concat()
    }

    /// Tells the names of the VMs, by their pods.
    pub(crate) fn tell(&self, names: &[&str]) {
        self.tell_in("shop", names);
    }

    /// The same in another namespace. No API server checks it.
    pub(crate) fn tell_in(&self, namespace: &str, names: &[&str]) {
        let vms = (1..).zip(names).map(|(number, name)| pod(number, namespace, name));
        let pods: Vec<Value> = vms.chain([report()]).collect();
        self.tell_text(&json!({"items": pods}).to_string());
    }

    /// The same by any text, be it no JSON.
    pub(crate) fn tell_text(&self, text: &str) {
        self.files.replace(PODS, text);
    }

    fn root(&self) -> PathBuf {
        self.files.0.join("cgroup")
    }

    /// A VM's container, whose loops all run on one CPU.
    fn start_real(&mut self, cgroup: &str, loops: usize, mib: u64) {
        let real = self.own.make(cgroup);
        let shown = self.root().join(cgroup);
        link_pressure(&real, &shown, ".pressure");
        link_pressure(real.parent().unwrap(), shown.parent().unwrap(), ".pressure");
        symlink(real.join("cpu.stat"), shown.join("cpu.stat")).unwrap();
        write_memory(&shown, mib);
        for _ in 0..loops {
            self.own.spawn(cgroup, &self.cpu.spin());
        }
    }

    /// Writes what the kernel would, until the node is dropped.
    fn start_batch(&mut self, vm: &str, log: &str) {
        let [vm, log] = [vm, log].map(|cgroup| self.root().join(cgroup));
        let folder = self.files.0.clone();
        for (cgroup, quota) in [(&vm, "40000 100000\n"), (&log, "1500 100000\n")] {
            fs::create_dir_all(cgroup).unwrap();
            fs::write(cgroup.join("cpu.max"), quota).unwrap();
        }
        write_memory(&vm, 700);
        self.writer = Some(Writer::start(move |seconds| {
            let throttled = 1.0 - BATCH_CPUS;
            write_cgroup(&folder, &vm, seconds * BATCH_CPUS, seconds * throttled);
            write_cgroup(&folder, &log, seconds * 0.015, seconds * LOG_THROTTLED);
        }));
    }
}

fn uid(number: u32) -> String {
    format!("{number:08x}-0000-4000-8000-000000000000")
}

fn container_id(pod: u32, number: u32) -> String {
    format!("{:064x}", pod * 16 + number)
}

fn container(pod: u32, number: u32) -> String {
    format!("kubepods/burstable/pod{}/{}", uid(pod), container_id(pod, number))
}

/// A VM's pod, as KubeVirt makes it, with the container that follows the guest's console.
fn pod(number: u32, namespace: &str, name: &str) -> Value {
    let id = |container| format!("containerd://{}", container_id(number, container));
    json!({
        "metadata": {
            "name": format!("virt-launcher-{name}-x"), "namespace": namespace, "uid": uid(number),
            "labels": {"kubevirt.io": "virt-launcher"},
            "annotations": {"kubevirt.io/domain": name},
        },
        "spec": {"containers": [{"name": "compute", "resources": {"requests": {"cpu": VM_ASKS}}}]},
        "status": {"containerStatuses": [
            {"name": "compute", "image": "launcher:v1", "containerID": id(0)},
            {"name": "guest-console-log", "image": "launcher:v1", "containerID": id(1)},
        ]},
    })
}

fn report() -> Value {
    json!({
        "metadata": {"name": "report", "namespace": "shop", "uid": uid(5)},
        "spec": {"containers": [{"name": "count", "resources": {"requests": {"cpu": REPORT_ASKS}}}]},
        "status": {"containerStatuses": [
            {"name": "count", "image": "report:v1", "containerID": format!("containerd://{}", container_id(5, 0))},
        ]},
    })
}

fn link_pressure(real: &Path, shown: &Path, ending: &str) {
    fs::create_dir_all(shown).unwrap();
    for resource in ["cpu", "memory", "io"] {
        let link = shown.join(format!("{resource}{ending}"));
        symlink(real.join(format!("{resource}.pressure")), link).unwrap();
    }
}

fn write_memory(cgroup: &Path, mib: u64) {
    for (file, mib) in [("memory.current", mib), ("memory.max", 2048)] {
        fs::write(cgroup.join(file), format!("{}\n", mib * MIB)).unwrap();
    }
}
