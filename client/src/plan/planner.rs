//! A round of `psi-agent planner`: what became of its migrations, and the next moves.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use psi_agent_plan::cluster::{Cluster, Migration};
use psi_agent_plan::planner::State;
use psi_agent_plan::{ProposedMove, propose};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use strum::{IntoStaticStr, VariantNames};

use super::objects;
use super::report::manifest;
use crate::cluster::call::CallError;
use crate::cluster::{ApiClient, LEASE, Lease, migrations};
use crate::contract::Prefix;
use crate::flags::PlannerFlags;
use crate::output::print;

const CANNOT_WRITE: &str = "cannot write the planner's Lease";

/// Time limit of a round.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// What was done about a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Done {
    /// Without --apply: there is an Event.
    Proposed,
    /// There is a migration.
    Created,
    /// The API server refused the Event or the migration.
    Refused,
    /// The migration was deleted: its target had no pod, or the pod had no Node, or it hung.
    Cancelled,
}

/// The outcome of a round, whose name is a value of the label `result`.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Round {
    /// The process of this name holds the Lease.
    Standby(String),
    /// Why there were no moves.
    Planned(Option<String>),
    /// Why there could be none, whatever the candidates.
    Held(String),
    /// Why no migrations are created.
    #[strum(to_string = "planned")]
    Stopped(String),
}

pub struct Planner {
    pub api: ApiClient,
    pub prefix: Prefix,
    pub flags: PlannerFlags,
}

impl Planner {
    /// Plans once. What is done is passed to `on_done` at once, since a later request can fail.
    pub async fn round(
        &self,
        now: impl Fn() -> Timestamp,
        mut on_done: impl FnMut(Done, String),
    ) -> anyhow::Result<Round> {
        let Self { api, prefix, flags } = self;
        let mut lease = read_lease(api, &flags.rules.lease_namespace).await?;
        // The holder renews it before this time is over, or does nothing.
        let duration = flags.interval + 2 * TIME_LIMIT;
        if let Err(other) = lease.take(&flags.lease_holder, duration, now()) {
            return Ok(Round::Standby(other));
        }
        api.write_lease(&mut lease).await.context(CANNOT_WRITE)?;
        let mut state = state_of(&lease, prefix)?;
        let mut cluster = objects::read(api, prefix).await?;
        let now = now();
        if flags.apply {
            for one in self.review(&mut lease, &mut state, &mut cluster, now).await? {
                let (done, what) = cancel(api, &one).await;
                on_done(done, what);
            }
        }
        if let Some(stop) = state.stopped {
            return Ok(Round::Stopped(stop.reason));
        }
        let proposal = propose(&cluster, &flags.rules.rules(), now);
        let mut failed = None;
        for one in &proposal.moves {
            let what = described(one);
            let (done, path, object) = if flags.apply {
                // First: if the answer is lost, or this process ends, the move counts as well.
                state.begin(&cluster, one, now);
                save(api, &mut lease, prefix, &state).await?;
                (Done::Created, migrations(&one.namespace), manifest(one, prefix, now))
            } else {
                let path = format!("/api/v1/namespaces/{}/events", one.namespace);
                (Done::Proposed, path, event(one, now))
            };
            match api.create(&path, &object).await {
                Ok(IgnoredAny) => on_done(done, what),
                // There is one Event for each VM and hour.
                Err(CallError::Conflict) if !flags.apply => {}
                Err(error @ (CallError::Forbidden(_) | CallError::Refused { .. })) => {
                    let what = format!("{what}: {error}");
                    if flags.apply {
                        state.fail(one.full_name(), &what, now);
                        save(api, &mut lease, prefix, &state).await?;
                    }
                    on_done(Done::Refused, what);
                    if let Some(stop) = state.stopped {
                        return Ok(Round::Stopped(stop.reason));
                    }
                }
                // Other moves go on, in later rounds as well.
                Err(error) => {
                    let error = anyhow::Error::new(error);
                    failed.get_or_insert(error.context(format!("cannot create what moves {what}")));
                }
            }
        }
        match (failed, proposal.none_because) {
            (Some(error), _) => Err(error),
            (None, Some(reason)) if proposal.is_held => Ok(Round::Held(reason)),
            (None, reason) => Ok(Round::Planned(reason)),
        }
    }

