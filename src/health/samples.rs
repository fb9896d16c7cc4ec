//! Metrics of the number of readings, and of the time that they took.

use std::time::Duration;

use prometheus::{CounterVec, IntCounterVec, Opts, Registry};

use super::registry::{counters, registered};

/// Why the node is read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reason {
    Tick,
    Scrape,
}

impl Reason {
    const ALL: [Self; 2] = [Self::Tick, Self::Scrape];

    fn word(self) -> &'static str {
        match self {
            Self::Tick => "tick",
            Self::Scrape => "scrape",
        }
    }
}

#[derive(Debug)]
pub(super) struct Samples {
    counts: IntCounterVec,
    seconds: CounterVec,
}

impl Samples {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counts =
            ("psi_agent_samples_total", "Readings of the node and its cgroups, by reason.");
        let seconds = Opts::new(
            "psi_agent_sample_seconds_total",
            "Time spent reading the node and its cgroups, by reason, in seconds.",
        );
        let seconds = CounterVec::new(seconds, &["reason"])?;
        let words = Reason::ALL.map(Reason::word);
        for word in words {
            seconds.with_label_values(&[word]);
        }
        Ok(Self {
            counts: registered(registry, counters(counts, "reason", &words)?)?,
            seconds: registered(registry, seconds)?,
        })
    }

    pub(super) fn count(&self, reason: Reason, took: Duration) {
        self.counts.with_label_values(&[reason.word()]).inc();
        self.seconds.with_label_values(&[reason.word()]).inc_by(took.as_secs_f64());
    }
}
