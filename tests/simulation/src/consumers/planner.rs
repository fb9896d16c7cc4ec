//! psi-agent's planner, by its own crate for the choice of moves, and its limits.

use std::collections::VecDeque;

use psi_agent::clock;
use psi_agent_plan::brake::Brake;
use psi_agent_plan::{Movable, Node, Rules, plan};

use crate::agent::{Agent, moment};
use crate::cluster::Cluster;

/// Seconds between plans.
pub const INTERVAL_S: u32 = 120;
/// A node that took part in a migration is left alone for this time.
const PAUSE_S: u32 = 600;
/// No VM moves twice within this time.
const REST_S: u32 = 6 * 3600;
/// VMs that may enter one node in an hour.
const MOST_ARRIVALS: usize = 2;
const HOUR_S: u32 = 3600;

/// The limits of the planner.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Limits {
    /// Migrations that the planner has at once
    #[arg(long, default_value_t = 2)]
    pub most_active: usize,
    /// Moves in an hour
    #[arg(long, default_value_t = 10)]
    pub moves_per_hour: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { most_active: 2, moves_per_hour: 10 }
    }
}

pub struct Planner {
    limits: Limits,
    /// When it created migrations, in the last hour.
    created: VecDeque<u32>,
    brake: Brake,
    is_stopped: bool,
}

impl Planner {
    pub fn new(limits: Limits) -> Self {
        Self { limits, created: VecDeque::new(), brake: Brake::default(), is_stopped: false }
    }

    /// Plans once, and creates the migrations that the limits allow.
    pub fn run(&mut self, cluster: &mut Cluster, agents: &[Agent], now_s: u32) {
        self.created.retain(|at| now_s < at + HOUR_S);
        let now = moment(clock::now().at, now_s).timestamp();
        let names: Vec<String> = (0..agents.len()).map(|node| node.to_string()).collect();
        let known = names.iter().zip(agents);
        let known =
            known.filter_map(|(name, agent)| Some((name.as_str(), agent.demand.as_ref()?.waiting)));
        let waiting = known.collect();
        let arrival = |vm: &str| {
            let vm = cluster.vms.get(number(vm)?).filter(|vm| vm.exists)?;
            let arrived = moment(clock::now().at, vm.arrived_s?).timestamp();
            Some((names[vm.node].as_str(), arrived))
        };
        self.brake.judge(&waiting, arrival, now);
        // Nothing resumes it.
        self.is_stopped |= self.brake.reason().is_some();
        let without = agents.iter().filter(|agent| agent.demand.is_none()).count();
        if self.is_stopped || without * 3 > agents.len() {
            return;
        }
        let most_moves = self
            .limits
            .most_active
            .saturating_sub(cluster.active())
            .min(self.limits.moves_per_hour.saturating_sub(self.created.len()));
        let nodes: Vec<Node> =
            agents.iter().enumerate().map(|(at, agent)| node(cluster, at, agent)).collect();
        let usable = || {
            agents.iter().enumerate().filter(|(at, agent)| {
                agent.demand.is_some() && !cluster.took_part(*at, PAUSE_S, now_s)
            })
        };
        let targets = usable().map(|(at, _)| at);
        let targets: Vec<usize> =
            targets.filter(|&at| cluster.arrivals(at, now_s) < MOST_ARRIVALS).collect();
        let (vms, movables): (Vec<usize>, Vec<Movable>) =
            usable().flat_map(|(at, agent)| movables(cluster, at, agent, &targets, now_s)).unzip();
        for one in plan(&nodes, &movables, &Rules::default(), most_moves) {
            cluster.evict(vms[one.vm], Some(one.target), now_s);
            self.created.push_back(now_s);
            let [vm, source, target] =
                [vms[one.vm], one.source, one.target].map(|it| it.to_string());
            self.brake.add(&vm, [&source, &target], &waiting, now);
        }
    }
}

fn number(name: &str) -> Option<usize> {
    name.parse().ok()
}

fn node(cluster: &Cluster, number: usize, agent: &Agent) -> Node {
    Node {
        cpus: cluster.nodes[number].cpus(),
        demand: agent.demand.as_ref().map_or(0.0, |demand| demand.vms + demand.others),
        contention: agent.published_contention,
    }
}

/// The VMs that a node's agent proposes, with these targets, of those that have not moved lately.
fn movables<'a>(
    cluster: &'a Cluster,
    number: usize,
    agent: &'a Agent,
    targets: &'a [usize],
    now_s: u32,
) -> impl Iterator<Item = (usize, Movable)> + 'a {
    let candidates = agent.demand.iter().flat_map(|demand| &demand.candidates);
    candidates.filter_map(move |candidate| {
        let has_uid = |vm: &&usize| cluster.vms[**vm].pod.uid == candidate.uid;
        let vm = *cluster.nodes[number].vms.iter().find(has_uid)?;
        if cluster.is_in_flight(vm) || cluster.vms[vm].age_s(now_s) < REST_S {
            return None;
        }
        let movable = Movable {
            node: number,
            demand: candidate.demand,
            relief: candidate.relief,
            memory: candidate.memory,
            targets: cluster.targets(vm).into_iter().filter(|at| targets.contains(at)).collect(),
        };
        Some((vm, movable))
    })
}
