//! The first process of a KVM guest: it does the guest's load, and reports on the serial line what it measures.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use anyhow::Context;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};

use crate::load::{Meter, now, sleep_until, spin};
use crate::scenario::Load;
use crate::{disk_load, memory_load};

/// What a report begins with: then follow the guest's time, work, and wanted and waited time.
pub const REPORT: &str = "psi-lab:";
/// Between two reports, seconds.
const REPORTED: f64 = 0.5;
const DISK: &str = "/dev/vda";
/// An access to memory that takes longer waited for a page, seconds.
const SLOW_ACCESS: f64 = 0.000_2;
/// Between two accesses: whatever else the load touched was not there, seconds. A busy host takes some
/// hundredths of a second, too.
const SLOW_COMPUTING: f64 = 0.05;
/// How often the time of one step is measured, of which the shortest counts.
const TRIALS: u32 = 200;

/// What all threads did since the start; times in nanoseconds.
#[derive(Default)]
struct Counters {
    /// Rounds of computing, pages or disk operations.
    work: AtomicU64,
    /// The time in which a thread wanted to work.
    wanted: AtomicU64,
    /// The part of it in slow accesses to memory, or in disk operations.
    waited: AtomicU64,
}

/// Works until the guest is ended.
pub fn work(load: Load) -> anyhow::Result<()> {
    fs::create_dir_all("/dev")?;
    let nothing = None::<&str>;
    mount(nothing, "/dev", Some("devtmpfs"), MsFlags::empty(), nothing).context("/dev")?;
    if load.io.is_some() {
        load_modules()?;
    }
    let counters: &'static Counters = Box::leak(Box::default());
    for place in 0..load.threads {
        thread::Builder::new().spawn(move || {
            if let Err(error) = run(load, place, counters) {
                println!("a load failed: {error:#}");
            }
        })?;
    }
    let mut at = now();
    loop {
        let [work, wanted, waited] = [&counters.work, &counters.wanted, &counters.waited];
        let [work, wanted, waited] = [work, wanted, waited].map(|counter| counter.load(Relaxed));
        println!("{REPORT} {:.3} {work} {wanted} {waited}", now());
        at += REPORTED;
        sleep_until(at);
    }
}

/// Modules that the kernel of a guest needs for its disk, in the order of their names.
fn load_modules() -> anyhow::Result<()> {
    let modules = fs::read_dir("/modules").context("/modules")?;
    let mut paths: Vec<_> = modules.flatten().map(|module| module.path()).collect();
    paths.sort();
    for path in paths {
        let module = fs::File::open(&path)?;
        finit_module(module.as_fd(), c"", ModuleInitFlags::empty())
            .with_context(|| path.display().to_string())?;
    }
    // The device appears a moment later.
    let started = now();
    while !Path::new(DISK).exists() && now() < started + 30.0 {
        sleep_until(now() + 0.05);
    }
    Ok(())
}

fn run(load: Load, place: u32, counters: &Counters) -> anyhow::Result<()> {
    let mut progress = Progress::new(counters, load.memory.map_or(0.0, |_| SLOW_ACCESS));
    match (load.memory, load.io) {
        (Some(memory), _) => memory_load::touch(memory, place, &mut progress),
        (None, Some(io)) => disk_load::run(io, Path::new(DISK), place, &mut progress),
        (None, None) => compute(load, &mut progress),
    }
}

/// Bursts of computing, each of the same work, as long as `burst_ms` where nothing slows it down.
fn compute(load: Load, progress: &mut Progress<'_>) -> anyhow::Result<()> {
    let fastest = (0..TRIALS).map(|_| {
        let started = now();
        spin();
        now() - started
    });
    let burst = load.burst_ms / 1000.0;
    let rounds = whole(burst / fastest.fold(f64::INFINITY, f64::min)).max(1);
    loop {
        for _ in 0..rounds {
            spin();
            progress.add(1);
        }
        if load.duty < 1.0 {
            progress.pace(1, load.duty / burst);
        }
    }
}

/// Counts what one thread does.
struct Progress<'a> {
    counters: &'a Counters,
    /// A step that takes longer waited, seconds.
    slow: f64,
    /// Since when it wants to work, and when the next work is due.
    since: f64,
    due: f64,
    /// When the latest step ended.
    stepped: f64,
}

impl<'a> Progress<'a> {
    fn new(counters: &'a Counters, slow: f64) -> Self {
        Self { counters, slow, since: now(), due: 0.0, stepped: now() }
    }
}

impl Meter for Progress<'_> {
    fn step<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let started = now();
        let done = step();
        let ended = now();
        let (computed, took) = (started - self.stepped, ended - started);
        if took > self.slow {
            count(&self.counters.waited, took);
        }
        if computed > SLOW_COMPUTING {
            count(&self.counters.waited, computed);
        }
        self.stepped = ended;
        done
    }

    fn add(&mut self, work: u32) {
        let now = now();
        count(&self.counters.wanted, now - self.since);
        self.since = now;
        self.counters.work.fetch_add(work.into(), Relaxed);
    }

    fn pace(&mut self, work: u32, per_second: f64) {
        let now = now();
        self.due += f64::from(work) / per_second;
        if self.due > now {
            sleep_until(self.due);
            // From then on it wants to work, whenever it is woken.
            self.since = self.due;
            self.stepped = self.due;
        } else {
            self.due = now;
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few minutes")]
fn count(to: &AtomicU64, seconds: f64) {
    to.fetch_add((seconds.max(0.0) * 1e9) as u64, Relaxed);
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousands")]
fn whole(number: f64) -> u32 {
    number as u32
}