    /// Reviews its migrations, and returns those to cancel. The state is saved first, so that each of them counts.
    async fn review(
        &self,
        lease: &mut Lease,
        state: &mut State,
        cluster: &mut Cluster,
        now: Timestamp,
    ) -> anyhow::Result<Vec<Migration>> {
        let names = objects::opted_in(&self.api, &self.prefix).await?;
        cluster.namespaces = Some(names.into_iter().collect());
        let before = state.clone();
        let pending = state.review(cluster, now);
        cluster.left_alone.clone_from(&state.left_alone);
        if *state != before {
            save(&self.api, lease, &self.prefix, state).await?;
        }
        Ok(pending)
    }
}

/// Deletes a migration. One that cannot be deleted, such as beside a webhook of its namespace that does not respond,
/// holds no other.
async fn cancel(api: &ApiClient, one: &Migration) -> (Done, String) {
    let what = format!("{}/{} of VM {}", one.namespace, one.name, one.vm);
    match api.delete_migration(&one.namespace, &one.name).await {
        Ok(()) | Err(CallError::NotFound) => (Done::Cancelled, what),
        Err(error) => (Done::Refused, format!("deletion of the migration {what}: {error}")),
    }
}

/// Starts a planner again that has stopped.
pub(super) async fn resume(
    api: &ApiClient,
    prefix: &Prefix,
    namespace: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut lease = read_lease(api, namespace).await?;
    let mut state = state_of(&lease, prefix)?;
    let outcome = match state.resume() {
        None => "The planner had not stopped\n".to_owned(),
        Some(stop) => {
            save(api, &mut lease, prefix, &state).await?;
            format!("The planner is resumed. It had stopped at {}: {}\n", stop.at, stop.reason)
        }
    };
    print(outcome, out).context("cannot write the outcome")
}

async fn read_lease(api: &ApiClient, namespace: &str) -> anyhow::Result<Lease> {
    api.lease(namespace).await.with_context(|| {
        format!(
            "cannot read the Lease {namespace}/{LEASE}, which daemonset/components/planner creates; \
             see --lease-namespace"
        )
    })
}

fn state_of(lease: &Lease, prefix: &Prefix) -> anyhow::Result<State> {
    let key = format!("{prefix}/state");
    serde_json::from_str(lease.annotation(&key).unwrap_or("{}")).with_context(|| {
        format!("cannot parse the annotation {key} of the Lease {LEASE}: remove it")
    })
}

async fn save(
    api: &ApiClient,
    lease: &mut Lease,
    prefix: &Prefix,
    state: &State,
) -> anyhow::Result<()> {
    lease.annotate(format!("{prefix}/state"), serde_json::to_string(state)?);
    api.write_lease(lease).await.context(CANNOT_WRITE)
}

fn described(one: &ProposedMove) -> String {
    let ProposedMove { namespace, name, source, target, gain, .. } = one;
    format!("VM {namespace}/{name} from {source} to {target}, gain {gain:.1} CPUs")
}

/// The Event that a VM would move.
fn event(one: &ProposedMove, now: Timestamp) -> Value {
    let ProposedMove { namespace, name, uid, source, target, gain, .. } = one;
    let date = format!("{now:.0}");
    let id = format!("psi-agent-proposed-{uid}-{}", now.as_second() / 3_600);
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": id, "namespace": namespace},
        "involvedObject": {
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "namespace": namespace, "name": name, "uid": uid,
        },
        "type": "Normal", "reason": "MoveProposed", "source": {"component": LEASE},
        "message": format!("Move from {source} to {target}: {gain:.1} CPUs' worth of waiting would end"),
        "firstTimestamp": date, "lastTimestamp": date, "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_survives_in_an_annotation() {
        let mut state = State::default();
        let now = Timestamp::from_second(1_767_355_200).unwrap();
        for vm in ["a", "b", "c"] {
            state.fail(format!("vms/{vm}"), "it was refused", now);
        }
        // As long as UIDs and names of cloud nodes are.
        let [source, target] = ["source", "target"].map(|name| format!("{name:-<63}"));
        let waiting = [(source.as_str(), 0.1), (&target, 0.2), ("other", 1.0 / 3.0)].into();
        for vm in 0..500 {
            state.brake.add(&format!("{vm:036}"), [&source, &target], &waiting, now);
        }
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
        assert!(text.contains(r#""vms/a":"2026-01-02T13:00:00Z""#));
        assert!(state.stopped.is_some());
        // The API server allows 256 KiB.
        assert!((50_000..100_000).contains(&text.len()), "{}", text.len());
        // One that another release wrote as well.
        for text in ["{}", r#"{"leftAlone":[{"vm":"a","until":"2026-01-02T13:00:00Z"}]}"#] {
            assert_eq!(serde_json::from_str::<State>(text).unwrap(), State::default());
        }
    }
}
