//! The catalogue: every family that is exported under a name of cAdvisor's or node_exporter's,
//! with their HELP to the letter, and where its value comes from. Nothing else knows these names.

use std::fmt;

use crate::kernel::counters::{CpuStat, MemoryEvents};
use crate::kernel::io_stat::IoCounters;
use crate::kernel::limits::Limit;
use crate::kernel::pressure::Pressure;
use crate::sample::{CgroupSample, CgroupStats, NodeSample, Pressures};

/// A Prometheus type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only goes up, but for restarts.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Kind {
    /// The word after `# TYPE`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// Families that are switched on and off together (`--families`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum FamilyGroup {
    /// container_pressure_*
    Pressure,
    /// container_cpu_*
    Cpu,
    /// container_memory_*, container_oom_events_total
    Memory,
    /// container_fs_*
    Io,
    /// container_processes, container_threads, container_threads_max
    Processes,
    /// container_spec_*, container_start_time_seconds
    Spec,
    /// node_pressure_*
    Node,
}

impl fmt::Display for FamilyGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use clap::ValueEnum;
        match self.to_possible_value() {
            Some(value) => f.write_str(value.get_name()),
            None => Ok(()),
        }
    }
}

/// A number as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// As it stands.
    Whole(u64),
    /// Microseconds, written as seconds.
    Micros(u64),
}

/// How a family's series come about.
#[derive(Clone, Copy)]
pub enum Source {
    /// One series for the node, without labels.
    Node(fn(&NodeSample) -> Option<Number>),
    /// One series for each cgroup; `extra` is the family's own label, rendered.
    Cgroup {
        /// Such as `cpu="total",`; empty for most.
        extra: &'static str,
        /// The value.
        value: fn(&CgroupSample, &NodeSample) -> Option<Number>,
    },
    /// One series for each cgroup and device, with the label `device`.
    Device(fn(&IoCounters) -> u64),
}

/// A family.
#[derive(Clone, Copy)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its HELP.
    pub help: &'static str,
    /// Its TYPE.
    pub kind: Kind,
    /// What it is switched with.
    pub group: FamilyGroup,
    /// Its values.
    pub source: Source,
}

/// A family with a series for each cgroup.
const fn cgroup_family(
    group: FamilyGroup,
    kind: Kind,
    name: &'static str,
    help: &'static str,
    value: fn(&CgroupSample, &NodeSample) -> Option<Number>,
) -> Family {
    Family { name, help, kind, group, source: Source::Cgroup { extra: "", value } }
}

const fn counter(
    group: FamilyGroup,
    name: &'static str,
    help: &'static str,
    value: fn(&CgroupSample, &NodeSample) -> Option<Number>,
) -> Family {
    cgroup_family(group, Kind::Counter, name, help, value)
}

const fn gauge(
    group: FamilyGroup,
    name: &'static str,
    help: &'static str,
    value: fn(&CgroupSample, &NodeSample) -> Option<Number>,
) -> Family {
    cgroup_family(group, Kind::Gauge, name, help, value)
}

const fn device(name: &'static str, help: &'static str, value: fn(&IoCounters) -> u64) -> Family {
    let source = Source::Device(value);
    Family { name, help, kind: Kind::Counter, group: FamilyGroup::Io, source }
}

const fn node(
    name: &'static str,
    help: &'static str,
    value: fn(&NodeSample) -> Option<Number>,
) -> Family {
    let source = Source::Node(value);
    Family { name, help, kind: Kind::Counter, group: FamilyGroup::Node, source }
}

fn waiting(pressure: Option<Pressure>) -> Option<Number> {
    pressure?.some_us.map(Number::Micros)
}

fn stalled(pressure: Option<Pressure>) -> Option<Number> {
    pressure?.full_us.map(Number::Micros)
}

fn own(cgroup: &CgroupSample) -> &Pressures {
    &cgroup.pressure.pressures
}

fn stats(cgroup: &CgroupSample) -> Option<&CgroupStats> {
    cgroup.stats.as_deref()
}

fn cpu(cgroup: &CgroupSample) -> Option<&CpuStat> {
    stats(cgroup)?.cpu.as_ref()
}

/// As cAdvisor has it: only where a quota is set at this very level.
fn throttling(cgroup: &CgroupSample) -> Option<&CpuStat> {
    quota_us(cgroup)?;
    cpu(cgroup)
}

fn quota_us(cgroup: &CgroupSample) -> Option<u64> {
    stats(cgroup)?.cpu_max?.quota_us.at().filter(|&quota| quota > 0)
}

fn events(cgroup: &CgroupSample) -> Option<&MemoryEvents> {
    stats(cgroup)?.memory_events.as_ref()
}

fn is_root(cgroup: &CgroupSample) -> bool {
    &*cgroup.cgroup.path == "/"
}

