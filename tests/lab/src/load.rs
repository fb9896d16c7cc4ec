//! A process that wants to run: threads that work and sleep, and that know what they missed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

use crate::missed::Windows;
use crate::scenario::Load;
use crate::{disk_load, memory_load};

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
    let wants_to_run = load.wants_to_run();
    let windows = Arc::new(Windows::open(judged, report.filter(|_| wants_to_run))?);
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
    if !wants_to_run {
        let work: f64 = all_work.iter().take(load.threads as usize).sum();
        if let Some(report) = report {
            fs::write(report, work.to_string())?;
        }
    }
    // A process that ended would be one that waits for nothing.
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Works for ever, and notes what that takes.
fn run(load: Load, number: u32, windows: &Windows) -> anyhow::Result<()> {
    let waited = RunDelay::open()?;
    let burst = load.burst_ms / 1000.0;
    let period = burst / load.duty;
    // Threads that all begin at once would queue behind each other for ever.
    let mut due = now() + period * f64::from(number) * 0.37 % period;
    let mut used = thread_time();
    loop {
        if due > now() {
            let before = waited.seconds()?;
            used = thread_time();
            sleep_until(due);
            // It waited for a CPU, as the kernel counts that, it ran, or nobody had woken it yet.
            let (waited, ran) = (waited.seconds()? - before, thread_time() - used);
            windows.add_late(due, (now() - due - waited - ran).max(0.0));
        }
        let mut at = due;
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

/// How long this thread was ready to run, and did not.
struct RunDelay(File);

impl RunDelay {
    const PATH: &str = "/proc/thread-self/schedstat";

    fn open() -> anyhow::Result<Self> {
        File::open(Self::PATH).map(Self).context(Self::PATH)
    }

    fn seconds(&self) -> anyhow::Result<f64> {
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0).context(Self::PATH)?;
        let text = std::str::from_utf8(text.get(..length).unwrap_or_default())?;
        let delay = text.split(' ').nth(1).and_then(|number| number.parse::<f64>().ok());
        Ok(delay.context(Self::PATH)? / 1e9)
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
