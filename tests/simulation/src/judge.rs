//! Whether moves helped, and what a run cost and lost.

use crate::series::Minutes;

/// A finished migration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Move {
    pub vm: usize,
    pub source: usize,
    pub target: usize,
    pub started_s: u32,
    pub ended_s: u32,
    pub effect: Effect,
}

/// What all VMs of both nodes wait for after a move, in CPUs, added up over some minutes: with the VM on
/// its new node, and with the same demand on its old one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Effect {
    pub minutes: usize,
    pub moved: f64,
    pub stayed: f64,
}

impl Move {
    /// Whether this minute after the move is compared.
    pub fn is_judged_at(&self, now_s: u32) -> bool {
        let after = now_s.saturating_sub(self.ended_s) as usize / 60;
        (SETTLING..SETTLING + COMPARED).contains(&after) && now_s >= self.ended_s
    }

    /// Whether the move helped: neighbours count, and what else changed does not. `None` before all
    /// minutes are known.
    pub fn effect(&self, vcpus: f64) -> Option<Verdict> {
        let Effect { minutes, moved, stayed } = self.effect;
        let change = (moved - stayed) / COMPARED as f64;
        (minutes == COMPARED).then(|| Verdict::of(change / vcpus))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Helped,
    Neutral,
    Hurt,
}

impl Verdict {
    /// `change` is a share of the VM's vCPUs' time.
    fn of(change: f64) -> Self {
        match change {
            change if change >= CHANGED => Self::Hurt,
            change if change <= -CHANGED => Self::Helped,
            _ => Self::Neutral,
        }
    }
}

/// Minutes before the end and after it that are compared, and the minutes after the end that are left out, as
/// the rules `vmi_move:` of daemonset/prometheus have them.
const COMPARED: usize = 10;
const SETTLING: usize = 2;
/// The waiting changes by at least this share of the VM's vCPUs' time, or the move is neutral.
const CHANGED: f64 = 0.02;
/// The same for the recording rules, in CPUs.
const CHANGED_CPUS: f64 = 0.5;
const DAY_S: u32 = 86_400;
const LEAST_MOVES: usize = 5;
const SOON_S: u32 = 6 * 3600;

/// The verdict on a move by psi-agent's recording rules, which compare what the VMs of both nodes waited
/// before and after, whatever else changed: once ten settled minutes have passed.
pub fn verdict(one: &Move, nodes: &[Minutes]) -> Option<Verdict> {
    let end = (one.ended_s / 60) as usize;
    let from = one.ended_s.div_ceil(60) as usize + SETTLING;
    let mean = |minutes: &[f64]| minutes.iter().sum::<f64>() / minutes.len().max(1) as f64;
    let mut change = 0.0;
    for node in [one.source, one.target] {
        let waiting = &nodes.get(node)?.waiting;
        change += mean(waiting.get(from..from + COMPARED)?);
        change -= mean(&waiting[end.saturating_sub(COMPARED)..end]);
    }
    Some(Verdict::of(change * CHANGED / CHANGED_CPUS))
}

/// Whether the brake holds: most of the last day's moves that are judged, at least five, did not help.
pub fn brake_holds(moves: &[Move], nodes: &[Minutes], now_s: u32) -> bool {
    let recent = moves.iter().filter(|one| one.ended_s + DAY_S > now_s);
    let verdicts: Vec<Verdict> = recent.filter_map(|one| verdict(one, nodes)).collect();
    let helped = verdicts.iter().filter(|verdict| **verdict == Verdict::Helped).count();
    verdicts.len() >= LEAST_MOVES && helped * 2 < verdicts.len()
}

/// VMs with two moves within six hours.
pub fn moved_again_soon(moves: &[Move], vms: usize) -> usize {
    let mut last: Vec<Option<u32>> = vec![None; vms];
    let mut soon = vec![false; vms];
    for one in moves {
        soon[one.vm] |= last[one.vm].is_some_and(|at| one.ended_s < at + SOON_S);
        last[one.vm] = Some(one.ended_s);
    }
    soon.into_iter().filter(|soon| *soon).count()
}

/// CPU wait of all VMs in all minutes, in thousandths.
#[derive(Debug, Clone)]
pub struct Waits {
    counts: Vec<u64>,
    all: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self { counts: vec![0; 1001], all: 0 }
    }
}

impl Waits {
    pub fn add(&mut self, share: f64) {
        self.counts[(share.clamp(0.0, 1.0) * 1000.0).round() as usize] += 1;
        self.all += 1;
    }

