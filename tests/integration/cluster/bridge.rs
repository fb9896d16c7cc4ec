//! `psi-agent bridge` on the Nodes of a real API server, with the rights of its component, and what
//! real schedulers and a real descheduler do by its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::descheduler::{LONG_AGO, add_vm, evicted, pod_of, wait_for_cycles};
use super::manifests::check_arguments;
use crate::support::agent::{Agent, Answer};
use crate::support::cluster::Cluster;
use crate::support::descheduler::Descheduler;
use crate::support::exposition::parse;
use crate::support::{snippet, wait_for};

mod schedulers;
mod size;

const MINUTE: Duration = Duration::from_secs(60);
/// Half of the bridge's window in these tests is shorter: what was observed then is known at once.
const A_WHILE: i64 = 40;
/// Where consumers find the bridge, by the documents.
const IN_CLUSTER: &str = "http://psi-agent-bridge.psi-agent.svc:9943";

struct Scene {
    // It ends before the cluster that it watches.
    bridge: Agent,
    cluster: Cluster,
}

impl Scene {
    /// Nodes that run VMs, and a bridge with the account of its component.
    fn start(name: &str, nodes: &[&str]) -> Self {
        let cluster = Cluster::start(name);
        cluster.add_namespace("vms");
        cluster.kubectl(&["apply", "-f", "-"], &cluster.render_with(&["bridge"]));
        for node in nodes {
            cluster.add_node(node);
            cluster.kubectl(&["label", "node", node, "kubevirt.io/schedulable=true"], "");
            let kvm = json!({"devices.kubevirt.io/kvm": "1k"});
            let room = json!({"status": {"capacity": kvm, "allocatable": kvm}}).to_string();
            let patch = ["patch", "node", node, "--subresource=status", "--type=merge", "-p"];
            cluster.kubectl(&[&patch[..], &[&room]].concat(), "");
        }
        let kubeconfig = cluster.write_kubeconfig("bridge", &cluster.token("psi-agent-bridge"));
        let kubeconfig = kubeconfig.to_str().unwrap();
        let flags = ["bridge", "--window", "1m", "--kubeconfig", kubeconfig];
        Self { bridge: Agent::start(&flags), cluster }
    }

    /// Writes on a Node as an agent does that saw this so many seconds ago.
    fn write(&self, node: &str, score: u8, seconds_ago: i64) {
        self.write_with(node, score, seconds_ago, &[]);
    }

    /// The same, with some annotations in another way.
    fn write_with(&self, node: &str, score: u8, seconds_ago: i64, others: &[(&str, &str)]) {
        let observed_at = Timestamp::now() - SignedDuration::from_secs(seconds_ago);
        let (score, observed_at) = (score.to_string(), format!("{observed_at:.0}"));
        let mut values: BTreeMap<&str, &str> = [
            ("score", &*score),
            ("cpu", &*score),
            ("memory", "0"),
            ("observed-at", &*observed_at),
            ("basis", "psi/2"),
        ]
        .into();
        values.extend(others.iter().copied());
        let values: Vec<String> =
            values.iter().map(|(key, value)| format!("psi-agent.io/{key}={value}")).collect();
        let annotate = ["annotate", "--overwrite", "node", node];
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        self.cluster.kubectl(&[&annotate[..], &values].concat(), "");
    }

    /// Waits until the bridge has listed the Nodes, and checks that it knows no score yet.
    fn check_that_none_is_known(&self) {
        wait_for("the Nodes are listed", MINUTE, || {
            (self.bridge.request("GET /readyz HTTP/1.1\r\nHost: localhost\r\n").status == 200)
                .then_some(())
        });
        let (status, why) = self.query().unwrap_err();
        assert_eq!(status, 503, "{why}");
        assert!(why.contains("no Node has a known slow score"), "{why}");
    }

    /// The response to a descheduler: the value of each Node, or the status and the error.
    fn query(&self) -> Result<BTreeMap<String, f64>, (u16, String)> {
        let answer = post(&self.bridge, "/api/v1/query", "query=slow-score&time=");
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        if answer.status != 200 {
            assert_eq!(body["status"], "error", "{body}");
            return Err((answer.status, body["error"].as_str().unwrap().to_owned()));
        }
        assert_eq!(body["data"]["resultType"], "vector", "{body}");
        let samples = body["data"]["result"].as_array().unwrap().iter().map(|sample| {
            let value = sample["value"][1].as_str().unwrap().parse().unwrap();
            (sample["metric"]["instance"].as_str().unwrap().to_owned(), value)
        });
        Ok(samples.collect())
    }

