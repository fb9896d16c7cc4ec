//! All Nodes as the bridge knows them: annotations in, each Node's slow view out, and what to say of
//! those of which nothing is known. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::window::{Reach, Slow, SlowNode, Window};
use crate::contract::{Basis, ContractError, Freshness, NodePressure, Prefix};

/// What is known of a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its slow view.
    Known,
    /// Its value, for less than half of the window.
    New,
    /// A value that nobody renews.
    Stale,
    /// No value.
    Missing,
    /// Something that no agent writes.
    Malformed,
    /// A value from a time to come: a clock is wrong.
    Future,
    /// A value that does not compare with most others.
    OtherBasis,
}

impl Standing {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Known,
        Self::New,
        Self::Stale,
        Self::Missing,
        Self::Malformed,
        Self::Future,
        Self::OtherBasis,
    ];

    /// For a label.
    #[must_use]
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

/// What a Node's annotations say.
type Told = Result<Option<NodePressure>, ContractError>;

#[derive(Debug)]
struct Node {
    told: Told,
    /// Whether it was from a time to come when it was seen; waiting makes it no better.
    from_the_future: bool,
    window: Window,
}

/// The Nodes that were selected, by name.
#[derive(Debug)]
pub struct Table {
    prefix: Prefix,
    reach: Reach,
    /// `None` before the API server has listed them.
    nodes: Option<BTreeMap<String, Node>>,
}

/// A Node, and its slow view where that is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    /// What is known.
    pub standing: Standing,
    /// The view of a Node that is [`Standing::Known`].
    pub slow: Option<SlowNode>,
}

/// All Nodes at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Views {
    /// Each Node that was selected.
    pub nodes: BTreeMap<String, View>,
    /// The average of the known ones, for all others; `None` where no Node is known.
    pub neutral: Option<SlowNode>,
}

impl Table {
    /// Of Nodes with keys of this prefix.
    #[must_use]
    pub fn new(prefix: Prefix, reach: Reach) -> Self {
        Self { prefix, reach, nodes: None }
    }

    /// Whether the API server has listed the Nodes.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.nodes.is_some()
    }

    /// How far back its views reach.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// These Nodes there are, and no others.
    pub fn replace(&mut self, listed: Vec<(String, BTreeMap<String, String>)>, now: Timestamp) {
        let mut before = self.nodes.take().unwrap_or_default();
        let kept = listed.iter().filter_map(|(name, _)| before.remove_entry(name));
        self.nodes = Some(kept.collect());
        for (name, annotations) in listed {
            self.apply(name, &annotations, now);
        }
    }

    /// A Node is new, or has changed.
    pub fn apply(&mut self, name: String, annotations: &BTreeMap<String, String>, now: Timestamp) {
        let told = NodePressure::from_annotations(&self.prefix, annotations);
        let nodes = self.nodes.get_or_insert_default();
        // A Node changes for many reasons, and is listed again: the same words are nothing new.
        if nodes.get(&name).is_some_and(|before| before.told == told) {
            return;
        }
        let value = told.as_ref().ok().and_then(Option::as_ref);
        let from_the_future = value
            .is_some_and(|value| value.freshness(now, self.reach.stale_after) == Freshness::Future);
        let value = value.filter(|_| !from_the_future).cloned();
        let mut window = nodes.remove(&name).map(|before| before.window).unwrap_or_default();
        window.change(value, now, self.reach);
        nodes.insert(name, Node { told, from_the_future, window });
    }

    /// A Node is gone, or is no longer selected.
    pub fn remove(&mut self, name: &str) {
        if let Some(nodes) = &mut self.nodes {
            nodes.remove(name);
        }
    }

    /// All Nodes as they are now; `None` before they were listed.
    #[must_use]
    pub fn views(&self, now: Timestamp) -> Option<Views> {
        let nodes = self.nodes.as_ref()?;
        let fresh = nodes.values().filter_map(|node| self.basis_now(node, now).ok());
        let common = most_common(fresh);
        let nodes: BTreeMap<String, View> =
            nodes.iter().map(|(name, node)| (name.clone(), self.view(node, common, now))).collect();
        let known: Vec<SlowNode> = nodes.values().filter_map(|view| view.slow).collect();
        Some(Views { nodes, neutral: average(&known) })
    }

    /// What a value was worked out from that may be used now, or why there is none.
    fn basis_now(&self, node: &Node, now: Timestamp) -> Result<Basis, Standing> {
        let value = match &node.told {
            Ok(Some(value)) => value,
            Ok(None) => return Err(Standing::Missing),
            Err(_) => return Err(Standing::Malformed),
        };
        match value.freshness(now, self.reach.stale_after) {
            Freshness::Future => Err(Standing::Future),
            Freshness::Fresh { .. } if node.from_the_future => Err(Standing::Future),
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
    /// A Node's view, or the neutral one of a Node that nothing is known of or that was not
    /// selected; `None` where no Node is known.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<SlowNode> {
        self.nodes.get(name).and_then(|view| view.slow).or(self.neutral)
    }

    /// How many Nodes have each standing.
    #[must_use]
    pub fn count(&self, standing: Standing) -> usize {
        self.nodes.values().filter(|view| view.standing == standing).count()
    }
}

/// What most are worked out from; none where two are equally many, since they do not compare.
fn most_common(bases: impl Iterator<Item = Basis>) -> Option<Basis> {
    let mut counts: Vec<(Basis, usize)> = Vec::new();
    for basis in bases {
        match counts.iter_mut().find(|(counted, _)| *counted == basis) {
            Some((_, count)) => *count += 1,
            None => counts.push((basis, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max()?;
    let mut with_most = counts.iter().filter(|(_, count)| *count == most);
    let (basis, _) = with_most.next()?;
    with_most.next().is_none().then_some(*basis)
}

fn average(known: &[SlowNode]) -> Option<SlowNode> {
    let of = |quantity: fn(&SlowNode) -> Option<Slow>| {
        let told: Vec<Slow> = known.iter().filter_map(quantity).collect();
        let (mut mean, mut deviation, mut count) = (0.0, 0.0, 0.0);
        for slow in told {
            mean += slow.mean;
            deviation += slow.deviation;
            count += 1.0;
        }
        (count > 0.0).then(|| Slow { mean: mean / count, deviation: deviation / count })
    };
    Some(SlowNode {
        score: of(|node| Some(node.score))?,
        cpu: of(|node| node.cpu),
        memory: of(|node| node.memory),
    })
}

#[cfg(test)]
pub(super) mod tests;
