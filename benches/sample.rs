//! CPU time of one sample (CPU, memory and I/O pressure) of 1,500 real cgroups, beside a C loop that
//! only reads the same files (`read_loop.c`), and of a tick: of an idle node, while two of 500 VMs
//! wait, and by run delay.
//!
//! Run with `cargo bench --bench sample`. Needs root, a cgroup2 mount and `cc`. It creates idle
//! cgroups and removes them at the end.
//!
//! Before each sample the CPU caches are filled with other data, as by other programs on a node.
//! Without that, reading an open file takes a third less.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark fails at the first error"
)]

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use psi_agent::collector::{Collector, Sources};
use psi_agent::identity::selection::Selection;
use psi_agent::kernel::cgroup_dir::CgroupRoot;
use psi_agent::kernel::own_process::raise_open_file_limit;
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::sample::{Detail, ScrapeSample};
use psi_agent::waiting::CpuSource;
use support::{Turns, cpu_time_of, judge, take_turns};

#[allow(dead_code, reason = "the tests that it serves use more of it")]
#[path = "../tests/integration/support/cgroup.rs"]
mod cgroup;
#[path = "../tests/integration/support/host_proc.rs"]
mod host_proc;
mod support;
mod tick;

/// Each pod is three cgroups: its own and two containers'.
const PODS: usize = 500;
/// VMs that wait in one of the two ticks.
const WAITING: usize = 2;
/// Threads of each VM whose run delay is read: virtual CPUs, and one I/O thread.
const THREADS: usize = 4;
/// Samples of one minute of the agent's clock, one of which rescans all cgroups.
const SAMPLES_A_ROUND: u32 = 12;
const STEP: Duration = Duration::from_secs(5);
/// Indexes of the variants of a sample.
const AGENT: usize = 0;
const OPENAT: usize = 1;
const PREAD: usize = 2;
/// Indexes of the variants of a tick.
const CALM: usize = 0;
const WAITS: usize = 1;
const RUN_DELAY: usize = 2;
/// More than the size of the last-level cache, as in `read_loop.c`.
const OTHER_WORK_BYTES: usize = 96 << 20;

fn main() -> ExitCode {
    let handles = raise_open_file_limit().unwrap() / 4;
    let mut memory = vec![0u8; OTHER_WORK_BYTES];
    let mut other_work = || memory.iter_mut().step_by(64).for_each(|byte| *byte ^= 1);
    let samples = measure_samples(handles, &mut other_work);
    let ticks = measure_ticks(handles, &mut other_work);
    // Measured one after the other, so a ratio of medians.
    let of_sample = |tick| ticks.median(tick).as_secs_f64() / samples.median(AGENT).as_secs_f64();
    judge(&[
        ("sample / openat", samples.times(AGENT, OPENAT), 1.2),
        ("sample / pread", samples.times(AGENT, PREAD), 3.0),
        ("calm tick / sample", of_sample(CALM), 0.4),
        ("tick while two wait / calm tick", ticks.times(WAITS, CALM), 1.5),
        ("tick by run delay / sample", of_sample(RUN_DELAY), 0.8),
    ])
}

/// A sample of the agent, and the same files read in C: opened each time, and kept open.
fn measure_samples(handles: usize, other_work: &mut dyn FnMut()) -> Turns<3> {
    let own = cgroup::OwnCgroup::new("bench");
    for vm in 0..PODS {
        for container in 0..2 {
            own.make(&tick::cgroup_of(vm, container));
        }
    }

    let mut agent = Agent::new(&own.path, handles);
    let first = agent.sample();
    assert_eq!(first.report.errors, []);
    assert!(first.cgroups.iter().all(|member| member.pressure.io.is_some()));
    let directories: Vec<PathBuf> = first
        .cgroups
        .iter()
        .map(|member| own.path.join(member.cgroup.path.trim_start_matches('/')))
        .collect();
    assert_eq!(kept_pressure_files(), 0, "an open pressure file holds a buffer in the kernel");

    let program = compile("read_loop", &[]);
    let mut openat = ReadLoop::start(&program, "openat", &directories);
    let mut pread = ReadLoop::start(&program, "pread", &directories);
    println!("A sample of {} cgroups:", directories.len());
    let mut sample = || {
        other_work();
        cpu_time_of(|| drop(agent.sample()))
    };
    take_turns(
        SAMPLES_A_ROUND,
        [
            ("agent", &mut sample),
            ("C, openat + read + close", &mut || openat.sweep()),
            ("C, pread on kept files", &mut || pread.sweep()),
        ],
    )
}