    /// Waits until each Node has such a value.
    fn wait_for_values(&self, expected: &[(&str, f64)]) {
        let expected: BTreeMap<String, f64> =
            expected.iter().map(|(node, value)| ((*node).to_owned(), *value)).collect();
        let mut last = None;
        wait_for(&format!("the bridge says {expected:?}"), MINUTE, || {
            let heard = self.query();
            if last.as_ref() != Some(&heard) {
                eprintln!("the bridge says {heard:?}");
                last = Some(heard.clone());
            }
            (heard.as_ref() == Ok(&expected)).then_some(())
        });
    }

    /// One of the bridge's own numbers.
    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let series = parse(&self.bridge.get("/metrics"));
        let mut found = series.iter().filter(|series| {
            series.name == name && labels.iter().all(|(key, value)| series.labels[*key] == *value)
        });
        found.next().unwrap_or_else(|| panic!("{name} {labels:?}")).value
    }
}

/// Sends a body as curl does.
fn post(bridge: &Agent, path: &str, body: &str) -> Answer {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n");
    exchange(bridge, &format!("{head}Connection: close\r\n\r\n{body}"))
}

/// Sends this and nothing more, and waits for an answer.
fn exchange(bridge: &Agent, request: &str) -> Answer {
    let mut stream = TcpStream::connect(&bridge.address).unwrap();
    stream.set_read_timeout(Some(MINUTE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

fn answered(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build)"]
fn the_bridge_serves_every_node_in_three_forms() {
    let nodes = ["ahead", "calm", "hot", "odd", "other", "silent", "stale"];
    let scene = Scene::start("bridge", &nodes);
    scene.check_that_none_is_known();
    let pod = r#"{"Pod":{},"Nodes":null,"NodeNames":["calm","hot","silent","elsewhere"]}"#;
    assert_eq!(post(&scene.bridge, "/prioritize", pod).status, 503);
    let empty = answered(&scene.bridge.request("GET /watcher HTTP/1.1\r\nHost: localhost\r\n"));
    assert_eq!(empty["data"]["NodeMetricsMap"], json!({}));

    scene.write("calm", 0, A_WHILE);
    scene.write("hot", 60, A_WHILE);
    scene.write("stale", 100, 1_200);
    scene.write_with("odd", 100, A_WHILE, &[("score", "NaN")]);
    scene.write_with("other", 100, A_WHILE, &[("basis", "run-delay/2")]);
    scene.write("ahead", 100, -120);
    // No VMs run there.
    scene.cluster.add_node("elsewhere");
    scene.write("elsewhere", 100, A_WHILE);
    let neutral = 0.315;
    let of_others = ["ahead", "odd", "other", "silent", "stale"].map(|node| (node, neutral));
    scene.wait_for_values(&[&[("calm", 0.0), ("hot", 0.6)][..], &of_others].concat());
    for (standing, count) in [
        ("known", 2.0),
        ("future", 1.0),
        ("malformed", 1.0),
        ("other_basis", 1.0),
        ("missing", 1.0),
        ("stale", 1.0),
        ("new", 0.0),
    ] {
        let labels = [("standing", standing)];
        assert_eq!(scene.metric("psi_agent_bridge_nodes", &labels), count, "{standing}");
    }

    let scores = answered(&post(&scene.bridge, "/prioritize", pod));
    let expected = [("calm", 10), ("hot", 4), ("silent", 7), ("elsewhere", 7)];
    assert_eq!(scores, json!(expected.map(|(host, score)| json!({"Host": host, "Score": score}))));
    let document = answered(&scene.bridge.request("GET /watcher HTTP/1.1\r\nHost: localhost\r\n"));
    assert_eq!(document["data"]["NodeMetricsMap"].as_object().unwrap().len(), nodes.len());
    let metrics = &document["data"]["NodeMetricsMap"]["hot"]["metrics"];
    assert_eq!((&metrics[0]["type"], &metrics[0]["value"]), (&json!("CPU"), &json!(60.0)));

    check_changes(&scene, &of_others);
    check_careless_clients(&scene.bridge);
    check_slow_bodies(&scene.bridge);
    let granted = scene.cluster.granted_rights("psi-agent-bridge");
    assert_eq!(scene.cluster.used_rights(), granted);
    check_an_outage(scene);
}

/// A value follows what is written, in time, and a Node that is gone is gone.
fn check_changes(scene: &Scene, of_others: &[(&str, f64)]) {
    scene.write("hot", 100, 0);
    let value = wait_for("a new value begins to count", MINUTE, || {
        scene.query().unwrap().get("hot").copied().filter(|value| *value > 0.6)
    });
    assert!(value < 1.0, "not all at once: {value}");
    for (node, _) in of_others {
        scene.cluster.kubectl(&["delete", "node", node], "");
    }
    scene.cluster.kubectl(&["label", "node", "hot", "kubevirt.io/schedulable-"], "");
    scene.wait_for_values(&[("calm", 0.0)]);
}

/// Each gets a response with the reason, in time.
fn check_careless_clients(bridge: &Agent) {
    let status =
        |head: &str| bridge.request(&format!("{head} HTTP/1.1\r\nHost: localhost\r\n")).status;
    assert_eq!(status("GET /api/v1/query?query=slow-score"), 200);
    for (head, expected) in [
        ("GET /api/v1/query", 400),
        ("GET /api/v1/query?query=up", 400),
        ("GET /api/v1/query_range?query=x", 404),
        ("DELETE /api/v1/query", 405),
        ("GET /prioritize", 405),
        ("POST /watcher", 405),
        ("GET /", 404),
        ("GET /livez", 200),
    ] {
        assert_eq!(status(head), expected, "{head}");
    }
    let refused = |path, body: &str| {
        let answer = post(bridge, path, body);
        (answer.status, answer.text())
    };
    let (status, why) = refused("/prioritize", "{}");
    assert!(status == 400 && why.contains("no NodeNames"), "{status} {why}");
    let (status, why) = refused("/api/v1/query", &"x".repeat(65 * 1024));
    assert!(status == 413 && why.contains("longer than 65536 bytes"), "{status} {why}");
    let slow = "POST /prioritize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
    let answer = exchange(bridge, &slow.replace("Host", "Connection: close\r\nHost"));
    assert!(answer.status == 408 && answer.text().contains("within 3 s"), "{}", answer.text());
}

/// Peers that send bodies slowly don't delay an extender, whose `httpTimeout` may be 300 ms.
fn check_slow_bodies(bridge: &Agent) {
    let head = "POST /prioritize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n{";
    let connect = |_| {
        let mut stream = TcpStream::connect(&bridge.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    // Behind such a body it would take 3 s each time, and so beside other load it may once.
    let took = || {
        let slow: Vec<TcpStream> = (0..8).map(connect).collect();
        let start = Instant::now();
        assert_eq!(post(bridge, "/prioritize", r#"{"NodeNames":["calm"]}"#).status, 200);
        let took = start.elapsed();
        drop(slow);
        took
    };
    let shortest = (0..5).map(|_| took()).min().unwrap();
    assert!(shortest < Duration::from_secs(2), "{shortest:?}");
}

/// Without an API server values hold until they are stale, and the error is logged once.
fn check_an_outage(mut scene: Scene) {
    scene.cluster.kill_api_server();
    let errors = || scene.metric("psi_agent_bridge_watch_errors_total", &[]);
    wait_for("the watch fails twice", MINUTE, || (errors() >= 2.0).then_some(()));
    assert_eq!(scene.query().unwrap(), [("calm".to_owned(), 0.0)].into());
    assert_eq!(scene.bridge.log().matches("Cannot follow the Nodes").count(), 1);
}

const PLACES: [&str; 3] = ["calm", "hot", "silent"];

/// Whom the descheduler has evicted, once it has looked twice more.
fn evicted_soon(descheduler: &Descheduler, cluster: &Cluster) -> BTreeSet<String> {
    wait_for_cycles(descheduler, 2);
    evicted(descheduler, cluster)
}

#[test]
#[ignore = "needs root, the descheduler (tests/descheduler/build), etcd and a kube-apiserver \
            (tests/kubernetes/build)"]
fn the_descheduler_evicts_by_the_bridge_alone_and_not_by_what_is_stale() {
    let scene = Scene::start("bridge-descheduler", &PLACES);
    let cluster = &scene.cluster;
    for (number, node) in (1..).zip(PLACES) {
        add_vm(cluster, &format!("on-{node}"), node, number, LONG_AGO);
    }
    scene.check_that_none_is_known();
    scene.write("calm", 0, A_WHILE);
    scene.write("hot", 60, A_WHILE);
    scene.wait_for_values(&[("calm", 0.0), ("hot", 0.6), ("silent", 0.315)]);
    let policy = snippet("bridge-descheduler.yaml");
    assert!(policy.contains(IN_CLUSTER), "{policy}");
    let bridge = format!("http://{}", scene.bridge.address);
    let descheduler = Descheduler::start(cluster, "bridge", &policy, &bridge, 2);
    wait_for("an eviction", MINUTE, || descheduler.evictions(cluster).pop());
    let first: BTreeSet<String> = [pod_of("on-hot")].into();
    assert_eq!(evicted_soon(&descheduler, cluster), first);
    for (node, class, percent) in
        [("calm", "underutilized", 0), ("hot", "overutilized", 60), ("silent", "appropriate", 31)]
    {
        assert_eq!(descheduler.last_class(node), Some((class.to_owned(), percent)), "{node}");
    }

    // Its agent has died: what it said last counts no more.
    scene.write("hot", 60, 1_200);
    scene.wait_for_values(&[("calm", 0.0), ("hot", 0.015), ("silent", 0.015)]);
    wait_for_cycles(&descheduler, 1);
    add_vm(cluster, "new-on-hot", "hot", 4, LONG_AGO);
    assert_eq!(evicted_soon(&descheduler, cluster), first);
    // All have: nobody is compared with nobody.
    scene.write("calm", 0, 1_200);
    wait_for("the descheduler logs it", MINUTE, || {
        descheduler.log().contains("server error: 503").then_some(())
    });
    assert_eq!(evicted_soon(&descheduler, cluster), first);
    // Said to the first query, and now again.
    assert_eq!(scene.bridge.log().matches("no scores error=no Node has a known").count(), 2);
    // With an agent again, the same VM has to go.
    scene.write("calm", 0, A_WHILE);
    scene.write("hot", 60, A_WHILE);
    let both: BTreeSet<String> = ["on-hot", "new-on-hot"].map(pod_of).into();
    wait_for("another eviction", MINUTE, || (evicted(&descheduler, cluster) == both).then_some(()));
}

#[test]
#[ignore = "needs kubectl (tests/kubernetes/build)"]
fn the_component_fits_the_binary_and_is_no_more_than_it_needs() {
    let cluster = Cluster::start("bridge-component");
    let rendered = cluster.render_with(&["bridge"]);
    cluster.kubectl(&["apply", "--validate=strict", "-f", "-"], &rendered);
    let deployment = cluster.get(&["deployment", "psi-agent-bridge", "-n", "psi-agent"]);
    assert_eq!(deployment["spec"]["replicas"], 1);
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    check_arguments(container);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    let port = container["ports"][0]["containerPort"].as_u64().unwrap();
    assert!(IN_CLUSTER.ends_with(&format!(":{port}")));
    assert!(container["args"][1].as_str().unwrap().ends_with(&format!(":{port}")));
    let service = cluster.get(&["service", "psi-agent-bridge", "-n", "psi-agent"]);
    assert_eq!(service["spec"]["ports"][0]["port"], port);
    // The selectors of both find the pod.
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(service["spec"]["selector"], *labels);
    let policy = cluster.get(&["networkpolicy", "psi-agent-bridge", "-n", "psi-agent"]);
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"], *labels);
    // Where each namespace has its own users, none is named.
    let rendered = cluster.render_with(&["bridge", "openshift"]);
    let deployment = rendered.split("\n---\n").find(|part| part.contains("kind: Deployment"));
    assert!(!deployment.unwrap().contains("runAsUser"), "{rendered}");
}
