//! The selected Nodes. Computes each Node's slow score from its annotations, and the value that is
//! used for Nodes without one. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::window::{Reach, Slow, SlowNode, Window};
use crate::contract::{Basis, Freshness, NodeDemand, NodePressure, Prefix};

/// The states of a Node's value, as the metric label `standing` names them. A value that is `new` has
/// been known for less than half of the window. One that is `malformed` was not written by an agent,
/// one of the `future` shows that a clock is wrong, and one of another basis than those of most Nodes
/// is `other_basis`.
pub const STANDINGS: [&str; 7] =
    ["known", "new", "stale", "missing", "malformed", "future", "other_basis"];

/// The slow score of a Node, or else the state of its value, which is any but `known`.
pub type NodeView = Result<SlowNode, &'static str>;

#[derive(Debug)]
struct Node {
    /// The value that its annotations have, or why there is none: `missing` or `malformed`.
    published: Result<NodePressure, &'static str>,
    /// Whether the value was dated in the future when it arrived. It then stays unusable, even
    /// after that date.
    is_from_future: bool,
    /// Class of the headroom; `None` if the agent published none.
    headroom: Option<u32>,
    window: Window,
}

#[derive(Debug)]
pub struct Table {
    prefix: Prefix,
    pub reach: Reach,
    /// `None` before the API server has listed the Nodes.
    nodes: Option<BTreeMap<String, Node>>,
}

/// All Nodes at one moment, sorted by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Views {
    pub nodes: Vec<(String, NodeView)>,
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
        let published = published.map_err(|_| "malformed").and_then(|value| value.ok_or("missing"));
        let nodes = self.nodes.get_or_insert_default();
        // Most changes of a Node do not concern these annotations.
        if nodes.get(&name).is_some_and(|before| before.published == published) {
            return;
        }
        let value = published.ok();
        let usable =
            value.filter(|value| value.freshness(now, self.reach.stale_after) != Freshness::Future);
        let mut window = nodes.remove(&name).map(|before| before.window).unwrap_or_default();
        window.change(usable, now, self.reach);
        let demand = NodeDemand::from_annotations(&self.prefix, annotations).ok().flatten();
        let headroom = demand.map(|demand| demand.headroom_class());
        let is_from_future = usable != value;
        nodes.insert(name, Node { published, is_from_future, headroom, window });
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
        let common = Basis::most_common(fresh);
        let view = |node: &Node| match self.basis_now(node, now)? {
            basis if Some(basis) == common => {
                let slow = node.window.slow(now, self.reach, basis).ok_or("new")?;
                Ok(SlowNode { headroom: node.headroom, ..slow })
            }
            _ => Err("other_basis"),
        };
        let nodes: Vec<(String, NodeView)> =
            nodes.iter().map(|(name, node)| (name.clone(), view(node))).collect();
        let known: Vec<SlowNode> = nodes.iter().filter_map(|(_, view)| view.ok()).collect();
        Some(Views { nodes, neutral: average(&known) })
    }

    /// The basis of a value that may be used now, or why the value may not be used.
    fn basis_now(&self, node: &Node, now: Timestamp) -> Result<Basis, &'static str> {
        let value = node.published?;
        match value.freshness(now, self.reach.stale_after) {
            Freshness::Fresh { .. } if !node.is_from_future => Ok(value.basis),
            Freshness::Fresh { .. } | Freshness::Future => Err("future"),
            Freshness::Stale { .. } => Err("stale"),
        }
    }
}

impl Views {
    /// A Node's value, or the neutral one; `None` if no Node has a known score.
    pub fn of(&self, name: &str) -> Option<SlowNode> {
        let at = self.nodes.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok();
        at.and_then(|at| self.nodes.get(at)?.1.ok()).or(self.neutral)
    }

    pub fn count(&self, standing: &str) -> usize {
        let of = |view: &NodeView| view.err().unwrap_or("known");
        self.nodes.iter().filter(|(_, view)| of(view) == standing).count()
    }
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
        headroom: None,
    })
}

#[cfg(test)]
pub(super) mod tests;
