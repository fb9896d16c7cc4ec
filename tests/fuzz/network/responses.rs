//! Responses of the API server (reviews, pods and Nodes), and of an agent (snapshots).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use jiff::Timestamp;
use kube::Client;
use psi_agent::bridge::table::Table;
use psi_agent::bridge::window::Reach;
use psi_agent::cgroup_path::Place;
use psi_agent::client::cluster::list_items::ListItems;
use psi_agent::client::cluster::{ApiClient, Decision, NodeKeys};
use psi_agent::client::pod::Pod;
use psi_agent::client::snapshot::Snapshot;
use psi_agent::client::top::{self, Size};
use psi_agent::config::OutputFlags;
use psi_agent::contract::{Basis, Key, Level, NodeDemand, NodePressure, Prefix};
use psi_agent::identity::pod_index::PodIndex;
use psi_agent::publish::PublishedScore;
use psi_agent::publish::node_patch::node_patch;
use psi_agent::serve::authorization::METRICS;
use serde::Deserialize;
use serde_json::Value;

use super::{Annotations, EVENT_LOOP, check_message};

const NOW: &str = "2026-01-01T00:00:00Z";
static START: LazyLock<Timestamp> = LazyLock::new(|| NOW.parse().expect("a time"));

thread_local! {
    static REVIEWS: (ApiClient, Arc<Mutex<Vec<(u16, Vec<u8>)>>>) = reviewer();
}

/// A client of an API server that responds with what is in the list, from its end.
fn reviewer() -> (ApiClient, Arc<Mutex<Vec<(u16, Vec<u8>)>>>) {
    let responses = Arc::<Mutex<Vec<(u16, Vec<u8>)>>>::default();
    let left = Arc::clone(&responses);
    let service = tower::service_fn(move |_: Request<kube::client::Body>| {
        let next = left.lock().ok().and_then(|mut left| left.pop());
        async move {
            let (status, body) = next.ok_or_else(|| std::io::Error::other("no more responses"))?;
            let mut response = Response::new(Full::new(Bytes::from(body)).boxed());
            *response.status_mut() = status.try_into().unwrap_or_default();
            Ok::<_, std::io::Error>(response)
        }
    });
    let client = EVENT_LOOP
        .with(|event_loop| event_loop.block_on(async { Client::new(service, "default") }));
    (ApiClient::new(client), responses)
}

/// Responses of the API server to a TokenReview and a SubjectAccessReview: one in each line, a status
/// code and a body.
pub(crate) fn reviews(bytes: &[u8]) {
    let lines: Vec<(u16, Vec<u8>)> = bytes
        .splitn(2, |byte| *byte == b'\n')
        .map(|line| {
            let (status, body) = line.split_at_checked(3).unwrap_or((b"", line));
            let status = std::str::from_utf8(status).ok().and_then(|status| status.parse().ok());
            (status.filter(|status| (200..600).contains(status)).unwrap_or(201), body.to_vec())
        })
        .collect();
    let decided = REVIEWS.with(|(api, responses)| {
        *responses.lock().expect("no panic") = lines.iter().rev().cloned().collect();
        EVENT_LOOP.with(|event_loop| event_loop.block_on(api.review("token", METRICS)))
    });
    if decided == Ok(Decision::Allowed) {
        let [token, access] = &lines[..] else { panic!("access without two responses") };
        let status = |(code, body): &(u16, Vec<u8>)| -> Result<Value, serde_json::Error> {
            assert!((200..300).contains(code), "access after {code}");
            serde_json::from_slice(body)
        };
        // What is skipped may be no valid text.
        let (Ok(token), Ok(access)) = (status(token), status(access)) else { return };
        // serde also takes an array for a struct, with its fields in order.
        if token.is_object() && token["status"].is_object() {
            assert_eq!(token["status"]["authenticated"], true);
        }
        if access.is_object() && access["status"].is_object() {
            assert_eq!(access["status"]["allowed"], true);
            assert_ne!(access["status"]["denied"], true);
        }
    }
}

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

