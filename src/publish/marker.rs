//! The label on the pod of the VM to move first.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::client::cluster::call::CallError;
use crate::client::cluster::{OwnNode, PodName};
use crate::own_metrics::OwnMetrics;

/// Maximum number of pods that are labelled in an hour.
const MOST_MARKS: usize = 10;
const HOUR: Duration = Duration::from_secs(3600);

/// Time from a failed request to the next attempt.
const RETRY: Duration = Duration::from_secs(60);

/// Time from a request to the next, by which the watch of pods has shown what it did.
const SHOWN_AFTER: Duration = Duration::from_secs(30);

/// Keeps the label on one pod at most.
#[derive(Debug)]
pub(super) struct Marker {
    label: String,
    /// The pod that it labelled last, until that label is removed. The watch no longer shows a pod that has ended.
    last: Option<PodName>,
    /// When it labelled another pod than before.
    marks: VecDeque<Instant>,
    not_before: Option<Instant>,
}

impl Marker {
    pub(super) fn new(label: String) -> Self {
        Self { label, last: None, marks: VecDeque::new(), not_before: None }
    }

    /// Makes the requests after which only the wanted one of the Node's pods has the label, within the hourly limit.
    pub(super) async fn follow(
        &mut self,
        node: &OwnNode,
        labelled: &[PodName],
        wanted: Option<&PodName>,
        now: Instant,
        metrics: &OwnMetrics,
    ) {
        if self.not_before.is_some_and(|at| now < at) {
            return;
        }
        for pod in self.next(labelled, wanted, now) {
            let is_set = wanted == Some(&pod);
            let value = is_set.then_some("true");
            self.not_before = Some(now + SHOWN_AFTER);
            let written = node.api.label_pod(&pod, &self.label, value).await;
            // A pod that no longer exists has no label.
            let is_gone = written == Err(CallError::NotFound);
            if let Err(error) = written
                && !is_gone
            {
                self.not_before = Some(now + RETRY);
                return metrics.candidate_failed(&error);
            }
            self.done(&pod, is_set, now);
            if !is_gone {
                metrics.candidate_written();
                let PodName { namespace, name } = &pod;
                let done = if is_set { "Labelled" } else { "Removed the label of" };
                tracing::info!(%namespace, pod = %name, "{done} the pod of the VM to move first");
            }
        }
    }

    /// The pods whose labels change: those of others are removed first, then that of the wanted one is set.
    fn next(
        &mut self,
        labelled: &[PodName],
        wanted: Option<&PodName>,
        now: Instant,
    ) -> Vec<PodName> {
        self.marks.retain(|at| now.saturating_duration_since(*at) < HOUR);
        let others = labelled.iter().chain(&self.last).filter(|pod| Some(*pod) != wanted);
        let others: BTreeSet<&PodName> = others.collect();
        let may_mark =
            |pod: &PodName| self.last.as_ref() == Some(pod) || self.marks.len() < MOST_MARKS;
        let wanted = wanted.filter(|pod| !labelled.contains(pod) && may_mark(pod));
        others.into_iter().chain(wanted).cloned().collect()
    }

    fn done(&mut self, pod: &PodName, is_set: bool, now: Instant) {
        let is_last = self.last.as_ref() == Some(pod);
        if is_set && !is_last {
            self.marks.push_back(now);
            self.last = Some(pod.clone());
        } else if !is_set && is_last {
            self.last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodName {
        PodName { namespace: "shop".into(), name: name.into() }
    }

    /// A pod, and whether its label is set, or else removed.
    type Mark = (PodName, bool);

    fn mark(name: &str, is_set: bool) -> Mark {
        (pod(name), is_set)
    }

    /// The requests of one round, which succeed.
    fn round(
        marker: &mut Marker,
        labelled: &[&str],
        wanted: Option<&str>,
        now: Instant,
    ) -> Vec<Mark> {
        let labelled: Vec<PodName> = labelled.iter().map(|name| pod(name)).collect();
        let wanted = wanted.map(pod);
        let all = marker.next(&labelled, wanted.as_ref(), now).into_iter();
        let all: Vec<Mark> = all.map(|pod| (pod.clone(), wanted == Some(pod))).collect();
        all.iter().for_each(|(pod, is_set)| marker.done(pod, *is_set, now));
        all
    }

    #[test]
    fn one_pod_at_most_has_the_label_and_nothing_is_written_twice() {
        let now = crate::clock::now().at;
        let mut marker = Marker::new("psi-agent.io/migrate-first".into());
        let mut round = |labelled: &[&str], wanted| round(&mut marker, labelled, wanted, now);
        let expected = [mark("left", false), mark("web", false), mark("db", true)];
        assert_eq!(round(&["left", "web"], Some("db")), expected);
        assert_eq!(round(&["db"], Some("db")), []);
        // Its VM has moved: the watch does not show the pod that has ended.
        assert_eq!(round(&[], Some("web")), [mark("db", false), mark("web", true)]);
        assert_eq!(round(&["web"], None), [mark("web", false)]);
        assert_eq!(round(&[], None), []);
    }

    #[test]
    fn labels_that_are_set_in_an_hour_are_bounded_and_tries_and_a_late_watch_do_not_count() {
        let start = crate::clock::now().at;
        let mut marker = Marker::new("psi-agent.io/migrate-first".into());
        for _ in 0..20 {
            assert_eq!(marker.next(&[], Some(&pod("db")), start), [pod("db")], "it failed");
        }
        for _ in 0..20 {
            assert_eq!(round(&mut marker, &[], Some("db"), start), [mark("db", true)]);
        }
        let set = (0..7200).map(|second| {
            let name = if second % 2 == 0 { "web" } else { "db" };
            let now = start + Duration::from_secs(second);
            let all = round(&mut marker, &[], Some(name), now);
            all.iter().filter(|(_, is_set)| *is_set).count()
        });
        assert_eq!(1 + set.sum::<usize>(), 2 * MOST_MARKS);
    }
}
