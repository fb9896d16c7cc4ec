//! psi-agent on a node, by its own code: rates of the node model go through its scorer, its prediction of
//! relief, its choice of a VM, and its plan of writes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use psi_agent::clock::{self, Moment};
use psi_agent::contract::{Level, NodeDemand, Thresholds};
use psi_agent::identity::{Vm, Workload};
use psi_agent::kernel::cgroup_dir::Resource;
use psi_agent::kernel::cgroup_tree::{Cgroup, CgroupId};
use psi_agent::publish::demand::demand;
use psi_agent::publish::plan::Plan;
use psi_agent::relief::{Assessment, Assessor, candidates, first};
use psi_agent::sample::Tick;
use psi_agent::waiting::{Measurement, Ratio};

use crate::measured_vms::{measured_vm, tick_of_vms};
use crate::node::Share;

/// The agent's own ticks are every 5 s. Demand is constant within a minute, and smoothing is exact for
/// any window, so a longer tick changes only the dwell of levels, by at most 10 s.
pub const TICK_S: u32 = 15;
const HEARTBEAT: Duration = Duration::from_secs(300);
const COUNTED: [Resource; 2] = [Resource::Cpu, Resource::Memory];
/// Labels that an agent sets in an hour, as in `src/publish/marker.rs`.
const MOST_MARKS: usize = 10;
const HOUR_S: u32 = 3600;
/// The start of a run on the wall clock, milliseconds since the epoch.
const EPOCH_MS: u64 = 1_800_000_000_000;

/// A VM's pod: a new one after each migration.
#[derive(Debug, Clone)]
pub struct Pod {
    pub uid: String,
    pub cgroup: Arc<Cgroup>,
    pub workload: Arc<Workload>,
}

impl Pod {
    /// Pods that are there from the start have no time of arrival.
    pub fn new(number: u64, memory_mib: u64, arrived_s: Option<u32>) -> Self {
        let uid = format!("00000000-0000-4000-8000-{number:012}");
        let path = format!("/kubepods/pod{uid}/{number:064x}");
        let arrived_at = arrived_s.map(|at| moment(clock::now().at, at).timestamp());
        let vm = Arc::new(Vm { created_at: arrived_at, ..Vm::default() });
        let workload = Workload {
            container: "compute".into(),
            memory_request: Some(memory_mib * 1024 * 1024),
            vm: Some(vm),
            ..Workload::default()
        };
        let cgroup = Arc::new(Cgroup::new(CgroupId(number), path, None));
        Self { uid, cgroup, workload: Arc::new(workload) }
    }
}

/// A VM as the agent sees it.
pub struct Seen<'a> {
    pub vm: usize,
    pub pod: &'a Pod,
    pub vcpus: f64,
    pub share: Share,
}

/// `--settle`.
const SETTLE: Duration = Duration::from_secs(300);

pub struct Agent {
    assessor: Assessor,
    /// Of the last tick.
    assessment: Option<Assessment>,
    plan: Plan,
    start: Instant,
    /// Seconds after the start of a tick at which this agent's tick is.
    pub phase_s: u32,
    cpus: f64,
    /// `--candidate-min-age`.
    min_age: Duration,
    pub score: f64,
    pub cpu_contention: f64,
    pub utilization: f64,
    /// The level on the Node, and when the values there were written.
    pub level: Level,
    pub written_at: Option<u32>,
    /// CPU contention and demand on the Node.
    pub published_contention: u8,
    pub demand: Option<NodeDemand>,
    /// The VM whose pod has the label, and the pod.
    pub marked: Option<(usize, CgroupId)>,
    marks: VecDeque<u32>,
}

pub fn moment(start: Instant, at_s: u32) -> Moment {
    let at = start + Duration::from_secs(u64::from(at_s));
    Moment { at, unix_ms: EPOCH_MS + u64::from(at_s) * 1000 }
}

impl Agent {
    /// The agent of a node with this number of CPUs. `min_age_s` is the descheduler's `minPodAge`.
    pub fn new(cpus: f64, phase_s: u32, min_age_s: u32, start: Instant) -> Self {
        Self {
            assessor: Assessor::new(COUNTED.to_vec(), Thresholds::default(), SETTLE),
            assessment: None,
            plan: Plan::new(Thresholds::default(), COUNTED.to_vec(), true, HEARTBEAT),
            start,
            phase_s,
            cpus,
            min_age: Duration::from_secs(u64::from(min_age_s)),
            score: 0.0,
            cpu_contention: 0.0,
            utilization: 0.0,
            level: Level::Low,
            written_at: None,
            published_contention: 0,
            demand: None,
            marked: None,
            marks: VecDeque::new(),
        }
    }

