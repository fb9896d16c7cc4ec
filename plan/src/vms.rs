//! Which VMs may move.

use jiff::fmt::friendly::{Spacing, SpanPrinter};
use jiff::{SignedDuration, Timestamp};

use crate::cluster::{Cluster, Migration, Pod, Vm, is_past, is_within};

/// Why a VM may not move, whatever the target. It does not for `rest` seconds after its start and after a
/// migration.
pub(crate) fn obstacle(
    cluster: &Cluster,
    vm: &Vm,
    pod: &Pod,
    rest: i64,
    now: Timestamp,
) -> Option<String> {
    let of_vm = || cluster.migrations.iter().filter(|one| one.is_of(vm));
    let strategy = vm.eviction_strategy.as_deref().filter(|one| ["None", "External"].contains(one));
    let is_left_alone = cluster.left_alone.contains_key(&vm.full_name());
    let obstacles = [
        of_vm().any(Migration::is_active).then(|| "a migration is active".into()),
        is_left_alone.then(|| "a plan tried to move it within an hour".into()),
        (!cluster.may_move_vms_of(&vm.namespace))
            .then(|| format!("its namespace has no label {}/plan: \"true\"", cluster.prefix)),
        vm.live_migratable.as_ref().err().map(|reason| format!("not live-migratable: {reason}")),
        vm.tied_by.map(|tie| format!("it has {tie}")),
        strategy.map(|strategy| format!("its eviction strategy is {strategy}")),
        pod.prefers_no_eviction.then(|| "its owner prefers no eviction".into()),
        pod.requires_other_pods.then(|| "it requires pod affinity or topology spread".into()),
    ];
    if let Some(obstacle) = obstacles.into_iter().flatten().next() {
        return Some(obstacle);
    }
    let is_past = |moment: &Timestamp| is_past(*moment, now);
    // A migration is in the VM's status only once the target's pod runs.
    let tried = of_vm().filter_map(|one| one.ended.filter(is_past)).max();
    let migrated = vm.migration.as_ref().and_then(|latest| latest.ended.filter(is_past));
    // Without a date, the pod may be new.
    let placed = migrated.or(pod.created);
    let since = placed.map(|placed| tried.map_or(placed, |tried| tried.max(placed)));
    let what = if migrated.or(tried).is_some() { "migrated, or tried to," } else { "started" };
    (since.is_none() || is_within(rest, since, now)).then(|| {
        let spaced = SpanPrinter::new().spacing(Spacing::BetweenUnitsAndDesignators);
        let rest = spaced.duration_to_string(&SignedDuration::from_secs(rest));
        format!("it {what} within {rest}")
    })
}
