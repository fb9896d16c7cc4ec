//! The label on the pod of the VM to move first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::client::cluster::call::CallError;
use crate::client::cluster::{OwnNode, PodName};

/// Maximum number of labels that are set in an hour. Each is removed at most once.
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
    marks: VecDeque<Instant>,
    not_before: Option<Instant>,
}

/// A change of a pod's label, made by one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub pod: PodName,
    /// Whether the label is set, or else removed.
    pub is_set: bool,
}

impl Marker {
    pub(super) fn new(label: String) -> Self {
        Self { label, marks: VecDeque::new(), not_before: None }
    }

    /// Makes the requests after which only the wanted one of the Node's pods has the label, within the hourly limit.
    pub(super) async fn follow(
        &mut self,
        node: &OwnNode,
        labelled: &[PodName],
        wanted: Option<&PodName>,
        now: Instant,
        mut report: impl FnMut(Result<&Mark, &CallError>),
    ) {
        if self.not_before.is_some_and(|at| now < at) {
            return;
        }
        for mark in self.next(labelled, wanted, now) {
            let value = mark.is_set.then_some("true");
            self.not_before = Some(now + SHOWN_AFTER);
            match node.api.label_pod(&mark.pod, &self.label, value).await {
                Ok(()) => report(Ok(&mark)),
                // A pod that no longer exists has no label.
                Err(CallError::NotFound) => {}
                Err(error) => {
                    self.not_before = Some(now + RETRY);
                    return report(Err(&error));
                }
            }
        }
    }

    /// The requests. Labels of other pods are removed first.
    fn next(&mut self, labelled: &[PodName], wanted: Option<&PodName>, now: Instant) -> Vec<Mark> {
        let others = labelled.iter().filter(|pod| Some(*pod) != wanted);
        let mut all: Vec<Mark> =
            others.map(|pod| Mark { pod: pod.clone(), is_set: false }).collect();
        self.marks.retain(|at| now.saturating_duration_since(*at) < HOUR);
        if let Some(pod) = wanted.filter(|pod| !labelled.contains(pod))
            && self.marks.len() < MOST_MARKS
        {
            self.marks.push_back(now);
            all.push(Mark { pod: pod.clone(), is_set: true });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodName {
        PodName { namespace: "shop".into(), name: name.into(), node: "node-a".into() }
    }

    fn mark(name: &str, is_set: bool) -> Mark {
        Mark { pod: pod(name), is_set }
    }

    #[test]
    fn one_pod_at_most_has_the_label_and_nothing_is_written_twice() {
        let now = crate::clock::now().at;
        let mut marker = Marker::new("psi-agent.io/migrate-first".into());
        let mut next = |labelled: &[&str], wanted: Option<&str>| {
            let labelled: Vec<PodName> = labelled.iter().map(|name| pod(name)).collect();
            marker.next(&labelled, wanted.map(pod).as_ref(), now)
        };
        let expected = [mark("left", false), mark("web", false), mark("db", true)];
        assert_eq!(next(&["left", "web"], Some("db")), expected);
        assert_eq!(next(&["db"], Some("db")), []);
        assert_eq!(next(&["db"], None), [mark("db", false)]);
        assert_eq!(next(&[], None), []);
    }

    #[test]
    fn labels_that_are_set_in_an_hour_are_bounded() {
        let start = crate::clock::now().at;
        let mut marker = Marker::new("psi-agent.io/migrate-first".into());
        let set = (0..7200).filter(|second| {
            !marker.next(&[], Some(&pod("db")), start + Duration::from_secs(*second)).is_empty()
        });
        assert_eq!(set.count(), 2 * MOST_MARKS);
    }
}
