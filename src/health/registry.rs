//! Functions that create, register and lock metrics.

use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus::core::Collector;
use prometheus::{IntCounterVec, Opts, Registry};

pub(super) fn register<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: &M,
) -> prometheus::Result<()> {
    registry.register(Box::new(metric.clone()))
}

pub(super) fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: M,
) -> prometheus::Result<M> {
    register(registry, &metric)?;
    Ok(metric)
}

/// A counter for each value of one label. Those of `from_start` exist from the start, so that an
/// alert on their increase detects the first count. The others exist from their first count.
pub(super) fn counters(
    (name, help): (&str, &str),
    label: &str,
    from_start: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
    for value in from_start {
        counters.with_label_values(&[value]);
    }
    Ok(counters)
}

/// Locks a state, which is valid even after a panic.
pub(super) fn locked<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