/// A tick of an idle node, while some VMs wait, and by the run delay of all threads of VMs.
fn measure_ticks(handles: usize, other_work: &mut dyn FnMut()) -> Turns<3> {
    let mut calm = tick::Node::new("bench-calm", PODS, CpuSource::Psi, handles);
    let mut waiting = tick::Node::new("bench-waits", PODS, CpuSource::Psi, handles);
    waiting.start(WAITING, tick::SPIN);
    let mut run_delay = tick::Node::new("bench-run-delay", PODS, CpuSource::RunDelay, handles);
    let idle_vm = compile("idle_vm", &["-pthread"]);
    run_delay.start(PODS, &format!("{} {THREADS}", idle_vm.display()));
    println!("A tick of {PODS} VMs:");
    let other_work = RefCell::new(other_work);
    let step = |node: &mut tick::Node| {
        node.prepare();
        other_work.borrow_mut()();
        cpu_time_of(|| node.tick())
    };
    let turns = take_turns(
        tick::TICKS_A_ROUND,
        [
            ("nobody waits", &mut || step(&mut calm)),
            ("two wait for one CPU", &mut || step(&mut waiting)),
            ("by run delay", &mut || step(&mut run_delay)),
        ],
    );
    assert!((1..PODS).contains(&waiting.most_waiting()), "no VM waits");
    assert_eq!(run_delay.read(), PODS);
    turns
}

/// The agent's reader, and a clock that advances by [`STEP`] with each sample, so that no reading is
/// reused.
struct Agent {
    collector: Collector,
    clock: tick::SteppedClock,
    proc: PathBuf,
    samples: u64,
}

impl Agent {
    fn new(root: &Path, handles: usize) -> Self {
        let proc = Path::new(env!("CARGO_TARGET_TMPDIR")).join("proc");
        std::fs::create_dir_all(proc.join("pressure")).unwrap();
        for file in ["stat", "vmstat", "meminfo", "diskstats", "pressure/cpu"] {
            let _ = std::fs::remove_file(proc.join(file));
            std::os::unix::fs::symlink(Path::new("/proc").join(file), proc.join(file)).unwrap();
        }
        let open = ProcRoot::open(&proc).unwrap();
        let root = CgroupRoot::open(root).unwrap();
        let selection = Selection {
            everything: true,
            root: true,
            pods: true,
            containers: true,
            vms_only: false,
        };
        let sources = Sources {
            proc: open,
            root,
            selection: Some(selection),
            groups: Vec::new(),
            cpu_source: CpuSource::Psi,
            cgroup_handles: handles,
            task_handles: 0,
        };
        let clock = tick::SteppedClock::default();
        Self { collector: Collector::new(sources, clock.clock()), clock, proc, samples: 0 }
    }

    /// A scrape of a node with changing memory and I/O pressure, without which the cgroups' files of
    /// them are not opened.
    fn sample(&mut self) -> ScrapeSample {
        self.clock.step(STEP);
        self.samples += 1;
        for resource in ["memory", "io"] {
            let total = self.samples;
            let row = |what| format!("{what} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            let file = self.proc.join("pressure").join(resource);
            std::fs::write(file, row("some") + &row("full")).unwrap();
        }
        self.collector.scrape(Detail::Exported, None)
    }
}

fn kept_pressure_files() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let files = descriptors.filter_map(|descriptor| descriptor.ok()?.path().read_link().ok());
    files.filter(|file| file.to_string_lossy().ends_with(".pressure")).count()
}

/// Compiles one of the C programs beside this file.
fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/{name}.c"));
    let mut cc = Command::new("cc");
    let compiled = cc.args(["-O2", "-o"]).arg(&program).arg(source).args(flags).status();
    assert!(compiled.expect("this benchmark needs cc").success());
    program
}

/// The running C program, which does one sweep per line of input.
struct ReadLoop {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ReadLoop {
    fn start(program: &Path, mode: &str, directories: &[PathBuf]) -> Self {
        let mut command = Command::new(program);
        command.arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut orders = child.stdin.take().unwrap();
        for directory in directories {
            writeln!(orders, "{}", directory.display()).unwrap();
        }
        writeln!(orders).unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, orders, answers }
    }

    /// CPU time of one sweep.
    fn sweep(&mut self) -> Duration {
        writeln!(self.orders).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        Duration::from_nanos(answer.trim().parse().expect("the C loop's nanoseconds"))
    }
}

impl Drop for ReadLoop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
