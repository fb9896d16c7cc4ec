//! The response to a scrape, in chunks: series of the sample, of the score, then the agent's own.

use std::sync::{Arc, Mutex, PoisonError};
use std::vec::IntoIter;

use super::exposition::Exposition;
use super::families::FamilyGroup;
use super::score_series::write_score;
use super::series::LabelCache;
use crate::own_metrics::OwnMetrics;
use crate::relief::Assessment;
use crate::sample::ScrapeSample;

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
        metrics: &OwnMetrics,
    ) -> Scrape {
        // The cache is valid even after a panic.
        let mut cache = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = cache.of_cgroups(&sample.cgroups);
        drop(cache);
        let mut own = Vec::new();
        write_score(&mut own, sample.cpu_source, assessment);
        metrics.write(&mut own);
        let exposition = Exposition::new(sample, labels, &self.groups);
        Scrape { exposition, own: own.into_iter() }
    }
}

/// The part of a response that is not written yet.
#[derive(Debug)]
pub struct Scrape {
    exposition: Exposition,
    /// The series of the score, then the agent's own.
    own: IntoIter<Vec<u8>>,
}

impl Iterator for Scrape {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        if !self.exposition.next_chunk(&mut text) {
            text.extend(self.own.next().unwrap_or_default());
        }
        (!text.is_empty()).then_some(text)
    }
}
