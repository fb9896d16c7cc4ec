//! A VM of a trace as a real load: a process with one vCPU thread, which wants the CPU as the trace says and
//! counts the CPU time that it got.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::time::{ClockId, clock_gettime};

use crate::trace::Vm;

/// QEMU's name of the thread.
const VCPU: &str = "CPU 0/KVM";

/// The VM gets something to do about once in this time of its node's.
const PERIOD: Duration = Duration::from_millis(20);

/// Work that is not done after this time of its node's is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the counter is written.
const WRITTEN: Duration = Duration::from_millis(100);

const MINUTE: Duration = Duration::from_secs(60);

/// Nodes that share one CPU by taking turns, so that each has it to itself for a part of the time. A node's
/// time passes during its turns alone.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Turns {
    /// Number of this node, from 0 on
    #[arg(long)]
    node: u32,
    /// Number of nodes
    #[arg(long)]
    nodes: u32,
    /// Length of a turn
    #[arg(long, default_value_t = 30)]
    turn_ms: u32,
}

impl Turns {
    fn turn(self) -> Duration {
        Duration::from_millis(u64::from(self.turn_ms))
    }

    fn round(self) -> Duration {
        self.turn() * self.nodes
    }

    /// Whether it is this node's turn, and the node's time.
    fn node_time(self, now: Duration) -> (bool, Duration) {
        let rounds = nanos(now) / nanos(self.round());
        let within = remainder(now, self.round());
        let begin = self.turn() * self.node;
        let passed = within.saturating_sub(begin).min(self.turn());
        let is_on = within >= begin && within < begin + self.turn();
        (is_on, Duration::from_nanos(nanos(self.turn()) * rounds) + passed)
    }

    /// When it is this time at the node.
    fn at(self, node_time: Duration) -> Duration {
        let rounds = nanos(node_time) / nanos(self.turn());
        Duration::from_nanos(nanos(self.round()) * rounds)
            + self.turn() * self.node
            + remainder(node_time, self.turn())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn remainder(of: Duration, by: Duration) -> Duration {
    Duration::from_nanos(nanos(of) % nanos(by))
}

/// What the process needs to know.
#[derive(Debug, Clone, clap::Args)]
pub struct Load {
    #[command(flatten)]
    turns: Turns,
    /// Minute of the trace that it begins with
    #[arg(long, default_value_t = 0)]
    from_minute: usize,
    /// When the trace begins, in milliseconds since 1970. Before that, the VM wants what it wants in the first
    /// minute.
    #[arg(long)]
    start_ms: u64,
    /// File for the CPU seconds that it got since the start
    #[arg(long)]
    counter: PathBuf,
}

/// Work that is to be done, in CPU time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Backlog(Duration);

impl Backlog {
    /// The work of this time arrives, of a VM that wants this share of its node's time.
    fn add(&mut self, share: f64, time: Duration) {
        self.0 = (self.0 + time.mul_f64(share)).min(PATIENCE.mul_f64(share));
    }
}

/// Runs until it is ended by a signal.
pub fn run(vm: Vm, load: Load) -> anyhow::Result<()> {
    ensure!(load.turns.node < load.turns.nodes && load.turns.turn_ms > 0, "no such turn");
    ensure!(vm.vcpus == 1, "{} has {} vCPUs: a load has one", vm.name, vm.vcpus);
    let counter =
        File::create(&load.counter).with_context(|| load.counter.display().to_string())?;
    let vcpu =
        thread::Builder::new().name(VCPU.into()).spawn(move || work(&vm, &load, &counter))?;
    vcpu.join().map_err(|_| anyhow::anyhow!("the vCPU thread panicked"))?
}

fn work(vm: &Vm, load: &Load, counter: &File) -> anyhow::Result<()> {
    let turns = load.turns;
    let start = Duration::from_millis(load.start_ms);
    let share = |now: Duration| {
        let minute = load.from_minute + now.saturating_sub(start).div_duration_f64(MINUTE) as usize;
        vm.shares.get(minute).copied().flatten().map_or(0.0, f64::from)
    };
    let mut backlog = Backlog::default();
    let (mut done, mut written) = (Duration::ZERO, Duration::ZERO);
    let period = period(&vm.name);
    let mut arrives = turns.node_time(now()?).1 + period;
    loop {
        let now = now()?;
        if now >= start && now - written >= WRITTEN {
            write(counter, done)?;
            written = now;
        }
        let (is_on, node_time) = turns.node_time(now);
        while arrives <= node_time {
            backlog.add(share(now), period);
            arrives += period;
        }
        if is_on && backlog.0 > Duration::ZERO {
            let before = cpu_time()?;
            spin();
            let used = cpu_time()?.saturating_sub(before);
            backlog.0 = backlog.0.saturating_sub(used);
            if now >= start {
                done += used;
            }
        } else {
            let next = if backlog.0 > Duration::ZERO { node_time } else { arrives };
            // At the end of a turn, its time is that at the beginning of the next.
            let next = turns.at(next.max(node_time));
            thread::sleep(next.saturating_sub(now).max(Duration::from_micros(50)));
        }
    }
}

/// Each VM has its own period, 15 to 25 ms. With one for all, the same two would wake up together each time.
fn period(name: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    Duration::from_nanos(nanos(PERIOD) / 4 * 3 + hasher.finish() % (nanos(PERIOD) / 2))
}

/// Some microseconds of work.
fn spin() {
    for number in 0..20_000_u32 {
        black_box(number);
    }
}

/// Since 1970: all loads of a CPU have to agree on it.
fn now() -> nix::Result<Duration> {
    clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from)
}

fn cpu_time() -> nix::Result<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from)
}

/// In place and with a fixed width, so that a reader sees one number or another.
fn write(counter: &File, done: Duration) -> io::Result<()> {
    counter.write_all_at(format!("{:014.6}\n", done.as_secs_f64()).as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_nodes_time_passes_during_its_turns_alone() {
        let turns = Turns { node: 1, nodes: 3, turn_ms: 30 };
        let times = [0, 29, 30, 45, 59, 60, 119, 120, 135].map(|at| turns.node_time(ms(at)));
        let expected = [0, 0, 0, 15, 29, 30, 30, 30, 45].map(ms);
        assert_eq!(times.map(|(_, time)| time), expected);
        let on = [false, false, true, true, true, false, false, true, true];
        assert_eq!(times.map(|(is_on, _)| is_on), on);
        assert_eq!([0, 29, 30, 45].map(|at| turns.at(ms(at))), [30, 59, 120, 135].map(ms));
    }

    #[test]
    fn work_that_waits_for_too_long_is_lost() {
        let mut backlog = Backlog::default();
        backlog.add(0.5, ms(20));
        assert_eq!(backlog.0, ms(10));
        (0..1000).for_each(|_| backlog.add(0.5, ms(20)));
        assert_eq!(backlog.0, ms(500));
        backlog.add(0.1, ms(20));
        assert_eq!(backlog.0, ms(100));
    }
}
