//! Keeps this machine's CPUs awake while a guest runs in real time. Where the machine is a virtual one itself,
//! a CPU that sleeps comes back late, which the guest would measure as contention.

use std::hint::spin_loop;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, anyhow, ensure};
use nix::unistd::gettid;

/// Runs `work` while so many CPUs stay awake.
pub fn while_it_runs<T>(cpus: usize, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let wanted = AtomicBool::new(true);
    thread::scope(|scope| {
        let stay = || {
            run_when_idle()?;
            while wanted.load(Ordering::Relaxed) {
                spin_loop();
            }
            anyhow::Ok(())
        };
        let awake: Vec<_> = (0..cpus).map(|_| scope.spawn(stay)).collect();
        // Also if it panics: otherwise the threads would spin for ever.
        let until_then = Wanted(&wanted);
        let outcome = work();
        drop(until_then);
        for one in awake {
            one.join().map_err(|_| anyhow!("a thread that stays awake panicked"))??;
        }
        Ok(outcome)
    })
}

/// Ends the spinning threads when it is dropped.
struct Wanted<'a>(&'a AtomicBool);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Gives this thread the scheduling class `SCHED_IDLE`.
fn run_when_idle() -> anyhow::Result<()> {
    let thread = gettid().to_string();
    let status = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status();
    let status = status.context("chrt, of util-linux")?;
    ensure!(status.success(), "chrt --idle --pid 0 {thread}: {status}");
    Ok(())
}
