//! Constraints of pods on Nodes and on other pods, in the form of the API server.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Labels, annotations or node selectors.
pub type Labels = BTreeMap<String, String>;

/// A taint of a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value, which can be empty.
    pub value: String,
    /// `NoSchedule`, `NoExecute` or `PreferNoSchedule`.
    pub effect: String,
}

/// A toleration of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Key of the taint; with `Exists`, empty for all.
    pub key: String,
    /// `Exists` or `Equal`; empty is `Equal`.
    pub operator: String,
    /// Value of the taint, for `Equal`.
    pub value: String,
    /// Effect of the taint; empty for all.
    pub effect: String,
}

impl Toleration {
    fn tolerates(&self, taint: &Taint) -> bool {
        let exists = self.operator == "Exists";
        let is_equal = ["", "Equal"].contains(&self.operator.as_str()) && self.value == taint.value;
        let of_key = self.key == taint.key || (self.key.is_empty() && exists);
        of_key && (exists || is_equal) && (self.effect.is_empty() || self.effect == taint.effect)
    }
}

/// The first taint that keeps a pod with these tolerations off.
pub(crate) fn repelling<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    let hard = taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
    hard.into_iter().find(|taint| !tolerations.iter().any(|one| one.tolerates(taint)))
}

/// A requirement on a label or a field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Requirement {
    /// Key of the label.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    pub operator: String,
    /// The values that the operator compares with.
    pub values: Vec<String>,
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_in = value.is_some_and(|value| self.values.iter().any(|one| one == value));
        let number = |text: &str| text.parse::<i64>().ok();
        let numbers = || Some((number(value?)?, number(self.values.first()?)?));
        match self.operator.as_str() {
            "In" => is_in,
            "NotIn" => !is_in,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => numbers().is_some_and(|(value, limit)| value > limit),
            "Lt" => numbers().is_some_and(|(value, limit)| value < limit),
            _ => false,
        }
    }

    fn holds_for(&self, labels: &Labels) -> bool {
        self.holds(labels.get(&self.key).map(String::as_str))
    }
}

/// Requirements on a Node, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// On its labels.
    pub match_expressions: Vec<Requirement>,
    /// On `metadata.name`.
    pub match_fields: Vec<Requirement>,
}

impl NodeSelectorTerm {
    /// A term without requirements selects no Node.
    pub(crate) fn selects(&self, name: &str, labels: &Labels) -> bool {
        let is_empty = self.match_expressions.is_empty() && self.match_fields.is_empty();
        let is_name = |one: &Requirement| one.key == "metadata.name" && one.holds(Some(name));
        let on_labels = self.match_expressions.iter().all(|one| one.holds_for(labels));
        !is_empty && on_labels && self.match_fields.iter().all(is_name)
    }
}

/// A selector of pods; without requirements it selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels with their values.
    pub match_labels: Labels,
    /// Further requirements.
    pub match_expressions: Vec<Requirement>,
}

impl LabelSelector {
    fn selects(&self, labels: &Labels) -> bool {
        let are_equal = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        are_equal && self.match_expressions.iter().all(|one| one.holds_for(labels))
    }
}

/// A term of required pod anti-affinity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTerm {
    /// Selector of the pods to keep apart from; `None` selects none.
    pub label_selector: Option<LabelSelector>,
    /// Namespaces of these pods.
    pub namespaces: Vec<String>,
    /// Selector of further namespaces. All namespaces count as selected.
    pub namespace_selector: Option<LabelSelector>,
    /// Label of Nodes whose equal values mean the same place.
    pub topology_key: String,
}

impl PodTerm {
    /// Whether the term of a pod in `own_namespace` may select a pod.
    pub(crate) fn selects(&self, own_namespace: &str, namespace: &str, labels: &Labels) -> bool {
        let by_default = self.namespaces.is_empty() && own_namespace == namespace;
        let is_named = self.namespaces.iter().any(|one| one == namespace);
        (self.namespace_selector.is_some() || by_default || is_named)
            && self.label_selector.as_ref().is_some_and(|selector| selector.selects(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn a_taint_repels_unless_it_is_tolerated() {
        let taint =
            |effect: &str| Taint { key: "k".into(), value: "v".into(), effect: effect.into() };
        let toleration = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
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
        let requirement = |operator: &str, value: &str| Requirement {
            key: "k".into(),
            operator: operator.into(),
            values: vec![value.into()],
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
            let found = requirement(operator, value);
            assert_eq!(found.holds_for(&labels(&[("k", "4")])), with_4, "{operator}");
            assert_eq!(found.holds_for(&Labels::new()), without, "{operator}");
        }
        let by_name = NodeSelectorTerm {
            match_fields: vec![Requirement {
                key: "metadata.name".into(),
                ..requirement("In", "a")
            }],
            ..NodeSelectorTerm::default()
        };
        assert!(by_name.selects("a", &Labels::new()) && !by_name.selects("b", &Labels::new()));
        assert!(!NodeSelectorTerm::default().selects("a", &Labels::new()));
    }

    #[test]
    fn a_pod_term_selects_in_its_own_namespace_unless_it_names_others() {
        let selector = LabelSelector { match_labels: labels(&[("app", "db")]), ..<_>::default() };
        let own = PodTerm { label_selector: Some(selector), ..PodTerm::default() };
        let db = labels(&[("app", "db"), ("x", "y")]);
        assert!(own.selects("a", "a", &db) && !own.selects("a", "b", &db));
        assert!(!own.selects("a", "a", &Labels::new()));
        let named = PodTerm { namespaces: vec!["b".into()], ..own.clone() };
        assert!(named.selects("a", "b", &db) && !named.selects("a", "a", &db));
        let all = PodTerm { namespace_selector: Some(LabelSelector::default()), ..own };
        assert!(all.selects("a", "c", &db));
        assert!(!PodTerm::default().selects("a", "a", &db));
    }
}
