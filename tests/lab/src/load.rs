//! A process that wants to run: threads that work and sleep, and that measure how much CPU time they
//! missed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

use crate::progress::Windows;
use crate::scenario::{Load, Phases};
use crate::{disk_load, disks, memory_load};

/// Threads whose starts are this fraction of a period apart never line up, however many there are: the
/// golden ratio.
const STAGGER: f64 = 0.618_033_988_75;

/// The names of threads, as QEMU gives them.
const EMULATOR: &str = "IO iothread";

/// Moves to a cgroup, works until it is killed, and reports what it did between two moments of the
/// monotonic clock. `number` tells it from the other loads of the node.
pub fn work(
    cgroup: &Path,
    load: Load,
    number: u32,
    judged: (f64, f64),
    report: Option<&Path>,
) -> anyhow::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), "0").with_context(|| cgroup.display().to_string())?;
    let _resident = std::hint::black_box(vec![1u8; load.resident_mib << 20]);
    let windows = Arc::new(Windows::open(judged, report.filter(|_| load.is_cpu()))?);
    let (done, all_work) = mpsc::channel();
    for thread in 0..load.threads {
        let (windows, mut work) = (windows.clone(), Work::new(judged, done.clone()));
        let place = number * load.threads + thread;
        start(format!("CPU {thread}/KVM"), move || match (load.memory, load.io) {
            (Some(memory), _) => memory_load::touch(memory, place, &mut work),
            (None, Some(io)) => {
                disk_load::run(io, &disks::device(disks::name(io.disk))?, place, &mut work)
            }
            (None, None) => run(&Bursts::of(load, number, place), &windows),
        })?;
    }
    if let Some(emulator) = load.emulator {
        for thread in 0..emulator.threads {
            let place = number * emulator.threads + thread;
            let load = Load { duty: emulator.duty, burst_ms: emulator.burst_ms, ..load };
            // What the emulator misses is no vCPU's.
            let unreported = Windows::open(judged, None)?;
            let name = format!("{EMULATOR}{thread}");
            start(name, move || run(&Bursts::of(load, number, place), &unreported))?;
        }
    }
    if !load.is_cpu() {
        let work: f64 = all_work.iter().take(load.threads as usize).sum();
        if let Some(report) = report {
            fs::write(report, work.to_string())?;
        }
    }
    // The process stays until it is killed: its cgroup would be empty without it.
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

fn start(
    name: String,
    work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    thread::Builder::new().name(name).spawn(move || {
        if let Err(error) = work() {
            eprintln!("a load failed: {error:#}");
            std::process::exit(1);
        }
    })?;
    Ok(())
}

/// Whether a thread of that name runs a vCPU. QEMU's own names and those of loads are alike.
pub fn is_vcpu(name: &str) -> bool {
    name.starts_with("CPU ")
}

/// When a thread wants to run.
struct Bursts {
    duty: f64,
    burst: f64,
    phases: Option<Phases>,
    /// Parts of a period, and of a cycle of phases, by which this thread comes later than others.
    stagger: (f64, f64),
    together: bool,
}

impl Bursts {
    fn of(load: Load, number: u32, place: u32) -> Self {
        let part = |number: u32| {
            if load.wake_together { 0.0 } else { f64::from(number) * STAGGER % 1.0 }
        };
        let stagger = (part(place), part(number));
        Self {
            duty: load.duty,
            burst: load.burst_ms / 1000.0,
            phases: load.phases,
            stagger,
            together: load.wake_together,
        }
    }

    /// From the start of one burst to that of the next, at a moment of the monotonic clock.
    fn period(&self, at: f64) -> f64 {
        let duty = self.phases.map_or(self.duty, |Phases { busy_s, calm_s, calm_duty }| {
            let cycle = busy_s + calm_s;
            let into = (at + self.stagger.1 * cycle) % cycle;
            if into < busy_s { self.duty } else { calm_duty }
        });
        self.burst / duty
    }