/// A list of pods, then the lookup of each, then the deletion of the first.
pub(crate) fn pods(bytes: &[u8]) {
    let Ok(PodList { items }) = serde_json::from_slice(bytes) else { return };
    let mut index = PodIndex::of(Prefix::default(), &items);
    assert!(index.is_listed() && index.count() <= items.len());
    let latest: BTreeMap<&str, &Pod> =
        items.iter().map(|pod| (pod.metadata.uid.as_str(), pod)).collect();
    for (uid, pod) in &latest {
        check_lookups(&index, uid, pod);
    }
    if let Some(first) = items.first() {
        let before = index.count();
        index.delete(&first.metadata.uid);
        assert_eq!(index.count(), before - 1);
        index.apply(first);
        assert_eq!(index.count(), before);
    }
}

/// The items of a list, which are those that a whole parse finds.
pub(crate) fn list_items(bytes: &[u8]) {
    let (mut reader, mut found) = (ListItems::default(), Vec::new());
    reader.push(bytes, |item| found.push(item.to_vec()));
    assert!(reader.rest().len() <= bytes.len());
    let Ok(Value::Object(list)) = serde_json::from_slice(bytes) else { return };
    let objects =
        |value: &Value| value.as_array().is_some_and(|all| all.iter().all(Value::is_object));
    // Other arrays at that level would be taken for the items.
    if list.len() == 1 && list.get("items").is_some_and(objects) {
        let found: Result<Vec<Value>, _> =
            found.iter().map(|item| serde_json::from_slice(item)).collect();
        assert_eq!(
            found.expect("whole items").as_slice(),
            list["items"].as_array().expect("an array").as_slice()
        );
    }
}

/// The pod and its containers by the paths of their cgroups: it is found by its uid whatever other
/// pods are annotated with, and no name of it that is exported is too long.
fn check_lookups(index: &PodIndex, uid: &str, pod: &Pod) {
    let slice = format!(
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
        uid.replace('-', "_")
    );
    let containers = pod.status.containers().filter_map(|status| {
        let (_, id) = status.container_id.split_once("://")?;
        Some(format!("{slice}/cri-containerd-{id}.scope"))
    });
    for path in [slice.clone()].into_iter().chain(containers) {
        let Place::Pod(place) = Place::of_path(&path) else { continue };
        let Some(workload) = index.workload(&place) else { continue };
        assert!(workload.image.len() <= 512, "{}", workload.image);
        if *place.uid == *uid {
            assert_eq!(*workload.namespace, *pod.metadata.namespace);
            assert_eq!(*workload.pod, *pod.metadata.name);
        }
        if let Some(vm) = &workload.vm {
            let is_expected = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
            };
            assert!((1..=253).contains(&vm.name.len()) && vm.name.bytes().all(is_expected));
        }
    }
}

/// A Node, and the patches that remove or set its keys.
pub(crate) fn node(bytes: &[u8]) {
    let Ok(node) = serde_json::from_slice::<NodeKeys>(bytes) else { return };
    let prefix = Prefix::default();
    let is_own = |keys: [Key; 2], key: &str| keys.iter().any(|own| own.of(&prefix) == key);
    let is_foreign =
        |taint: &&Value| !is_own(Key::TAINTS, taint["key"].as_str().unwrap_or_default());

    let patch = node.clearing_patch(&prefix);
    for (kind, keys) in
        [("annotations", &node.metadata.annotations), ("labels", &node.metadata.labels)]
    {
        let removed = patch["metadata"][kind].as_object().expect("a map");
        let is_own = |key: &&String| {
            if kind == "labels" { is_own(Key::LABELS, key) } else { prefix.owns(key) }
        };
        let own: BTreeSet<&String> = keys.keys().filter(is_own).collect();
        assert_eq!(removed.keys().collect::<BTreeSet<_>>(), own);
        assert!(removed.values().all(Value::is_null));
    }
    let foreign: Vec<&Value> = node.spec.taints.iter().filter(is_foreign).collect();
    match patch.get("spec") {
        Some(spec) => {
            assert_eq!(spec["taints"].as_array().map(|it| it.iter().collect()), Some(foreign))
        }
        None => assert_eq!(foreign.len(), node.spec.taints.len()),
    }

    let pressure = NodePressure {
        score: 40,
        cpu: Some(40),
        memory: None,
        io: Some(0),
        observed_at: *START,
        basis: Basis::RunDelay(5),
    };
    let demand =
        NodeDemand { headroom: 3, vms: 1.0, others: 0.5, waiting: 0.0, candidates: Vec::new() };
    let published = PublishedScore { pressure, level: Level::High, demand: Some(demand) };
    let keys = Key::TAINTS.map(|key| key.of(&prefix));
    let is_ours = |taint: &&Value| keys.iter().any(|key| taint["key"] == **key);
    for (label, taints) in
        [(false, &[][..]), (true, &[Level::High]), (true, &[Level::Medium, Level::High])]
    {
        let outputs = OutputFlags { label, taint_levels: taints.to_vec() };
        let patch = node_patch(&prefix, &node, &published, &outputs);
        let metadata = &patch["metadata"];
        for kind in ["annotations", "labels"] {
            let written = metadata[kind].as_object();
            assert!(written.into_iter().flatten().all(|(key, _)| prefix.owns(key)), "{patch}");
        }
        let Some(spec) = patch.get("spec") else { continue };
        let written = spec["taints"].as_array().expect("a list");
        let others = |list: &[Value]| -> Vec<Value> {
            list.iter().filter(|taint| !is_ours(taint)).cloned().collect()
        };
        assert_eq!(others(written), others(&node.spec.taints));
        assert_eq!(written.iter().filter(is_ours).count(), taints.len());
    }
}

