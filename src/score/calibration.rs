//! How far waiting is spread over CPUs, from the node's own total of it: `/proc/schedstat` counts
//! each task's. Pure.
//!
//! The kernel moves threads from CPU to CPU, one container's like another's, and rather those that
//! wait than those that run. The more often it does, the more places there are at which a container has
//! waited, and the less of it its pressure shows. One number, the same for all, says how often a thread
//! is moved that waits all the time: it is the one with which all together waited for as much as the
//! node says.

use std::collections::VecDeque;

use super::cpu_range::{CpuRange, cpus_of};
use crate::rates::{CpuRates, Rates, Room};

/// Windows that are remembered: half a minute.
const WINDOWS: usize = 6;
/// Halvings of the interval in which the spread is looked for: to a billionth of it.
const HALVINGS: u32 = 30;
/// From here on everybody waits for the most that can be.
const MOST: f64 = 1e6;
/// The spread that is usual where there is contention...
const USUAL: Spread = Spread(1.0);
/// ...counts as much as all windows where so little is waited on each CPU: kernel threads, which are in
/// no cgroup, wait for half as much.
const LITTLE: f64 = 0.1;
/// And where it is so little of what quotas explain, which is a guess, the spread that is usual beside
/// queues that a quota lets go all at once, over and over again.
const USUAL_BESIDE_QUOTAS: Spread = Spread(2.0);

/// How often a thread that waits all the time is moved in one of the kernel's windows, in effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread(f64);

/// A container's waiting as it grows with the spread, from `least` to `most`.
#[derive(Debug, Clone, Copy)]
struct Growth {
    least: f64,
    most: f64,
    /// The logarithm of the share of `most` that `least` leaves: the search asks for it often.
    left: f64,
    /// The share of what it wants that it waits for, at the most: so often its threads are moved.
    moved: f64,
}

/// What one window told.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Told {
    spread: Spread,
    /// The least that all together waited for because of the node, in CPUs.
    least: f64,
    /// For how much the node says that was, whoever it was, and whatever for.
    run_delay: f64,
    /// How much of it is put down to quotas.
    own_delay: f64,
}

/// The spread of the last windows.
#[derive(Debug, Default)]
pub(super) struct Calibration {
    windows: VecDeque<Option<Told>>,
}

impl Calibration {
    /// The median of the last windows and of what is usual, by how much was waited in each: a task that
    /// runs at last brings all of its delay into one of them, and kernel threads can have waited for long.
    pub(super) fn advance(&mut self, rates: &Rates) -> Spread {
        let told = || {
            let members = rates.members.as_ref()?.iter().map(|member| &member.cpu);
            Spread::calibrated(rates.run_delay?, members, rates.bystanders.as_ref()?, rates.cpus)
        };
        self.windows.push_back(told());
        if self.windows.len() > WINDOWS {
            self.windows.pop_front();
        }
        let mut told: Vec<Told> = self.windows.iter().copied().flatten().collect();
        told.extend(usual(&told, rates.cpus));
        told.sort_by(|a, b| a.spread.0.total_cmp(&b.spread.0));
        let half = told.iter().map(|one| one.least).sum::<f64>() / 2.0;
        let mut below = 0.0;
        let median = told.iter().find(|one| {
            below += one.least;
            below >= half && below > 0.0
        });
        median.map_or(Spread::LEAST, |one| one.spread)
    }
}

/// What is known without looking, weighted as if it were windows: by how much of what these tell may be
/// kernel threads' waiting, and by how much a wrong guess of what quotas explain.
#[allow(clippy::cast_precision_loss, reason = "half a minute has few windows")]
fn usual(told: &[Told], cpus: Option<u64>) -> Vec<Told> {
    let sum = |of: fn(&Told) -> f64| told.iter().map(of).sum::<f64>();
    let (least, run_delay) = (sum(|one| one.least), sum(|one| one.run_delay));
    let own_delay = sum(|one| one.own_delay);
    let cpus = cpus_of(&Room::default(), cpus) * told.len() as f64;
    let rest = (run_delay - own_delay).max((cpus + own_delay) / MOST);
    let usual = |(spread, noise): (_, f64)| {
        let least = least * LITTLE * noise / rest;
        Told { spread, least, run_delay, own_delay }
    };
    let known = [(USUAL, cpus), (USUAL_BESIDE_QUOTAS, own_delay)];
    if run_delay > 0.0 { known.map(usual).to_vec() } else { vec![] }
}

