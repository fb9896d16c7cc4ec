//! Whether moves pay: what both Nodes of a move waited for before it, beside what they wait for afterwards,
//! compared with the other Nodes, since demand changes over the day.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cluster::{HOUR, is_within};

/// Seconds from the start of a migration to its verdict: ten minutes for the migration, and the time constant
/// of the averages that Nodes publish.
const JUDGED_AFTER: i64 = 2_400;

/// Seconds after which there is no verdict if Nodes have not published anything.
const JUDGED_BEFORE: i64 = JUDGED_AFTER + 600;

/// Seconds in which a move counts.
const DAY: i64 = 24 * HOUR;

/// The latest moves that are remembered, since an annotation has to hold them.
const MOST: usize = 50;

/// Fewer verdicts decide nothing.
const LEAST: usize = 5;

/// The planner's moves of the last day.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Brake(Vec<Moved>);

/// A move, from the start of its migration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Moved {
    at: Timestamp,
    vm: String,
    source: String,
    target: String,
    /// CPUs' worth by which both Nodes wait more than two average others: at first, and later, once known.
    before: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<f64>,
}

impl Brake {
    /// Adds a move whose migration starts. `waiting` is what each Node publishes.
    pub fn add(
        &mut self,
        vm: &str,
        [source, target]: [&str; 2],
        waiting: &BTreeMap<&str, f64>,
        now: Timestamp,
    ) {
        let Some(before) = more_than_others(waiting, source, target) else { return };
        let [vm, source, target] = [vm, source, target].map(str::to_owned);
        self.0.push(Moved { at: now, vm, source, target, before, after: None });
        let surplus = self.0.len().saturating_sub(MOST);
        self.0.drain(..surplus);
    }

    /// Judges moves, and forgets those of yesterday. `node` is where a VM runs.
    pub fn judge<'a>(
        &mut self,
        waiting: &BTreeMap<&str, f64>,
        node: impl Fn(&str) -> Option<&'a str>,
        now: Timestamp,
    ) {
        for one in &mut self.0 {
            let is_due = one.after.is_none() && !is_within(JUDGED_AFTER - 1, Some(one.at), now);
            // A failed migration says nothing.
            if is_due && node(&one.vm) == Some(&one.target) {
                one.after = more_than_others(waiting, &one.source, &one.target);
            }
        }
        self.0.retain(|one| {
            let seconds = if one.after.is_some() { DAY } else { JUDGED_BEFORE };
            is_within(seconds, Some(one.at), now)
        });
    }

    /// Why there are no more moves for now: those of the last day together ended no waiting.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let ended: Vec<f64> =
            self.0.iter().filter_map(|one| Some(one.before - one.after?)).collect();
        let all: f64 = ended.iter().sum();
        (ended.len() >= LEAST && all <= 0.0).then(|| {
            format!(
                "after {} moves of the last day, their nodes wait for {:.1} CPUs more, other nodes \
                 considered",
                ended.len(),
                -all
            )
        })
    }
}

/// `None` while one of both has no value.
fn more_than_others(waiting: &BTreeMap<&str, f64>, source: &str, target: &str) -> Option<f64> {
    let both = waiting.get(source)? + waiting.get(target)?;
    let others = waiting.iter().filter(|(name, _)| ![source, target].contains(name));
    let (count, all) = others.fold((0.0, 0.0), |(count, all), (_, one)| (count + 1.0, all + one));
    Some(if count > 0.0 { both - 2.0 * all / count } else { both })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_355_200 + seconds).unwrap()
    }

    /// A brake that has moved this number of VMs, whose source waited for 4 CPUs and whose target for 1.
    fn moved(vms: usize) -> Brake {
        let mut brake = Brake::default();
        let waiting = BTreeMap::from([("hot", 4.0), ("cool", 1.0), ("a", 0.0), ("b", 2.0)]);
        for vm in 0..vms {
            brake.add(&format!("vm{vm}"), ["hot", "cool"], &waiting, after(0));
        }
        brake
    }

    /// Later both wait for so many CPUs each, and the others as before.
    fn judge(brake: &mut Brake, waits: f64, seconds: i64) -> Option<String> {
        let waiting = BTreeMap::from([("hot", waits), ("cool", waits), ("a", 1.0), ("b", 1.0)]);
        brake.judge(&waiting, |_| Some("cool"), after(seconds));
        brake.reason()
    }

    #[test]
    fn moves_stop_for_a_day_if_they_together_ended_no_waiting() {
        let mut brake = moved(5);
        assert_eq!(judge(&mut brake, 3.0, 2_399), None);
        let reason = judge(&mut brake, 3.0, 2_400).unwrap();
        let wait = "after 5 moves of the last day, their nodes wait for 5.0 CPUs more, other nodes considered";
        assert_eq!(reason, wait);
        assert_eq!(judge(&mut brake, 0.0, DAY), Some(reason), "each is judged once");
        assert_eq!(judge(&mut brake, 0.0, DAY + 1), None);
        assert_eq!(brake, Brake::default());
        assert_eq!(judge(&mut moved(5), 2.4, 2_400), None);
        assert!(judge(&mut moved(5), 2.5, 2_400).is_some());
        assert_eq!(judge(&mut moved(4), 9.0, 2_400), None, "too few");
        // All nodes wait for more.
        let mut brake = moved(5);
        let evening = BTreeMap::from([("hot", 5.0), ("cool", 5.0), ("a", 4.0), ("b", 4.0)]);
        brake.judge(&evening, |_| Some("cool"), after(2_400));
        assert_eq!(brake.reason(), None);
    }

    #[test]
    fn without_a_value_or_with_a_failed_migration_there_is_no_verdict() {
        let mut brake = moved(5);
        let [both, one] = [&["hot", "cool"][..], &["hot"]]
            .map(|names| names.iter().map(|name| (*name, 9.0)).collect::<BTreeMap<_, _>>());
        brake.judge(&both, |_| Some("hot"), after(2_400));
        brake.judge(&one, |_| Some("cool"), after(2_500));
        assert_eq!(brake.reason(), None);
        brake.judge(&one, |_| Some("cool"), after(JUDGED_BEFORE + 1));
        assert_eq!(brake, Brake::default());
        brake.add("vm", ["hot", "cool"], &one, after(0));
        assert_eq!(brake, Brake::default());
    }

    #[test]
    fn the_latest_moves_are_remembered() {
        assert_eq!(moved(500).0.len(), MOST);
        assert_eq!(moved(500).0[0].vm, "vm450");
    }
}
