//! A process that wants to run: threads that work and sleep, and that know what they missed.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use serde::{Deserialize, Serialize};

use crate::scenario::Load;

/// What all threads of a process say of the judged time, seconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Missed {
    /// CPU time that they asked for: their duty.
    pub asked: f64,
    /// CPU time that they had.
    pub had: f64,
    /// How long their bursts took, from when each was due.
    pub took: f64,
}

/// Goes to a cgroup, works until it is killed, and writes what it missed between the two moments
/// of the monotonic clock.
pub fn work(
    cgroup: &Path,
    load: Load,
    judged: (f64, f64),
    report: Option<&Path>,
) -> anyhow::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), "0").with_context(|| cgroup.display().to_string())?;
    let (done, all_missed) = mpsc::channel();
    for number in 0..load.threads {
        let done = done.clone();
        // As QEMU names those that run a VM's CPUs.
        thread::Builder::new()
            .name(format!("CPU {number}/KVM"))
            .spawn(move || run(load, number, judged, &done))?;
    }
    let mut sum = Missed::default();
    for missed in all_missed.iter().take(load.threads as usize) {
        sum.asked += missed.asked;
        sum.had += missed.had;
        sum.took += missed.took;
    }
    if let Some(report) = report {
        fs::write(report, serde_json::to_string(&sum)?)?;
    }
    // A process that ended would be one that waits for nothing.
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Works for ever, and says what it missed when the judged time is over.
fn run(load: Load, number: u32, (from, until): (f64, f64), done: &Sender<Missed>) {
    let burst = load.burst_ms / 1000.0;
    let period = burst / load.duty;
    let (mut missed, mut told) = (Missed::default(), false);
    // Threads that all begin at once would queue behind each other for ever.
    let mut due = now() + period * f64::from(number) * 0.37 % period;
    loop {
        sleep_until(due);
        let (mut at, mut used) = (due, thread_time());
        let end = used + burst;
        while used < end {
            spin();
            let (now, used_now) = (now(), thread_time());
            if at >= from && now <= until {
                missed.took += now - at;
                missed.had += used_now - used;
            }
            (at, used) = (now, used_now);
        }
        if !told && at > until {
            told = true;
            missed.asked = load.duty * (until - from);
            let _ = done.send(missed);
        }
        // What is missed is lost: a guest's clock does not wait.
        due = (due + period).max(at);
    }
}

/// Some ten thousands of instructions.
fn spin() {
    for i in 0..10_000 {
        std::hint::black_box(i);
    }
}

/// The monotonic clock, seconds.
pub fn now() -> f64 {
    read(ClockId::CLOCK_MONOTONIC)
}

fn thread_time() -> f64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

#[allow(clippy::cast_precision_loss, reason = "a guest is up for minutes")]
fn read(clock: ClockId) -> f64 {
    clock_gettime(clock).map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time in the future")]
pub fn sleep_until(due: f64) {
    if due > now() {
        let due = nix::sys::time::TimeSpec::from_duration(Duration::from_secs_f64(due));
        // Cut short by a signal only, and then the next burst comes early once.
        let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &due);
    }
}
