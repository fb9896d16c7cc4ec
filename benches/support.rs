//! What the benches with a budget share: CPU time instead of wall time, and variants that take
//! turns, so that a busy neighbour slows all of them alike. (criterion finishes one variant before
//! it begins the next, which would compare two moments of a shared machine.)

use std::process::ExitCode;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// An odd number, so that the median is a measured value.
const ROUNDS: usize = 21;

/// Does something once and answers its CPU time.
pub(crate) type Work<'a> = &'a mut dyn FnMut() -> Duration;

/// CPU time of this thread for `work`.
pub(crate) fn cpu_time_of(work: impl FnOnce()) -> Duration {
    let clock = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let start = clock();
    work();
    clock() - start
}

/// Lets the variants take turns of `repeats` times their work; prints and answers the median of
/// each one's means.
pub(crate) fn medians<const N: usize>(
    repeats: u32,
    mut variants: [(&str, Work<'_>); N],
) -> [Duration; N] {
    let mut means = [(); N].map(|()| Vec::new());
    for round in 0..=ROUNDS {
        for ((_, work), means) in variants.iter_mut().zip(&mut means) {
            let mean = (0..repeats).map(|_| work()).sum::<Duration>() / repeats;
            // The first round fills caches.
            if round > 0 {
                means.push(mean);
            }
        }
    }
    let mut names = variants.iter().map(|(name, _)| name);
    means.map(|mut means| {
        means.sort();
        let (least, median, most) = (means[0], means[ROUNDS / 2], means[ROUNDS - 1]);
        let name = names.next().unwrap();
        println!("{name:30} {median:9.3?} of CPU ({least:.3?} to {most:.3?})");
        median
    })
}

/// Prints whether budgets hold; fails if one does not.
pub(crate) fn judge(budgets: &[(&str, f64, f64)]) -> ExitCode {
    for (what, measured, budget) in budgets {
        let verdict = if measured <= budget { "holds" } else { "BROKEN" };
        println!("{what}: {measured:.3}, budget {budget:.3}: {verdict}");
    }
    let all_hold = budgets.iter().all(|(_, measured, budget)| measured <= budget);
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
