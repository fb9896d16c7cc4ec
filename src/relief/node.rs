//! Predicts the contention of a node without one of its VMs, or with more vCPUs.

use std::sync::Arc;

use super::sharing::{Want, fair_shares};
use crate::contract::Level;
use crate::kernel::limits::CpuSet;
use crate::score::WorstHalf;
use crate::waiting::{Measurement, Ratio, Wait};

/// `cpu.weight` of a cgroup that has none.
const DEFAULT_WEIGHT: f64 = 100.0;

/// The demand of a VM or of another workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Demand {
    /// Whether it is scored: a VM, or on a node without VMs any container.
    pub(super) is_scored: bool,
    /// CPUs in use, on average.
    pub(super) used: f64,
    /// CPUs that it waited for because of the node: 1 for a thread that waits all the time.
    pub(super) waiting: f64,
    /// Variance of the number of its vCPUs that run at a moment; 0 where it is unknown.
    pub(super) variance: f64,
    /// CPUs that its quota allows; `None` without a quota.
    pub(super) limit: Option<f64>,
    /// `cpu.weight`, 1 to 10,000; `None` where the cpu controller is off.
    pub(super) weight: Option<f64>,
    /// CPUs on which it may run; `None` for all.
    pub(super) cpuset: Option<Arc<CpuSet>>,
    /// Whether it has these CPUs alone.
    pub(super) is_dedicated: bool,
    /// Memory in use and swapped out, bytes; `None` where it is unknown.
    pub(super) memory: Option<f64>,
    /// CPUs' worth of time that it waited for memory because of the node.
    pub(super) memory_waiting: f64,
    /// Share of its demand that this is, 0 to 1.
    pub(super) memory_contention: f64,
}

impl Demand {
    /// The limits of a workload, without a demand.
    pub(super) fn with_limits(measured: &Measurement) -> Self {
        let Some(limits) = &measured.limits else { return Self::default() };
        let (weight, cpuset) = (limits.weight.map(|weight| weight as f64), limits.cpus.clone());
        // The kubelet gives as many CPUs to a container alone as it requests.
        let requested = measured.workload.as_ref().and_then(|workload| workload.cpu_request);
        let count = cpuset.as_ref().map(|cpuset| 1000 * u64::from(cpuset.count()));
        let is_dedicated = count.is_some() && count == requested;
        Self { limit: limits.quota, weight, cpuset, is_dedicated, ..Self::default() }
    }

    /// CPUs that it would use if it did not wait.
    pub(super) fn wanted(&self) -> f64 {
        (self.used + self.waiting).min(self.limit.unwrap_or(f64::INFINITY)).max(self.used)
    }

    /// Whether it neither uses CPUs nor waits for them.
    pub(super) fn is_idle(&self) -> bool {
        self.wanted() < 0.001
    }

    /// Its weight, which is above 0, since it is a divisor: with `cpu.idle`, `cpu.weight` is 0.
    pub(super) fn weight(&self) -> f64 {
        self.weight.unwrap_or(DEFAULT_WEIGHT).max(0.1)
    }

    /// CPUs that it does not use and that no other gets: those of its own, or those that its sleeping vCPUs keep free.
    fn kept(&self) -> f64 {
        let own = self.cpuset.as_ref().filter(|_| self.is_dedicated);
        own.map_or(self.variance, |own| f64::from(own.count()) - self.used)
    }

    /// Memory in bytes. If it is unknown, all demands have the same.
    fn bytes(&self) -> f64 {
        self.memory.unwrap_or(1.0)
    }
}

/// A node and the demands for its CPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Node {
    /// Number of CPUs.
    pub(super) cpus: u32,
    /// CPUs that are not in use, on average.
    pub(super) idle: f64,
    /// Share of the node's demand for CPU time that its hypervisor gave to other guests, 0 to 1.
    pub(super) steal: f64,
    /// CPUs that are busy beside another one of their core, on average; 0 if it is unknown.
    pub(super) smt_overlap: f64,
    /// VMs, and other workloads that wait. Workloads that neither wait nor are scored may be
    /// omitted.
    pub(super) demands: Vec<Demand>,
}

