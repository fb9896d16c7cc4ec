//! One run: a trace, a cluster and a rebalancer, in virtual time.

use psi_agent::clock;
use psi_agent::contract::{Level, NodeDemand};

use crate::agent::{Agent, Seen, TICK_S};
use crate::arm::{Arm, Overrides, Signal};
use crate::backlog::{Backlog, share_idle};
use crate::cluster::{Cluster, Shape};
use crate::consumers::descheduler::Policy;
use crate::consumers::planner::Planner;
use crate::consumers::scheduler::Bridged;
use crate::judge::{self, Outcome, Waits};
use crate::node::some;
use crate::random::Random;
use crate::series::{Minutes, RULE_S, TenMinutes, load};
use crate::trace::Trace;

mod rebalancing;

const STEP_S: u32 = TICK_S;
const MINUTE_S: u32 = 60;
/// Share of the CPUs in use from which a node is full.
const FULL: f64 = 0.8;
/// A VM counts as contended from these shares of its demand and of its vCPUs' time.
const CONTENDED: (f64, f64) = (0.10, 0.05);

pub struct Simulation<'a> {
    trace: &'a Trace,
    arm: Arm,
    policy: Policy,
    prefers_headroom: bool,
    has_extender: bool,
    taint_medium: bool,
    taint_full: bool,
    cluster: Cluster,
    agents: Vec<Agent>,
    minutes: Vec<Minutes>,
    rules: Vec<TenMinutes>,
    random: Random,
    /// CPU ready of each VM, by minute.
    ready: Vec<Vec<f32>>,
    sums: Vec<(f64, f64)>,
    backlogs: Vec<Backlog>,
    outcome: Outcome,
    all_waits: Waits,
    /// Writes to the API server by second.
    writes: Vec<u16>,
    ages: (f64, f64),
    planner: Planner,
}

