//! What a planner remembers from one plan to the next, and what it does about its own migrations.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ProposedMove;
use crate::brake::Brake;
use crate::cluster::{Cluster, HOUR, Migration, Pod, is_past, is_within};
use crate::nodes::waiting;

/// Seconds without a Node for the target's pod after which a migration is cancelled.
const PENDING: i64 = 60;

/// Seconds without a pod after which a migration is cancelled: the plan describes what was.
const WITHOUT_POD: i64 = 600;

/// Why a migration is cancelled that did not fail: it may have waited for other migrations.
const NO_POD: &str = "it had no pod";

/// So many VMs whose migrations fail in a row stop the planner.
const MOST_FAILED: usize = 3;

/// What has to survive a restart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// VMs that stay for now, by namespace and name, and when they may move again.
    #[serde(rename = "leftAloneUntil")]
    pub left_alone: BTreeMap<String, Timestamp>,
    /// The VMs whose migrations failed or were cancelled since one succeeded. A VM that cannot move is tried
    /// again and again, and must not stop all others.
    pub failed: Vec<String>,
    /// End of the latest migration that is counted; at first, the time of the first plan.
    pub counted_until: Option<Timestamp>,
    /// Why no migrations are created.
    pub stopped: Option<Stop>,
    /// The latest moves, and what they changed.
    pub brake: Brake,
}

/// The planner has stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: String,
}

impl State {
    /// Judges its moves, and counts the own migrations that have ended. Returns those to cancel: their
    /// target has no pod, or its pod no Node, or they hang, which counts as a failure.
    pub fn review(&mut self, cluster: &Cluster, now: Timestamp) -> Vec<Migration> {
        // Dates of a clock that was ahead would hold the planner, and hide failures, for as long.
        let latest = in_an_hour(now);
        self.left_alone.retain(|_, until| {
            *until = latest.min(*until);
            *until > now
        });
        self.counted_until = self.counted_until.filter(|until| is_past(*until, now));
        let arrival = |uid: &str| {
            let vm = cluster.vms.iter().find(|vm| vm.uid == uid)?;
            Some((vm.node.as_str(), vm.migration.as_ref()?.ended?))
        };
        self.brake.judge(&waiting(cluster, now), arrival, now);
        if let Some(reason) = self.brake.reason() {
            self.stop(reason, now);
        }
        let since = *self.counted_until.get_or_insert(now);
        let is_own = |one: &&Migration| cluster.owns(one) && !one.is_being_deleted;
        let own = || cluster.migrations.iter().filter(is_own);
        let is_new = |ended: &Timestamp| *ended > since && is_past(*ended, now);
        let ended = own().filter(|one| !one.is_active());
        let mut ended: Vec<(Timestamp, &Migration)> =
            ended.filter_map(|one| Some((one.ended.filter(is_new)?, one))).collect();
        ended.sort_by_key(|(ended, _)| *ended);
        for (ended, migration) in ended {
            self.counted_until = Some(ended);
            if migration.phase == "Succeeded" {
                self.failed.clear();
            } else {
                let what = format!("{} failed", described(migration));
                self.count_failure(migration.name_of_vm(), &what, now);
            }
        }
        let mut cancelled = Vec::new();
        for migration in own() {
            let Some(why) = cancel_reason(cluster, migration, now) else { continue };
            cancelled.push(migration.clone());
            self.leave_alone(migration.name_of_vm(), now);
            if why != NO_POD {
                let what = format!("{} was cancelled: {why}", described(migration));
                self.count_failure(migration.name_of_vm(), &what, now);
            }
        }
        cancelled
    }

    /// Remembers a move whose migration is about to be created. If that is deleted early, nothing else shows it.
    pub fn begin(&mut self, cluster: &Cluster, one: &ProposedMove, now: Timestamp) {
        self.leave_alone(one.full_name(), now);
        let nodes = [one.source.as_str(), &one.target];
        self.brake.add(&one.uid, nodes, &waiting(cluster, now), now);
    }

    /// Counts a failure, and leaves the VM alone, since the reason may be its own.
    pub fn fail(&mut self, vm: String, what: &str, now: Timestamp) {
        self.leave_alone(vm.clone(), now);
        self.count_failure(vm, what, now);
    }

    /// Leaves a VM alone for an hour.
    fn leave_alone(&mut self, vm: String, now: Timestamp) {
        self.left_alone.insert(vm, in_an_hour(now));
    }

    fn count_failure(&mut self, vm: String, what: &str, now: Timestamp) {
        // An annotation has to hold them.
        if !self.failed.contains(&vm) && self.failed.len() < MOST_FAILED {
            self.failed.push(vm);
        }
        let count = self.failed.len();
        if count >= MOST_FAILED {
            self.stop(format!("migrations of {count} VMs in a row failed; the last: {what}"), now);
        }
    }

    /// The first reason counts.
    fn stop(&mut self, reason: String, now: Timestamp) {
        self.stopped.get_or_insert(Stop { at: now, reason });
    }

    /// Lets migrations be created again. VMs are left alone as before.
    pub fn resume(&mut self) -> Option<Stop> {
        (self.failed, self.brake) = (Vec::new(), Brake::default());
        self.stopped.take()
    }
}

fn in_an_hour(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second() + HOUR).unwrap_or(Timestamp::MAX)
}

/// Why a migration is to be cancelled: there is no pod of the target, or kube-scheduler has found no Node for it for a
/// minute, or it hangs. KubeVirt waits without end for a pod that a quota or a policy forbids, and shows the former.
fn cancel_reason(cluster: &Cluster, migration: &Migration, now: Timestamp) -> Option<&'static str> {
    let (since, most, why) = match target_pod(cluster, migration) {
        Some(pod) if pod.node.is_none() => (pod.unscheduled_since, PENDING, "its pod had no Node"),
        Some(_) => (None, PENDING, "it did not end"),
        None if migration.is_over_quota => (migration.created, PENDING, "a quota forbids its pod"),
        None => (migration.created, WITHOUT_POD, NO_POD),
    };
    let is_pending = migration.is_queued() && since.is_some() && !is_within(most - 1, since, now);
    (is_pending || migration.is_stuck(now)).then_some(why)
}

/// Other pods of the namespace can have the label, too, so one with a Node comes first.
fn target_pod<'a>(cluster: &'a Cluster, migration: &Migration) -> Option<&'a Pod> {
    let pods = cluster.pods.iter().filter(|pod| pod.is_target_of(migration));
    pods.max_by_key(|pod| pod.node.is_some())
}

fn described(migration: &Migration) -> String {
    let Migration { namespace, name, vm, hostname, .. } = migration;
    let target = hostname.as_deref().unwrap_or("any node");
    format!("migration {namespace}/{name} of VM {vm} to {target}")
}

#[cfg(test)]
mod tests;