impl Spread {
    /// As little as can be: where the node does not tell.
    const LEAST: Self = Self(0.0);

    /// What a container waited for, in CPUs.
    pub(super) fn waited(self, range: &CpuRange) -> f64 {
        Growth::new(range.least, range.queued, range.usage).waited(self)
    }

    fn calibrated<'a>(
        run_delay: f64,
        members: impl Iterator<Item = &'a CpuRates>,
        bystanders: &[CpuRates],
        cpus: Option<u64>,
    ) -> Option<Told> {
        let (mut by_node, mut by_quotas) = (Vec::new(), Vec::with_capacity(bystanders.len()));
        let mut to_explain = run_delay;
        let mut least = 0.0;
        let mut add = |range: CpuRange, most| {
            least += range.least;
            let growth = |least, most| (least > 0.0).then(|| Growth::new(least, most, range.usage));
            by_node.extend(growth(range.least, most));
            // What quotas explain is nobody's waiting for the node, but the node counts it, too.
            by_quotas.extend(growth(range.own_delay.least, range.own_delay.most));
        };
        let range = |rates| CpuRange::of(rates, cpus).or_else(|| CpuRange::at_worst(rates, cpus));
        for member in members {
            let range = range(member)?;
            add(range, range.queued);
        }
        for bystander in bystanders {
            let range = range(bystander)?;
            // How many wait behind each other in it is not known: what may be its own is its own.
            to_explain -= range.more;
            add(range, range.spread);
        }
        let spread = Self::explaining(to_explain, &by_node, &by_quotas);
        let own_delay = spread.waited_by(&by_quotas);
        Some(Told { spread, least, run_delay, own_delay })
    }

    fn waited_by(self, growths: &[Growth]) -> f64 {
        growths.iter().map(|one| one.waited(self)).sum()
    }

    /// The spread with which all of them together wait for so much, or for as much as they can.
    fn explaining(waited: f64, by_node: &[Growth], by_quotas: &[Growth]) -> Self {
        let explains =
            |spread: Self| spread.waited_by(by_node) + spread.waited_by(by_quotas) >= waited;
        if explains(Self::LEAST) {
            return Self::LEAST;
        }
        let mut above = Self(1.0);
        while !explains(above) && above.0 < MOST {
            above = Self(above.0 * 2.0);
        }
        let mut below = Self::LEAST;
        for _ in 0..HALVINGS {
            let middle = Self(f64::midpoint(below.0, above.0));
            if explains(middle) { above = middle } else { below = middle }
        }
        above
    }
}

impl Growth {
    fn new(least: f64, most: f64, usage: f64) -> Self {
        let moved = most / (most + usage).max(f64::MIN_POSITIVE);
        Self { least, most, left: (-least / most).ln_1p(), moved }
    }