/// Runs the trace once. The same arguments give the same outcome.
pub fn run(
    trace: &Trace,
    shape: &Shape,
    arm: Arm,
    overrides: Overrides,
    seed: u64,
) -> anyhow::Result<Outcome> {
    // Placement is the same for all rebalancers of a seed.
    let cluster = Cluster::new(trace, shape, &mut Random::new(seed, 0xc1))?;
    let mut simulation = Simulation::new(trace, cluster, arm, overrides, seed);
    for step in 0..trace.minutes as u32 * (MINUTE_S / STEP_S) {
        simulation.step(step * STEP_S)?;
    }
    Ok(simulation.finish())
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a Trace, cluster: Cluster, arm: Arm, overrides: Overrides, seed: u64) -> Self {
        let policy = overrides.apply(arm);
        let may_have_agents = arm.has_agents() || arm == Arm::Nothing;
        let prefers_headroom = arm == Arm::Headroom || overrides.prefer_headroom && may_have_agents;
        let has_extender = overrides.extender && may_have_agents;
        let nodes = cluster.nodes.len();
        let mut random = Random::new(seed, 0x5e);
        let start = clock::now().at;
        let has_agents = arm.has_agents() || prefers_headroom || has_extender;
        let with_agents = if has_agents { nodes } else { 0 };
        let agents = cluster.nodes[..with_agents].iter().map(|node| {
            let phase_s = random.below(STEP_S as usize) as u32;
            Agent::new(node.cpus(), phase_s, policy.least_age_s, start)
        });
        Self {
            trace,
            arm,
            policy,
            prefers_headroom,
            has_extender,
            taint_medium: overrides.taint_medium,
            taint_full: overrides.taint_full,
            agents: agents.collect(),
            minutes: vec![Minutes::default(); nodes],
            rules: vec![TenMinutes::default(); nodes],
            random,
            ready: vec![Vec::new(); trace.vms.len()],
            sums: vec![(0.0, 0.0); trace.vms.len()],
            backlogs: vec![Backlog::default(); trace.vms.len()],
            outcome: Outcome::default(),
            all_waits: Waits::default(),
            writes: vec![0; trace.minutes * 60 + STEP_S as usize],
            ages: (0.0, 0.0),
            planner: Planner::new(overrides.planner),
            cluster,
        }
    }

    fn step(&mut self, now_s: u32) -> anyhow::Result<()> {
        if now_s.is_multiple_of(MINUTE_S) {
            let minute = (now_s / MINUTE_S) as usize;
            let shares = self.trace.vms.iter().map(|vm| vm.shares[minute]);
            self.cluster.set_demand(shares, now_s, &mut self.random)?;
        }
        let scheduled = self.cluster.advance_migrations(now_s, &mut self.random);
        // The scheduler used the taints of all nodes, as old as they were.
        for _ in scheduled {
            let written = self.agents.iter().filter_map(|agent| agent.written_at);
            let age = written.map(|at| f64::from(now_s.saturating_sub(at))).sum::<f64>();
            if !self.agents.is_empty() {
                self.used(age / self.agents.len() as f64);
            }
        }
        self.cluster.share_cpus();
        self.account();
        self.catch_up();
        self.tick_agents(now_s);
        let end_s = now_s + STEP_S;
        if end_s.is_multiple_of(MINUTE_S) {
            self.end_minute(end_s);
        }
        if end_s.is_multiple_of(RULE_S) {
            self.record_rules();
        }
        self.rebalance(end_s);
        Ok(())
    }

    fn account(&mut self) {
        let hours = f64::from(STEP_S) / 3600.0;
        let states = self.sums.iter_mut().zip(&mut self.backlogs);
        for (vm, (sums, backlog)) in self.cluster.vms.iter().zip(states) {
            let demand = vm.vcpus * vm.duty;
            let missed = (demand - vm.share.ran).max(0.0);
            self.outcome.demand_hours += demand * hours;
            self.outcome.lost_hours += missed * hours;
            backlog.add(missed * f64::from(STEP_S));
            sums.0 += vm.share.ran;
            sums.1 += vm.share.waited;
        }
        for (number, node) in self.cluster.nodes.iter().enumerate() {
            let cpus = node.cpus();
            let throttled = self.cluster.throttled(number);
            let pressure = some(cpus, node.ran, node.waited, throttled);
            self.minutes[number].add(node.ran / cpus, pressure, node.waited);
        }
    }

    /// Idle CPUs do what was missed before. It changes nothing but the second definition of lost work.
    fn catch_up(&mut self) {
        let seconds = f64::from(STEP_S);
        let mut vms: Vec<Vec<(&mut Backlog, f64)>> =
            self.cluster.nodes.iter().map(|_| Vec::new()).collect();
        for (vm, backlog) in self.cluster.vms.iter().zip(&mut self.backlogs) {
            if vm.exists {
                // A vCPU that waits can use no other CPU.
                let idle = vm.vcpus - vm.share.ran - vm.share.waited;
                vms[vm.node].push((backlog, idle * seconds));
            }
        }
        for (node, mut vms) in self.cluster.nodes.iter().zip(vms) {
            share_idle((node.cpus() - node.ran) * seconds, &mut vms);
        }
    }

    fn tick_agents(&mut self, now_s: u32) {
        for (number, agent) in self.agents.iter_mut().enumerate() {
            let node = &mut self.cluster.nodes[number];
            let seen = |&vm: &usize| {
                let state = &self.cluster.vms[vm];
                Seen { vm, pod: &state.pod, vcpus: state.vcpus, share: state.share }
            };
            let vms: Vec<Seen<'_>> = node.vms.iter().map(seen).collect();
            let mut writes = agent.tick(now_s, &vms, node.ran, self.random.share());
            if self.arm.names_a_vm() && now_s.is_multiple_of(MINUTE_S) {
                writes += agent.mark(now_s, &vms);
            }
            self.writes[(now_s + agent.phase_s) as usize] += writes;
            if self.arm.has_taints() {
                let medium = self.taint_medium && agent.level >= Level::Medium;
                let full = self.taint_full && agent.utilization >= FULL;
                node.soft_taints =
                    u8::from(agent.level == Level::High) + u8::from(medium) + u8::from(full);
            }
            if self.prefers_headroom {
                node.preferred = agent.preferred();
            }
            if self.has_extender {
                let headroom = agent.demand.as_ref().map(NodeDemand::headroom_class);
                let slow_score = self.rules[number].average();
                node.bridged = Some(Bridged { slow_score, headroom });
            }
        }
    }

    fn end_minute(&mut self, now_s: u32) {
        let steps = f64::from(MINUTE_S / STEP_S);
        for (number, vm) in self.cluster.vms.iter().enumerate() {
            self.outcome.late_hours += self.backlogs[number].end_minute() / 3600.0;
            let (ran, waited) = std::mem::take(&mut self.sums[number]);
            if !vm.exists {
                continue;
            }
            let (ran, waited) = (ran / steps, waited / steps);
            let ready = waited / vm.vcpus;
            let contention = if waited > 0.0 { waited / (ran + waited) } else { 0.0 };
            self.all_waits.add(ready);
            if contention >= CONTENDED.0 && ready >= CONTENDED.1 {
                self.outcome.contended_hours += 1.0 / 60.0;
            }
            self.ready[number].push(ready as f32);
        }
        self.minutes.iter_mut().for_each(Minutes::end_minute);
        self.cluster.judge_moves(now_s);
    }

    fn memory_utilization(&self, node: usize) -> f64 {
        let node = &self.cluster.nodes[node];
        node.requested.memory_mib as f64 / node.size.memory_mib as f64
    }

    fn record_rules(&mut self) {
        for number in 0..self.agents.len() {
            let agent = &self.agents[number];
            let value = if self.arm.signal() == Signal::Load {
                load(agent.utilization, agent.cpu_contention, self.memory_utilization(number))
            } else {
                agent.score
            };
            self.rules[number].record(value);
        }
    }

    fn finish(mut self) -> Outcome {
        let moves = &self.cluster.moves;
        let verdicts: Vec<judge::Verdict> =
            moves.iter().filter_map(|one| one.effect(self.cluster.vms[one.vm].vcpus)).collect();
        let count = |verdict| verdicts.iter().filter(|one| **one == verdict).count() as f64;
        self.writes.sort_unstable();
        let seconds = self.writes.len();
        let written: u64 = self.writes.iter().copied().map(u64::from).sum();
        Outcome {
            vms: self.trace.vm_days() / (self.trace.minutes as f64 / 1440.0),
            days: self.trace.minutes as f64 / 1440.0,
            p99_wait: self.all_waits.p99(),
            moves: moves.len() as f64,
            each_move: moves.clone(),
            judged: verdicts.len() as f64,
            helped: count(judge::Verdict::Helped),
            hurt: count(judge::Verdict::Hurt),
            moved_again: judge::moved_again_soon(moves, self.trace.vms.len()) as f64,
            writes_per_s: written as f64 / seconds as f64,
            p99_writes: f64::from(self.writes[seconds * 99 / 100]),
            age_s: (self.ages.1 > 0.0).then(|| self.ages.0 / self.ages.1),
            ..self.outcome
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::cluster::Size;
    use crate::population::Population;

    fn run(trace: &Trace, shape: &Shape, arm: Arm, seed: u64) -> Outcome {
        super::run(trace, shape, arm, Overrides::default(), seed).unwrap()
    }

    fn shape(cpus: &[u32]) -> Shape {
        let size = |&cpus: &u32| Size { cpus, memory_mib: 512 * 1024 };
        Shape { nodes: cpus.iter().map(size).collect(), throttled: 0.0 }
    }

    #[test]
    fn all_rebalancers_run_and_the_same_seed_gives_the_same_outcome() {
        // VMs that come and go, on nodes of two sizes.
        let trace = Population::Mixed.generate(30, 120, Some(2.0), 3);
        let shape = shape(&[8, 24]);
        let mut lost = Vec::new();
        for &arm in Arm::value_variants() {
            let outcome = run(&trace, &shape, arm, 3);
            assert_eq!(outcome, run(&trace, &shape, arm, 3), "{arm:?}");
            assert!((outcome.demand_hours - trace.demand_hours()).abs() < 1e-3, "{arm:?}");
            let capacity = shape.cpus() * 2.0;
            assert!(outcome.demand_hours - outcome.lost_hours <= capacity, "{arm:?}");
            assert!(
                outcome.helped + outcome.hurt <= outcome.judged && outcome.judged <= outcome.moves
            );
            assert_eq!(outcome.writes_per_s > 0.0, arm.has_agents() || arm.has_soft_tainter());
            lost.push(outcome.lost_hours);
        }
        assert!(lost[0] > 0.0, "the cluster has contention");
        assert_ne!(run(&trace, &shape, Arm::Nothing, 4).lost_hours, lost[0]);
    }

    #[test]
    fn throttled_containers_move_vms_by_node_pressure_and_not_by_score() {
        let trace = Population::Mixed.generate(20, 120, None, 2);
        let shape = Shape { throttled: 0.15, ..shape(&[64; 4]) };
        assert!(run(&trace, &shape, Arm::NodePsi, 2).moves > 0.0);
        for arm in [Arm::Score, Arm::Candidate, Arm::Headroom, Arm::Planner] {
            let outcome = run(&trace, &shape, arm, 2);
            assert_eq!((outcome.moves, outcome.contended_hours), (0.0, 0.0), "{arm:?}");
        }
    }
}
