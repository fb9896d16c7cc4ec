//! The labels of a cgroup's series: cAdvisor's six, all of them on each series. They are rendered
//! once and kept as long as the cgroup exists.

use std::sync::Arc;

use crate::identity::Workload;
use crate::kernel::cgroup_tree::Cgroup;
use crate::sample::CgroupSample;
use crate::text_format::push_label;

/// The labels up to the value, such as `{container="…",id="…",…} `. A family's own label is inserted
/// after `container`, which is its alphabetical position.
#[derive(Debug)]
pub struct SeriesLabels {
    /// The cgroup and the workload that they were rendered for: a workload can become known after its
    /// cgroup.
    cgroup: Arc<Cgroup>,
    workload: Option<Arc<Workload>>,
    text: Box<[u8]>,
    container_end: usize,
}

impl SeriesLabels {
    /// The labels of a cgroup. Without a workload, all but `id` are empty.
    fn new(member: &CgroupSample) -> Self {
        let (cgroup, workload) = (Arc::clone(&member.cgroup), member.workload.clone());
        let of = |field: fn(&Workload) -> &str| workload.as_deref().map_or("", field);
        let mut text = vec![b'{'];
        push_label(&mut text, "container", of(|workload| &workload.container));
        let container_end = text.len();
        push_label(&mut text, "id", &cgroup.path);
        push_label(&mut text, "image", of(|workload| &workload.image));
        push_label(&mut text, "name", of(|workload| &workload.name));
        push_label(&mut text, "namespace", of(|workload| &workload.namespace));
        push_label(&mut text, "pod", of(|workload| &workload.pod));
        text.pop();
        text.extend_from_slice(b"} ");
        Self { cgroup, workload, text: text.into(), container_end }
    }

    fn is_for(&self, member: &CgroupSample) -> bool {
        let [before, now] =
            [&self.workload, &member.workload].map(|one| one.as_ref().map(Arc::as_ptr));
        self.cgroup.id == member.cgroup.id && before == now
    }

    /// The labels with a family's own label, in three parts. Without one, all is in the first part,
    /// which then is a single copy.
    pub(crate) fn with_extra<'a>(&'a self, extra: &'a [u8]) -> [&'a [u8]; 3] {
        if extra.is_empty() {
            return [&self.text, &[], &[]];
        }
        let (head, tail) = self.text.split_at_checked(self.container_end).unwrap_or_default();
        [head, extra, tail]
    }
}

/// The labels of the last scrape, in the order of their cgroups' paths.
#[derive(Debug, Default)]
pub struct LabelCache(Vec<Arc<SeriesLabels>>);

impl LabelCache {
    /// The labels of a sample's cgroups, in its order. Removes those of other cgroups. Since samples
    /// are sorted by path, one pass over the last scrape finds all; hash lookups take twice as long.
    pub fn of_cgroups(&mut self, cgroups: &[CgroupSample]) -> Vec<Arc<SeriesLabels>> {
        let mut kept = std::mem::take(&mut self.0).into_iter().peekable();
        let labels = cgroups.iter().map(|member| {
            while kept.next_if(|other| other.cgroup.path < member.cgroup.path).is_some() {}
            let same = kept.next_if(|other| other.is_for(member));
            same.unwrap_or_else(|| Arc::new(SeriesLabels::new(member)))
        });
        self.0 = labels.collect();
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::cgroup_tree::CgroupId;
    use crate::waiting::series::PressureReadings;

    fn member(id: u64, path: &str) -> CgroupSample {
        CgroupSample {
            cgroup: Arc::new(Cgroup::new(CgroupId(id), path, None)),
            workload: None,
            pressure: PressureReadings::default(),
            stats: None,
        }
    }

    fn labels_of(path: &str) -> String {
        let labels = SeriesLabels::new(&member(7, path));
        String::from_utf8(labels.with_extra(b"").concat()).unwrap()
    }

    #[test]
    fn all_six_labels_are_present_in_order() {
        assert_eq!(
            labels_of("/system.slice"),
            r#"{container="",id="/system.slice",image="",name="",namespace="",pod=""} "#
        );
    }

    #[test]
    fn quotes_newlines_and_backslashes_in_names_are_escaped() {
        assert!(labels_of("/a\"} 1\nb\\x2d").contains(r#"id="/a\"} 1\nb\\x2d","#));
    }

    #[test]
    fn labels_are_kept_for_a_cgroup_but_not_for_a_new_one_at_the_same_path() {
        let members = |known: &[(u64, &str)]| -> Vec<CgroupSample> {
            known.iter().map(|&(id, path)| member(id, path)).collect()
        };
        let mut cache = LabelCache::default();
        let before = cache.of_cgroups(&members(&[(1, "/"), (2, "/a"), (3, "/b"), (5, "/d")]));
        let now = members(&[(1, "/"), (4, "/aa"), (6, "/b"), (7, "/c"), (5, "/d")]);
        let after = cache.of_cgroups(&now);
        let kept: Vec<bool> =
            after.iter().map(|own| before.iter().any(|old| Arc::ptr_eq(old, own))).collect();
        assert_eq!(kept, [true, false, false, false, true]);
        for (labels, member) in after.iter().zip(&now) {
            assert_eq!(labels.text, SeriesLabels::new(member).text);
        }
    }
}
