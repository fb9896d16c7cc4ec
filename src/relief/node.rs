//! Predicts the contention of a node without one of its VMs, or with more vCPUs.

use super::sharing::{Want, fair_shares};
use crate::contract::Level;
use crate::kernel::limits::CpuSet;
use crate::rates::Ratio;
use crate::score::{Quartile, Wait};

/// `cpu.weight` of a cgroup that has none.
const DEFAULT_WEIGHT: f64 = 100.0;

/// The demand of a VM or of another workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Whether it is scored: a VM, or on a node without VMs any container.
    pub is_scored: bool,
    /// CPUs in use, on average.
    pub used: f64,
    /// CPUs that it waited for because of the node: 1 for a thread that waits all the time.
    pub waiting: f64,
    /// CPUs that its quota allows; `None` without a quota.
    pub limit: Option<f64>,
    /// `cpu.weight`, 1 to 10,000.
    pub weight: f64,
    /// CPUs on which it may run; `None` for all.
    pub cpuset: Option<CpuSet>,
    /// Number of vCPUs; `None` if unknown, and then the demand in CPUs is used instead.
    pub vcpus: Option<f64>,
    /// Memory in use, bytes; `None` where it is unknown.
    pub memory: Option<f64>,
    /// Share of time that it waited for memory because of the node, 0 to 1.
    pub memory_wait: f64,
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            is_scored: false,
            used: 0.0,
            waiting: 0.0,
            limit: None,
            weight: DEFAULT_WEIGHT,
            cpuset: None,
            vcpus: None,
            memory: None,
            memory_wait: 0.0,
        }
    }
}

impl Demand {
    /// CPUs that it would use if it did not wait.
    fn wanted(&self) -> f64 {
        (self.used + self.waiting).min(self.limit.unwrap_or(f64::INFINITY)).max(self.used)
    }

    /// Memory in bytes. If it is unknown, all demands have the same.
    fn bytes(&self) -> f64 {
        self.memory.unwrap_or(1.0)
    }
}

/// A node and the demands for its CPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    /// Number of CPUs.
    pub cpus: u32,
    /// CPUs that are not in use, on average.
    pub idle: f64,
    /// Share of the node's demand for CPU time that its hypervisor gave to other guests, 0 to 1.
    pub steal: f64,
    /// VMs, and other workloads that wait. Workloads that neither wait nor are scored may be
    /// omitted.
    pub demands: Vec<Demand>,
}

/// A demand, and the CPUs that are allocated to it.
#[derive(Debug, Clone, Copy)]
struct Allocated<'a> {
    demand: &'a Demand,
    cpus: f64,
}

impl Allocated<'_> {
    fn waiting(&self) -> f64 {
        (self.demand.wanted() - self.cpus).max(0.0)
    }
}

/// Contention of a node, as it is or as it is predicted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Contention {
    /// CPU contention, 0 to 1.
    pub cpu: f64,
    /// CPU ready, 0 to 1.
    pub cpu_ready: f64,
    /// Memory contention, 0 to 1.
    pub memory: f64,
    /// CPUs that all scored workloads together wait for.
    pub waiting: f64,
}

impl Contention {
    /// Whether this is the level `medium` or higher. `score` is the threshold of `medium`, 0 to 1.
    pub fn is_medium(&self, score: f64) -> bool {
        let by_cpu = self.cpu >= score && self.cpu_ready >= Level::Medium.least_cpu_ready();
        by_cpu || self.memory >= score
    }
}

impl Node {
    /// The contention as it is now.
    pub fn contention(&self) -> Contention {
        self.contention_of(&self.allocation(), 1.0)
    }

