//! The families that are exported under cAdvisor's and node_exporter's names, with the same HELP,
//! and how each value is computed.

use crate::kernel::counters::CpuStat;
use crate::kernel::io_stat::IoCounters;
use crate::kernel::pressure::Pressure;
pub use crate::sample::FamilyGroup;
use crate::sample::{CgroupSample, CgroupStats};
use crate::text_format::Number::{Micros, Whole};
use crate::text_format::{Family, Number, families};
use crate::waiting::node::NodeReadings;
use crate::waiting::series::Reading;

/// The series of a family.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// One series for the node, without labels.
    Node(fn(&NodeReadings) -> Option<Number>),
    /// One series for each cgroup.
    Cgroup {
        /// The family's own label, such as `cpu="total",`; empty for most families.
        extra: &'static str,
        /// The value; `None` for no series.
        value: fn(&CgroupSample, &NodeReadings) -> Option<Number>,
    },
    /// One series for each cgroup and device, with the label `device`.
    Device(fn(&IoCounters) -> u64),
}

const fn cgroup(value: fn(&CgroupSample, &NodeReadings) -> Option<Number>) -> Source {
    Source::Cgroup { extra: "", value }
}

fn waiting(pressure: Option<Reading<Pressure>>) -> Option<Number> {
    pressure?.value.some_us.map(Micros)
}

fn stalled(pressure: Option<Reading<Pressure>>) -> Option<Number> {
    pressure?.value.full_us.map(Micros)
}

fn stats(cgroup: &CgroupSample) -> Option<&CgroupStats> {
    cgroup.stats.as_deref()
}

fn cpu(cgroup: &CgroupSample) -> Option<&CpuStat> {
    stats(cgroup)?.cpu_stat.as_ref()
}

/// Only for cgroups with a quota of their own, as in cAdvisor.
fn throttling(cgroup: &CgroupSample) -> Option<&CpuStat> {
    quota_us(cgroup)?;
    cpu(cgroup)
}

fn quota_us(cgroup: &CgroupSample) -> Option<u64> {
    stats(cgroup)?.cpu_max?.quota_us.filter(|&quota| quota > 0)
}

fn is_root(cgroup: &CgroupSample) -> bool {
    &*cgroup.cgroup.path == "/"
}

/// The root cgroup has no `memory.current`; its usage is the sum of `anon` and `file`.
fn memory_usage(cgroup: &CgroupSample) -> Option<u64> {
    let stats = stats(cgroup)?;
    let summed = || stats.memory_stat?.anon?.checked_add(stats.memory_stat?.file?);
    stats.memory_current.or_else(|| is_root(cgroup).then(summed)?)
}

fn working_set(cgroup: &CgroupSample) -> Option<u64> {
    Some(memory_usage(cgroup)?.saturating_sub(stats(cgroup)?.memory_stat?.inactive_file?))
}

fn swap(cgroup: &CgroupSample, node: &NodeReadings) -> Option<u64> {
    let whole_node = || node.memory?.swap_total?.checked_sub(node.memory?.swap_free?);
    stats(cgroup)?.memory_swap_current.or_else(|| is_root(cgroup).then(whole_node)?)
}

fn memory_limit(cgroup: &CgroupSample, node: &NodeReadings) -> Option<Number> {
    let whole_node = || node.memory?.total.map(Whole);
    // The absence of a limit is exported as 0, as in cAdvisor.
    let own = stats(cgroup)?.memory_max.map(|limit| Whole(limit.unwrap_or(0)));
    own.or_else(|| is_root(cgroup).then(whole_node)?)
}

/// The creation time of the cgroup, not before the minute in which the node booted: an earlier time
/// is from a clock that was not yet set.
fn start_time(cgroup: &CgroupSample, node: &NodeReadings) -> Option<Number> {
    let boot_minute = node.cpu_times.value().map_or(0, |times| times.boot_time_s / 60 * 60);
    cgroup.cgroup.made_at_s.map(|made_at| Whole(made_at.max(boot_minute)))
}

