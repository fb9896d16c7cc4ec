//! A node that is short of CPU by as much as a test says, in virtual time: its scores, made by the
//! agent's own scorer, tick by tick.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use psi_agent::clock::Moment;
use psi_agent::contract::NodePressure;
use psi_agent::identity::{Vm, Workload};
use psi_agent::kernel::cgroup_dir::Resource;
use psi_agent::kernel::cgroup_tree::{Cgroup, CgroupId};
use psi_agent::relief::{Assessment, Relief, SlowAssessment};
use psi_agent::score::{NodeScore, Scorer};
use psi_agent::waiting::Ratio;

use super::measured_vms::{measured_vm, tick_of_vms};

const TICK: Duration = Duration::from_secs(5);

/// The node, with one VM.
pub(crate) struct ShortNode {
    scorer: Scorer,
    start: Moment,
    passed: Duration,
}

impl ShortNode {
    pub(crate) fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let unix_ms = u64::try_from(since_epoch.as_millis()).unwrap();
        Self {
            scorer: new_scorer(),
            start: Moment { at: Instant::now(), unix_ms },
            passed: Duration::ZERO,
        }
    }

    /// The next tick's score, after the VM had to wait for `contention` of what it wanted.
    pub(crate) fn tick(&mut self, contention: f64) -> NodeScore {
        self.tick_after(TICK, contention)
    }

    /// The same at a tick that comes so long after the one before.
    pub(crate) fn tick_after(&mut self, window: Duration, contention: f64) -> NodeScore {
        self.passed += window;
        let unix_ms = self.start.unix_ms + u64::try_from(self.passed.as_millis()).unwrap();
        let moment = Moment { at: self.now(), unix_ms };
        let path = format!("/kubepods/pod1/{:064x}", 1);
        let cgroup = Arc::new(Cgroup::new(CgroupId(1), path, None));
        // Of one CPU that it wants all the time.
        let vm = measured_vm(cgroup, None, 1.0 - contention, contention);
        self.scorer.advance(&tick_of_vms(moment, window, 4, vec![vm]))
    }

    pub(crate) fn now(&self) -> Instant {
        self.start.at + self.passed
    }

    /// Sets the wall clock forward by so many seconds, or back. The monotonic clock goes on.
    pub(crate) fn set_wall_clock(&mut self, by_seconds: i64) {
        self.start.unix_ms = self.start.unix_ms.saturating_add_signed(by_seconds * 1000);
    }

    /// The time on its wall clock.
    pub(crate) fn wall_clock(&self) -> jiff::Timestamp {
        let unix_ms = self.start.unix_ms + u64::try_from(self.passed.as_millis()).unwrap();
        Moment { at: self.now(), unix_ms }.timestamp()
    }

    /// Time passes in which nobody looks.
    pub(crate) fn sleep(&mut self, time: Duration) {
        self.passed += time;
    }

    /// The agent is started anew: its scorer has seen nothing.
    pub(crate) fn restart(&mut self) {
        self.scorer = new_scorer();
    }

    pub(crate) fn adopt(&mut self, found: &NodePressure) {
        self.scorer.adopt(found);
    }
}

/// Two VMs, of which one's move would end this many CPUs of waiting, and a score.
pub(crate) fn assessment(node: &mut ShortNode, contention: f64, db: f64, web: f64) -> Assessment {
    let mut score = node.tick(contention);
    let template = score.containers[0].clone();
    let vms = [(1, "db", db), (2, "web", web)];
    score.containers = vms
        .iter()
        .map(|(number, pod, _)| {
            let mut container = template.clone();
            let path = format!("/kubepods/pod{number}/{number:064x}");
            container.measured.cgroup = Arc::new(Cgroup::new(CgroupId(*number), path, None));
            container.measured.workload = Some(Arc::new(Workload {
                namespace: "vms".into(),
                pod: (*pod).into(),
                container: "compute".into(),
                vm: Some(Arc::new(Vm { name: (*pod).into(), ..Vm::default() })),
                ..Workload::default()
            }));
            container
        })
        .collect();
    let relief = vms.map(|(number, _, cpus)| {
        (CgroupId(number), Relief { demand: 1.0, cpus, score_without: Ratio::ZERO })
    });
    let relief = HashMap::from(relief);
    let slow = SlowAssessment {
        headroom_cpus: 0.0,
        vms: 2.0,
        others: 0.0,
        waiting: db.max(web),
        relief: relief.clone(),
    };
    Assessment { score, headroom_cpus: Some(0.0), relief, slow: Some(slow) }
}

/// Shows which pods have the label of the VM to move first, as the watch of pods does.
pub(crate) fn show_labels(assessment: &mut Assessment, labelled: &[&str]) {
    let workloads =
        assessment.score.containers.iter_mut().map(|container| &mut container.measured.workload);
    for workload in workloads.flatten() {
        let has_candidate_label = labelled.contains(&&*workload.pod);
        let vm = Vm { name: workload.pod.clone(), has_candidate_label, ..Vm::default() };
        *workload = Arc::new(Workload { vm: Some(Arc::new(vm)), ..Workload::clone(workload) });
    }
}

fn new_scorer() -> Scorer {
    Scorer::new(vec![Resource::Cpu, Resource::Memory])
}