/// A demand, the CPUs that are allocated to it, and those that it queues for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allocation<'a> {
    pub(super) demand: &'a Demand,
    pub(super) cpus: f64,
    /// CPUs that it waits for although its fair share, by weight, is larger than what it uses; 0 until that
    /// is computed.
    pub(super) queueing: f64,
}

impl Allocation<'_> {
    pub(super) fn waiting(&self) -> f64 {
        (self.demand.wanted() - self.cpus).max(0.0)
    }
}

/// Contention of a node, as it is or as it is predicted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Contention {
    /// CPU contention, 0 to 1.
    pub(super) cpu: f64,
    /// Memory contention, 0 to 1.
    pub(super) memory: f64,
    /// CPUs' worth of time that all scored workloads together wait for CPUs and for memory.
    pub(super) waiting: f64,
}

impl Node {
    /// The contention as it is now.
    pub(super) fn contention(&self) -> Contention {
        self.contention_of(&self.allocation(), self.memory(None))
    }

    /// Busy vCPUs that can be added before the level is `medium`. `medium` is the threshold of that
    /// level, 0 to 1.
    pub(super) fn headroom_cpus(&self, medium: f64) -> f64 {
        // With so many busy vCPUs, even an empty node is `medium`.
        let (mut fits, mut too_many) = (0.0, f64::from(self.cpus) / (1.0 - medium).max(0.01));
        if self.is_medium(&waits(&self.allocation()), medium) {
            return 0.0;
        }
        // Bisection, until the error is below 0.1 % of the node.
        for _ in 0..10 {
            let middle = f64::midpoint(fits, too_many);
            if self.is_medium(&self.with(middle), medium) {
                too_many = middle;
            } else {
                fits = middle;
            }
        }
        fits
    }

    /// Whether the level is `medium` or higher with this waiting for CPUs.
    fn is_medium(&self, waits: &[Wait], medium: f64) -> bool {
        let cpu = WorstHalf::of_cpu(Level::Medium, waits, self.steal).contention;
        cpu.max(self.memory(None).memory) >= medium
    }

    /// The waiting for CPUs with this number of added vCPUs that are always busy. They have the
    /// average weight of a vCPU, and run on the cpuset that most demands share. They take its idle
    /// CPUs, but for those of sleeping vCPUs, and share the CPUs in use there. A vCPU that runs for the
    /// share u of the time keeps u (1 - u) of a CPU free: it waits when it wakes up, if another one has
    /// taken its CPU. Use outside the known workloads is that of many threads, so it counts twice. CPUs that
    /// share a core do the work of one at least, so each that is busy beside another keeps a CPU free, too. So do
    /// those that the hypervisor took.
    fn with(&self, vcpus: f64) -> Vec<Wait> {
        let scored = || self.demands.iter().filter(|demand| demand.is_scored);
        let pool = self.shared_pool();
        let cpus = f64::from(self.size(pool));
        let in_use = f64::from(self.cpus) - self.idle;
        let sum_in = |set, of: fn(&Demand) -> f64| -> f64 {
            let parts = self.demands.iter();
            parts.map(|demand| of(demand) * self.part_in(self.cpuset(demand), set)).sum()
        };
        let seen = |set| sum_in(set, |demand| demand.used);
        let unseen = (in_use - seen(None)).max(0.0) * self.part_in(None, pool);
        let idle = (cpus - 2.0 * unseen - seen(pool)).max(0.0);
        let busy_vcpus: f64 = scored().map(|demand| demand.wanted().max(1.0)).sum();
        let all_weights: f64 = scored().map(Demand::weight).sum();
        let weight = if busy_vcpus > 0.0 { all_weights / busy_vcpus } else { DEFAULT_WEIGHT };
        let mut all = self.allocation();
        let members = all.iter_mut().filter(|allocated| self.cpuset(allocated.demand) == pool);
        let members: Vec<&mut Allocation<'_>> = members.collect();
        let want =
            |demand: &Demand| Want { least: 0.0, most: demand.used, weight: demand.weight() };
        let mut wants: Vec<Want> = members.iter().map(|allocated| want(allocated.demand)).collect();
        let stolen = in_use * self.steal / (1.0 - self.steal).max(f64::MIN_POSITIVE);
        let lost = (self.smt_overlap + stolen) * self.part_in(None, pool);
        let kept = sum_in(pool, Demand::kept) + lost;
        let used: f64 = wants.iter().map(|want| want.most).sum();
        let available = (idle + used - kept).max(0.0);
        let weight = (weight * vcpus).max(f64::MIN_POSITIVE);
        wants.push(Want { least: 0.0, most: vcpus, weight });
        let mut shares = fair_shares(&wants, available);
        let used = shares.pop().unwrap_or_default();
        for (member, share) in members.into_iter().zip(shares) {
            member.cpus = share;
        }
        let added = Wait::of_cpu(used, vcpus - used, Ratio::ZERO, Ratio::ZERO);
        waits(&all).into_iter().chain(added).collect()
    }

