//! Readings of a container over five seconds, for tests of the meters.

use std::time::Duration;

use super::node::NodeReadings;
use super::readings::{CpuCounters, CpuLimits, MemoryReadings, Readings, ThreadReading, Threads};
use super::series::{Reading, Window};
use crate::kernel::counters::CpuStat;
use crate::kernel::node_text::{CpuTimes, Ticks};
use crate::kernel::pressure::Pressure;
use crate::kernel::resource::PerResource;
use crate::kernel::task_text::TaskTimes;

/// Seconds between the two readings.
pub(super) const SECONDS: f64 = 5.0;

/// A window in which a value changed.
pub(super) fn window<T>(before: T, last: T) -> Window<T> {
    let start = crate::clock::now().at;
    let last = Reading { at: start + Duration::from_secs_f64(SECONDS), value: last };
    Window { before: Some(Reading { at: start, value: before }), last: Some(last) }
}

#[allow(clippy::cast_possible_truncation, reason = "small and positive")]
pub(super) fn micros(shares: f64) -> u64 {
    (shares * SECONDS * 1e6).round() as u64
}

/// Pressure of this share of time, `some` and `full`.
pub(super) fn pressure(share: f64) -> Window<Pressure> {
    let total = |us| Pressure { some_us: Some(us), full_us: Some(us) };
    window(total(7), total(7 + micros(share)))
}

/// A node whose CPUs were busy for these shares of the time.
pub(super) fn node_with_cpus(busy: &[f64]) -> NodeReadings {
    let ticks = |cpu: u32, busy: f64, total: f64| {
        (cpu, Ticks { busy: micros(busy), steal: 0, total: micros(total) })
    };
    let times = |share: f64| {
        let each = (0..).zip(busy).map(|(cpu, busy)| ticks(cpu, busy * share, share));
        CpuTimes { each: each.collect(), ..CpuTimes::default() }
    };
    NodeReadings { cpu_times: window(times(0.0), times(1.0)), ..NodeReadings::default() }
}

/// A container with this CPU pressure, and these numbers of CPUs used and throttled. It waits neither
/// for memory nor for I/O.
pub(super) fn container(some: f64, used: f64, throttled: f64, quota: Option<f64>) -> Readings {
    container_with_tasks(some, used, throttled, quota, None)
}

pub(super) fn container_with_tasks(
    some: f64,
    used: f64,
    throttled: f64,
    quota: Option<f64>,
    tasks: Option<u64>,
) -> Readings {
    let at = crate::clock::now().at;
    let quota = if throttled > 0.0 { quota.or(Some(1e3)) } else { quota };
    let counters = |used, throttled| CpuCounters {
        container: CpuStat {
            usage_us: Some(micros(used)),
            throttled_us: Some(micros(throttled)),
            ..CpuStat::default()
        },
        tasks,
        ..CpuCounters::default()
    };
    Readings {
        pressure: PerResource { cpu: pressure(some), memory: pressure(0.0), io: pressure(0.0) },
        cpu_limits: Some(Reading { at, value: CpuLimits { quota, ..CpuLimits::default() } }),
        cpu: window(counters(0.0, 0.0), counters(used, throttled)),
        memory: MemoryReadings { in_use: Some(None), ..MemoryReadings::default() },
        ..Readings::default()
    }
}

/// Threads that ran on and waited for these numbers of CPUs together. No thread does more than one
/// CPU's worth of both.
pub(super) fn ran_and_delayed(ran: f64, delayed: f64) -> Threads {
    let count = (ran + delayed).ceil().max(1.0);
    let nanos = |cpus: f64| micros(cpus / count) * 1000;
    let thread = ThreadReading {
        times: window(
            TaskTimes { run_ns: 7, delay_ns: 7 },
            TaskTimes { run_ns: 7 + nanos(ran), delay_ns: 7 + nanos(delayed) },
        ),
        starved: false,
    };
    #[allow(clippy::cast_possible_truncation, reason = "a few threads")]
    Threads::Read { threads: vec![thread; count as usize], are_vcpus: true, iothreads: Vec::new() }
}

#[test]
fn a_vm_uses_what_all_its_threads_use_and_waits_for_what_its_vcpus_wait_for() {
    use super::Measurement;
    use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
    let of = |container_used, vcpus_ran: Option<f64>| {
        let mut readings = Readings {
            threads: ran_and_delayed(0.6, 0.2),
            ..container(0.2, container_used, 0.0, None)
        };
        if let (Some(ran), Some((before, last))) = (vcpus_ran, readings.cpu.both()) {
            let with = |counters: &CpuCounters, vcpus_ran_ns| CpuCounters {
                vcpus_ran_ns,
                ..counters.clone()
            };
            let ran = Some(micros(ran) * 1000);
            readings.cpu = window(with(before, Some(0)), with(last, ran));
        }
        let cgroup = Cgroup::new(CgroupId(1), "/vm".to_owned(), None);
        let node = NodeReadings::default();
        let measured = Measurement::of(&cgroup.into(), None, &readings, &node, 1.0);
        let round = |value: f64| (value * 1e6).round() / 1e6;
        (measured.used.map(round), round(measured.waits.cpu.unwrap().contention.get()))
    };
    assert_eq!(of(1.1, Some(0.6)), (Some(1.1), 0.25));
    // The counters are those of some time ago, in which the vCPUs ran less or more than now.
    assert_eq!(of(0.3, Some(0.1)), (Some(0.8), 0.25));
    assert_eq!(of(1.1, Some(1.0)), (Some(0.7), 0.25));
    assert_eq!([of(1.1, None), of(0.1, None)].map(|(used, _)| used), [Some(1.1), Some(0.6)]);
}
