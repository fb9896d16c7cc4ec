//! The labels of a cgroup's series: cAdvisor's six, all of them on each series. They are rendered
//! once, and kept in samples as long as the cgroup and its container are the same.

use crate::identity::Workload;
use crate::sample::{CgroupSample, RenderedLabels};
use crate::text_format::push_label;

/// The labels up to the value, such as `{container="…",id="…",…} `, in three parts, with a family's own label after
/// `container`, which is its alphabetical position. Without one, all is in the first part, which then is a single
/// copy.
pub(super) fn with_extra<'a>(member: &'a CgroupSample, extra: &'a [u8]) -> [&'a [u8]; 3] {
    let RenderedLabels { text, container_end } = member.labels.get_or_init(|| rendered(member));
    if extra.is_empty() {
        return [text, &[], &[]];
    }
    let (head, tail) = text.split_at_checked(*container_end).unwrap_or_default();
    [head, extra, tail]
}

/// Without a workload, all labels but `id` are empty.
fn rendered(CgroupSample { cgroup, workload, .. }: &CgroupSample) -> RenderedLabels {
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
    RenderedLabels { text: text.into(), container_end }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
    use crate::kernel::resource::PerResource;
    use crate::waiting::series::PressureReadings;

    fn labels_of(path: &str) -> String {
        let member = CgroupSample {
            cgroup: Arc::new(Cgroup::new(CgroupId(7), path, None)),
            workload: None,
            labels: Arc::default(),
            pressure: PressureReadings::default(),
            rates: PerResource::default(),
            stats: None,
        };
        String::from_utf8(with_extra(&member, b"").concat()).unwrap()
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
}