    /// The CPUs of each demand as they are now. Idle demands are omitted: they change no prediction,
    /// and a node can have hundreds.
    pub(super) fn allocation(&self) -> Vec<Allocation<'_>> {
        let busy = self.demands.iter().filter(|demand| !demand.is_idle());
        busy.map(|demand| Allocation { demand, cpus: demand.used, queueing: 0.0 }).collect()
    }

    /// The contention of these demands for CPUs, in addition to that for memory alone.
    pub(super) fn contention_of(&self, all: &[Allocation<'_>], memory: Contention) -> Contention {
        let waits = waits(all);
        let waiting = memory.waiting + waits.iter().map(|wait| wait.cpus).sum::<f64>();
        let cpu = WorstHalf::of_cpu(Level::Low, &waits, self.steal).contention;
        Contention { cpu, waiting, ..memory }
    }

    /// The contention for memory alone, predicted without a demand that leaves: that of the others
    /// decreases by the share of memory that is freed.
    pub(super) fn memory(&self, leaving: Option<&Demand>) -> Contention {
        let scored = || self.demands.iter().filter(|demand| demand.is_scored);
        if scored().all(|demand| demand.memory_waiting == 0.0) {
            return Contention::default();
        }
        let gone = leaving.filter(|demand| demand.is_scored);
        let freed = gone.map_or(0.0, Demand::bytes) / scored().map(Demand::bytes).sum::<f64>();
        let stays = |demand: &&Demand| !gone.is_some_and(|gone| std::ptr::eq(*demand, gone));
        let waiting: f64 = scored().filter(stays).map(|demand| demand.memory_waiting).sum();
        let waits = scored().filter(stays).filter_map(|demand| {
            let share = Ratio::of(demand.memory_contention * (1.0 - freed), 1.0)?;
            Some(Wait::of_stall(Ratio::ZERO, Ratio::ZERO, share, demand.bytes()))
        });
        let waits: Vec<Wait> = waits.collect();
        let memory = WorstHalf::of(&waits).contention;
        Contention { cpu: 0.0, memory, waiting: waiting * (1.0 - freed) }
    }

    /// The cpuset of a demand; `None` if it is the whole node.
    pub(super) fn cpuset<'a>(&self, demand: &'a Demand) -> Option<&'a CpuSet> {
        demand.cpuset.as_deref().filter(|set| (1..self.cpus).contains(&set.count()))
    }

    /// All cpusets, each once, the smallest first and the whole node last.
    pub(super) fn cpusets(&self) -> Vec<Option<&CpuSet>> {
        let mut sets = vec![None];
        for set in self.demands.iter().map(|demand| self.cpuset(demand)) {
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets.sort_by_key(|set| self.size(*set));
        sets
    }

    /// The cpuset that most demands share; if several are equally common, the largest.
    fn shared_pool(&self) -> Option<&CpuSet> {
        let sharing = || self.demands.iter().filter(|demand| !demand.is_dedicated);
        let users =
            |set: &Option<&CpuSet>| sharing().filter(|demand| self.cpuset(demand) == *set).count();
        self.cpusets().into_iter().max_by_key(users).flatten()
    }

    pub(super) fn size(&self, cpuset: Option<&CpuSet>) -> u32 {
        cpuset.map_or(self.cpus, CpuSet::count)
    }

    /// Share of a cpuset's CPUs that are also in another, 0 to 1.
    pub(super) fn part_in(&self, cpuset: Option<&CpuSet>, other: Option<&CpuSet>) -> f64 {
        let common = match (cpuset, other) {
            (_, None) => return 1.0,
            (None, Some(other)) => other.count(),
            (Some(cpuset), Some(other)) => cpuset.common(other),
        };
        f64::from(common) / f64::from(self.size(cpuset).max(1))
    }
}

