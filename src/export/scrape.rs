//! The response to a scrape, in chunks: series of the sample, of the score, then the agent's own.

use std::sync::{Arc, Mutex, PoisonError};

use super::exposition::Exposition;
use super::families::FamilyGroup;
use super::score_series::write_score;
use super::series::LabelCache;
use crate::health::Health;
use crate::relief::Assessment;
use crate::sample::ScrapeSample;
use crate::serve::body::Chunks;

/// State that scrapes share: the exported families, and the cgroups' labels.
#[derive(Debug)]
pub struct Scrapes {
    groups: Vec<FamilyGroup>,
    labels: Mutex<LabelCache>,
}

impl Scrapes {
    pub fn new(groups: Vec<FamilyGroup>) -> Self {
        Self { groups, labels: Mutex::default() }
    }

    /// Begins a response.
    pub fn begin(
        &self,
        sample: Arc<ScrapeSample>,
        assessment: Option<&Assessment>,
        health: &Health,
    ) -> Scrape {
        // The cache is valid even after a panic.
        let mut cache = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = cache.of_cgroups(&sample.cgroups);
        drop(cache);
        let mut text = String::new();
        write_score(&mut text, sample.cpu_source, assessment);
        let mut own = Vec::new();
        if let Err(error) = health.render(&mut own) {
            tracing::error!(%error, "Cannot render the agent's own metrics");
            own.clear();
        }
        let own = [text.into_bytes(), own].concat();
        let exposition = Exposition::new(sample, labels, self.groups.clone());
        Scrape { exposition, own }
    }
}

/// The part of a response that is not written yet.
#[derive(Debug)]
pub struct Scrape {
    exposition: Exposition,
    own: Vec<u8>,
}

impl Scrape {
    /// Appends the next chunk to `text`; `false` when it was the last.
    pub fn next_chunk(&mut self, text: &mut Vec<u8>) -> bool {
        let more = self.exposition.next_chunk(text);
        if !more {
            text.append(&mut self.own);
        }
        more
    }
}

impl Chunks for Scrape {
    fn next_chunk(&mut self, text: &mut Vec<u8>) -> bool {
        Scrape::next_chunk(self, text)
    }
}