/// All families by their group, in the order of the exposition.
pub static FAMILIES: &[Family<(FamilyGroup, Source)>] = {
    use FamilyGroup::{Cpu, Io, Irq, Memory, Node, Pressure, Spec};
    families! {
        "container_pressure_cpu_stalled_seconds_total" =
            (Pressure, cgroup(|it, _| stalled(it.pressure.cpu))),
            "Total time duration no tasks in the container could make progress due to CPU congestion.";
        "container_pressure_cpu_waiting_seconds_total" =
            (Pressure, cgroup(|it, _| waiting(it.pressure.cpu))),
            "Total time duration tasks in the container have waited due to CPU congestion.";
        "container_pressure_memory_stalled_seconds_total" =
            (Pressure, cgroup(|it, _| stalled(it.pressure.memory))),
            "Total time duration no tasks in the container could make progress due to memory congestion.";
        "container_pressure_memory_waiting_seconds_total" =
            (Pressure, cgroup(|it, _| waiting(it.pressure.memory))),
            "Total time duration tasks in the container have waited due to memory congestion.";
        "container_pressure_io_stalled_seconds_total" =
            (Pressure, cgroup(|it, _| stalled(it.pressure.io))),
            "Total time duration no tasks in the container could make progress due to IO congestion.";
        "container_pressure_io_waiting_seconds_total" =
            (Pressure, cgroup(|it, _| waiting(it.pressure.io))),
            "Total time duration tasks in the container have waited due to IO congestion.";
        "container_pressure_irq_stalled_seconds_total" =
            (Irq, cgroup(|it, _| stats(it)?.irq_pressure?.full_us.map(Micros))),
            "Total time duration no tasks in the container could make progress due to IRQ congestion.";
        "container_cpu_usage_seconds_total" =
            (Cpu, Source::Cgroup {
                extra: "cpu=\"total\",",
                value: |it, _| cpu(it)?.usage_us.map(Micros),
            }),
            "Cumulative cpu time consumed in seconds.";
        "container_cpu_user_seconds_total" = (Cpu, cgroup(|it, _| cpu(it)?.user_us.map(Micros))),
            "Cumulative user cpu time consumed in seconds.";
        "container_cpu_system_seconds_total" =
            (Cpu, cgroup(|it, _| cpu(it)?.system_us.map(Micros))),
            "Cumulative system cpu time consumed in seconds.";
        "container_cpu_cfs_periods_total" =
            (Cpu, cgroup(|it, _| throttling(it)?.nr_periods.map(Whole))),
            "Number of elapsed enforcement period intervals.";
        "container_cpu_cfs_throttled_periods_total" =
            (Cpu, cgroup(|it, _| throttling(it)?.nr_throttled.map(Whole))),
            "Number of throttled period intervals.";
        "container_cpu_cfs_throttled_seconds_total" =
            (Cpu, cgroup(|it, _| throttling(it)?.throttled_us.map(Micros))),
            "Total time duration the container has been throttled.";
        "container_memory_usage_bytes" = (Memory, cgroup(|it, _| memory_usage(it).map(Whole))),
            "Current memory usage in bytes, including all memory regardless of when it was accessed";
        "container_memory_working_set_bytes" = (Memory, cgroup(|it, _| working_set(it).map(Whole))),
            "Current working set in bytes.";
        "container_memory_rss" = (Memory, cgroup(|it, _| stats(it)?.memory_stat?.anon.map(Whole))),
            "Size of RSS in bytes.";
        "container_memory_cache" =
            (Memory, cgroup(|it, _| stats(it)?.memory_stat?.file.map(Whole))),
            "Number of bytes of page cache memory.";
        "container_memory_swap" = (Memory, cgroup(|it, node| swap(it, node).map(Whole))),
            "Container swap usage in bytes.";
        "container_oom_events_total" =
            (Memory, cgroup(|it, _| stats(it)?.memory_events.as_ref()?.oom_kill.map(Whole))),
            "Count of out of memory events observed for the container";
        "container_fs_reads_bytes_total" = (Io, Source::Device(|io| io.read_bytes)),
            "Cumulative count of bytes read";
        "container_fs_reads_total" = (Io, Source::Device(|io| io.reads)),
            "Cumulative count of reads completed";
        "container_fs_writes_bytes_total" = (Io, Source::Device(|io| io.written_bytes)),
            "Cumulative count of bytes written";
        "container_fs_writes_total" = (Io, Source::Device(|io| io.writes)),
            "Cumulative count of writes completed";
        "container_spec_cpu_period" =
            (Spec, cgroup(|it, _| Some(Whole(stats(it)?.cpu_max?.period_us)))),
            "CPU period of the container.";
        "container_spec_cpu_quota" = (Spec, cgroup(|it, _| quota_us(it).map(Whole))),
            "CPU quota of the container.";
        "container_spec_memory_limit_bytes" = (Spec, cgroup(memory_limit)),
            "Memory limit for the container.";
        "container_start_time_seconds" = (Spec, cgroup(start_time)),
            "Start time of the container since unix epoch in seconds.";
        "node_pressure_cpu_waiting_seconds_total" =
            (Node, Source::Node(|node| waiting(node.pressure.cpu.last))),
            "Total time in seconds that processes have waited for CPU time";
        "node_pressure_io_stalled_seconds_total" =
            (Node, Source::Node(|node| stalled(node.pressure.io.last))),
            "Total time in seconds no process could make progress due to IO congestion";
        "node_pressure_io_waiting_seconds_total" =
            (Node, Source::Node(|node| waiting(node.pressure.io.last))),
            "Total time in seconds that processes have waited due to IO congestion";
        "node_pressure_irq_stalled_seconds_total" =
            (Node, Source::Node(|node| node.irq?.full_us.map(Micros))),
            "Total time in seconds no process could make progress due to IRQ congestion";
        "node_pressure_memory_stalled_seconds_total" =
            (Node, Source::Node(|node| stalled(node.pressure.memory.last))),
            "Total time in seconds no process could make progress due to memory congestion";
        "node_pressure_memory_waiting_seconds_total" =
            (Node, Source::Node(|node| waiting(node.pressure.memory.last))),
            "Total time in seconds that processes have waited for memory";
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn family_names_are_unique() {
        let names: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
    }
}
