//! One answer to a scrape: the sample's series, the score's, then the agent's own, in chunks.

use std::sync::{Arc, Mutex, PoisonError};

use super::exposition::Exposition;
use super::families::FamilyGroup;
use super::score_series::write_score;
use super::series::LabelCache;
use crate::sample::ScrapeSample;
use crate::score::NodeScore;
use crate::self_health::SelfHealth;

/// What scrapes have in common: which families, whose labels, and the agent's own metrics.
#[derive(Debug)]
pub struct Scrapes {
    groups: Vec<FamilyGroup>,
    labels: Mutex<LabelCache>,
    health: SelfHealth,
}

impl Scrapes {
    /// Scrapes of these families.
    #[must_use]
    pub fn new(groups: Vec<FamilyGroup>, health: SelfHealth) -> Self {
        Self { groups, labels: Mutex::default(), health }
    }

    /// The agent's own metrics.
    #[must_use]
    pub fn health(&self) -> &SelfHealth {
        &self.health
    }

    /// Begins an answer.
    #[must_use]
    pub fn begin(&self, sample: Arc<ScrapeSample>, score: Option<&NodeScore>) -> Scrape {
        // A cache has no broken state worth keeping from the next scrape.
        let mut cache = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = cache.of_cgroups(&sample.cgroups);
        drop(cache);
        let mut text = String::new();
        if let Some(score) = score {
            write_score(&mut text, score);
        }
        let mut own = Vec::new();
        if let Err(error) = self.health.render(&mut own) {
            tracing::error!(%error, "Cannot render the agent's own metrics");
            own.clear();
        }
        let own = [text.into_bytes(), own].concat();
        let exposition = Exposition::new(sample, labels, self.groups.clone());
        Scrape { exposition: Some(exposition), own }
    }
}

/// The rest of an answer.
#[derive(Debug)]
pub struct Scrape {
    exposition: Option<Exposition>,
    own: Vec<u8>,
}

impl Scrape {
    /// Appends the next part to `text`; `false` when that was the last one.
    pub fn next_chunk(&mut self, text: &mut Vec<u8>) -> bool {
        if let Some(exposition) = &mut self.exposition {
            if exposition.next_chunk(text) {
                return true;
            }
            self.exposition = None;
        }
        text.append(&mut self.own);
        false
    }
}