    /// The predicted contention without one of the demands. The others keep the CPUs that they use,
    /// and those that wait share the freed CPUs. Some queue behind other workloads as before.
    /// Memory wait decreases by the share of memory that is freed.
    pub fn without(&self, leaving: usize) -> Contention {
        let Some(gone) = self.demands.get(leaving) else { return self.contention() };
        let (mut left, mut stays) = (gone.used, self.allocation());
        stays.remove(leaving);
        for cpuset in self.cpusets() {
            let members = stays.iter_mut().filter(|one| self.cpuset(one.demand) == cpuset);
            let members: Vec<&mut Allocated<'_>> = members.collect();
            let wants: Vec<Want> = members.iter().map(|one| want(one.demand)).collect();
            let freed = left.min(gone.used * self.part_in(self.cpuset(gone), cpuset));
            for (member, share) in members.into_iter().zip(fair_shares(&wants, freed)) {
                left -= share - member.cpus;
                member.cpus = share;
            }
        }
        self.keep_queueing(&mut stays, leaving);
        let scored = self.demands.iter().filter(|one| one.is_scored);
        let freed = gone.bytes() / scored.map(Demand::bytes).sum::<f64>();
        self.contention_of(&stays, if gone.is_scored { 1.0 - freed } else { 1.0 })
    }

    /// Takes CPUs from those that stay, as far as they still queue: while other workloads wait all the
    /// time, as a batch job does, a vCPU that wakes up has to wait for its turn, even if its share is
    /// larger than it needs. All of them queue for at most as many CPUs as the other workloads wait for.
    fn keep_queueing(&self, stays: &mut [Allocated<'_>], leaving: usize) {
        let others = stays.iter().filter(|one| !one.demand.is_scored);
        let others: f64 = others.map(Allocated::waiting).sum();
        let mut queueing = self.queueing();
        queueing.remove(leaving);
        let queue = stays.iter().zip(&queueing).filter(|(one, _)| one.demand.is_scored);
        let all: f64 = queue.map(|(_, cpus)| cpus).sum();
        if all == 0.0 {
            return;
        }
        let left = (others / all).min(1.0);
        for (one, cpus) in stays.iter_mut().zip(queueing).filter(|(one, _)| one.demand.is_scored) {
            one.cpus = one.cpus.min(one.demand.wanted() - cpus * left);
        }
    }

    /// CPUs that each demand waits for although its fair share, by weight, is larger than what it uses.
    fn queueing(&self) -> Vec<f64> {
        let most = |one: &Demand| one.wanted().min(f64::from(self.size(self.cpuset(one))));
        let want = |one: &Demand| Want { least: 0.0, most: most(one), weight: weight_of(one) };
        let wants: Vec<Want> = self.demands.iter().map(want).collect();
        let used: f64 = self.demands.iter().map(|one| one.used).sum();
        let shares = fair_shares(&wants, self.idle + used);
        self.demands.iter().zip(shares).map(|(one, share)| (share - one.used).max(0.0)).collect()
    }

    /// CPUs' worth of waiting that would end without one of the demands. Its own waiting counts
    /// only as far as it would end on an empty node with as many CPUs.
    pub fn relief_cpus(&self, leaving: usize) -> f64 {
        let Some(gone) = self.demands.get(leaving) else { return 0.0 };
        let goes_along = (gone.wanted() - f64::from(self.cpus)).clamp(0.0, gone.waiting);
        let ends = self.contention().waiting - self.without(leaving).waiting;
        (ends - if gone.is_scored { goes_along } else { 0.0 }).max(0.0)
    }

    /// Busy vCPUs that can be added before the level is `medium`. `medium` is the threshold of that
    /// level, 0 to 1.
    pub fn headroom_cpus(&self, medium: f64) -> f64 {
        // With so many busy vCPUs, even an empty node is `medium`.
        let (mut fits, mut too_many) = (0.0, f64::from(self.cpus) / (1.0 - medium).max(0.01));
        if self.contention().is_medium(medium) {
            return 0.0;
        }
        // Idle VMs are omitted: they do not change the result, and a node can have hundreds.
        let busy = self.demands.iter().filter(|one| one.wanted() >= 0.001).cloned();
        let node = Self { demands: busy.collect(), ..*self };
        // Bisection, until the error is below 0.1 % of the node.
        for _ in 0..10 {
            let middle = f64::midpoint(fits, too_many);
            if node.with(middle).is_medium(medium) {
                too_many = middle;
            } else {
                fits = middle;
            }
        }
        fits
    }

    /// The predicted contention with this number of added vCPUs that are always busy. They have the
    /// average weight of a vCPU, and run on the cpuset that most demands have. They take its idle
    /// CPUs, and share the CPUs in use there.
    pub fn with(&self, vcpus: f64) -> Contention {
        let scored = || self.demands.iter().filter(|one| one.is_scored);
        let pool = self.shared_pool();
        let cpus = f64::from(self.size(pool));
        let in_use = f64::from(self.cpus) - self.idle;
        let seen = |set| -> f64 {
            self.demands.iter().map(|one| one.used * self.part_in(self.cpuset(one), set)).sum()
        };
        let unseen = (in_use - seen(None)).max(0.0) * self.part_in(None, pool);
        let idle = (cpus - unseen - seen(pool)).max(0.0);
        let all_vcpus: f64 = scored().map(|one| one.vcpus.unwrap_or(1.0)).sum();
        let all_weights: f64 = scored().map(|one| one.weight).sum();
        let weight = if all_vcpus > 0.0 { all_weights / all_vcpus } else { DEFAULT_WEIGHT };
        let mut all = self.allocation();
        let members = all.iter_mut().filter(|one| self.cpuset(one.demand) == pool);
        let members: Vec<&mut Allocated<'_>> = members.collect();
        let want = |one: &Demand| Want { least: 0.0, most: one.used, weight: weight_of(one) };
        let mut wants: Vec<Want> = members.iter().map(|one| want(one.demand)).collect();
        let available = idle + wants.iter().map(|want| want.most).sum::<f64>();
        let weight = (weight * vcpus).max(f64::MIN_POSITIVE);
        wants.push(Want { least: 0.0, most: vcpus, weight });
        let mut shares = fair_shares(&wants, available);
        let used = shares.pop().unwrap_or_default();
        for (member, share) in members.into_iter().zip(shares) {
            member.cpus = share;
        }
        let (waiting, vcpus) = (vcpus - used, Some(vcpus));
        let added = Demand { is_scored: true, used, waiting, vcpus, ..Demand::default() };
        let all: Vec<Allocated<'_>> =
            all.into_iter().chain([Allocated { demand: &added, cpus: used }]).collect();
        self.contention_of(&all, 1.0)
    }

    fn allocation(&self) -> Vec<Allocated<'_>> {
        self.demands.iter().map(|demand| Allocated { demand, cpus: demand.used }).collect()
    }

