//! A tick of a node with 500 VMs, from the files to the score and its predictions: idle, while two of them wait, and
//! by the run delay of 2,000 threads.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use psi_agent::client::pod::Pod;
use psi_agent::clock::{Clock, Moment};
use psi_agent::collector::{Collector, Sources};
use psi_agent::contract::{Prefix, Thresholds};
use psi_agent::identity::pod_index::PodIndex;
use psi_agent::identity::selection::Selection;
use psi_agent::kernel::cgroup_dir::{CgroupRoot, Resource};
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::relief::Assessor;
use psi_agent::sample::Tick;
use psi_agent::waiting::CpuSource;
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
    last: Option<Tick>,
    clock: SteppedClock,
    ticks: u32,
    most_waiting: usize,
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
        let selection = Selection {
            everything: false,
            root: true,
            pods: true,
            containers: true,
            vms_only: true,
        };
        let sources = Sources {
            proc,
            root,
            selection: Some(selection),
            groups: Vec::new(),
            cpu_source: source,
            cgroup_handles: handles,
            task_handles: 100_000,
        };
        let clock = SteppedClock::default();
        Self {
            collector: Collector::new(sources, clock.clock()),
            pods: PodIndex::of(Prefix::default(), &pods),
            assessor: Assessor::new(
                vec![Resource::Cpu, Resource::Memory],
                Thresholds::default(),
                Duration::ZERO,
            ),
            last: None,
            clock,
            ticks: 0,
            most_waiting: 0,
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
        self.most_waiting = self.most_waiting.max(self.waiting());
        if self.ticks.is_multiple_of(TICKS_A_ROUND) {
            std::thread::sleep(WAIT);
        }
        self.ticks += 1;
    }

    /// One tick.
    pub(crate) fn tick(&mut self) {
        self.clock.step(STEP);
        let tick = self.collector.tick(Some(&self.pods));
        if tick.window.is_some() {
            self.assessor.advance(&tick);
        }
        self.last = Some(tick);
    }

    /// The number of VMs of which the last tick read all threads.
    pub(crate) fn read(&self) -> usize {
        let scored = self.last.as_ref().unwrap().scored.as_ref().unwrap();
        scored.measurements.iter().filter(|vm| vm.iothreads_waited.is_some()).count()
    }

    /// The most VMs that waited for a CPU before one of the ticks.
    pub(crate) fn most_waiting(&self) -> usize {
        self.most_waiting
    }

    fn waiting(&self) -> usize {
        let scored = self.last.as_ref().and_then(|tick| tick.scored.as_ref());
        let vms = scored.into_iter().flat_map(|scored| &scored.measurements);
        let waits = vms.filter_map(|vm| vm.waits.cpu.ok());
        waits.filter(|wait| wait.node.get() > 0.0).count()
    }
}

/// A clock that stands still between its steps.
#[derive(Clone)]
pub(crate) struct SteppedClock(Arc<Mutex<Instant>>);

impl Default for SteppedClock {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl SteppedClock {
    pub(crate) fn clock(&self) -> Clock {
        let now = Arc::clone(&self.0);
        Arc::new(move || Moment { at: *now.lock().unwrap(), unix_ms: 0 })
    }

    pub(crate) fn step(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

/// Creates a VM's cgroups, and its pod as listed by the API server.
fn make_vm(own: &OwnCgroup, vm: usize) -> Pod {
    let statuses = ["compute", "guest-console-log"].iter().zip(0..).map(|(name, container)| {
        own.make(&cgroup_of(vm, container));
        json!({"name": name, "containerID": format!("containerd://{}", id_of(vm, container))})
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
        id_of(vm, container)
    )
}

fn id_of(vm: usize, container: usize) -> String {
    format!("{:064}", vm * 2 + container)
}
