//! The cluster's migrations, and what each of them changed.

use super::Cluster;
use crate::agent::Pod;
use crate::consumers::kubevirt;
use crate::judge::{Effect, Move};
use crate::random::Random;

/// KubeVirt ends a migration whose target found no node in this time.
const PENDING_S: u32 = 300;
const HOUR_S: u32 = 3600;

#[derive(Debug, Clone, Copy)]
pub(super) struct Migration {
    pub(super) vm: usize,
    pub(super) target: usize,
    started_s: u32,
    ends_s: u32,
}

impl Cluster {
    pub fn is_in_flight(&self, vm: usize) -> bool {
        self.waiting.iter().any(|waiting| waiting.0 == vm)
            || self.in_progress.iter().any(|migration| migration.vm == vm)
    }

    /// An eviction, which KubeVirt turns into a migration. Without a target, kube-scheduler selects it.
    pub fn evict(&mut self, vm: usize, target: Option<usize>, now_s: u32) {
        if !self.is_in_flight(vm) {
            self.waiting.push((vm, target, now_s));
        }
    }

    /// Ends and starts migrations, and returns the targets that kube-scheduler selected.
    pub fn advance_migrations(&mut self, now_s: u32, random: &mut Random) -> Vec<usize> {
        let (ended, in_progress) =
            self.in_progress.drain(..).partition(|migration: &Migration| migration.ends_s <= now_s);
        self.in_progress = in_progress;
        ended.iter().for_each(|migration| self.hand_over(migration));
        self.waiting.retain(|waiting| now_s < waiting.2 + PENDING_S || waiting.1.is_some());
        let places: Vec<(usize, usize)> =
            self.waiting.iter().map(|waiting| (waiting.0, self.vms[waiting.0].node)).collect();
        let sources: Vec<usize> =
            self.in_progress.iter().map(|migration| self.vms[migration.vm].node).collect();
        let mut scheduled = Vec::new();
        for vm in kubevirt::to_start(&places, &sources) {
            let at = self.waiting.iter().position(|waiting| waiting.0 == vm).unwrap_or_default();
            let chosen = self.waiting[at].1;
            let source = self.vms[vm].node;
            let Some(target) = chosen.or_else(|| self.schedule(vm, Some(source), random)) else {
                continue;
            };
            self.waiting.remove(at);
            self.reserve(target, self.vms[vm].request(), 1);
            let busy = self.vms[vm].share.ran;
            let ends_s = now_s + kubevirt::duration_s(self.vms[vm].memory_mib, busy);
            self.in_progress.push(Migration { vm, target, started_s: now_s, ends_s });
            (self.nodes[source].is_changed, self.nodes[target].is_changed) = (true, true);
            if chosen.is_none() {
                scheduled.push(target);
            }
        }
        scheduled
    }

    fn hand_over(&mut self, migration: &Migration) {
        let Migration { vm, target, started_s, ends_s } = *migration;
        let source = self.vms[vm].node;
        self.reserve(source, self.vms[vm].request(), -1);
        (self.nodes[source].is_changed, self.nodes[target].is_changed) = (true, true);
        self.nodes[source].vms.remove(&vm);
        self.nodes[target].vms.insert(vm);
        self.pods += 1;
        let moved = &mut self.vms[vm];
        (moved.node, moved.arrived_s) = (target, Some(ends_s));
        moved.pod = Pod::new(self.pods, moved.memory_mib, Some(ends_s));
        let effect = Effect::default();
        self.moves.push(Move { vm, source, target, started_s, ended_s: ends_s, effect });
    }

    /// Compares both nodes of each recent move with what they would wait for without it.
    pub fn judge_moves(&mut self, now_s: u32) {
        for at in 0..self.moves.len() {
            let one = self.moves[at];
            let vm = &self.vms[one.vm];
            if !one.is_judged_at(now_s) || !vm.exists || vm.node != one.target {
                continue;
            }
            let waited = |node: usize, vms: Vec<usize>| -> f64 {
                self.shares(node, &vms).iter().map(|share| share.waited).sum()
            };
            let on = |node: usize| self.nodes[node].vms.iter().copied();
            let moved = self.nodes[one.source].waited + self.nodes[one.target].waited;
            let stayed = waited(one.source, on(one.source).chain([one.vm]).collect())
                + waited(one.target, on(one.target).filter(|vm| *vm != one.vm).collect());
            let effect = &mut self.moves[at].effect;
            effect.minutes += 1;
            effect.moved += moved;
            effect.stayed += stayed;
        }
    }

    /// Whether a node takes part in a migration, or did so within this time.
    pub fn took_part(&self, node: usize, within_s: u32, now_s: u32) -> bool {
        let in_progress =
            self.in_progress.iter().any(|one| one.target == node || self.vms[one.vm].node == node);
        in_progress
            || self.moves.iter().rev().take_while(|one| now_s < one.ended_s + HOUR_S).any(|one| {
                now_s < one.ended_s + within_s && (one.source == node || one.target == node)
            })
    }

    /// VMs that were evicted from a node within this time.
    pub fn evictions(&self, node: usize, within_s: u32, now_s: u32) -> usize {
        let is_recent = |at: u32| now_s < at + within_s;
        let ended = self.moves.iter().rev().take_while(|one| now_s < one.ended_s + HOUR_S);
        ended.filter(|one| one.source == node && is_recent(one.started_s)).count()
            + self.in_progress.iter().filter(|one| self.vms[one.vm].node == node).count()
            + self.waiting.iter().filter(|one| self.vms[one.0].node == node).count()
    }

    /// VMs that started or arrived on a node in the last hour, or are on their way.
    pub fn arrivals(&self, node: usize, now_s: u32) -> usize {
        let on = self.nodes[node].vms.iter().filter_map(|vm| self.vms[*vm].arrived_s);
        on.filter(|at| now_s < at + HOUR_S).count()
            + self.in_progress.iter().filter(|one| one.target == node).count()
            + self.waiting.iter().filter(|one| one.1 == Some(node)).count()
    }

    /// Migrations that run or wait for their turn.
    pub fn active(&self) -> usize {
        self.in_progress.len() + self.waiting.len()
    }
}
