//! Predicts the contention of a node without one of its VMs.

use super::node::{Allocation, Contention, Demand, Node};
use super::sharing::{Want, fair_shares};
use crate::kernel::limits::CpuSet;

/// A node as it is now, from which each demand can be removed.
#[derive(Debug)]
pub(super) struct Departures<'a> {
    node: &'a Node,
    pub(super) now: Contention,
    memory_waiting: f64,
    cpusets: Vec<Option<&'a CpuSet>>,
    /// The demands that are not idle.
    queue: Vec<Allocation<'a>>,
}

impl<'a> Departures<'a> {
    /// `now` is the contention of the node as it is.
    pub(super) fn new(node: &'a Node, now: Contention) -> Self {
        let memory_waiting = node.memory(None).waiting;
        Self { node, now, memory_waiting, cpusets: node.cpusets(), queue: queueing(node) }
    }

    /// Predicts the node without `gone`, one of its demands: the contention that is left, and the CPUs'
    /// worth of waiting that would end. Its own waiting counts only as far as it would end on an empty
    /// node with as many CPUs. The others keep the CPUs that they use, and those that wait share the
    /// freed CPUs. Some queue behind other workloads as before.
    pub(super) fn without(&self, gone: &Demand) -> (Contention, f64) {
        let memory = self.node.memory(Some(gone));
        if gone.is_idle() {
            let relief_cpus = (self.memory_waiting - memory.waiting).max(0.0);
            let waiting = self.now.waiting - relief_cpus;
            return (Contention { cpu: self.now.cpu, waiting, ..memory }, relief_cpus);
        }
        let stay = self.queue.iter().filter(|one| !std::ptr::eq(one.demand, gone));
        let mut stay: Vec<Allocation<'_>> = stay.copied().collect();
        self.share_what_is_freed(&mut stay, gone);
        keep_queueing(&mut stay);
        let contention = self.node.contention_of(&stay, memory);
        let too_large = gone.wanted() - f64::from(self.node.cpus);
        let goes_along = if gone.is_scored { too_large.clamp(0.0, gone.waiting) } else { 0.0 };
        (contention, (self.now.waiting - contention.waiting - goes_along).max(0.0))
    }

    fn share_what_is_freed(&self, stay: &mut [Allocation<'_>], gone: &Demand) {
        let (node, mut left) = (self.node, gone.used);
        for &cpuset in &self.cpusets {
            let members = stay.iter_mut().filter(|one| node.cpuset(one.demand) == cpuset);
            let members: Vec<&mut Allocation<'_>> = members.collect();
            let wants: Vec<Want> = members.iter().map(|allocated| want(allocated.demand)).collect();
            let freed = left.min(gone.used * node.part_in(node.cpuset(gone), cpuset));
            for (member, share) in members.into_iter().zip(fair_shares(&wants, freed)) {
                left -= share - member.cpus;
                member.cpus = share;
            }
        }
    }
}

/// Takes CPUs from those that stay, as far as they still queue: while other workloads wait all the
/// time, as a batch job does, a vCPU that wakes up has to wait for its turn, even if its share is
/// larger than it needs. All of them queue for at most as many CPUs as the other workloads wait for.
fn keep_queueing(stay: &mut [Allocation<'_>]) {
    let others = stay.iter().filter(|one| !one.demand.is_scored);
    let others: f64 = others.map(Allocation::waiting).sum();
    let scored = stay.iter().filter(|one| one.demand.is_scored);
    let all: f64 = scored.map(|one| one.queueing).sum();
    // Where none queues, each keeps its CPUs, whatever the quotient.
    let left = (others / all).min(1.0);
    for one in stay.iter_mut().filter(|one| one.demand.is_scored) {
        one.cpus = one.cpus.min(one.demand.wanted() - one.queueing * left);
    }
}

/// The demands that are not idle, with what each queues for.
fn queueing(node: &Node) -> Vec<Allocation<'_>> {
    let mut all = node.allocation();
    let most = |demand: &Demand| demand.wanted().min(f64::from(node.size(node.cpuset(demand))));
    let want = |demand: &Demand| Want { least: 0.0, most: most(demand), weight: demand.weight() };
    let wants: Vec<Want> = all.iter().map(|allocated| want(allocated.demand)).collect();
    let used: f64 = all.iter().map(|allocated| allocated.cpus).sum();
    let shares = fair_shares(&wants, node.idle + used);
    for (one, share) in all.iter_mut().zip(shares) {
        one.queueing = (share - one.cpus).max(0.0);
    }
    all
}

/// The effective weight of a demand that waits is the number of CPUs that it gets now. This
/// includes effects that `cpu.weight` does not show: the weights of the cgroups above, and the
/// number of CPUs on which its threads run.
fn want(demand: &Demand) -> Want {
    let weight = demand.used.max(1e-6);
    Want { least: demand.used, most: demand.wanted(), weight }
}

#[cfg(test)]
mod tests {
    use super::super::node::tests::{near, node, set, vm};
    use super::*;

    fn without(node: &Node, leaving: usize) -> Contention {
        Departures::new(node, node.contention()).without(&node.demands[leaving]).0
    }

    fn relief_cpus(node: &Node, leaving: usize) -> f64 {
        Departures::new(node, node.contention()).without(&node.demands[leaving]).1
    }

