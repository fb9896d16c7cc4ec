//! What a node would be without one of its VMs, or with one more.

use super::sharing::{Want, fair_shares};
use crate::contract::Level;
use crate::kernel::limits::CpuSet;
use crate::rates::Ratio;
use crate::score::{Quartile, Wait};

/// `cpu.weight` of a cgroup that has none.
const DEFAULT_WEIGHT: f64 = 100.0;

/// What a VM or another workload wants of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Whether the score is about it: a VM, or on a node without VMs any container.
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
    /// Number of vCPUs; `None` where it is unknown, and then its demand takes its place.
    pub vcpus: Option<f64>,
    /// Memory in use, bytes; `None` where it is unknown.
    pub memory: Option<f64>,
    /// Share of time that it waited for memory because of the node.
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

    /// The memory, or where none is known the same for all.
    fn bytes(&self) -> f64 {
        self.memory.unwrap_or(1.0)
    }
}

/// A node and all that wants its CPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    /// Number of CPUs.
    pub cpus: u32,
    /// CPUs that are not in use, on average.
    pub idle: f64,
    /// Share of the wanted CPU time that a hypervisor below the node gave to others.
    pub steal: f64,
    /// VMs, and other workloads that wait. What does not wait and is not scored may be left out.
    pub demands: Vec<Demand>,
}

/// A demand, and the CPUs that it gets.
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
    /// CPUs that the scored workloads wait for, all together.
    pub waiting: f64,
}

impl Contention {
    /// Whether this is the level `medium` or more, where it begins at this score, 0 to 1.
    pub fn is_medium(&self, score: f64) -> bool {
        let by_cpu = self.cpu >= score && self.cpu_ready >= Level::Medium.least_cpu_ready();
        by_cpu || self.memory >= score
    }
}

impl Node {
    /// As it is.
    pub fn contention(&self) -> Contention {
        self.contention_of(&self.allocation(), 1.0)
    }

    /// Without one of the demands: the others keep the CPUs that they use, and those that wait share
    /// the CPUs that it used. Waiting for memory decreases by its part of the memory in use.
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
        let scored = self.demands.iter().filter(|one| one.is_scored);
        let freed = gone.bytes() / scored.map(Demand::bytes).sum::<f64>();
        self.contention_of(&stays, if gone.is_scored { 1.0 - freed } else { 1.0 })
    }

    /// CPUs' worth of waiting that would end without one of the demands: that of the others, and its own
    /// as far as an empty node with as many CPUs would end it.
    pub fn relief_cpus(&self, leaving: usize) -> f64 {
        let Some(gone) = self.demands.get(leaving) else { return 0.0 };
        let goes_along = (gone.wanted() - f64::from(self.cpus)).clamp(0.0, gone.waiting);
        let ends = self.contention().waiting - self.without(leaving).waiting;
        (ends - if gone.is_scored { goes_along } else { 0.0 }).max(0.0)
    }

    /// Busy vCPUs that can be added before the level is `medium`, which begins at this score, 0 to 1.
    pub fn headroom_cpus(&self, medium: f64) -> f64 {
        // All of these wait for the part of their time that makes a node `medium`, even alone.
        let (mut fits, mut too_many) = (0.0, f64::from(self.cpus) / (1.0 - medium).max(0.01));
        if self.contention().is_medium(medium) {
            return 0.0;
        }
        // Idle VMs change nothing, and a node can have hundreds.
        let busy = self.demands.iter().filter(|one| one.wanted() >= 0.001).cloned();
        let node = Self { demands: busy.collect(), ..*self };
        // Halved until the error is below a tenth of a percent of the node.
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

    /// With so many vCPUs more that are always busy, which have the average weight of a vCPU. They run
    /// on the cpuset that most demands have, take its idle CPUs, and share those that others use.
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

    /// With these demands, and this part of the waiting for memory.
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

    /// Its cpuset, if that is a part of the node.
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

    /// The cpuset that most demands have; of two, the larger.
    fn shared_pool(&self) -> Option<CpuSet> {
        let users = |set: &Option<CpuSet>| {
            self.demands.iter().filter(|one| self.cpuset(one) == *set).count()
        };
        self.cpusets().into_iter().max_by_key(users).flatten()
    }

    fn size(&self, cpuset: Option<CpuSet>) -> u32 {
        cpuset.map_or(self.cpus, |set| set.len())
    }

    /// The part of a cpuset that is within another.
    fn part_in(&self, cpuset: Option<CpuSet>, other: Option<CpuSet>) -> f64 {
        let common = match (cpuset, other) {
            (_, None) => return 1.0,
            (None, Some(other)) => other.len(),
            (Some(cpuset), Some(other)) => cpuset.and(&other).len(),
        };
        f64::from(common) / f64::from(self.size(cpuset).max(1))
    }
}

/// Of two that wait, what each gets now is its effective weight. It includes what `cpu.weight` doesn't
/// show: the weights of the cgroups above, and on how many CPUs the threads are.
fn want(demand: &Demand) -> Want {
    let weight = demand.used.max(1e-6);
    Want { least: demand.used, most: demand.wanted(), weight }
}

/// A weight that can be divided by: `cpu.idle` makes it 0.
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
        // Three VMs that always want a CPU, on two.
        let three = node(2, vec![vm(2.0 / 3.0, 1.0 / 3.0); 3]);
        assert!(near(three.contention().cpu, 1.0 / 3.0) && near(three.contention().waiting, 1.0));
        assert!(near(three.without(0).cpu, 0.0) && near(three.relief_cpus(0), 1.0));
        // Six of them on two: five still wait.
        let six = node(2, vec![vm(1.0 / 3.0, 2.0 / 3.0); 6]);
        assert!(near(six.without(0).cpu, 0.6) && near(six.relief_cpus(0), 1.0));
    }

    #[test]
    fn the_largest_that_the_others_wait_for_helps_most_and_not_the_one_that_suffers() {
        // A large VM in use of most of the node, two that wait, and an idle one.
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
    fn weight_and_quota_decide_which_get_the_freed_cpus() {
        let third = vm(1.0 / 3.0, 2.0 / 3.0);
        // A batch of three times the weight gets as much as three VMs, of two CPUs, and then 1.2.
        let batch = Demand { is_scored: false, ..vm(1.0, 9.0) };
        let beside = node(2, [vec![third.clone(); 3], vec![batch.clone()]].concat());
        assert!(near(beside.without(0).waiting, 1.2), "{:?}", beside.without(0));
        // With a quota that is used up it gets nothing more.
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
        // What the list doesn't show uses the node, too.
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