    /// A tick, and how many requests it wrote. `random`, from 0 to 1, spreads heartbeats.
    pub fn tick(&mut self, now_s: u32, vms: &[Seen<'_>], busy: f64, random: f64) -> u16 {
        let at_s = now_s + self.phase_s;
        let assessment = self.assessor.advance(&self.measure(at_s, vms, busy));
        let score = &assessment.score;
        let value = |ratio: Option<Ratio>| ratio.map_or(0.0, Ratio::get);
        self.score = value(score.score);
        self.cpu_contention = value(score.contention.cpu);
        self.utilization = value(score.cpu_utilization);
        let writes = self.publish(at_s, &assessment, random);
        self.assessment = Some(assessment);
        writes
    }

    /// What a tick measures of these VMs, on a node with so many busy CPUs.
    fn measure(&self, at_s: u32, vms: &[Seen<'_>], busy: f64) -> Tick {
        let measurement = |seen: &Seen<'_>| {
            let (pod, share) = (seen.pod, seen.share);
            let (cgroup, workload) = (Arc::clone(&pod.cgroup), Some(Arc::clone(&pod.workload)));
            let (ran, waited) = (share.ran, share.waited);
            let undelayed = (seen.vcpus * ran / (seen.vcpus - waited)).min(ran + waited);
            let undelayed = Some(undelayed).filter(|undelayed| undelayed.is_finite());
            let variance = undelayed.map(|runs| runs * (1.0 - runs / seen.vcpus));
            Measurement { undelayed, variance, ..measured_vm(cgroup, workload, ran, waited) }
        };
        let window = Duration::from_secs(u64::from(TICK_S));
        let vms = vms.iter().map(measurement).collect();
        let mut tick = tick_of_vms(moment(self.start, at_s), window, self.cpus as u32, vms);
        tick.node.utilization = Ratio::of(busy.min(self.cpus), self.cpus);
        tick
    }

    fn publish(&mut self, at_s: u32, assessment: &Assessment, random: f64) -> u16 {
        let (now, score) = (assessment.score.moment.at, &assessment.score);
        let demand = demand(assessment, self.min_age);
        let Some((published, reason)) = self.plan.next_write(now, score, demand) else { return 0 };
        (self.level, self.written_at) = (published.level, Some(at_s));
        self.published_contention = published.pressure.cpu.unwrap_or(0);
        self.demand.clone_from(&published.demand);
        self.plan.written(published, reason, now, random);
        1
    }

    /// What the Node's label `headroom` weighs for VMs with the affinity of
    /// `docs/consumers/snippets/headroom-affinity.yaml`.
    pub fn preferred(&self) -> u8 {
        let class = self.demand.as_ref().map_or(0, NodeDemand::headroom_class);
        25 * [0, 3, 7, 15].iter().map(|least| u8::from(class > *least)).sum::<u8>()
    }

    /// Labels the pod of the VM to move first, and no other; returns how many requests it wrote.
    pub fn mark(&mut self, now_s: u32, vms: &[Seen<'_>]) -> u16 {
        let (at_s, level) = (now_s + self.phase_s, self.plan.levels.level());
        let named = self.marked.map(|marked| marked.1);
        let found = self.assessment.as_ref();
        let found = found.and_then(|found| candidates(found, level, self.min_age).ok());
        let chosen = found.and_then(|found| {
            let id = first(&found, named)?.cgroup.id;
            let seen = vms.iter().find(|seen| seen.pod.cgroup.id == id)?;
            Some((seen.vm, id))
        });
        if chosen == self.marked {
            return 0;
        }
        let mut writes = u16::from(self.marked.take().is_some());
        self.marks.retain(|mark| at_s < mark + HOUR_S);
        if chosen.is_some() && self.marks.len() < MOST_MARKS {
            self.marks.push_back(at_s);
            self.marked = chosen;
            writes += 1;
        }
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Claimant, share};
    use crate::random::Random;

    const ALWAYS: Share = Share { ran: 2.0, waited: 2.0 };

    fn after(minutes: u32, pods: &[Pod], shares: &[Share]) -> (Agent, u16) {
        let mut agent = Agent::new(4.0, 3, 900, clock::now().at);
        let mut writes = 0;
        let vms: Vec<Seen<'_>> = pods
            .iter()
            .zip(shares)
            .enumerate()
            .map(|(vm, (pod, &share))| Seen { vm, pod, vcpus: 4.0, share })
            .collect();
        for tick in 0..minutes * 60 / TICK_S {
            let busy = shares.iter().map(|share| share.ran).sum();
            writes += agent.tick(tick * TICK_S, &vms, busy, 0.5);
            agent.mark(tick * TICK_S, &vms);
        }
        (agent, writes)
    }

    #[test]
    fn contention_becomes_a_score_a_level_and_few_writes() {
        let pods = [1, 2].map(|number| Pod::new(number, 1024, None));
        let (agent, writes) = after(10, &pods, &[ALWAYS; 2]);
        assert!((agent.score - 0.5).abs() < 1e-6 && agent.level == Level::High);
        assert!((2..8).contains(&writes), "{writes}");
        let (agent, _) = after(10, &pods, &[Share { ran: 2.0, waited: 0.0 }; 2]);
        assert_eq!((agent.score, agent.level), (0.0, Level::Low));
    }

    #[test]
    fn the_vm_of_most_relief_gets_the_label_unless_it_just_arrived() {
        let pod = |arrived_s| [Pod::new(1, 1024, None), Pod::new(2, 1024, arrived_s)];
        let large = Share { ran: 3.0, waited: 1.0 };
        let shares = [Share { ran: 0.5, waited: 0.5 }, large];
        let (agent, _) = after(10, &pod(None), &shares);
        assert_eq!(agent.marked, Some((1, CgroupId(2))));
        let (agent, _) = after(10, &pod(Some(0)), &shares);
        assert_ne!(agent.marked, Some((1, CgroupId(2))));
        // A quarter of an hour later it may move.
        let (agent, _) = after(17, &pod(Some(0)), &shares);
        assert_eq!(agent.marked, Some((1, CgroupId(2))));
    }

    /// VMs whose demand together is 1.5 times the node's CPUs: some 190 on 128 CPUs.
    fn crowded(cpus: f64, seed: u64) -> Vec<Claimant> {
        let mut random = Random::new(seed, 0);
        let (mut vms, mut demand) = (Vec::new(), 0.0);
        while demand < 1.5 * cpus {
            let vcpus = [1.0, 2.0, 4.0, 8.0][random.below(4)];
            let duty = random.between(0.05, 0.5);
            demand += vcpus * duty;
            vms.push(Claimant { vcpus, duty, weight: vcpus, quota: None, together: false });
        }
        vms
    }

    fn waited(shares: &[Share]) -> f64 {
        shares.iter().map(|share| share.waited).sum()
    }

    /// What the agent predicts of the VM that it names, what its move ends, and the most that any ends.
    fn named_predicted_and_best(cpus: u32, vms: &[Claimant]) -> [f64; 3] {
        let cpus = f64::from(cpus);
        let shares = share(cpus, vms);
        let pods: Vec<Pod> = (0..vms.len() as u64).map(|at| Pod::new(at, 1024, None)).collect();
        let mut agent = Agent::new(cpus, 3, 900, clock::now().at);
        let seen = pods.iter().zip(vms).zip(&shares).enumerate();
        let seen: Vec<Seen<'_>> = seen
            .map(|(vm, ((pod, one), &share))| Seen { vm, pod, vcpus: one.vcpus, share })
            .collect();
        for tick in 0..10 * 60 / TICK_S {
            let busy = shares.iter().map(|share| share.ran).sum();
            agent.tick(tick * TICK_S, &seen, busy, 0.5);
            agent.mark(tick * TICK_S, &seen);
        }
        let (named, id) = agent.marked.unwrap();
        let slow = agent.assessment.unwrap().slow.unwrap();
        let ended = |vm: usize| {
            let others: Vec<Claimant> =
                vms.iter().enumerate().filter(|(at, _)| *at != vm).map(|(_, one)| *one).collect();
            waited(&shares) - waited(&share(cpus, &others))
        };
        let best = (0..vms.len()).map(ended).fold(0.0, f64::max);
        [slow.relief[&id].cpus, ended(named), best]
    }

    #[test]
    fn the_vm_whose_move_ends_the_most_waiting_is_named_on_large_nodes() {
        for (cpus, seed) in [(64, 1), (64, 2), (128, 3)] {
            let vms = crowded(f64::from(cpus), seed);
            let [predicted, ended, best] = named_predicted_and_best(cpus, &vms);
            let what = format!("{cpus} CPUs, seed {seed}: {predicted:.2} {ended:.2} {best:.2}");
            assert!(ended >= 0.99 * best, "{what}");
            // Of the CPUs that become free, VMs of little demand gain more than they take.
            assert!((0.75..=1.0).contains(&(predicted / ended)), "{what}");
        }
    }
}
