//! The own metrics of agent, bridge and planner, with the log messages about what they count.

use std::fmt::Display;
use std::iter::once;
use std::time::Duration;

use parking_lot::Mutex;
use strum::VariantNames;

use crate::client::cluster::Decision;
use crate::client::cluster::call::CallError;
use crate::client::snapshot::{Agent, CandidateName, DatedError, PublishedValue};
use crate::clock::Moment;
use crate::contract::{NodePressure, Thresholds};
use crate::kernel::ReadErrorKind;
use crate::sample::{PassReport, ScrapeSample, Tick};
use crate::serve::authentication::Outcome;
use crate::text_format::write_families;
use process::write_process;
use results::{CERTIFICATES, Results, certificate_read};
use state::{AGENT, State};

pub mod bridge;
pub mod planner;
pub(crate) mod process;
mod results;
mod state;

/// Ticks in ten minutes.
const HISTORY: usize = 120;

const WRITTEN: &str = "written";
const DRY_RUN: &str = "dry_run";

#[derive(Debug)]
pub struct OwnMetrics(Mutex<State>);

impl Default for OwnMetrics {
    /// The metrics of an agent that has just started: each kind of read error counts from 0.
    fn default() -> Self {
        let read_errors = ReadErrorKind::VARIANTS.iter().map(|kind| ((*kind).into(), 0)).collect();
        let agent = Agent { read_errors, ..Agent::default() };
        Self(Mutex::new(State { agent, ..State::default() }))
    }
}

impl OwnMetrics {
    pub fn set_node(&self, has_cgroup2: bool, levels: Thresholds) {
        let mut state = self.0.lock();
        (state.has_cgroup2, state.levels) = (has_cgroup2, Some(levels));
    }

    /// Adds the metrics of publishing with this `--publish`, and of labels of the VM to move first.
    pub fn set_publishing(&self, mode: &'static str, heartbeat: Duration, marks: bool) {
        let mut state = self.0.lock();
        state.agent.publish.mode = Some(mode.into());
        state.heartbeat = (mode == "on").then_some(heartbeat);
        // The alert on failures compares them with the successes.
        state.publishes = Results::from_start(match mode {
            "on" => &[WRITTEN],
            "dry-run" => &[DRY_RUN],
            _ => return,
        });
        state.candidate_reason = Some("no_score");
        if mode == "on" && marks {
            state.candidate_writes = Results::from_start(&[WRITTEN]);
        }
    }

    pub fn set_level(&self, level: &'static str) {
        self.0.lock().agent.publish.level = Some(level.into());
    }

    pub fn observe_tick(&self, tick: &Tick) {
        let mut state = self.0.lock();
        state.reports = Some(tick.node.reports);
        observe(&mut state, "tick", &tick.report, tick.moment);
    }

    /// Keeps the score of a tick, 0 to 1, for ten minutes.
    pub fn observe_score(&self, score: Option<f64>) {
        let history = &mut self.0.lock().agent.history;
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(score.map(|score| (score * 1000.0).round() / 1000.0));
    }

    /// Counts a sample once, even if several requests share it.
    pub fn observe_scrape(&self, sample: &ScrapeSample) {
        let mut state = self.0.lock();
        if state.scraped.replace(sample.moment) != Some(sample.moment) {
            observe(&mut state, "scrape", &sample.report, sample.moment);
        }
    }

    /// Records a pod that could not be decoded, and is skipped.
    pub fn pod_skipped(&self, error: &dyn Display) {
        let message = "Cannot decode a pod, which is skipped; others are only counted";
        self.0.lock().undecodable_pods.failed("undecodable", error, message);
    }

    /// Records that the pods were listed or changed, which ends an earlier error.
    pub fn pods_received(&self) {
        let mut state = self.0.lock();
        state.agent.pods_error = None;
        state.pod_watch.succeeded("Receiving pods again");
    }

    /// Records that the pods could not be listed or watched at `at_ms`, milliseconds since the
    /// epoch. Logs the error once until [`OwnMetrics::pods_received`].
    pub fn pods_failed(&self, error: &dyn Display, at_ms: u64) {
        let mut state = self.0.lock();
        state.agent.pods_error = Some(DatedError::new(error, at_ms));
        let message = "Cannot follow the pods; the latest list stays in use";
        state.pod_watch.failed("failed", error, message);
    }

    /// A value was published or, with `dry-run`, would have been.
    pub fn published(&self, value: &NodePressure) {
        let observed_at_ms = u64::try_from(value.observed_at.as_millisecond()).unwrap_or_default();
        let value = PublishedValue { score: value.score, observed_at_ms };
        let mut state = self.0.lock();
        let is_written = state.agent.publish.mode.as_deref() == Some("on");
        state.publishes.count(if is_written { WRITTEN } else { DRY_RUN });
        (state.agent.publish.last, state.agent.publish.error) = (Some(value), None);
        state.publishes.succeeded("The score is published again");
    }

    /// The agent continues from this value of an earlier agent. Reading it ends an earlier error.
    pub fn adopted(&self, found: &NodePressure) {
        self.0.lock().agent.publish.error = None;
        let score = found.score;
        tracing::info!(score, "Continuing from the value that an earlier agent published");
    }

    /// Publishing failed at this time, milliseconds since the epoch. Each kind of error is logged once
    /// until a value is published.
    pub fn publish_failed(&self, error: &CallError, at_ms: u64) {
        let mut state = self.0.lock();
        // Other components write the Node too, so a conflict is usual; the next attempt follows at once.
        if *error == CallError::Conflict {
            state.publishes.count(error.into_str());
            return tracing::debug!(%error, "Writing the score again");
        }
        state.agent.publish.error = Some(DatedError::new(error, at_ms));
        let message = "Cannot publish the score; trying again, later each time";
        state.publishes.failed(error.into_str(), error, message);
    }

