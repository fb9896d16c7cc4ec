//! Shared by the benches with a budget: measurement of CPU time, and variants that take turns, so that
//! a noisy neighbour affects all of them. (criterion runs one variant after the other, which compares
//! two moments of a shared machine.)

use std::process::ExitCode;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// An odd number, so that the median is a measured value.
const ROUNDS: usize = 21;

/// Runs once and returns its CPU time.
pub(crate) type Work<'a> = &'a mut dyn FnMut() -> Duration;

/// CPU time of this thread for `work`.
pub(crate) fn cpu_time_of(work: impl FnOnce()) -> Duration {
    let clock = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let start = clock();
    work();
    clock() - start
}

/// The CPU times of variants that took turns.
pub(crate) struct Turns<const N: usize>(Vec<[Duration; N]>);

impl<const N: usize> Turns<N> {
    /// The median of a variant.
    pub(crate) fn median(&self, variant: usize) -> Duration {
        let mut taken: Vec<Duration> = self.0.iter().map(|round| round[variant]).collect();
        taken.sort();
        taken[taken.len() / 2]
    }

    /// The ratio of `one` to `other`: the median of the rounds' ratios, since both variants of a round
    /// ran beside the same neighbours.
    pub(crate) fn times(&self, one: usize, other: usize) -> f64 {
        let of = |round: &[Duration; N]| round[one].as_secs_f64() / round[other].as_secs_f64();
        let mut times: Vec<f64> = self.0.iter().map(of).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

/// Runs the variants in turns, `repeats` times each, and prints the median of each one's means.
pub(crate) fn take_turns<const N: usize>(
    repeats: u32,
    mut variants: [(&str, Work<'_>); N],
) -> Turns<N> {
    let mut round = || {
        let of_each = variants.each_mut();
        of_each.map(|(_, work)| (0..repeats).map(|_| work()).sum::<Duration>() / repeats)
    };
    // The first round warms caches.
    round();
    let turns = Turns((0..ROUNDS).map(|_| round()).collect());
    for (at, (name, _)) in variants.iter().enumerate() {
        let of = |round: &[Duration; N]| round[at];
        let (least, most) = (turns.0.iter().map(of).min(), turns.0.iter().map(of).max());
        let (least, median, most) = (least.unwrap(), turns.median(at), most.unwrap());
        println!("{name:30} {median:9.3?} of CPU ({least:.3?} to {most:.3?})");
    }
    turns
}

/// Prints whether the budgets hold, and fails if one does not.
pub(crate) fn judge(budgets: &[(&str, f64, f64)]) -> ExitCode {
    for (what, measured, budget) in budgets {
        let verdict = if measured <= budget { "holds" } else { "BROKEN" };
        println!("{what}: {measured:.3}, budget {budget:.3}: {verdict}");
    }
    let all_hold = budgets.iter().all(|(_, measured, budget)| measured <= budget);
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
