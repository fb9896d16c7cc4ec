//! Whether moves pay: the CPU wait of both Nodes of a move before it and afterwards, compared with the median
//! of the other Nodes, since demand changes over the day.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cluster::{DAY, HOUR, is_within};

/// Seconds from the arrival of a VM to the verdict: the time constant of the averages that Nodes publish.
const JUDGED_AFTER: i64 = 1_800;

/// Seconds from the arrival after which there is no verdict: it would be about other changes.
const JUDGED_BEFORE: i64 = 3_000;

/// Seconds in which a migration has to end for a verdict.
const LONGEST: i64 = 2 * HOUR;

/// Seconds by which the clock of a Node may be behind that of the planner.
const SLOW_CLOCK: i64 = 600;

/// The latest moves and verdicts that are remembered, since an annotation has to hold them.
const MOST: usize = 250;

/// Fewer verdicts decide nothing.
const LEAST: usize = 5;

/// The latest moves of the planner, and what they changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Brake {
    moves: Vec<PendingMove>,
    verdicts: Vec<Verdict>,
}

/// A move without a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PendingMove {
    /// When its migration was about to be created.
    at: Timestamp,
    vm: String,
    source: String,
    target: String,
    /// CPUs by which both Nodes waited more than two median ones.
    before: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Verdict {
    at: Timestamp,
    /// CPUs' worth of waiting that ended.
    ended: f64,
}

impl Brake {
    /// Adds a move that begins, in place of an earlier one of the VM, which has not arrived. `waiting` is what each
    /// Node publishes.
    pub fn add(
        &mut self,
        vm: &str,
        [source, target]: [&str; 2],
        waiting: &BTreeMap<&str, f64>,
        now: Timestamp,
    ) {
        self.moves.retain(|one| one.vm != vm);
        let Some(before) = more_than_others(waiting, source, target) else { return };
        let [vm, source, target] = [vm, source, target].map(str::to_owned);
        self.moves.push(PendingMove { at: now, vm, source, target, before });
        keep_latest(&mut self.moves);
    }

    /// Judges moves, and removes old ones. `arrival` is the Node of a VM, and when it arrived there.
    pub fn judge<'a>(
        &mut self,
        waiting: &BTreeMap<&str, f64>,
        arrival: impl Fn(&str) -> Option<(&'a str, Timestamp)>,
        now: Timestamp,
    ) {
        self.verdicts.retain(|one| is_within(DAY, Some(one.at), now));
        let verdicts = &mut self.verdicts;
        self.moves.retain(|one| {
            // A failed migration has no verdict.
            let arrived =
                arrival(&one.vm).filter(|(node, at)| *node == one.target && is_after(*at, one.at));
            let Some((_, arrived)) = arrived else { return is_within(LONGEST, Some(one.at), now) };
            if is_within(JUDGED_AFTER - 1, Some(arrived), now) {
                return true;
            }
            if !is_within(JUDGED_BEFORE, Some(arrived), now) {
                return false;
            }
            let after = more_than_others(waiting, &one.source, &one.target);
            verdicts.extend(after.map(|after| Verdict { at: now, ended: one.before - after }));
            after.is_none()
        });
        keep_latest(verdicts);
    }

    /// Why no more moves should be made: those of the last day together increased the waiting.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let ended: f64 = self.verdicts.iter().map(|one| one.ended).sum();
        let count = self.verdicts.len();
        (count >= LEAST && ended < 0.0).then(|| {
            format!(
                "after {count} moves of the last day, VMs on their nodes wait for {:.1} CPUs more, relative to \
                 other nodes",
                -ended
            )
        })
    }
}

/// Whether a VM arrived after its move began, by the clock of its target, which may be slow. It had stayed for hours.
fn is_after(arrived: Timestamp, began: Timestamp) -> bool {
    arrived.as_second() >= began.as_second() - SLOW_CLOCK
}

fn keep_latest<T>(items: &mut Vec<T>) {
    items.drain(..items.len().saturating_sub(MOST));
}

