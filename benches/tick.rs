//! A tick of a node with 500 VMs, from the files to the score and its predictions: idle, while two of them wait, and by the
//! run delay of 2,000 threads.

use std::time::{Duration, Instant};

use psi_agent::client::pod::Pod;
use psi_agent::clock::Moment;
use psi_agent::collector::{Collector, Handles};
use psi_agent::contract::{Prefix, Thresholds};
use psi_agent::identity::pod_index::PodIndex;
use psi_agent::identity::selection::Selection;
use psi_agent::kernel::cgroup_dir::{CgroupRoot, Resource};
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::rates::tick_rates;
use psi_agent::relief::Assessor;
use psi_agent::sample::{CpuSource, Groups, TickSample};
use serde_json::json;

use crate::cgroup::OwnCgroup;
use crate::host_proc::HostProc;

/// Ticks of one minute, in which a VM that waited once is read at each tick.
pub(crate) const TICKS_A_ROUND: u32 = 12;
const STEP: Duration = Duration::from_secs(5);
/// The load of a VM that wants the same CPU as all others.
pub(crate) const SPIN: &str = "taskset -c 1 sh -c 'while :; do :; done'";
/// Real time between ticks, long enough to be 1 % of a tick's window.
const WAIT: Duration = Duration::from_millis(250);

/// A node's VMs, and a reader and scorer as in the agent.
pub(crate) struct Node {
    collector: Collector,
    pods: PodIndex,
    assessor: Assessor,
    before: Option<TickSample>,
    now: Instant,
    ticks: u32,
    host_proc: HostProc,
    own: OwnCgroup,
}

impl Node {
    /// A node with idle VMs.
    pub(crate) fn new(name: &str, vms: usize, source: CpuSource, handles: usize) -> Self {
        let own = OwnCgroup::new(name);
        let pods: Vec<Pod> = (0..vms).map(|vm| make_vm(&own, vm)).collect();
        let host_proc = HostProc::new(name);
        let proc = ProcRoot::open(&host_proc.0).unwrap();
        let root = CgroupRoot::open(&own.path).unwrap();
        let handles = Handles { cgroups: handles, processes: 100_000 };
        let selection = Selection {
            everything: false,
            root: true,
            pods: true,
            containers: true,
            vms_only: true,
        };
        Self {
            collector: Collector::new(
                proc,
                root,
                Some(selection),
                Groups::default(),
                source,
                handles,
            ),
            pods: PodIndex::of(Prefix::default(), &pods),
            assessor: Assessor::new(vec![Resource::Cpu, Resource::Memory], Thresholds::default()),
            before: None,
            now: Instant::now(),
            ticks: 0,
            host_proc,
            own,
        }
    }

    /// Starts a command in the first `vms` VMs.
    pub(crate) fn start(&mut self, vms: usize, command: &str) {
        for vm in 0..vms {
            self.host_proc.show(self.own.spawn(&cgroup_of(vm, 0), command));
        }
    }

    /// Lets the started commands compete for their CPU, once a round.
    pub(crate) fn prepare(&mut self) {
        if self.ticks.is_multiple_of(TICKS_A_ROUND) {
            std::thread::sleep(WAIT);
        }
        self.ticks += 1;
    }

    /// One tick.
    pub(crate) fn tick(&mut self) {
        self.now += STEP;
        let moment = Moment { at: self.now, unix_ms: 0 };
        let sample = self.collector.tick(moment, Some(&self.pods));
        if let Some(before) = &self.before {
            self.assessor.advance(moment, &tick_rates(before, &sample));
        }
        self.before = Some(sample);
    }

    /// The number of threads that the last tick read.
    pub(crate) fn threads(&self) -> usize {
        let containers = self.before.as_ref().unwrap().containers.as_ref().unwrap();
        containers.iter().flat_map(|container| &container.threads).map(Vec::len).sum()
    }

    /// The number of VMs whose CPU use the last tick read.
    pub(crate) fn looked_at(&self) -> usize {
        let containers = self.before.as_ref().unwrap().containers.as_ref().unwrap();
        let cpu = containers.iter().filter_map(|container| container.cpu.last);
        cpu.filter(|counters| counters.at == self.now).count()
    }
}

/// Creates a VM's cgroups, and its pod as listed by the API server.
fn make_vm(own: &OwnCgroup, vm: usize) -> Pod {
    let statuses = ["compute", "guest-console-log"].iter().zip(0..).map(|(name, container)| {
        own.make(&cgroup_of(vm, container));
        json!({"name": name, "containerID": format!("containerd://{}", id_of(container))})
    });
    let statuses: Vec<_> = statuses.collect();
    let uid = format!("{vm:08}-0000-4000-8000-000000000000");
    let pod = json!({
        "metadata": {
            "uid": uid, "namespace": "default", "name": format!("virt-launcher-{vm}"),
            "labels": {"kubevirt.io": "virt-launcher"},
            "annotations": {"kubevirt.io/domain": format!("vm-{vm}")},
        },
        "status": {"containerStatuses": statuses},
    });
    serde_json::from_value(pod).unwrap()
}

/// The cgroup of one of a VM's containers.
pub(crate) fn cgroup_of(vm: usize, container: usize) -> String {
    format!(
        "kubepods.slice/kubepods-pod{vm:08}_0000_4000_8000_000000000000.slice/cri-containerd-{}.scope",
        id_of(container)
    )
}

fn id_of(container: usize) -> String {
    format!("{container:064}")
}
