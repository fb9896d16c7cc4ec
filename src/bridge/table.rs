//! The selected Nodes. Computes each Node's slow score from its annotations, and the value that is
//! used for Nodes without one. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::window::{Reach, Slow, SlowNode, Window};
use crate::contract::{Basis, ContractError, Freshness, NodePressure, Prefix};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Known,
    /// A value that has been known for less than half of the window.
    New,
    Stale,
    Missing,
    /// Annotations in a form that no agent writes.
    Malformed,
    /// A value that is dated in the future: a clock is wrong.
    Future,
    /// A value with another basis than those of most Nodes.
    OtherBasis,
}

impl Standing {
    pub const ALL: [Self; 7] = [
        Self::Known,
        Self::New,
        Self::Stale,
        Self::Missing,
        Self::Malformed,
        Self::Future,
        Self::OtherBasis,
    ];

    /// The value of the metric label `standing`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::New => "new",
            Self::Stale => "stale",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Future => "future",
            Self::OtherBasis => "other_basis",
        }
    }
}

type NodeValue = Result<Option<NodePressure>, ContractError>;

#[derive(Debug)]
struct Node {
    published: NodeValue,
    /// Whether the value was dated in the future when it arrived. It then stays unusable, even
    /// after that date.
    is_from_future: bool,
    window: Window,
}

#[derive(Debug)]
pub struct Table {
    prefix: Prefix,
    reach: Reach,
    /// `None` before the API server has listed the Nodes.
    nodes: Option<BTreeMap<String, Node>>,
}

/// The state of a Node's value, and the Node's slow score if it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    pub standing: Standing,
    /// The slow score of a Node that is [`Standing::Known`].
    pub slow: Option<SlowNode>,
}

/// All Nodes at one moment, sorted by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Views {
    pub nodes: Vec<(String, View)>,
    /// The average of the Nodes with a known score, for all others; `None` if no score is known.
    pub neutral: Option<SlowNode>,
}

impl Table {
    pub fn new(prefix: Prefix, reach: Reach) -> Self {
        Self { prefix, reach, nodes: None }
    }

    pub fn is_listed(&self) -> bool {
        self.nodes.is_some()
    }

    pub fn reach(&self) -> Reach {
        self.reach
    }

    pub fn replace(&mut self, listed: Vec<(String, BTreeMap<String, String>)>, now: Timestamp) {
        let mut before = self.nodes.take().unwrap_or_default();
        let kept = listed.iter().filter_map(|(name, _)| before.remove_entry(name));
        self.nodes = Some(kept.collect());
        for (name, annotations) in listed {
            self.apply(name, &annotations, now);
        }
    }

    pub fn apply(&mut self, name: String, annotations: &BTreeMap<String, String>, now: Timestamp) {
        let published = NodePressure::from_annotations(&self.prefix, annotations);
        let nodes = self.nodes.get_or_insert_default();
        // Most changes of a Node do not concern these annotations.
        if nodes.get(&name).is_some_and(|before| before.published == published) {
            return;
        }
        let value = published.as_ref().ok().and_then(Option::as_ref);
        let is_from_future = value
            .is_some_and(|value| value.freshness(now, self.reach.stale_after) == Freshness::Future);
        let value = value.filter(|_| !is_from_future).cloned();
        let mut window = nodes.remove(&name).map(|before| before.window).unwrap_or_default();
        window.change(value, now, self.reach);
        nodes.insert(name, Node { published, is_from_future, window });
    }

    pub fn remove(&mut self, name: &str) {
        if let Some(nodes) = &mut self.nodes {
            nodes.remove(name);
        }
    }

    /// The current views of all Nodes; `None` before they were listed.
    pub fn views(&self, now: Timestamp) -> Option<Views> {
        let nodes = self.nodes.as_ref()?;
        let fresh = nodes.values().filter_map(|node| self.basis_now(node, now).ok());
        let common = most_common(fresh);
        let nodes: Vec<(String, View)> =
            nodes.iter().map(|(name, node)| (name.clone(), self.view(node, common, now))).collect();
        let known: Vec<SlowNode> = nodes.iter().filter_map(|(_, view)| view.slow).collect();
        Some(Views { nodes, neutral: average(&known) })
    }

    /// The basis of a value that may be used now, or why the value may not be used.
    fn basis_now(&self, node: &Node, now: Timestamp) -> Result<Basis, Standing> {
        let value = match &node.published {
            Ok(Some(value)) => value,
            Ok(None) => return Err(Standing::Missing),
            Err(_) => return Err(Standing::Malformed),
        };
        match value.freshness(now, self.reach.stale_after) {
            Freshness::Future => Err(Standing::Future),
            Freshness::Fresh { .. } if node.is_from_future => Err(Standing::Future),
            Freshness::Stale { .. } => Err(Standing::Stale),
            Freshness::Fresh { .. } => Ok(value.basis),
        }
    }

    fn view(&self, node: &Node, common: Option<Basis>, now: Timestamp) -> View {
        let nothing = |standing| View { standing, slow: None };
        let basis = match self.basis_now(node, now) {
            Ok(basis) if Some(basis) == common => basis,
            Ok(_) => return nothing(Standing::OtherBasis),
            Err(standing) => return nothing(standing),
        };
        match node.window.slow(now, self.reach, basis) {
            Some(slow) => View { standing: Standing::Known, slow: Some(slow) },
            None => nothing(Standing::New),
        }
    }
}

impl Views {
    pub fn get(&self, name: &str) -> Option<&View> {
        let at = self.nodes.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        self.nodes.get(at).map(|(_, view)| view)
    }

    /// A Node's value, or the neutral one; `None` if no Node has a known score.
    pub fn of(&self, name: &str) -> Option<SlowNode> {
        self.get(name).and_then(|view| view.slow).or(self.neutral)
    }

    pub fn count(&self, standing: Standing) -> usize {
        self.nodes.iter().filter(|(_, view)| view.standing == standing).count()
    }
}

/// The most common basis. Of equally common ones, run delay precedes PSI, and a newer version an
/// older one.
fn most_common(bases: impl Iterator<Item = Basis>) -> Option<Basis> {
    let mut counts: BTreeMap<Basis, usize> = BTreeMap::new();
    for basis in bases {
        *counts.entry(basis).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(basis, count)| (*count, *basis)).map(|(basis, _)| basis)
}

fn average(known: &[SlowNode]) -> Option<SlowNode> {
    let of = |quantity: fn(&SlowNode) -> Option<Slow>| {
        let all: Vec<Slow> = known.iter().filter_map(quantity).collect();
        let mean = |part: fn(&Slow) -> f64| all.iter().map(part).sum::<f64>() / all.len() as f64;
        let (value, deviation) = (mean(|slow| slow.mean), mean(|slow| slow.deviation));
        (!all.is_empty()).then_some(Slow { mean: value, deviation })
    };
    Some(SlowNode {
        score: of(|node| Some(node.score))?,
        cpu: of(|node| node.cpu),
        memory: of(|node| node.memory),
    })
}

#[cfg(test)]
pub(super) mod tests;