/// `None` while one of both has no value.
fn more_than_others(waiting: &BTreeMap<&str, f64>, source: &str, target: &str) -> Option<f64> {
    let both = waiting.get(source)? + waiting.get(target)?;
    let is_other = |name: &str| name != source && name != target;
    let mut others: Vec<f64> =
        waiting.iter().filter(|(name, _)| is_other(name)).map(|(_, one)| *one).collect();
    others.sort_by(f64::total_cmp);
    // Of an even number the lower one: where half of the nodes are contended, moves end that as well.
    let median = others.get(others.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
    Some(both - 2.0 * median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_355_200 + seconds).unwrap()
    }

    fn waiting(hot: f64, cool: f64, others: f64) -> BTreeMap<&'static str, f64> {
        [("hot", hot), ("cool", cool), ("a", others), ("b", others), ("c", 9.0)].into()
    }

    /// A brake that has moved this number of VMs.
    fn moved(vms: usize) -> Brake {
        let mut brake = Brake::default();
        for vm in 0..vms {
            brake.add(&format!("vm{vm}"), ["hot", "cool"], &waiting(4.0, 1.0, 1.0), after(0));
        }
        brake
    }

    /// The VMs arrived after 200 s, and both Nodes then wait for so many CPUs each.
    fn judge(brake: &mut Brake, waits: f64, seconds: i64) -> Option<String> {
        let waiting = waiting(waits, waits, 1.0);
        brake.judge(&waiting, |_| Some(("cool", after(200))), after(seconds));
        brake.reason()
    }

    #[test]
    fn moves_that_together_increase_the_waiting_are_a_reason_to_stop_for_a_day() {
        let mut brake = moved(5);
        assert_eq!(judge(&mut brake, 3.0, 1_999), None);
        let reason = judge(&mut brake, 3.0, 2_000).unwrap();
        let wait = "after 5 moves of the last day, VMs on their nodes wait for 5.0 CPUs more, relative to other nodes";
        assert_eq!(reason, wait);
        assert_eq!(judge(&mut brake, 0.0, 2_000 + DAY), Some(reason), "each is judged once");
        assert_eq!(judge(&mut brake, 0.0, 2_001 + DAY), None);
        assert_eq!(brake, Brake::default());
        assert_eq!(judge(&mut moved(5), 2.4, 2_000), None);
        assert!(judge(&mut moved(5), 2.6, 2_000).is_some());
        assert_eq!(judge(&mut moved(4), 9.0, 2_000), None, "too few");
        assert_eq!(judge(&mut moved(5), 9.0, 3_201), None, "too late");
    }

    #[test]
    fn a_target_whose_clock_is_slow_has_a_verdict() {
        let judged = |arrived| {
            let mut brake = moved(5);
            let waiting = waiting(3.0, 3.0, 1.0);
            brake.judge(&waiting, |_| Some(("cool", after(arrived))), after(2_000));
            brake.verdicts.len()
        };
        assert_eq!([-600, -601].map(judged), [5, 0]);
    }

    #[test]
    fn what_all_nodes_wait_for_does_not_count() {
        let mut brake = moved(5);
        let evening = waiting(5.0, 5.0, 4.0);
        brake.judge(&evening, |_| Some(("cool", after(200))), after(2_000));
        assert_eq!((brake.reason(), brake.verdicts.len()), (None, 5));
        assert!((brake.verdicts[0].ended - 1.0).abs() < 1e-9);
    }

    #[test]
    fn moves_from_half_of_the_nodes_do_not_count_against_each_other() {
        let all = |wait: f64| {
            BTreeMap::from([("hot", wait), ("cool", 0.0), ("warm", wait), ("cold", 0.0)])
        };
        let mut brake = Brake::default();
        brake.add("vm0", ["hot", "cool"], &all(6.0), after(0));
        brake.judge(&all(0.0), |_| Some(("cool", after(200))), after(2_000));
        assert_eq!(brake.verdicts, [Verdict { at: after(2_000), ended: 6.0 }]);
    }

    #[test]
    fn without_a_value_or_an_arrival_there_is_no_verdict() {
        let mut brake = moved(5);
        let before = brake.clone();
        brake.judge(&waiting(9.0, 9.0, 0.0), |_| Some(("hot", after(-900))), after(2_000));
        brake.judge(&waiting(9.0, 9.0, 0.0), |_| Some(("cool", after(-900))), after(2_000));
        brake.judge(&[("hot", 9.0)].into(), |_| Some(("cool", after(200))), after(2_000));
        assert_eq!(brake, before);
        brake.judge(&waiting(9.0, 9.0, 0.0), |_| None, after(LONGEST + 1));
        assert_eq!(brake, Brake::default());
        brake.add("vm", ["hot", "cool"], &[("hot", 9.0)].into(), after(0));
        assert_eq!(brake, Brake::default());
    }

    #[test]
    fn the_latest_moves_are_remembered() {
        assert_eq!(moved(500).moves.len(), MOST);
        assert_eq!(moved(500).moves[0].vm, "vm250");
    }
}
