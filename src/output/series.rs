//! The labels of a cgroup's series: cAdvisor's six, always all of them, rendered once in a
//! cgroup's life and kept while it lives.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
use crate::sample::Sample;

/// `{container="…",` and the rest up to the value, so that a family's own label can stand in its
/// alphabetical place between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesLabels {
    text: Box<str>,
    container_end: usize,
}

impl SeriesLabels {
    /// The labels of a cgroup: what only the API server knows stays empty.
    #[must_use]
    pub fn of(cgroup: &Cgroup) -> Self {
        let mut text = String::from("{container=\"\",");
        let container_end = text.len();
        text.push_str("id=\"");
        escape_into(&mut text, &cgroup.path);
        text.push_str("\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} ");
        Self { text: text.into(), container_end }
    }

    /// What stands before and after a family's own label.
    pub(crate) fn around_extra(&self) -> (&str, &str) {
        self.text.split_at_checked(self.container_end).unwrap_or_default()
    }
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
pub struct LabelCache(HashMap<CgroupId, Arc<SeriesLabels>>);

impl LabelCache {
    /// The labels of a sample's cgroups, in its order; forgets those it does not have.
    pub fn of_sample(&mut self, sample: &Sample) -> Vec<Arc<SeriesLabels>> {
        let mut kept = HashMap::with_capacity(sample.cgroups.len());
        let labels = sample.cgroups.iter().map(|member| {
            let id = member.cgroup.id;
            let known = self.0.remove(&id);
            let labels = known.unwrap_or_else(|| Arc::new(SeriesLabels::of(&member.cgroup)));
            kept.insert(id, Arc::clone(&labels));
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
        let labels = SeriesLabels::of(&cgroup);
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
