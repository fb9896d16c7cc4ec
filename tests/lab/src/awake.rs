//! Keeps this machine's CPUs from sleeping while a guest runs in real time. One that sleeps may be given to
//! somebody else's machine, and comes back late: to the guest that is a shortage that it cannot see.

use std::hint::spin_loop;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, anyhow, ensure};
use nix::unistd::gettid;

/// Does `work` while so many CPUs stay awake.
pub fn while_it_runs<T>(cpus: usize, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let wanted = AtomicBool::new(true);
    thread::scope(|scope| {
        let stay = || {
            take_what_nobody_wants()?;
            while wanted.load(Ordering::Relaxed) {
                spin_loop();
            }
            anyhow::Ok(())
        };
        let awake: Vec<_> = (0..cpus).map(|_| scope.spawn(stay)).collect();
        // Also where it panics: who stays awake would for ever.
        let until_then = Wanted(&wanted);
        let outcome = work();
        drop(until_then);
        for one in awake {
            one.join().map_err(|_| anyhow!("a thread that stays awake panicked"))??;
        }
        Ok(outcome)
    })
}

/// As long as it is there.
struct Wanted<'a>(&'a AtomicBool);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// From here on this thread runs only where nobody else would (`SCHED_IDLE`).
fn take_what_nobody_wants() -> anyhow::Result<()> {
    let thread = gettid().to_string();
    let status = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status();
    let status = status.context("chrt, of util-linux")?;
    ensure!(status.success(), "chrt --idle --pid 0 {thread}: {status}");
    Ok(())
}