    #[test]
    fn those_that_wait_share_the_cpus_of_the_one_that_leaves() {
        // Three VMs with one busy vCPU each, on two CPUs.
        let three = node(2, vec![vm(2.0 / 3.0, 1.0 / 3.0); 3]);
        assert!(near(three.contention().cpu, 1.0 / 3.0) && near(three.contention().waiting, 1.0));
        assert!(near(without(&three, 0).cpu, 0.0) && near(relief_cpus(&three, 0), 1.0));
        // Six of them on two CPUs: the other five still wait.
        let six = node(2, vec![vm(1.0 / 3.0, 2.0 / 3.0); 6]);
        assert!(near(without(&six, 0).cpu, 0.6) && near(relief_cpus(&six, 0), 1.0));
    }

    #[test]
    fn the_largest_that_the_others_wait_for_helps_most_and_not_the_one_that_suffers() {
        // A large VM that uses most of the node, two that wait, and an idle one.
        let demands = vec![vm(3.0, 0.2), vm(0.5, 0.5), vm(0.5, 0.5), vm(0.0, 0.0)];
        let node = node(4, demands);
        let relief: Vec<f64> = (0..4).map(|at| relief_cpus(&node, at)).collect();
        assert!(near(relief[0], 1.2) && near(relief[1], 1.0) && near(relief[3], 0.0), "{relief:?}");
        assert!(without(&node, 0).cpu < 1e-6 && without(&node, 3) == node.contention());
    }

    #[test]
    fn a_vm_larger_than_the_node_would_wait_elsewhere_as_well() {
        let alone = node(2, vec![vm(2.0, 2.0)]);
        assert!(near(relief_cpus(&alone, 0), 0.0) && near(without(&alone, 0).cpu, 0.0));
        let beside = node(2, vec![vm(2.0, 6.0), vm(0.0, 0.0)]);
        assert!(near(without(&beside, 1).cpu, 0.75));
    }

    #[test]
    fn beside_a_batch_job_that_takes_what_becomes_free_vms_wait_for_their_turn_as_before() {
        // As measured: six threads of little weight beside two VMs and one with CPUs of its own.
        let batch = Demand { is_scored: false, weight: Some(50.0), ..vm(0.648, 5.351) };
        let own = Demand { cpuset: set(0..2), weight: Some(200.0), ..vm(1.808, 0.192) };
        let beside = node(4, vec![vm(0.745, 0.138), vm(0.73, 0.143), own, batch.clone()]);
        let (now, left) = (beside.contention().cpu, without(&beside, 0).cpu);
        assert!(now > 0.15 && left > 0.6 * now, "{now} {left}");
        // A job that hardly waits takes nothing that becomes free.
        let calm = Demand { used: 0.9, waiting: 0.1, ..batch.clone() };
        let beside = node(2, vec![vm(0.55, 0.1), vm(0.55, 0.1), calm]);
        assert!(without(&beside, 0).cpu < 0.01, "{:?}", without(&beside, 0));
        // Nor does one that waits for little beside VMs that wait for each other.
        let shared = || Demand { cpuset: set(4..8), ..vm(1.33, 0.67) };
        let own = Demand { cpuset: set(0..4), ..vm(3.85, 0.15) };
        let daemon = Demand { used: 0.01, waiting: 0.02, ..batch };
        let beside = node(8, vec![shared(), shared(), shared(), own, daemon]);
        assert!(without(&beside, 0).cpu < 0.06, "{:?}", without(&beside, 0));
    }

    #[test]
    fn weight_and_quota_decide_which_get_the_freed_cpus() {
        let third = vm(1.0 / 3.0, 2.0 / 3.0);
        // A batch workload with three times the weight of a VM gets one of the two CPUs, and 1.2
        // when a VM has left.
        let batch = Demand { is_scored: false, ..vm(1.0, 9.0) };
        let beside = node(2, [vec![third.clone(); 3], vec![batch.clone()]].concat());
        assert!(near(without(&beside, 0).waiting, 1.2), "{:?}", without(&beside, 0));
        // With a quota that is used up, it gets no more.
        let limited = Demand { limit: Some(1.0), ..batch };
        let beside = node(2, [vec![third; 3], vec![limited]].concat());
        assert!(near(without(&beside, 0).waiting, 1.0), "{:?}", without(&beside, 0));
    }

    #[test]
    fn a_vm_on_other_cpus_is_no_relief() {
        let on = |cpuset, one| Demand { cpuset, ..one };
        let demands = vec![
            on(set(0..2), vm(2.0, 0.0)),
            on(set(2..4), vm(1.0, 1.0)),
            on(set(2..4), vm(1.0, 1.0)),
        ];
        let node = node(4, demands);
        assert!(near(relief_cpus(&node, 0), 0.0));
        assert!(near(relief_cpus(&node, 1), 2.0));
    }

    #[test]
    fn waiting_for_memory_decreases_by_the_part_of_the_one_that_leaves() {
        let of = |memory, share| Demand {
            memory: Some(memory),
            memory_waiting: share,
            memory_contention: share,
            ..vm(0.5, 0.0)
        };
        let node = node(4, vec![of(6e9, 0.4), of(2e9, 0.4)]);
        assert!(near(node.contention().memory, 0.4));
        assert!(near(without(&node, 0).memory, 0.1) && near(without(&node, 1).memory, 0.3));
        // Its own waiting, and three quarters or one quarter of the other's.
        assert!(near(relief_cpus(&node, 0), 0.7) && near(relief_cpus(&node, 1), 0.5));
        assert_eq!(node.headroom_cpus(0.1), 0.0);
    }
}
