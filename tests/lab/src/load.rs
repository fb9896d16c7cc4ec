//! A process that wants to run: threads that work and sleep, and that know what they missed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use serde::{Deserialize, Serialize};

use crate::scenario::{Load, WINDOW};
use crate::{disk_load, memory_load};

/// What all threads of a process say of the judged time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Missed {
    /// Pages that they touched, or operations on a disk that they did.
    #[serde(default)]
    pub work: f64,
    /// Of those that want to run, each five seconds.
    #[serde(default)]
    pub windows: Vec<Ran>,
}

/// CPU time that was had in a window, and how long that took from when it was due, seconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Ran {
    pub had: f64,
    pub took: f64,
}

/// The windows, as the threads of a process fill them. Without a lock: who is held back while it holds
/// one would make others sleep, that are to want to run.
struct Windows {
    from: f64,
    all: Vec<Nanoseconds>,
}

#[derive(Default)]
struct Nanoseconds {
    had: AtomicU64,
    took: AtomicU64,
}

/// Goes to a cgroup, works until it is killed, and writes what it missed between the two moments
/// of the monotonic clock.
pub fn work(
    cgroup: &Path,
    load: Load,
    number: u32,
    judged: (f64, f64),
    report: Option<&Path>,
) -> anyhow::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), "0").with_context(|| cgroup.display().to_string())?;
    let windows = Arc::new(Windows::new(judged));
    let (done, all_work) = mpsc::channel();
    for thread in 0..load.threads {
        let (windows, mut work) = (windows.clone(), Work::new(judged, done.clone()));
        let place = number * load.threads + thread;
        // As QEMU names those that run a VM's CPUs.
        thread::Builder::new().name(format!("CPU {thread}/KVM")).spawn(move || {
            let ended = match (load.memory, load.io) {
                (Some(memory), _) => memory_load::touch(memory, place, &mut work),
                (None, Some(io)) => disk_load::run(io, place, &mut work),
                (None, None) => run(load, thread, &windows),
            };
            if let Err(error) = ended {
                eprintln!("a load failed: {error:#}");
                std::process::exit(1);
            }
        })?;
    }
    if load.memory.is_none() && load.io.is_none() {
        return write_down(&windows, judged.1, report);
    }
    let work = all_work.iter().take(load.threads as usize).sum();
    tell(report, &Missed { work, windows: Vec::new() })?;
    rest()
}

/// Again and again, for whoever ends this process need not ask it before.
fn write_down(windows: &Windows, until: f64, report: Option<&Path>) -> anyhow::Result<()> {
    while now() < until + 0.3 {
        sleep_until(now() + 0.25);
        tell(report, &Missed { work: 0.0, windows: windows.so_far() })?;
    }
    rest()
}

fn tell(report: Option<&Path>, missed: &Missed) -> anyhow::Result<()> {
    if let Some(report) = report {
        let new = report.with_extension("new");
        fs::write(&new, serde_json::to_string(missed)?)?;
        fs::rename(&new, report)?;
    }
    Ok(())
}

/// A process that ended would be one that waits for nothing.
fn rest() -> ! {
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Works for ever, and notes what that takes.
fn run(load: Load, number: u32, windows: &Windows) -> ! {
    let burst = load.burst_ms / 1000.0;
    let period = burst / load.duty;
    // Threads that all begin at once would queue behind each other for ever.
    let mut due = now() + period * f64::from(number) * 0.37 % period;
    loop {
        sleep_until(due);
        let (mut at, mut used) = (due, thread_time());
        let end = used + burst;
        while used < end {
            spin();
            let (now, used_now) = (now(), thread_time());
            windows.add(at, now, used_now - used);
            (at, used) = (now, used_now);
        }
        // What is missed is lost: a guest's clock does not wait.
        due = (due + period).max(at);
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a few minutes"
)]
impl Windows {
    fn new((from, until): (f64, f64)) -> Self {
        let count = ((until - from) / WINDOW).round().max(0.0) as usize;
        Self { from, all: (0..count).map(|_| Nanoseconds::default()).collect() }
    }

    /// So much CPU time was had between two moments, rather at their end.
    fn add(&self, since: f64, now: f64, had: f64) {
        let add = |to: &AtomicU64, seconds: f64| to.fetch_add((seconds * 1e9) as u64, Relaxed);
        let mut begin = self.from;
        for ran in &self.all {
            let end = begin + WINDOW;
            add(&ran.took, (now.min(end) - since.max(begin)).max(0.0));
            if begin <= now && now < end {
                add(&ran.had, had);
            }
            begin = end;
        }
    }

    fn so_far(&self) -> Vec<Ran> {
        let seconds = |nanoseconds: &AtomicU64| nanoseconds.load(Relaxed) as f64 / 1e9;
        let ran = |ran: &Nanoseconds| Ran { had: seconds(&ran.had), took: seconds(&ran.took) };
        self.all.iter().map(ran).collect()
    }
}

/// Counts what a thread does in the judged time, and says it when that is over.
pub struct Work {
    judged: (f64, f64),
    done: Option<Sender<f64>>,
    work: f64,
    due: f64,
}

impl Work {
    fn new(judged: (f64, f64), done: Sender<f64>) -> Self {
        Self { judged, done: Some(done), work: 0.0, due: 0.0 }
    }

    /// So much was done just now.
    pub fn add(&mut self, work: u32) {
        let now = now();
        if now >= self.judged.0 && now <= self.judged.1 {
            self.work += f64::from(work);
        }
        if now > self.judged.1
            && let Some(done) = self.done.take()
        {
            let _ = done.send(self.work);
        }
    }

    /// Waits until `work` more is due at so much a second. What is missed is lost.
    pub fn pace(&mut self, work: u32, per_second: f64) {
        self.due = (self.due + f64::from(work) / per_second).max(now());
        sleep_until(self.due);
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

/// The time of day, seconds since 1970.
pub fn clock() -> f64 {
    read(ClockId::CLOCK_REALTIME)
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