    /// The smallest share that 99 % do not exceed.
    pub fn p99(&self) -> f64 {
        let mut below = 0;
        let at = self.counts.iter().position(|count| {
            below += count;
            below * 100 >= self.all * 99
        });
        at.unwrap_or(0) as f64 / 1000.0
    }
}

/// The result of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    pub vms: f64,
    pub days: f64,
    /// CPU hours that VMs wanted, and that they missed by waiting.
    pub demand_hours: f64,
    pub lost_hours: f64,
    /// Of these, what they could not catch up within five minutes.
    pub late_hours: f64,
    /// Hours of VMs that waited for 10 % of their demand and 5 % of their vCPUs' time or more.
    pub contended_hours: f64,
    pub p99_wait: f64,
    pub moves: f64,
    pub each_move: Vec<Move>,
    pub judged: f64,
    pub helped: f64,
    pub hurt: f64,
    pub moved_again: f64,
    pub writes_per_s: f64,
    pub p99_writes: f64,
    /// Mean age of the values that decisions used, seconds.
    pub age_s: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(vm: usize, started_s: u32, ended_s: u32) -> Move {
        Move { vm, source: 0, target: 1, started_s, ended_s, effect: Effect::default() }
    }

    #[test]
    fn the_effect_of_a_move_counts_all_vms_of_both_nodes() {
        let one = moved(0, 0, 600);
        let judged: Vec<u32> = (0..60).filter(|minute| one.is_judged_at(minute * 60)).collect();
        assert_eq!(judged, (12..22).collect::<Vec<u32>>());
        let effect = |minutes, moved, stayed| {
            Move { effect: Effect { minutes, moved, stayed }, ..one }.effect(4.0)
        };
        assert_eq!(effect(9, 0.0, 9.0), None);
        assert_eq!(effect(10, 1.0, 3.0), Some(Verdict::Helped));
        assert_eq!(effect(10, 3.0, 3.5), Some(Verdict::Neutral));
        assert_eq!(effect(10, 3.0, 2.0), Some(Verdict::Hurt));
    }

    fn nodes(waiting: [Vec<f64>; 2]) -> Vec<Minutes> {
        let minutes = |waiting| {
            let mut minutes = Minutes::default();
            minutes.waiting = waiting;
            minutes
        };
        waiting.map(minutes).into()
    }

    #[test]
    fn a_move_is_judged_by_what_both_nodes_wait_ten_minutes_before_and_after() {
        let one = moved(0, 20 * 60, 20 * 60 + 30);
        let judged = |source, target| {
            let waiting =
                |before, after| [vec![before; 20], vec![9.0; 3], vec![after; 10]].concat();
            verdict(&one, &nodes([waiting(4.0, source), waiting(1.0, target)]))
        };
        assert_eq!(judged(1.0, 3.0), Some(Verdict::Helped));
        assert_eq!(judged(1.0, 4.3), Some(Verdict::Neutral));
        assert_eq!(judged(3.0, 2.5), Some(Verdict::Hurt));
        assert_eq!(verdict(&one, &nodes([vec![1.0; 32], vec![1.0; 32]])), None);
    }

    #[test]
    fn the_brake_needs_five_judged_moves_of_one_day() {
        let nodes = nodes([vec![1.0; 3000], vec![1.0; 3000]]);
        let moves: Vec<Move> =
            (0..5).map(|number| moved(0, 3600 * number, 3600 * number + 30)).collect();
        assert!(brake_holds(&moves, &nodes, 40_000));
        assert!(!brake_holds(&moves[..4], &nodes, 40_000));
        assert!(!brake_holds(&moves, &nodes, DAY_S + 30));
    }

    #[test]
    fn two_moves_within_six_hours_count_once_for_a_vm() {
        let at = |vm, ended_s| moved(vm, ended_s, ended_s);
        let moves = [at(0, 0), at(1, 10), at(0, 100), at(0, 200), at(1, 10 + SOON_S)];
        assert_eq!(moved_again_soon(&moves, 2), 1);
    }

    #[test]
    fn p99_is_the_smallest_share_that_99_percent_do_not_exceed() {
        let mut waits = Waits::default();
        (0..99).for_each(|_| waits.add(0.01));
        waits.add(0.5);
        assert_eq!(waits.p99(), 0.01);
        waits.add(0.5);
        assert_eq!(waits.p99(), 0.5);
    }
}