    /// Each move goes anywhere, so also where it waited before: of the places that are left, each
    /// fills the share that the first one filled of all.
    fn waited(&self, Spread(moves): Spread) -> f64 {
        if self.least >= self.most {
            return self.least;
        }
        let untouched = self.left * (1.0 + moves * self.moved);
        (-self.most * untouched.exp_m1()).clamp(self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{MemberRates, Ratio, WaitShares};
    use crate::score::tests::vm;
    use proptest::prelude::*;

    const CPUS: Option<u64> = Some(4);

    /// One that waits for `some` of the time.
    fn one(some: f64, usage: f64, tasks: f64) -> CpuRates {
        let some = Ratio::of(some, 1.0);
        CpuRates {
            waits: WaitShares { some, full: some },
            usage: Some(usage),
            throttled: Some(0.0),
            room: Some(Room { quota: None, cpus: None, tasks: Some(tasks) }),
        }
    }

    fn rates(run_delay: Option<f64>, vms: &[CpuRates]) -> Rates {
        let member = |cpu: &CpuRates| MemberRates { cpu: *cpu, ..vm(1, 0.0, 0.0, 0.0) };
        Rates {
            run_delay,
            members: Some(vms.iter().map(member).collect()),
            bystanders: Some(vec![]),
            cpus: CPUS,
            ..Rates::default()
        }
    }

    fn waited(spread: Spread, rates: &CpuRates) -> f64 {
        spread.waited(&CpuRange::of(rates, CPUS).unwrap())
    }

    fn spread(run_delay: f64, members: &[CpuRates], bystanders: &[CpuRates]) -> Spread {
        Spread::calibrated(run_delay, members.iter(), bystanders, CPUS).unwrap().spread
    }

    #[test]
    fn all_together_waited_for_what_the_node_says() {
        let vms = [one(0.2, 0.8, 2.0), one(0.4, 0.6, 2.0), one(0.3, 1.4, 5.0)];
        let least: f64 = vms.iter().map(|vm| waited(Spread::LEAST, vm)).sum();
        for delay in [least, 2.0, 3.0] {
            let spread = spread(delay, &vms, &[]);
            let sum: f64 = vms.iter().map(|vm| waited(spread, vm)).sum();
            assert!((sum - delay).abs() < 1e-6, "{sum} of {delay}");
        }
        // Never less than their own files say, and never more than they can.
        assert_eq!(spread(0.0, &vms, &[]), Spread::LEAST);
        let most = spread(1e9, &vms, &[]);
        for vm in &vms {
            let range = CpuRange::of(vm, CPUS).unwrap();
            assert!((waited(most, vm) - range.queued).abs() < 1e-6);
        }
    }

    #[test]
    fn who_waits_more_by_its_own_files_waited_more() {
        // As measured: two threads that come to four busy CPUs waited for 1.2 of 2.4 CPUs, and
        // each of the four VMs there for 0.2 to 0.4.
        let vms = [one(0.118, 0.738, 2.0), one(0.18, 0.784, 2.0), one(0.344, 0.627, 2.0)];
        let vms = [&vms[..], &[one(0.111, 0.778, 2.0)]].concat();
        let incoming = one(0.444, 0.773, 3.0);
        let spread = spread(2.426, &vms, &[incoming]);
        let share = |vm: &CpuRates| waited(spread, vm) / (waited(spread, vm) + vm.usage.unwrap());
        assert!((0.14..0.3).contains(&share(&vms[0])), "{}", share(&vms[0]));
        assert!((0.5..0.65).contains(&share(&incoming)), "{}", share(&incoming));
    }

    #[test]
    fn what_others_may_explain_is_not_put_on_vms() {
        let vm = one(0.05, 0.95, 2.0);
        let batch = one(0.97, 2.0, 300.0);
        // All of it may be a queue of the batch's own.
        assert_eq!(spread(290.0, &[vm], &[batch]), Spread::LEAST);
        // What nobody is known to have used may have wanted anything.
        let unread = CpuRates { usage: None, throttled: None, room: None, ..batch };
        assert_eq!(spread(100.0, &[vm], &[unread]), Spread::LEAST);
        // A quota's delay is nobody's waiting for the node.
        let mut throttled = one(0.9, 0.1, 40.0);
        throttled.throttled = Some(3.6);
        assert_eq!(spread(35.0, &[vm], &[throttled]), Spread::LEAST);
        // What waits behind a limit is spread as what waits for others is.
        let throttled = CpuRates { throttled: Some(0.54), ..one(0.52, 0.49, 3.0) };
        let room = Room { quota: Some(0.5), ..throttled.room.unwrap() };
        let throttled = CpuRates { room: Some(room), ..throttled };
        let spread_beside = spread(1.5, &[vm], &[throttled]);
        let own = Growth::new(0.54, 2.51, 0.49).waited(spread_beside);
        assert!((own + waited(spread_beside, &vm) - 1.5).abs() < 1e-6, "{spread_beside:?}");
        assert!(own > 1.3, "{own}");
        // Of one that came just now nothing is known.
        let new = CpuRates::default();
        assert_eq!(Spread::calibrated(3.0, [vm].iter(), &[new], CPUS), None);
    }

    #[test]
    fn one_odd_window_and_one_that_tells_nothing_change_little() {
        let vms = [one(0.3, 0.7, 2.0), one(0.3, 0.7, 2.0)];
        let mut calibration = Calibration::default();
        let mut waited_with = |run_delay| {
            let spread = calibration.advance(&rates(run_delay, &vms));
            waited(spread, &vms[0])
        };
        assert!((waited_with(Some(1.0)) - 0.5).abs() < 1e-6);
        assert!((waited_with(Some(1.0)) - 0.5).abs() < 1e-6);
        for odd in [Some(50.0), None, Some(0.0)] {
            assert!((waited_with(odd) - 0.5).abs() < 1e-6, "{odd:?}");
        }
        (0..WINDOWS).for_each(|_| _ = waited_with(None));
        assert!((waited_with(None) - 0.3).abs() < 1e-6);
    }

    #[test]
    fn a_window_in_which_hardly_anybody_waited_says_little() {
        let (calm, busy) = ([one(0.002, 0.5, 2.0)], [one(0.3, 0.7, 2.0)]);
        let mut calibration = Calibration::default();
        (0..WINDOWS).for_each(|_| _ = calibration.advance(&rates(Some(0.5), &calm)));
        let spread = calibration.advance(&rates(Some(0.4), &busy));
        assert!((waited(spread, &busy[0]) - 0.4).abs() < 1e-6);
    }

    #[test]
    fn what_kernel_threads_wait_is_not_put_on_vms_that_hardly_do() {
        // As measured: fifty idle VMs on four CPUs waited for 0.008 by their own files, and the node says
        // 0.025, a part of which is kernel threads'.
        let idle: Vec<CpuRates> = (0..50).map(|_| one(0.000_16, 0.0015, 2.0)).collect();
        let idle = [&[one(0.008, 0.0015, 2.0)], &idle[1..]].concat();
        let mut calibration = Calibration::default();
        let spread = (0..WINDOWS).map(|_| calibration.advance(&rates(Some(0.025), &idle))).last();
        assert_eq!(spread, Some(USUAL));
        let busy = [one(0.2, 0.8, 2.0), one(0.2, 0.8, 2.0)];
        let spread = (0..WINDOWS).map(|_| calibration.advance(&rates(Some(0.8), &busy))).last();
        assert!((waited(spread.unwrap(), &busy[0]) - 0.4).abs() < 1e-6);
    }

    #[test]
    fn what_forty_threads_behind_a_limit_leave_of_the_total_says_little_of_the_others() {
        // As measured: forty threads with one CPU waited for 38.8 of 39.3, and each of three VMs for 0.15.
        let vms = [one(0.09, 0.4, 2.0), one(0.09, 0.4, 2.0), one(0.09, 0.4, 2.0)];
        let mut batch = CpuRates { throttled: Some(3.0), ..one(0.95, 1.0, 41.0) };
        batch.room = batch.room.map(|room| Room { quota: Some(1.0), ..room });
        for run_delay in [20.0, 38.0, 39.3, 42.0] {
            let mut calibration = Calibration::default();
            let one = Rates { bystanders: Some(vec![batch]), ..rates(Some(run_delay), &vms) };
            let spread = (0..WINDOWS).map(|_| calibration.advance(&one)).last().unwrap();
            assert!((0.12..0.2).contains(&waited(spread, &vms[0])), "{run_delay}: {spread:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_node_says_it_is_a_number_between_the_bounds(
            delay in 0.0..1e6,
            all in proptest::collection::vec((0.0..=1.0, 0.0..=300.0, 0.0..1e4), 1..12),
            vms in 0usize..12,
        ) {
            let all: Vec<CpuRates> =
                all.into_iter().map(|(some, usage, tasks)| one(some, usage, tasks)).collect();
            let (vms, others) = all.split_at(vms.min(all.len()));
            let spread = spread(delay, vms, others);
            prop_assert!(spread.0 >= 0.0, "{spread:?}");
            for vm in vms {
                let range = CpuRange::of(vm, CPUS).unwrap();
                let waited = spread.waited(&range);
                prop_assert!(range.least <= waited && waited <= range.queued, "{waited} {range:?}");
            }
        }
    }
}
