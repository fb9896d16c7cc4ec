//! Whether constraints of pods hold on Nodes and other pods.

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::cluster::{Labels, Pod};

/// The first taint that keeps a pod with these tolerations off.
pub(crate) fn repelling<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    let hard = taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
    hard.into_iter().find(|taint| !tolerations.iter().any(|one| tolerates(one, taint)))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let Toleration { key, operator, value, effect, .. } = toleration;
    let [key, operator, effect] = [key, operator, effect].map(text);
    let exists = operator == "Exists";
    let is_equal = ["", "Equal"].contains(&operator) && text(value) == text(&taint.value);
    let of_key = key == taint.key || (key.is_empty() && exists);
    of_key && (exists || is_equal) && (effect.is_empty() || effect == taint.effect)
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

fn holds(operator: &str, values: Option<&Vec<String>>, value: Option<&str>) -> bool {
    let is_in = value.is_some_and(|value| values.into_iter().flatten().any(|one| one == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let numbers = || Some((number(value?)?, number(values?.first()?)?));
    match operator {
        "In" => is_in,
        "NotIn" => !is_in,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, limit)| value > limit),
        "Lt" => numbers().is_some_and(|(value, limit)| value < limit),
        _ => false,
    }
}

/// Whether all requirements of a term hold on a Node. A term without any selects no Node.
pub(crate) fn selects_node(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let holds =
        |one: &NodeSelectorRequirement, value| holds(&one.operator, one.values.as_ref(), value);
    let expressions = || term.match_expressions.iter().flatten();
    let fields = || term.match_fields.iter().flatten();
    let is_empty = expressions().chain(fields()).next().is_none();
    !is_empty
        && expressions().all(|one| holds(one, labels.get(&one.key).map(String::as_str)))
        && fields().all(|one| one.key == "metadata.name" && holds(one, Some(name)))
}

/// Whether the term of a pod in `own_namespace` may select a pod. A selector of namespaces counts as one of all.
pub(crate) fn selects_pod(term: &PodAffinityTerm, own: &Pod, other: &Pod) -> bool {
    let named = || term.namespaces.iter().flatten();
    let by_default = named().next().is_none() && own.namespace == other.namespace;
    (term.namespace_selector.is_some() || by_default || named().any(|one| *one == other.namespace))
        && term.label_selector.as_ref().is_some_and(|selector| selects(selector, &other.labels))
}

/// A selector without requirements selects all pods.
fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let mut equal = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    equal.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|one| {
            holds(&one.operator, one.values.as_ref(), labels.get(&one.key).map(String::as_str))
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn a_taint_repels_unless_it_is_tolerated() {
        let taint = |effect: &str| Taint {
            key: "k".into(),
            value: Some("v".into()),
            effect: effect.into(),
            ..Taint::default()
        };
        let toleration = |key: &str, operator: &str, value: &str, effect: &str| {
            let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let [key, operator, value, effect] = [key, operator, value, effect].map(some);
            Toleration { key, operator, value, effect, ..Toleration::default() }
        };
        let hard = [taint("NoSchedule")];
        assert!(repelling(&hard, &[]).is_some());
        assert!(repelling(&[taint("PreferNoSchedule")], &[]).is_none());
        for (key, operator, value, effect, is_tolerated) in [
            ("k", "Equal", "v", "", true),
            ("k", "", "v", "NoSchedule", true),
            ("k", "Equal", "w", "", false),
            ("k", "Exists", "", "NoExecute", false),
            ("", "Exists", "", "", true),
            ("", "Equal", "v", "", false),
        ] {
            let tolerations = [toleration(key, operator, value, effect)];
            let found = repelling(&hard, &tolerations).is_none();
            assert_eq!(found, is_tolerated, "{tolerations:?}");
        }
    }

    #[test]
    fn requirements_compare_as_kubernetes_does() {
        let requirement = |key: &str, operator: &str, value: &str| NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: (!value.is_empty()).then(|| vec![value.into()]),
        };
        for (operator, value, with_4, without) in [
            ("In", "4", true, false),
            ("NotIn", "4", false, true),
            ("Exists", "", true, false),
            ("DoesNotExist", "", false, true),
            ("Gt", "3", true, false),
            ("Gt", "4", false, false),
            ("Lt", "5", true, false),
            ("Unknown", "4", false, false),
        ] {
            let expressions = Some(vec![requirement("k", operator, value)]);
            let term = NodeSelectorTerm { match_expressions: expressions, match_fields: None };
            assert_eq!(selects_node(&term, "a", &labels(&[("k", "4")])), with_4, "{operator}");
            assert_eq!(selects_node(&term, "a", &Labels::new()), without, "{operator}");
        }
        let by_name = NodeSelectorTerm {
            match_fields: Some(vec![requirement("metadata.name", "In", "a")]),
            ..NodeSelectorTerm::default()
        };
        let selects =
            |term: &NodeSelectorTerm, name: &str| selects_node(term, name, &Labels::new());
        assert!(selects(&by_name, "a") && !selects(&by_name, "b"));
        assert!(!selects(&NodeSelectorTerm::default(), "a"));
    }

    #[test]
    fn a_pod_term_selects_in_its_own_namespace_unless_it_names_others() {
        let match_labels = Some(labels(&[("app", "db")]));
        let selector = LabelSelector { match_labels, ..<_>::default() };
        let own = PodAffinityTerm { label_selector: Some(selector), ..<_>::default() };
        let db = labels(&[("app", "db"), ("x", "y")]);
        let in_a = |term: &PodAffinityTerm, namespace: &str, labels: &Labels| {
            let other =
                Pod { namespace: namespace.into(), labels: labels.clone(), ..<_>::default() };
            selects_pod(term, &Pod { namespace: "a".into(), ..<_>::default() }, &other)
        };
        assert!(in_a(&own, "a", &db) && !in_a(&own, "b", &db));
        assert!(!in_a(&own, "a", &Labels::new()));
        let named = PodAffinityTerm { namespaces: Some(vec!["b".into()]), ..own.clone() };
        assert!(in_a(&named, "b", &db) && !in_a(&named, "a", &db));
        let is_cache = LabelSelectorRequirement {
            key: "app".into(),
            operator: "In".into(),
            values: Some(vec!["cache".into()]),
        };
        let mut others = own.clone();
        others.label_selector.as_mut().unwrap().match_expressions = Some(vec![is_cache]);
        assert!(!in_a(&others, "a", &db));
        let selector = Some(LabelSelector::default());
        let all = PodAffinityTerm { namespace_selector: selector, ..own };
        assert!(in_a(&all, "c", &db));
        assert!(!in_a(&PodAffinityTerm::default(), "a", &db));
    }
}