/// The root cgroup has no `memory.current`: there it is what `memory.stat` adds up to.
fn memory_usage(cgroup: &CgroupSample) -> Option<u64> {
    let stats = stats(cgroup)?;
    let summed = || stats.memory?.anon?.checked_add(stats.memory?.file?);
    stats.memory_current.or_else(|| is_root(cgroup).then(summed)?)
}

fn swap(cgroup: &CgroupSample, node: &NodeSample) -> Option<u64> {
    let whole_node = || node.memory?.swap_total?.checked_sub(node.memory?.swap_free?);
    stats(cgroup)?.swap_current.or_else(|| is_root(cgroup).then(whole_node)?)
}

/// No limit is 0 outside, as cAdvisor has it.
fn limit_or_zero(limit: Limit) -> Number {
    Number::Whole(limit.at().unwrap_or(0))
}

fn memory_limit(cgroup: &CgroupSample, node: &NodeSample) -> Option<Number> {
    let whole_node = || node.memory?.total.map(Number::Whole);
    let own = stats(cgroup)?.memory_max.map(limit_or_zero);
    own.or_else(|| is_root(cgroup).then(whole_node)?)
}

/// `cpu.weight` as the cgroup v1 shares that it was made from: 2 to 262144 from 1 to 10000.
fn shares(weight: u64) -> Option<u64> {
    weight.checked_sub(1)?.checked_mul(262_142).map(|scaled| 2 + scaled / 9_999)
}

/// Not before the node booted, down to the minute: a cgroup that is older has a wrong clock.
fn start_time(cgroup: &CgroupSample, node: &NodeSample) -> Option<Number> {
    let boot_minute = node.cpu_times.map_or(0, |times| times.boot_time_s / 60 * 60);
    cgroup.cgroup.made_at_s.map(|made_at| Number::Whole(made_at.max(boot_minute)))
}

