//! The response to a scrape, in chunks: series of the sample, of the score, then the agent's own.

use std::sync::Arc;

use parking_lot::Mutex;

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

    /// The chunks of a response. Those of cgroups are rendered as they are taken.
    pub fn begin(
        &self,
        sample: Arc<ScrapeSample>,
        assessment: Option<&Assessment>,
        metrics: &OwnMetrics,
    ) -> impl Iterator<Item = Vec<u8>> + use<> {
        let labels = self.labels.lock().of_cgroups(&sample.cgroups);
        let mut own = Vec::new();
        assessment.into_iter().for_each(|assessment| write_score(&mut own, assessment));
        metrics.write(&mut own);
        Exposition::new(sample, labels, &self.groups).chain(own)
    }
}
