//! The label on the pod of the VM to move first.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::client::cluster::call::CallError;
use crate::client::cluster::{OwnNode, PodName};

/// Maximum number of labels that are set in an hour. Each is removed at most once.
const MOST_MARKS: usize = 10;
const HOUR: Duration = Duration::from_secs(3600);

/// Time from a failed request to the next attempt.
const RETRY: Duration = Duration::from_secs(60);

/// Keeps the label on one pod at most.
#[derive(Debug)]
pub(super) struct Marker {
    label: String,
    /// Pods of this Node that have the label; `None` until they were listed, since an earlier agent may
    /// have left some.
    labelled: Option<BTreeSet<PodName>>,
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
        Self { label, labelled: None, marks: VecDeque::new(), not_before: None }
    }

    /// Makes the requests after which only the wanted pod has the label, within the hourly limit.
    pub(super) async fn follow(
        &mut self,
        node: &OwnNode,
        wanted: Option<&PodName>,
        now: Instant,
        mut report: impl FnMut(Result<&Mark, &CallError>),
    ) {
        if self.not_before.is_some_and(|at| now < at) {
            return;
        }
        let followed = async {
            self.labelled(node).await?;
            while let Some(mark) = self.next(wanted, now) {
                let value = mark.is_set.then_some("true");
                let written = node.api.label_pod(&mark.pod, &self.label, value).await;
                // A pod that no longer exists has no label.
                if written != Err(CallError::NotFound) {
                    written?;
                }
                self.done(&mark, now);
                report(Ok(&mark));
            }
            Ok(())
        };
        if let Err(error) = followed.await {
            self.not_before = Some(now + RETRY);
            report(Err(&error));
        }
    }

    /// The pods with the label: at first, those that an earlier agent left.
    pub(super) async fn labelled(
        &mut self,
        node: &OwnNode,
    ) -> Result<&BTreeSet<PodName>, CallError> {
        if self.labelled.is_none() {
            let found = node.api.labelled_pods(&self.label, Some(&node.name)).await?;
            self.labelled = Some(found.into_iter().collect());
        }
        Ok(self.labelled.get_or_insert_default())
    }

    /// Which pods have the label is to be listed again.
    pub(super) fn forget(&mut self) {
        self.labelled = None;
    }

    pub(super) fn has_label(&self, pod: &PodName) -> bool {
        self.labelled.as_ref().is_some_and(|labelled| labelled.contains(pod))
    }

    /// The next request. Labels of other pods are removed first.
    fn next(&mut self, wanted: Option<&PodName>, now: Instant) -> Option<Mark> {
        let labelled = self.labelled.as_ref()?;
        if let Some(other) = labelled.iter().find(|pod| Some(*pod) != wanted) {
            return Some(Mark { pod: other.clone(), is_set: false });
        }
        self.marks.retain(|at| now.saturating_duration_since(*at) < HOUR);
        let wanted =
            wanted.filter(|pod| !labelled.contains(*pod) && self.marks.len() < MOST_MARKS)?;
        Some(Mark { pod: wanted.clone(), is_set: true })
    }

    fn done(&mut self, mark: &Mark, now: Instant) {
        let labelled = self.labelled.get_or_insert_default();
        if mark.is_set {
            labelled.insert(mark.pod.clone());
            self.marks.push_back(now);
        } else {
            labelled.remove(&mark.pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodName {
        PodName { namespace: "shop".into(), name: name.into(), node: "node-a".into() }
    }

    fn set(pod: PodName) -> Mark {
        Mark { pod, is_set: true }
    }

    fn removed(pod: PodName) -> Mark {
        Mark { pod, is_set: false }
    }

    /// The requests until the label is where it is wanted.
    fn steps(marker: &mut Marker, wanted: Option<&PodName>, now: Instant) -> Vec<Mark> {
        let mut steps = Vec::new();
        while let Some(mark) = marker.next(wanted, now) {
            marker.done(&mark, now);
            steps.push(mark);
        }
        steps
    }

    #[test]
    fn one_pod_at_most_has_the_label_and_nothing_is_written_twice() {
        let now = crate::clock::now().at;
        let mut marker = Marker::new("psi-agent.io/migrate-first".into());
        assert_eq!(steps(&mut marker, Some(&pod("db")), now), [], "what is there is not known yet");
        marker.labelled = Some(BTreeSet::from([pod("left"), pod("web")]));
        let expected = [removed(pod("left")), removed(pod("web")), set(pod("db"))];
        assert_eq!(steps(&mut marker, Some(&pod("db")), now), expected);
        assert_eq!(steps(&mut marker, Some(&pod("db")), now), []);
        assert_eq!(steps(&mut marker, None, now), [removed(pod("db"))]);
    }

    #[test]
    fn labels_that_are_set_in_an_hour_are_bounded() {
        let start = crate::clock::now().at;
        let mut marker = Marker::new("psi-agent.io/migrate-first".into());
        marker.labelled = Some(BTreeSet::new());
        let mut written = 0;
        for second in 0..7200 {
            let now = start + Duration::from_secs(second);
            let wanted = pod(if second % 2 == 0 { "db" } else { "web" });
            written += steps(&mut marker, Some(&wanted), now).len();
        }
        assert_eq!(written, 4 * MOST_MARKS);
        assert!(marker.labelled.unwrap().is_empty());
    }
}
