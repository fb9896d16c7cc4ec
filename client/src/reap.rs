//! `psi-agent reap`: removes values that no agent renews from Nodes, since most clients do not
//! check the age of a value. Only keys with the prefix are removed.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use serde::de::IgnoredAny;

use crate::cluster::call::CallError;
use crate::cluster::{ApiClient, ListParams, NodeKeys, OwnNode, PodName};
use crate::contract::{Key, NodePressure, Prefix};
use crate::flags::ReapFlags;
use crate::output::print;
use crate::pod::{LAUNCHER, Pod, key};

/// Attempts for a Node that changes between the read and the write.
const TRIES: usize = 3;

/// Label of the agents' pods, in all manifests.
pub const AGENTS: &str = "app.kubernetes.io/name=psi-agent";
/// In seconds.
const LONGEST_WAIT: u32 = 60;

/// Clears the Nodes, and writes a line to `out` for each that was cleared or could not be cleared.
/// If more than half of the values are stale, it clears none and fails, unless forced: the cause is
/// probably an outage.
pub async fn reap(
    api: &ApiClient,
    prefix: &Prefix,
    flags: &ReapFlags,
    now: impl Fn() -> Timestamp,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let &ReapFlags { older_than, force, candidates, .. } = flags;
    if let Some(namespace) = &flags.wait_for_agents {
        wait_for_agents(api, namespace, out).await?;
    }
    // Without an age, all are cleared. Keys without a valid date count as stale.
    let is_stale = |node: &NodeKeys| {
        let Some(age) = older_than else { return true };
        let pressure = NodePressure::from_annotations(prefix, &node.metadata.annotations);
        let Ok(Some(pressure)) = pressure else { return true };
        // The clock of a node may be ahead, or this one behind. Without an agent, the value becomes stale all the same.
        pressure.observed_at.duration_since(now()).unsigned_abs() > age
    };
    let nodes = api.list_nodes(prefix, "").await?;
    let nodes = nodes.into_iter().filter(|node| node.has_own_keys(prefix));
    let (nodes, fresh): (Vec<NodeKeys>, Vec<NodeKeys>) = nodes.partition(is_stale);
    let (stale, scored) = (nodes.len(), nodes.len() + fresh.len());
    let mut fresh: BTreeSet<String> = fresh.into_iter().map(|node| node.metadata.name).collect();
    if older_than.is_some() && !force && stale * 2 > scored {
        bail!(
            "{stale} of {scored} nodes with a value are stale: that looks like an outage of the \
             agents or of the API server, so nothing was cleared; to clear them anyway, set --force",
        );
    }
    let (mut cleared, mut failed) = (0, 0);
    for node in nodes {
        let name = node.metadata.name.clone();
        let line = match clear(api, prefix, node, is_stale).await {
            Ok(Outcome::Gone) => continue,
            Ok(Outcome::Renewed) => {
                fresh.insert(name);
                continue;
            }
            Ok(Outcome::Cleared) => {
                cleared += 1;
                format!("{name}: cleared\n")
            }
            Err(error) => {
                failed += 1;
                format!("{name}: not cleared: {error:#}\n")
            }
        };
        print(line, out).context(CANNOT_WRITE)?;
    }
    print(format!("{cleared} of {scored} nodes with a value cleared\n"), out)
        .context(CANNOT_WRITE)?;
    if candidates {
        unmark(api, prefix, &fresh, out).await?;
    }
    if failed > 0 {
        bail!("{failed} of {stale} nodes could not be cleared");
    }
    Ok(())
}

/// Waits until no agent runs in a namespace, since an agent could write its keys again. The agent of a node
/// that does not respond has no end, so the wait has one.
async fn wait_for_agents(
    api: &ApiClient,
    namespace: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let (agents, mut count) = (ListParams::default().labels(AGENTS), 0);
    for _ in 0..LONGEST_WAIT {
        count = api.list_all(&path, &agents, |_: IgnoredAny| ()).await?.len();
        if count == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    print(format!("{count} agents in {namespace} have not ended\n"), out).context(CANNOT_WRITE)
}

/// Removes the label of the VM to move first from pods whose Node has no fresh value.
async fn unmark(
    api: &ApiClient,
    prefix: &Prefix,
    fresh: &BTreeSet<String>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let label = Key::MigrateFirst.of(prefix);
    // Another pod has it from its owner.
    let of_vms = ListParams::default().labels(&format!("{label},{}={LAUNCHER}", key::KIND));
    let pods = api.list_all("/api/v1/pods", &of_vms, |pod: Pod| pod).await?;
    let mut last = Ok(());
    for pod in pods.into_iter().filter(|pod| !fresh.contains(&pod.spec.node_name)) {
        let pod = PodName { namespace: pod.metadata.namespace, name: pod.metadata.name };
        let PodName { namespace, name } = &pod;
        match api.label_pod(&pod, &label, None).await {
            Ok(()) => {
                print(format!("{namespace}/{name}: label removed\n"), out).context(CANNOT_WRITE)?;
            }
            Err(CallError::NotFound) => {}
            Err(error) => {
                last = Err(error)
                    .with_context(|| format!("cannot remove {label} from pod {namespace}/{name}"));
            }
        }
    }
    last
}

const CANNOT_WRITE: &str = "cannot write what was cleared";

enum Outcome {
    Cleared,
    /// Its value was renewed after it was listed.
    Renewed,
    /// It was deleted, or another client removed its keys.
    Gone,
}

/// Clears a Node.
async fn clear(
    api: &ApiClient,
    prefix: &Prefix,
    mut node: NodeKeys,
    is_stale: impl Fn(&NodeKeys) -> bool,
) -> anyhow::Result<Outcome> {
    let own = OwnNode { api: api.clone(), name: node.metadata.name.clone() };
    for _ in 0..TRIES {
        let changed = match own.patch(&node.clearing_patch(prefix)).await {
            Ok(()) => return Ok(Outcome::Cleared),
            Err(CallError::Conflict) => own.get().await,
            Err(error) => Err(error),
        };
        node = match changed {
            Ok(changed) if !changed.has_own_keys(prefix) => return Ok(Outcome::Gone),
            Ok(changed) if is_stale(&changed) => changed,
            Ok(_) => return Ok(Outcome::Renewed),
            Err(CallError::NotFound) => return Ok(Outcome::Gone),
            Err(error) => return Err(error.into()),
        };
    }
    bail!("it was changed during each of {TRIES} tries")
}
