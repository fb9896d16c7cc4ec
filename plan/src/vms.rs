//! Which VMs may move.

use jiff::fmt::friendly::{Spacing, SpanPrinter};
use jiff::{SignedDuration, Timestamp};

use crate::cluster::{Cluster, Pod, Vm, is_past, is_within};

/// Why a VM may not move, whatever the target. It does not for `rest` seconds after its start and after a
/// migration.
pub(crate) fn obstacle(
    cluster: &Cluster,
    vm: &Vm,
    pod: &Pod,
    rest: i64,
    now: Timestamp,
) -> Option<String> {
    let latest = vm.migration.as_ref();
    if cluster.migrations.iter().any(|one| one.is_active() && one.is_of(vm)) {
        return Some("a migration is active".into());
    }
    if cluster.left_alone.iter().any(|one| one.vm == vm.uid) {
        return Some("a plan tried to move it within an hour".into());
    }
    if !cluster.may_move_vms_of(&vm.namespace) {
        return Some(format!("its namespace has no label {}/plan: \"true\"", cluster.prefix));
    }
    if let Err(reason) = &vm.live_migratable {
        return Some(format!("not live-migratable: {reason}"));
    }
    if let Some(tie) = vm.tied_by {
        return Some(format!("it has {tie}"));
    }
    if let Some(strategy @ ("None" | "External")) = vm.eviction_strategy.as_deref() {
        return Some(format!("its eviction strategy is {strategy}"));
    }
    if pod.prefers_no_eviction {
        return Some("its owner prefers no eviction".into());
    }
    if pod.requires_other_pods {
        return Some("it requires pod affinity or topology spread".into());
    }
    let is_past = |moment: &Timestamp| is_past(*moment, now);
    // A migration is in the VM's status only once the target's pod runs.
    let of_vm = cluster.migrations.iter().filter(|one| one.is_of(vm));
    let tried = of_vm.filter_map(|one| one.ended.filter(is_past)).max();
    let migrated = latest.and_then(|latest| latest.ended.filter(is_past));
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
