//! The columns of the tables, each with the key that sorts by it. Pure.

use super::text::{cpus, percent};
use crate::snapshot::{Cgroup, Pressure, Waiting};

/// A column of numbers.
pub(super) struct Column {
    pub(super) header: &'static str,
    /// The key that sorts by it.
    pub(super) key: char,
    pub(super) value: fn(&Cgroup) -> Option<f64>,
    pub(super) show: fn(f64) -> String,
}

const fn column(
    header: &'static str,
    key: char,
    value: fn(&Cgroup) -> Option<f64>,
    show: fn(f64) -> String,
) -> Column {
    Column { header, key, value, show }
}

/// The columns after the name. A narrow terminal shows only the first ones.
pub(super) const COLUMNS: [Column; 8] = [
    column(CONTENTION, 'c', Cgroup::contention, percent),
    column("CPUS", 'u', Cgroup::usage, cpus),
    column("CPU-WAIT", 'w', |cgroup| raw(cgroup.waiting().cpu, cgroup.pressure.cpu), percent),
    column("NODE", 'n', |cgroup| cgroup.waiting().cpu?.node, percent),
    column("LIMIT", 'l', |cgroup| Some(cgroup.waiting().cpu?.own_limit), percent),
    column("RELIEF", 'e', |cgroup| Some(cgroup.scored?.relief?.cpus), cpus),
    column("MEM-WAIT", 'm', |cgroup| raw(cgroup.waiting().memory, cgroup.pressure.memory), percent),
    column("IO-WAIT", 'i', |cgroup| raw(cgroup.waiting().io, cgroup.pressure.io), percent),
];

/// The column whose cells have the colours of levels.
pub(super) const CONTENTION: &str = "CONTENTION";

/// The columns of the table of CPU users.
pub(super) const USER_COLUMNS: [Column; 3] = [
    column("EXCESS", ' ', Cgroup::excess, cpus),
    column("CPUS", ' ', Cgroup::usage, cpus),
    column("REQUEST", ' ', |user| user.cpu_request, cpus),
];

/// All waiting; without a score, the pressure.
fn raw(waiting: Option<Waiting>, pressure: Pressure) -> Option<f64> {
    waiting.map(|waiting| waiting.raw).or(pressure.some)
}
