//! The agent's series beside those of the node's own kubelet. It writes when it read each sample, so
//! the agent's readings before and after that moment must enclose it.

use std::collections::{BTreeMap, BTreeSet};

use super::scene::Reading;
use crate::support::exposition::{PRESSURE, Series, parse};

/// The kubelet stamps a sample when it has read all files of it, and the agent's reading may be up
/// to a second older than the answer that it stands in.
const SLACK_MS: u64 = 2_000;
/// A float that went through nanoseconds instead of microseconds.
const ROUNDING: f64 = 1e-6;

type Labels = BTreeMap<String, String>;

/// The node, and two VMs with two containers each and their pods, in six families.
const COMPARED: usize = 7 * PRESSURE.len();

/// What the kubelet exports of the VMs, and of the node as a whole.
pub(super) struct OfKubelet {
    text: String,
    series: Vec<Series>,
}

impl OfKubelet {
    pub(super) fn parse(text: String) -> Self {
        let mut series = parse(&text);
        series.retain(|series| PRESSURE.contains(&&*series.name) && is_compared(&series.labels));
        Self { text, series }
    }

    /// Whether it has found all of them: on a busy machine its container runtime may be too late to
    /// answer when a container begins, and it asks again a minute later.
    pub(super) fn is_whole(&self) -> bool {
        self.series.len() >= COMPARED
    }

    /// Whether the readings enclose every sample in time.
    pub(super) fn is_enclosed_by(&self, readings: &[Reading]) -> bool {
        self.series.iter().all(|series| enclose(series, readings).is_some())
    }

    /// Requires the same families, labels and values of both.
    pub(super) fn check(&self, readings: &[Reading]) {
        let ours = readings.last().unwrap();
        let (mut above_zero, mut compared) = (0, 0);
        for name in PRESSURE {
            for kind in ["HELP", "TYPE"] {
                let start = format!("# {kind} {name} ");
                let said = |text: &str| {
                    text.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned))
                };
                assert_eq!(said(&ours.text), said(&self.text), "{start}");
            }
            assert_eq!(labels(name, &ours.series), labels(name, &self.series), "{name}");
        }
        for series in &self.series {
            let (before, after) = enclose(series, readings).unwrap();
            let value = |reading: &Reading| {
                let same =
                    |ours: &&Series| ours.name == series.name && ours.labels == series.labels;
                reading.series.iter().find(same).unwrap().value
            };
            let (low, high) = (value(before) - ROUNDING, value(after) + ROUNDING);
            assert!((low..=high).contains(&series.value), "{low} to {high} but {series:?}");
            compared += 1;
            above_zero += usize::from(series.value > 0.0);
        }
        assert_eq!(compared, COMPARED);
        assert!(above_zero >= 7, "{above_zero} values above zero");
        eprintln!("{compared} values as the kubelet has them, {above_zero} of them above zero");
    }
}

/// The node and the VMs' pods and containers; the agent has no series of a pause container, which
/// has an image and no name.
fn is_compared(labels: &Labels) -> bool {
    let is_pause = labels["container"].is_empty() && !labels["image"].is_empty();
    labels["id"] == "/" || labels["namespace"] == "vms" && !is_pause
}

fn labels<'a>(name: &str, series: &'a [Series]) -> BTreeSet<&'a Labels> {
    let of_family = series.iter().filter(|series| series.name == name);
    of_family.map(|series| &series.labels).collect()
}

/// The last reading before a sample of the kubelet's, and the first after it.
fn enclose<'a>(series: &Series, readings: &'a [Reading]) -> Option<(&'a Reading, &'a Reading)> {
    let read_ms = series.timestamp_ms.expect("the kubelet says when it read");
    let before = readings.iter().rfind(|reading| reading.ended_ms + SLACK_MS <= read_ms)?;
    let after = readings.iter().find(|reading| reading.began_ms >= read_ms + SLACK_MS)?;
    Some((before, after))
}
