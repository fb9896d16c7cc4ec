//! Creates metrics, and registers them where they are exported.

use prometheus::core::Collector;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, Result};

/// Features whose metrics are exported only where the feature is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// A source of pods: the API server or a file.
    Pods,
    /// `--publish=dry-run`.
    DryRun,
    /// `--publish=on`.
    Publishing,
    /// `--mark-candidate`.
    Candidate,
    /// `--auth=kubernetes`.
    TokenReviews,
    /// TLS certificates.
    Tls,
}

/// Metrics that are exported together, or not at all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    registry: &'a Registry,
    is_exported: bool,
}

impl<'a> Group<'a> {
    pub(super) fn new(registry: &'a Registry, is_exported: bool) -> Self {
        Self { registry, is_exported }
    }

    pub(super) fn add<M: Collector + Clone + 'static>(self, metric: Result<M>) -> Result<M> {
        let metric = metric?;
        if self.is_exported {
            self.registry.register(Box::new(metric.clone()))?;
        }
        Ok(metric)
    }

    pub(super) fn counter(self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(IntCounter::new(name, help))
    }

    pub(super) fn gauge(self, name: &str, help: &str) -> Result<IntGauge> {
        self.add(IntGauge::new(name, help))
    }

    /// A gauge for each value of the labels.
    pub(super) fn gauges(self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        self.add(GaugeVec::new(Opts::new(name, help), labels))
    }

    /// A counter for each value of one label. Those of `from_start` exist from the start, so that an
    /// alert on their increase detects the first count. The others exist from their first count.
    pub(super) fn counters(
        self,
        name: &str,
        help: &str,
        label: &str,
        from_start: &[&str],
    ) -> Result<IntCounterVec> {
        let counters = self.add(IntCounterVec::new(Opts::new(name, help), &[label]))?;
        for value in from_start {
            counters.with_label_values(&[value]);
        }
        Ok(counters)
    }
}

pub(super) fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
