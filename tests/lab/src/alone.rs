//! Each load of a scenario alone on the node, with its own limits. What it waits then is due to its limits
//! and to the disk; what it waits beyond that beside others is contention.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::counters::{delays, text, threads};
use crate::load::{now, sleep_until};
use crate::node;
use crate::process::{report_of, start_load, work_of};
use crate::record::Alone;
use crate::scenario::{Pod, Scenario};
use crate::taskstats::{Delays, Taskstats};
use crate::tree::PodTree;

/// The counted time, seconds. It starts as late as beside others, since at first swapped pages lie side by
/// side on the disk and are read faster.
const FROM: f64 = 10.0;
const UNTIL: f64 = 20.0;

/// Runs one copy of each pod, one after the other.
pub fn run_all(
    scenario: &Scenario,
    taskstats: &Taskstats,
) -> anyhow::Result<BTreeMap<String, Alone>> {
    let mut all = BTreeMap::new();
    for pod in &scenario.pods {
        all.insert(pod.name.clone(), run(pod, taskstats).with_context(|| pod.name.clone())?);
        node::forget_files()?;
    }
    Ok(all)
}

fn run(pod: &Pod, taskstats: &Taskstats) -> anyhow::Result<Alone> {
    let tree = PodTree::make(pod, "alone", 0)?;
    let report = report_of("alone");
    let start = now();
    let judged = (start + FROM, start + UNTIL);
    let mut child = start_load(&tree.container, pod.load, 0, judged, Some(&report))?;
    sleep_until(judged.0);
    let before = most(&tree.container, taskstats)?;
    sleep_until(judged.1);
    let after = most(&tree.container, taskstats)?;
    // The load reports when its next step ends.
    for _ in 0..400 {
        if !text(&report).is_empty() {
            break;
        }
        sleep_until(now() + 0.05);
    }
    ensure!(child.try_wait()?.is_none(), "the load ended");
    let work = work_of("alone")?;
    tree.remove()?;
    child.wait()?;
    let delays = after.by(before, u64::saturating_sub);
    Ok(Alone { seconds: UNTIL - FROM, work, delays })
}

fn most(container: &Path, taskstats: &Taskstats) -> anyhow::Result<Delays> {
    let threads = threads(container, false);
    let all = delays(threads.keys(), taskstats)?;
    Ok(all.values().fold(Delays::default(), |most, one| most.by(*one, u64::max)))
}
