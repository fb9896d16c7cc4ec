//! The labels of a cgroup's series: cAdvisor's six, always all of them, rendered once in a
//! cgroup's life and kept while it lives.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use crate::identity::Workload;
use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::sample::{CgroupSample, Sample};

/// `{container="…",` and the rest up to the value, so that a family's own label can stand in its
/// alphabetical place between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesLabels {
    text: Box<str>,
    container_end: usize,
}

impl SeriesLabels {
    /// The labels of a cgroup; without a workload only its path is known.
    #[must_use]
    pub fn of(cgroup: &Cgroup, workload: Option<&Workload>) -> Self {
        let of = |field: fn(&Workload) -> &str| workload.map_or("", field);
        let mut text = String::from("{");
        push_label(&mut text, "container", of(|workload| &workload.container));
        let container_end = text.len();
        push_label(&mut text, "id", &cgroup.path);
        push_label(&mut text, "image", of(|workload| &workload.image));
        push_label(&mut text, "name", of(|workload| &workload.name));
        push_label(&mut text, "namespace", of(|workload| &workload.namespace));
        push_label(&mut text, "pod", of(|workload| &workload.pod));
        text.pop();
        text.push_str("} ");
        Self { text: text.into(), container_end }
    }

    /// What stands before and after a family's own label.
    pub(crate) fn around_extra(&self) -> (&str, &str) {
        self.text.split_at_checked(self.container_end).unwrap_or_default()
    }
}

/// `name="value",`
fn push_label(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    escape_into(text, value);
    text.push_str("\",");
}

/// Escapes a label value as the text format asks: backslash, quote, newline.
pub(crate) fn escape_into(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => {
                // Writing to a String cannot fail.
                let _ = text.write_char(other);
            }
        }
    }
}

/// Labels by cgroup, from scrape to scrape.
#[derive(Debug, Default)]
pub struct LabelCache(HashMap<CgroupId, Rendered>);

/// Labels, and for whom they were rendered: the same cgroup may become known later.
#[derive(Debug)]
struct Rendered {
    workload: Option<Arc<Workload>>,
    labels: Arc<SeriesLabels>,
}

impl Rendered {
    fn new(member: &CgroupSample) -> Self {
        let workload = member.workload.clone();
        let labels = Arc::new(SeriesLabels::of(&member.cgroup, workload.as_deref()));
        Self { workload, labels }
    }

    fn is_for(&self, member: &CgroupSample) -> bool {
        match (&self.workload, &member.workload) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        }
    }
}

impl LabelCache {
    /// The labels of a sample's cgroups, in its order; forgets those it does not have.
    pub fn of_sample(&mut self, sample: &Sample) -> Vec<Arc<SeriesLabels>> {
        let mut kept = HashMap::with_capacity(sample.cgroups.len());
        let labels = sample.cgroups.iter().map(|member| {
            let id = member.cgroup.id;
            let known = self.0.remove(&id).filter(|known| known.is_for(member));
            let rendered = known.unwrap_or_else(|| Rendered::new(member));
            let labels = Arc::clone(&rendered.labels);
            kept.insert(id, rendered);
            labels
        });
        let labels = labels.collect();
        self.0 = kept;
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup_path::Place;

    fn labels_of(path: &str) -> String {
        let cgroup = Cgroup {
            id: CgroupId(7),
            path: path.into(),
            place: Place::of_path(path),
            made_at_s: None,
        };
        let labels = SeriesLabels::of(&cgroup, None);
        let (head, tail) = labels.around_extra();
        format!("{head}{tail}")
    }

    #[test]
    fn all_six_labels_are_there_in_order() {
        assert_eq!(
            labels_of("/system.slice"),
            r#"{container="",id="/system.slice",image="",name="",namespace="",pod=""} "#
        );
    }

    #[test]
    fn names_that_try_to_end_the_label_are_escaped() {
        assert!(labels_of("/a\"} 1\nb\\x2d").contains(r#"id="/a\"} 1\nb\\x2d","#));
    }
}
