//! Helpers of all metrics here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus::core::Collector;
use prometheus::{IntCounterVec, Opts, Registry};

pub(super) fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: M,
) -> prometheus::Result<M> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// A counter for each value of one label; all exist from the start.
pub(super) fn counters<'a>(
    registry: &Registry,
    (name, help): (&str, &str),
    label: &str,
    values: impl IntoIterator<Item = &'a str>,
) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
    for value in values {
        counters.with_label_values(&[value]);
    }
    registered(registry, counters)
}

/// Every state behind these locks is valid, also after a panic.
pub(super) fn locked<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