/// All families, in the order in which they are written.
pub static FAMILIES: &[Family] = {
    use FamilyGroup::{Cpu, Memory, Pressure, Processes, Spec};
    use Number::{Micros, Whole};
    &[
        counter(
            Pressure,
            "container_pressure_cpu_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to CPU congestion.",
            |cgroup, _| stalled(own(cgroup).cpu),
        ),
        counter(
            Pressure,
            "container_pressure_cpu_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to CPU congestion.",
            |cgroup, _| waiting(own(cgroup).cpu),
        ),
        counter(
            Pressure,
            "container_pressure_memory_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to memory congestion.",
            |cgroup, _| stalled(own(cgroup).memory),
        ),
        counter(
            Pressure,
            "container_pressure_memory_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to memory congestion.",
            |cgroup, _| waiting(own(cgroup).memory),
        ),
        counter(
            Pressure,
            "container_pressure_io_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to IO congestion.",
            |cgroup, _| stalled(own(cgroup).io),
        ),
        counter(
            Pressure,
            "container_pressure_io_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to IO congestion.",
            |cgroup, _| waiting(own(cgroup).io),
        ),
        Family {
            name: "container_cpu_usage_seconds_total",
            help: "Cumulative cpu time consumed in seconds.",
            kind: Kind::Counter,
            group: Cpu,
            source: Source::Cgroup {
                extra: "cpu=\"total\",",
                value: |cgroup, _| cpu(cgroup)?.usage_us.map(Micros),
            },
        },
        counter(
            Cpu,
            "container_cpu_user_seconds_total",
            "Cumulative user cpu time consumed in seconds.",
            |cgroup, _| cpu(cgroup)?.user_us.map(Micros),
        ),
        counter(
            Cpu,
            "container_cpu_system_seconds_total",
            "Cumulative system cpu time consumed in seconds.",
            |cgroup, _| cpu(cgroup)?.system_us.map(Micros),
        ),
        counter(
            Cpu,
            "container_cpu_cfs_periods_total",
            "Number of elapsed enforcement period intervals.",
            |cgroup, _| throttling(cgroup)?.nr_periods.map(Whole),
        ),
        counter(
            Cpu,
            "container_cpu_cfs_throttled_periods_total",
            "Number of throttled period intervals.",
            |cgroup, _| throttling(cgroup)?.nr_throttled.map(Whole),
        ),
        counter(
            Cpu,
            "container_cpu_cfs_throttled_seconds_total",
            "Total time duration the container has been throttled.",
            |cgroup, _| throttling(cgroup)?.throttled_us.map(Micros),
        ),
        gauge(
            Memory,
            "container_memory_usage_bytes",
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
            |cgroup, _| memory_usage(cgroup).map(Whole),
        ),
        gauge(
            Memory,
            "container_memory_working_set_bytes",
            "Current working set in bytes.",
            |cgroup, _| {
                let inactive_file = stats(cgroup)?.memory?.inactive_file?;
                Some(Whole(memory_usage(cgroup)?.saturating_sub(inactive_file)))
            },
        ),
        gauge(Memory, "container_memory_rss", "Size of RSS in bytes.", |cgroup, _| {
            stats(cgroup)?.memory?.anon.map(Whole)
        }),
        gauge(
            Memory,
            "container_memory_cache",
            "Number of bytes of page cache memory.",
            |cgroup, _| stats(cgroup)?.memory?.file.map(Whole),
        ),
        gauge(Memory, "container_memory_swap", "Container swap usage in bytes.", |cgroup, node| {
            swap(cgroup, node).map(Whole)
        }),
        gauge(
            Memory,
            "container_memory_max_usage_bytes",
            "Maximum memory usage recorded in bytes",
            |cgroup, _| stats(cgroup)?.memory_peak.map(Whole),
        ),
        counter(
            Memory,
            "container_memory_events_high_total",
            "Cumulative count of memory.high throttle events for the container",
            |cgroup, _| events(cgroup)?.high.map(Whole),
        ),
        counter(
            Memory,
            "container_memory_events_max_total",
            "Cumulative count of memory.max limit hit events for the container",
            |cgroup, _| events(cgroup)?.max.map(Whole),
        ),
        counter(
            Memory,
            "container_oom_events_total",
            "Count of out of memory events observed for the container",
            |cgroup, _| events(cgroup)?.oom_kill.map(Whole),
        ),
        device("container_fs_reads_bytes_total", "Cumulative count of bytes read", |io| {
            io.read_bytes
        }),
        device("container_fs_reads_total", "Cumulative count of reads completed", |io| io.reads),
        device("container_fs_writes_bytes_total", "Cumulative count of bytes written", |io| {
            io.written_bytes
        }),
        device("container_fs_writes_total", "Cumulative count of writes completed", |io| io.writes),
        gauge(
            Processes,
            "container_processes",
            "Number of processes running inside the container.",
            |cgroup, _| stats(cgroup)?.processes.map(Whole),
        ),
        gauge(
            Processes,
            "container_threads",
            "Number of threads running inside the container",
            |cgroup, _| stats(cgroup)?.pids_current.map(Whole),
        ),
        gauge(
            Processes,
            "container_threads_max",
            "Maximum number of threads allowed inside the container, infinity if value is zero",
            |cgroup, _| stats(cgroup)?.pids_max.map(limit_or_zero),
        ),
        gauge(Spec, "container_spec_cpu_period", "CPU period of the container.", |cgroup, _| {
            Some(Whole(stats(cgroup)?.cpu_max?.period_us))
        }),
        gauge(Spec, "container_spec_cpu_quota", "CPU quota of the container.", |cgroup, _| {
            quota_us(cgroup).map(Whole)
        }),
        gauge(Spec, "container_spec_cpu_shares", "CPU share of the container.", |cgroup, _| {
            shares(stats(cgroup)?.cpu_weight?).map(Whole)
        }),
        gauge(
            Spec,
            "container_spec_memory_limit_bytes",
            "Memory limit for the container.",
            memory_limit,
        ),
        gauge(
            Spec,
            "container_start_time_seconds",
            "Start time of the container since unix epoch in seconds.",
            start_time,
        ),
        node(
            "node_pressure_cpu_waiting_seconds_total",
            "Total time in seconds that processes have waited for CPU time",
            |node| waiting(node.pressure.pressures.cpu),
        ),
        node(
            "node_pressure_io_stalled_seconds_total",
            "Total time in seconds no process could make progress due to IO congestion",
            |node| stalled(node.pressure.pressures.io),
        ),
        node(
            "node_pressure_io_waiting_seconds_total",
            "Total time in seconds that processes have waited due to IO congestion",
            |node| waiting(node.pressure.pressures.io),
        ),
        node(
            "node_pressure_irq_stalled_seconds_total",
            "Total time in seconds no process could make progress due to IRQ congestion",
            |node| stalled(node.irq),
        ),
        node(
            "node_pressure_memory_stalled_seconds_total",
            "Total time in seconds no process could make progress due to memory congestion",
            |node| stalled(node.pressure.pressures.memory),
        ),
        node(
            "node_pressure_memory_waiting_seconds_total",
            "Total time in seconds that processes have waited for memory",
            |node| waiting(node.pressure.pressures.memory),
        ),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn weights_become_the_shares_that_they_were_made_from() {
        assert_eq!((shares(1), shares(100), shares(10_000)), (Some(2), Some(2597), Some(262_144)));
        assert_eq!(shares(0), None);
    }

    #[test]
    fn every_name_stands_once() {
        let names: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
    }
}