    /// The burst after one that was due at `due` and ended at `end`. Missed work is lost: a guest's clock
    /// does not wait.
    fn next(&self, due: f64, end: f64) -> f64 {
        let next = due + self.period(due);
        if next >= end || !self.together { next.max(end) } else { self.first(end) }
    }

    /// The first burst after a moment. Those of all threads that wake together lie on one grid.
    fn first(&self, now: f64) -> f64 {
        let period = self.period(now);
        ((now / period).floor() + 1.0 + self.stagger.0) * period
    }
}

/// Works for ever, and counts what it got and how long that took.
fn run(bursts: &Bursts, windows: &Windows) -> anyhow::Result<()> {
    let run_delay = RunDelay::open()?;
    let mut due = bursts.first(now());
    let mut used = thread_time();
    loop {
        if due > now() {
            let before = run_delay.seconds()?;
            used = thread_time();
            sleep_until(due);
            // After `due` the thread waited for a CPU, ran, or its timer had not fired yet.
            let (delayed, ran) = (run_delay.seconds()? - before, thread_time() - used);
            windows.add_late(due, (now() - due - delayed - ran).max(0.0));
        }
        let mut at = due;
        let end = used + bursts.burst;
        while used < end {
            spin();
            let (now, used_now) = (now(), thread_time());
            windows.add(at, now, used_now - used);
            (at, used) = (now, used_now);
        }
        due = bursts.next(due, at);
    }
}

/// The time for which this thread was runnable and did not run.
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

/// Counts the work of a thread that touches memory or does I/O.
pub trait Meter {
    /// Does a step of the work that may have to wait.
    fn step<T>(&mut self, step: impl FnOnce() -> T) -> T {
        step()
    }

    /// Adds work that was done just now.
    fn add(&mut self, work: u32);

    /// Waits until `work` more is due at that rate. Missed work is lost.
    fn pace(&mut self, work: u32, per_second: f64);
}

/// Counts what a thread does in the judged time, and sends it when that is over.
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
}

impl Meter for Work {
    fn add(&mut self, work: u32) {
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

    fn pace(&mut self, work: u32, per_second: f64) {
        self.due = (self.due + f64::from(work) / per_second).max(now());
        sleep_until(self.due);
    }
}

/// Runs some ten thousands of instructions.
pub fn spin() {
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
        // Only a signal ends it early; then one burst comes early.
        let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bursts(load: &str, number: u32, place: u32) -> Bursts {
        Bursts::of(serde_json::from_str(load).unwrap(), number, place)
    }

    #[test]
    fn copies_start_staggered_unless_they_wake_together() {
        let load = r#"{"threads": 1, "duty": 0.5}"#;
        let starts = [0, 1, 2].map(|number| bursts(load, number, number).first(100.0) % 0.02);
        assert!((starts[1] - starts[0]).abs() > 0.005 && (starts[2] - starts[1]).abs() > 0.005);
        let together = r#"{"threads": 1, "duty": 0.5, "wake_together": true}"#;
        let starts = [0, 1, 2].map(|number| bursts(together, number, number).first(100.0));
        assert!(starts.iter().all(|start| (start - 100.02).abs() < 1e-6), "{starts:?}");
        // One that missed its next burst waits for the one after it.
        let next = bursts(together, 0, 0).next(100.0, 100.03);
        assert!((next - 100.04).abs() < 1e-6, "{next}");
    }

    #[test]
    fn calm_phases_have_bursts_farther_apart() {
        let load = r#"{"threads": 1, "duty": 0.5,
            "phases": {"busy_s": 2.0, "calm_s": 3.0, "calm_duty": 0.1}}"#;
        let bursts = bursts(load, 0, 0);
        assert!((bursts.period(101.0) - 0.02).abs() < 1e-9);
        assert!((bursts.period(103.0) - 0.1).abs() < 1e-9);
    }
}
