//! The response to a scrape, in chunks: series of the sample, of the score, then the agent's own.

use std::sync::Arc;

use super::exposition::Exposition;
use super::families::FamilyGroup;
use super::score_series::write_score;
use crate::own_metrics::OwnMetrics;
use crate::relief::Assessment;
use crate::sample::ScrapeSample;

/// The chunks of a response. Those of cgroups are rendered as they are taken.
pub fn scrape(
    sample: Arc<ScrapeSample>,
    groups: &[FamilyGroup],
    assessment: Option<&Assessment>,
    metrics: &OwnMetrics,
) -> impl Iterator<Item = Vec<u8>> + use<> {
    let mut own = Vec::new();
    assessment.into_iter().for_each(|assessment| write_score(&mut own, assessment));
    metrics.write(&mut own);
    Exposition::new(sample, groups).chain(own)
}