    /// A dry run showed that no admission policy denies this write.
    pub fn unrestricted(&self, allowed: &impl Display) {
        self.0.lock().is_unrestricted = true;
        tracing::warn!(
            "No admission policy restricts this agent: {allowed}; apply \
             daemonset/base/admission.yaml, with the name of this agent's account"
        );
    }

    /// Dry runs showed that admission policies deny writes that are not the agent's.
    pub fn restricted(&self) {
        if std::mem::take(&mut self.0.lock().is_unrestricted) {
            tracing::info!("Admission policies restrict this agent again");
        }
    }

    /// Sets the VM to move first and the reason for it, or `None` and the reason why there is none.
    pub fn set_candidate(&self, vm: Option<CandidateName>, reason: &'static str) {
        let mut state = self.0.lock();
        (state.agent.publish.candidate, state.candidate_reason) = (vm, Some(reason));
    }

    /// Records that the label of the VM to move first was set or removed.
    pub fn candidate_written(&self) {
        let mut state = self.0.lock();
        state.candidate_writes.count(WRITTEN);
        state.candidate_writes.succeeded("The pod of the VM to move first can be labelled again");
    }

    pub fn candidate_failed(&self, error: &CallError) {
        let message = "Cannot label the pod of the VM to move first; trying again every minute: \
                       see daemonset/components/candidate for the rights";
        self.0.lock().candidate_writes.failed(error.into_str(), error, message);
    }

    /// Records that a token was reviewed, or that the limit of reviews was reached.
    pub fn token_reviewed(&self, outcome: Outcome<'_>) {
        let mut state = self.0.lock();
        match outcome {
            Ok(decision) => {
                state.reviews.count(decision.into_str());
                // A token that was not reviewed does not show whether reviews work again.
                if decision != Decision::NotAsked {
                    state.reviews.succeeded("The API server reviews tokens again");
                }
            }
            Err(error) => {
                let message = "Cannot review tokens, so no client gets access; the agent's account \
                               needs the ClusterRole system:auth-delegator";
                state.reviews.failed(Decision::Unanswered.into_str(), error, message);
            }
        }
    }

    /// Records that the certificate was read. `Ok(true)` means that it is new.
    pub fn certificate_read(&self, outcome: Result<bool, impl Display>) {
        certificate_read(&mut self.0.lock().certificates, outcome);
    }

    /// What the snapshot shows of it, except for its ticks and whether pods are listed.
    pub fn status(&self) -> Agent {
        self.0.lock().agent.clone()
    }

    /// Appends the metrics in the text format.
    pub fn write(&self, chunks: &mut Vec<Vec<u8>>) {
        write_process(chunks);
        let state = self.0.lock();
        write_families(chunks, AGENT, once(&*state));
        write_families(chunks, CERTIFICATES, state.certificates.iter());
    }
}

fn observe(state: &mut State, reason: &'static str, report: &PassReport, moment: Moment) {
    let passes = state.passes.entry(reason).or_default();
    *passes = (passes.0 + 1, passes.1 + report.took);
    state.in_scope = report.in_scope;
    state.matching = report.matching.or(state.matching);
    if let Some(error) = report.errors.last() {
        state.agent.last_read_error = Some(DatedError::new(error, moment.unix_ms));
    }
    for error in &report.errors {
        let count = state.agent.read_errors.entry(error.kind.into_str().into()).or_default();
        *count += 1;
        if *count == 1 {
            tracing::warn!(%error, "Cannot read; further errors of this kind are only counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::snapshot::PublishStatus;
    use crate::contract::Basis;

    #[test]
    fn the_history_is_that_of_the_last_ten_minutes() {
        let metrics = OwnMetrics::default();
        metrics.observe_score(None);
        (0..119).for_each(|tick| metrics.observe_score(Some(f64::from(tick) / 1000.0 + 0.0001)));
        let history = || metrics.status().history;
        assert_eq!((history().len(), history()[0], history()[119]), (120, None, Some(0.118)));
        metrics.observe_score(Some(1.0));
        assert_eq!((history().len(), history()[0], history()[119]), (120, Some(0.0), Some(1.0)));
    }

    #[test]
    fn an_error_is_shown_until_a_value_is_published() {
        let metrics = OwnMetrics::default();
        let publish = || metrics.status().publish;
        assert_eq!(publish(), PublishStatus::default());
        metrics.set_publishing("on", Duration::ZERO, false);
        metrics.publish_failed(&CallError::Conflict, 1);
        assert_eq!(publish().error, None, "a conflict is not an error");
        metrics.publish_failed(&CallError::NotFound, 2);
        metrics.publish_failed(&CallError::NotFound, 3);
        let error = DatedError { message: CallError::NotFound.to_string(), at_ms: 3 };
        let failing = PublishStatus {
            mode: Some("on".into()),
            error: Some(error),
            ..PublishStatus::default()
        };
        assert_eq!(publish(), failing);
        metrics.published(&NodePressure {
            score: 35,
            cpu: Some(35),
            memory: None,
            io: None,
            observed_at: jiff::Timestamp::from_millisecond(4).unwrap(),
            basis: Basis::Psi(1),
        });
        let value = PublishedValue { score: 35, observed_at_ms: 4 };
        let working = PublishStatus {
            mode: Some("on".into()),
            last: Some(value),
            ..PublishStatus::default()
        };
        assert_eq!(publish(), working);
    }
}