/// Annotations of Nodes, one Node and one minute in each line: parsed, and averaged by the bridge.
pub(crate) fn node_annotations(bytes: &[u8]) {
    let minute = Duration::from_secs(60);
    let reach = Reach { window: 10 * minute, stale_after: 10 * minute };
    let mut table = Table::new(Prefix::default(), reach);
    let mut now = *START;
    for (number, line) in bytes.split(|byte| *byte == b'\n').take(64).enumerate() {
        let Ok(annotations) = serde_json::from_slice::<Annotations>(line) else { continue };
        let demand = NodeDemand::from_annotations(&Prefix::default(), &annotations);
        assert!(demand.ok().flatten().is_none_or(|demand| demand.candidates.len() <= 3));
        let parsed = NodePressure::from_annotations(&Prefix::default(), &annotations);
        if let Ok(Some(NodePressure { score, cpu, memory, io, basis, .. })) = &parsed {
            let known = [Some(*score), *cpu, *memory, *io];
            assert!(known.into_iter().flatten().all(|points| points <= 100), "{known:?}");
            assert_eq!(basis.to_string().parse(), Ok(*basis));
        }
        if let Ok(Some(pressure)) = &parsed {
            for now in [Timestamp::MIN, now, Timestamp::MAX] {
                let _ = pressure.freshness(now, minute);
            }
        }
        if let Err(error) = &parsed {
            check_message(&error.to_string());
        }
        table.apply(["a", "b"][number % 2].to_owned(), &annotations, now);
        now += minute;
    }
    let Some(views) = table.views(now) else { return };
    let known = views.nodes.iter().filter_map(|(_, view)| view.ok()).chain(views.neutral);
    for slow in known {
        for slow in [Some(slow.score), slow.cpu, slow.memory].into_iter().flatten() {
            assert!((0.0..=100.0).contains(&slow.mean), "{}", slow.mean);
            assert!((0.0..=100.0).contains(&slow.deviation), "{}", slow.deviation);
        }
    }
}

/// One snapshot, or two separated by a zero byte, that `top` shows.
pub(crate) fn snapshot(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let first = parts.next().unwrap_or_default();
    let snapshots = [first, parts.next().unwrap_or(first)];
    let [before, latest] = snapshots.map(serde_json::from_slice::<Snapshot>);
    let (Ok(before), Ok(latest)) = (before, latest) else { return };
    for (columns, rows) in [(80, 24), (1, 3), (200, 60), (usize::from(u16::MAX), usize::MAX)] {
        let shown = (format!("agent {}", latest.version), latest.clone());
        let lines = top::table(&before, shown, Size { columns, rows }, false);
        assert!(lines.len() <= rows, "{} lines", lines.len());
        for line in lines {
            assert!(line.len() <= columns, "{} columns: {line}", line.len());
            assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{line:?}");
        }
    }
}