    /// The contention of these demands. Their memory wait is multiplied by `memory_left`.
    fn contention_of(&self, all: &[Allocated<'_>], memory_left: f64) -> Contention {
        let scored = || all.iter().filter(|one| one.demand.is_scored);
        let waits = scored().filter_map(|one| {
            Wait::of_cpu(one.cpus, one.waiting(), one.demand.vcpus, Ratio::ZERO, Ratio::ZERO)
        });
        let cpu = Quartile::of(waits.collect());
        let waits = scored().filter_map(|one| {
            let share = Ratio::of(one.demand.memory_wait * memory_left, 1.0)?;
            Some(Wait::of_stall(Ratio::ZERO, Ratio::ZERO, share, one.demand.bytes()))
        });
        Contention {
            cpu: cpu.cpu_contention(Some(u64::from(self.cpus)), self.steal),
            cpu_ready: cpu.ready.max(self.steal),
            memory: Quartile::of(waits.collect()).contention,
            waiting: scored().map(Allocated::waiting).sum(),
        }
    }

    /// The cpuset of a demand; `None` if it is the whole node.
    fn cpuset(&self, demand: &Demand) -> Option<CpuSet> {
        demand.cpuset.filter(|set| !set.is_empty() && set.len() < self.cpus)
    }

    /// All cpusets, each once, the smallest first and the whole node last.
    fn cpusets(&self) -> Vec<Option<CpuSet>> {
        let mut sets = vec![None];
        for set in self.demands.iter().map(|one| self.cpuset(one)) {
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets.sort_by_key(|set| self.size(*set));
        sets
    }

    /// The cpuset that most demands have; if several are equally common, the largest.
    fn shared_pool(&self) -> Option<CpuSet> {
        let users = |set: &Option<CpuSet>| {
            self.demands.iter().filter(|one| self.cpuset(one) == *set).count()
        };
        self.cpusets().into_iter().max_by_key(users).flatten()
    }

    fn size(&self, cpuset: Option<CpuSet>) -> u32 {
        cpuset.map_or(self.cpus, |set| set.len())
    }

    /// Share of a cpuset's CPUs that are also in another, 0 to 1.
    fn part_in(&self, cpuset: Option<CpuSet>, other: Option<CpuSet>) -> f64 {
        let common = match (cpuset, other) {
            (_, None) => return 1.0,
            (None, Some(other)) => other.len(),
            (Some(cpuset), Some(other)) => cpuset.and(&other).len(),
        };
        f64::from(common) / f64::from(self.size(cpuset).max(1))
    }
}

/// The effective weight of a demand that waits is the number of CPUs that it gets now. This
/// includes effects that `cpu.weight` does not show: the weights of the cgroups above, and the
/// number of CPUs on which its threads run.
fn want(demand: &Demand) -> Want {
    let weight = demand.used.max(1e-6);
    Want { least: demand.used, most: demand.wanted(), weight }
}

/// A weight above 0, since it is a divisor: with `cpu.idle`, `cpu.weight` is 0.
fn weight_of(demand: &Demand) -> f64 {
    demand.weight.max(0.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(used: f64, waiting: f64) -> Demand {
        let vcpus = Some((used + waiting).ceil());
        Demand { is_scored: true, used, waiting, vcpus, ..Demand::default() }
    }

    fn node(cpus: u32, demands: Vec<Demand>) -> Node {
        let idle = f64::from(cpus) - demands.iter().map(|one| one.used).sum::<f64>();
        Node { cpus, idle: idle.max(0.0), steal: 0.0, demands }
    }

    fn set(cpus: std::ops::Range<u64>) -> Option<CpuSet> {
        let mut set = CpuSet::default();
        assert!(cpus.into_iter().all(|cpu| set.insert(cpu)));
        Some(set)
    }

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-6
    }

    #[test]
    fn those_that_wait_share_the_cpus_of_the_one_that_leaves() {
        // Three VMs with one busy vCPU each, on two CPUs.
        let three = node(2, vec![vm(2.0 / 3.0, 1.0 / 3.0); 3]);
        assert!(near(three.contention().cpu, 1.0 / 3.0) && near(three.contention().waiting, 1.0));
        assert!(near(three.without(0).cpu, 0.0) && near(three.relief_cpus(0), 1.0));
        // Six of them on two CPUs: the other five still wait.
        let six = node(2, vec![vm(1.0 / 3.0, 2.0 / 3.0); 6]);
        assert!(near(six.without(0).cpu, 0.6) && near(six.relief_cpus(0), 1.0));
    }

    #[test]
    fn the_largest_that_the_others_wait_for_helps_most_and_not_the_one_that_suffers() {
        // A large VM that uses most of the node, two that wait, and an idle one.
        let demands = vec![vm(3.0, 0.2), vm(0.5, 0.5), vm(0.5, 0.5), vm(0.0, 0.0)];
        let node = node(4, demands);
        let relief: Vec<f64> = (0..4).map(|at| node.relief_cpus(at)).collect();
        assert!(near(relief[0], 1.2) && near(relief[1], 1.0) && near(relief[3], 0.0), "{relief:?}");
        assert!(node.without(0).cpu < 1e-6 && node.without(3) == node.contention());
    }

    #[test]
    fn a_vm_larger_than_the_node_would_wait_elsewhere_as_well() {
        let alone = node(2, vec![vm(2.0, 2.0)]);
        assert!(near(alone.relief_cpus(0), 0.0) && near(alone.without(0).cpu, 0.0));
        let beside = node(2, vec![vm(2.0, 6.0), vm(0.0, 0.0)]);
        assert!(near(beside.without(1).cpu, 0.75));
    }

    #[test]
    fn beside_a_batch_job_that_takes_what_becomes_free_vms_wait_for_their_turn_as_before() {
        // As measured: six threads of little weight beside two VMs and one with CPUs of its own.
        let batch = Demand { is_scored: false, weight: 50.0, vcpus: Some(6.0), ..vm(0.648, 5.351) };
        let own = Demand { cpuset: set(0..2), weight: 200.0, ..vm(1.808, 0.192) };
        let beside = node(4, vec![vm(0.745, 0.138), vm(0.73, 0.143), own, batch.clone()]);
        let (now, without) = (beside.contention().cpu, beside.without(0).cpu);
        assert!(now > 0.15 && without > 0.1, "{now} {without}");
        // A job that hardly waits takes nothing that becomes free.
        let calm = Demand { used: 0.9, waiting: 0.1, ..batch.clone() };
        let beside = node(2, vec![vm(0.55, 0.1), vm(0.55, 0.1), calm]);
        assert!(beside.without(0).cpu < 0.01, "{:?}", beside.without(0));
        // Nor does one that waits for little beside VMs that wait for each other.
        let shared = || Demand { cpuset: set(4..8), ..vm(1.33, 0.67) };
        let own = Demand { cpuset: set(0..4), ..vm(3.85, 0.15) };
        let daemon = Demand { used: 0.01, waiting: 0.02, ..batch };
        let beside = node(8, vec![shared(), shared(), shared(), own, daemon]);
        assert!(beside.without(0).cpu < 0.06, "{:?}", beside.without(0));
    }

    #[test]
    fn weight_and_quota_decide_which_get_the_freed_cpus() {
        let third = vm(1.0 / 3.0, 2.0 / 3.0);
        // A batch workload with three times the weight of a VM gets one of the two CPUs, and 1.2
        // when a VM has left.
        let batch = Demand { is_scored: false, ..vm(1.0, 9.0) };
        let beside = node(2, [vec![third.clone(); 3], vec![batch.clone()]].concat());
        assert!(near(beside.without(0).waiting, 1.2), "{:?}", beside.without(0));
        // With a quota that is used up, it gets no more.
        let limited = Demand { limit: Some(1.0), ..batch };
        let beside = node(2, [vec![third; 3], vec![limited]].concat());
        assert!(near(beside.without(0).waiting, 1.0), "{:?}", beside.without(0));
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
        assert!(near(node.relief_cpus(0), 0.0));
        assert!(near(node.relief_cpus(1), 2.0));
    }

    #[test]
    fn headroom_is_what_can_be_added_before_medium() {
        // The share of time that makes a node medium is part of the demand.
        assert!((9.98..=10.0).contains(&node(9, vec![]).headroom_cpus(0.1)));
        let half = node(8, vec![vm(1.0, 0.0); 4]);
        let headroom = half.headroom_cpus(0.1);
        assert!(headroom > 4.0 && headroom < 6.0, "{headroom}");
        assert!(half.with(headroom).cpu < 0.1 && half.with(headroom + 0.02).cpu >= 0.1);
        assert_eq!(node(2, vec![vm(1.0, 0.5); 2]).headroom_cpus(0.1), 0.0);
        // CPUs that are used by workloads outside the list are not available, either.
        let used = Node { idle: 1.0, ..half };
        assert!(used.headroom_cpus(0.1) < headroom - 2.0, "{}", used.headroom_cpus(0.1));
        // CPUs of a dedicated VM are not available, even if it is idle.
        let on = |cpuset, one| Demand { cpuset, ..one };
        let [dedicated, shared] = [on(set(0..6), vm(0.0, 0.0)), on(set(6..8), vm(0.5, 0.0))];
        let pinned = node(8, vec![dedicated, shared.clone(), shared]);
        assert!(pinned.headroom_cpus(0.1) < 2.0, "{}", pinned.headroom_cpus(0.1));
    }

    #[test]
    fn waiting_for_memory_decreases_by_the_part_of_the_one_that_leaves() {
        let of = |memory, memory_wait| Demand { memory: Some(memory), memory_wait, ..vm(0.5, 0.0) };
        let node = node(4, vec![of(6e9, 0.4), of(2e9, 0.4)]);
        assert!(near(node.contention().memory, 0.4));
        assert!(near(node.without(0).memory, 0.1) && near(node.without(1).memory, 0.3));
        assert_eq!(node.headroom_cpus(0.1), 0.0);
    }
}
