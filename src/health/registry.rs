//! Helpers of all metrics here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus::Registry;
use prometheus::core::Collector;

pub(super) fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: M,
) -> prometheus::Result<M> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// Every state behind these locks is valid, also after a panic.
pub(super) fn locked<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