/// The waiting of those that are scored.
fn waits(all: &[Allocation<'_>]) -> Vec<Wait> {
    let scored = all.iter().filter(|allocated| allocated.demand.is_scored);
    let wait =
        |one: &Allocation<'_>| Wait::of_cpu(one.cpus, one.waiting(), Ratio::ZERO, Ratio::ZERO);
    scored.filter_map(wait).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn vm(used: f64, waiting: f64) -> Demand {
        Demand { is_scored: true, used, waiting, ..Demand::default() }
    }

    pub(in super::super) fn node(cpus: u32, demands: Vec<Demand>) -> Node {
        let idle = f64::from(cpus) - demands.iter().map(|one| one.used).sum::<f64>();
        Node { cpus, idle: idle.max(0.0), demands, ..Node::default() }
    }

    pub(in super::super) fn set(cpus: std::ops::Range<u32>) -> Option<Arc<CpuSet>> {
        Some(Arc::new(cpus.collect()))
    }

    pub(in super::super) fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-6
    }

    #[test]
    fn headroom_is_what_can_be_added_before_medium() {
        // The share of time that makes a node medium is part of the demand.
        assert!((9.98..=10.0).contains(&node(9, vec![]).headroom_cpus(0.1)));
        let half = node(8, vec![vm(1.0, 0.0); 4]);
        let headroom = half.headroom_cpus(0.1);
        assert!(headroom > 4.0 && headroom < 6.0, "{headroom}");
        let cpu = |vcpus| WorstHalf::of_cpu(Level::Low, &half.with(vcpus), 0.0).contention;
        assert!(cpu(headroom) < 0.1 && cpu(headroom + 0.02) >= 0.1);
        assert_eq!(node(2, vec![vm(1.0, 0.5); 2]).headroom_cpus(0.1), 0.0);
        // CPUs that are used by workloads outside the list are not available, either.
        let used = Node { idle: 1.0, ..half.clone() };
        assert!(used.headroom_cpus(0.1) < headroom - 3.0, "{}", used.headroom_cpus(0.1));
        // Nor those of vCPUs that sleep for half of the time.
        let sleepy = Demand { variance: 0.5, ..vm(1.0, 0.0) };
        let sleeping = node(8, vec![sleepy; 4]).headroom_cpus(0.1);
        assert!(sleeping > headroom - 2.3 && sleeping < headroom - 1.7, "{sleeping}");
        // Nor those that would be busy beside another CPU of their core.
        let crowded = Node { smt_overlap: 2.0, ..half }.headroom_cpus(0.1);
        assert!(crowded > headroom - 2.3 && crowded < headroom - 1.7, "{crowded}");
        // Nor those that the hypervisor gave to other guests, although they are idle here.
        let stolen = Node { steal: 0.09, ..node(16, vec![vm(0.91, 0.0); 16]) }.headroom_cpus(0.1);
        assert!(stolen < 0.3, "{stolen}");
        // CPUs of a dedicated VM are not available, even if it is idle.
        let on = |cpuset, one| Demand { cpuset, ..one };
        let [dedicated, shared] = [on(set(0..6), vm(0.0, 0.0)), on(set(6..8), vm(0.5, 0.0))];
        let pinned = node(8, vec![dedicated, shared.clone(), shared.clone()]);
        assert!(pinned.headroom_cpus(0.1) < 2.0, "{}", pinned.headroom_cpus(0.1));
        let own = |used| {
            let variance = used * (6.0 - used) / 6.0;
            Demand { is_dedicated: true, variance, ..on(set(0..6), vm(used, 0.0)) }
        };
        let beside = node(8, vec![own(0.0), shared]).headroom_cpus(0.1);
        assert!((1.4..2.0).contains(&beside), "{beside}");
        // All others are, beside it alone.
        for used in [0.0, 3.0, 6.0] {
            let alone = node(8, vec![own(used)]).headroom_cpus(0.1);
            assert!((2.0..3.0).contains(&alone), "{alone}");
        }
    }
}
