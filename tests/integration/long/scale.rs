//! Clusters of thousands of nodes: how agents spread their writes, in virtual time, and what 15,000
//! Nodes of realistic size cost a real API server, the bridge and reap. The numbers of
//! docs/operations.md.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use http::{Method, Request};
use jiff::Timestamp;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use psi_agent::client::cluster::call::CallError;
use psi_agent::client::cluster::{ApiClient, OwnNode};
use psi_agent::config::OutputFlags;
use psi_agent::contract::{Basis, Level, NodePressure, Prefix, Thresholds};
use psi_agent::kernel::cgroup_dir::Resource;
use psi_agent::publish::PublishedScore;
use psi_agent::publish::node_patch::node_patch;
use psi_agent::publish::plan::Plan;
use psi_agent::score::NodeScore;
use psi_agent::waiting::Ratio;
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::cluster::Cluster;
use crate::support::exposition::parse;
use crate::support::short_node::ShortNode;
use crate::support::virtual_machine::static_binary;
use crate::support::wait_for;

const AGENTS: usize = 15_000;
const HEARTBEAT: Duration = Duration::from_secs(300);
const TICK: u64 = 5;
/// The DaemonSet controller creates so many pods a second (`--kube-api-qps` of its manager).
const STARTS_A_SECOND: u64 = 20;

/// Pseudorandom numbers from 0 to 1, the same at each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// An agent's plan, and the contention that it measures: none on most nodes, else a random walk.
struct Simulated {
    plan: Plan,
    contention: f64,
    walks: bool,
    written_at: Option<u64>,
}

/// What all agents did in each second.
#[derive(Clone, Copy, Default)]
struct Second {
    writes: u32,
    tries: u32,
    oldest_s: u64,
}

struct Simulation {
    agents: Vec<Simulated>,
    score: NodeScore,
    start: Instant,
    random: Random,
    seconds: Vec<Second>,
}

impl Simulation {
    fn new() -> Self {
        let counted = vec![Resource::Cpu, Resource::Memory];
        let agents = (0..AGENTS).map(|number| Simulated {
            plan: Plan::new(Thresholds::default(), counted.clone(), true, HEARTBEAT),
            contention: 0.0,
            walks: number % 10 < 3,
            written_at: None,
        });
        let mut node = ShortNode::new();
        let score = (0..10).map(|_| node.tick(0.0)).last().unwrap();
        let start = score.moment.at;
        let agents = agents.collect();
        Self { agents, score, start, random: Random(1), seconds: Vec::new() }
    }

    /// Lets so many seconds pass, in which the API server is there or not.
    fn pass(&mut self, seconds: u64, is_there: bool) -> &[Second] {
        let first = self.seconds.len();
        for _ in 0..seconds {
            let now_s = self.seconds.len() as u64;
            let now = self.start + Duration::from_secs(now_s);
            let mut second = Second::default();
            for (number, agent) in (0..).zip(&mut self.agents) {
                // The first score needs 30 s of history.
                if now_s < number / STARTS_A_SECOND + 30 || !(now_s + number).is_multiple_of(TICK) {
                    continue;
                }
                if agent.walks {
                    let step = (self.random.next() - 0.5) * 0.03;
                    agent.contention = (agent.contention + step).clamp(0.0, 0.6);
                }
                let ratio = Ratio::of(agent.contention, 1.0);
                self.score.score = ratio;
                self.score.contention.cpu = ratio;
                self.score.cpu_for_levels = ratio.map(|ratio| [ratio; 2]);
                self.score.moment.at = now;
                if let Some((published, reason)) = agent.plan.next_write(now, &self.score, None) {
                    second.tries += 1;
                    let random = self.random.next();
                    if is_there {
                        second.writes += 1;
                        agent.written_at = Some(now_s);
                        agent.plan.written(published, reason, now, random);
                    } else {
                        agent.plan.failed(&CallError::Throttled(None), now, random);
                    }
                }
                if let Some(written_at) = agent.written_at {
                    second.oldest_s = second.oldest_s.max(now_s - written_at);
                }
            }
            self.seconds.push(second);
        }
        &self.seconds[first..]
    }
}

fn mean(seconds: &[Second], of: impl Fn(&Second) -> u32) -> f64 {
    seconds.iter().map(|second| f64::from(of(second))).sum::<f64>() / seconds.len() as f64
}

/// The largest mean of ten seconds.
fn peak(seconds: &[Second], of: impl Fn(&Second) -> u32 + Copy) -> f64 {
    seconds.windows(10).map(|ten| mean(ten, of)).fold(0.0, f64::max)
}

#[test]
#[ignore = "takes two minutes of CPU time"]
fn fifteen_thousand_agents_spread_their_writes_at_the_start_and_after_an_outage() {
    let mut all = Simulation::new();
    let start = peak(all.pass(AGENTS as u64 / STARTS_A_SECOND + 330, true), |it| it.writes);
    let usual = all.pass(1200, true);
    let writes = mean(usual, |it| it.writes);
    let oldest = usual.iter().map(|it| it.oldest_s).max().unwrap();
    let mut each: Vec<u32> = usual.iter().map(|it| it.writes).collect();
    each.sort_unstable();
    let percentile = each[each.len() * 99 / 100];
    let tries = mean(&all.pass(600, false)[480..], |it| it.tries);
    let after = all.pass(600, true);
    let (peak_after, oldest_after) = (peak(after, |it| it.writes), after[599].oldest_s);
    println!(
        "{AGENTS} agents (simulated): {writes:.0} writes a second, 99 % of seconds at most \
         {percentile}; {start:.0} at the start; {tries:.0} tries at the end of an outage of ten \
         minutes, {peak_after:.0} writes after it; values at most {oldest} s old, {oldest_after} s ten minutes \
         after the outage"
    );
    assert!(writes > AGENTS as f64 / 300.0);
    assert!(start < 3.0 * writes && peak_after < 3.0 * writes && tries < 3.0 * writes);
    assert!(f64::from(percentile) < 3.0 * writes);
    assert!(oldest <= 305 && oldest_after <= 305, "{oldest} {oldest_after}");
}

/// A Node as a kubelet registers it, with labels, annotations, conditions and 50 images: 30 kB.
fn node(number: usize) -> Value {
    let name = name(number);
    let labels: serde_json::Map<String, Value> = (0..40)
        .map(|label| {
            (format!("feature.node.kubernetes.io/cpu-model.feature-{label}"), json!("true"))
        })
        .chain([
            ("kubernetes.io/hostname".to_owned(), json!(name)),
            ("kubevirt.io/schedulable".to_owned(), json!("true")),
        ])
        .collect();
    let images = (0..50).map(|image| {
        let path = format!("registry.example.org/organisation/project-{image}/image-with-a-name");
        json!({"names": [
            format!("{path}@sha256:{:064x}", image + number), format!("{path}:v1.{image}.0-{}", "x".repeat(290)),
        ], "sizeBytes": 123_456_789})
    });
    let images: Vec<Value> = images.collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "images": images,
            "conditions": [condition(0)],
            "capacity": {"cpu": "128", "memory": "1Ti", "pods": "250"},
        },
    })
}

fn condition(minute: i64) -> Value {
    let at = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_mins(29_000_000 + minute);
    json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
           "lastHeartbeatTime": at.to_string(), "lastTransitionTime": at.to_string()})
}

fn name(number: usize) -> String {
    format!("worker-{number:05}.rack-4.example.org")
}

async fn send(client: &Client, method: Method, path: &str, kind: &str, body: &Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", format!("application/{kind}"))
        .body(body.to_string().into_bytes())
        .unwrap();
    client.request_text(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
}

async fn client_of(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.admin_kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Does something for each of these numbers, eight at a time.
async fn for_each<F: Future<Output = ()>>(
    numbers: impl Iterator<Item = usize>,
    work: impl FnMut(usize) -> F,
) {
    stream::iter(numbers).map(work).buffer_unordered(8).collect::<Vec<()>>().await;
}

/// The most memory that a command had while it ran, in bytes.
fn peak_of(command: &mut Command) -> f64 {
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut peak = 0.0;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        if let Some(line) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) {
            peak = line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0;
        }
        if let Some(ended) = child.try_wait().unwrap() {
            assert!(ended.success());
            return peak;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn published(score: u8) -> PublishedScore {
    let pressure = NodePressure {
        score,
        cpu: Some(score),
        memory: Some(0),
        io: Some(0),
        observed_at: Timestamp::now(),
        basis: Basis::RunDelay(5),
    };
    PublishedScore { pressure, level: Level::Low, demand: None }
}

const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// Writes of each kind that are measured.
const WRITES: usize = 1_000;
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// A real API server with Nodes, and a client that may do everything.
struct Scene {
    cluster: Cluster,
    client: Client,
    nodes: usize,
    /// Counts up, so that each write changes something.
    minute: i64,
}

impl Scene {
    async fn start() -> Self {
        let cluster = Cluster::start("scale");
        let client = client_of(&cluster).await;
        let scene = Self { cluster, client, nodes: 0, minute: 0 };
        for_each(0..WRITES, |number| scene.create_lease(number)).await;
        scene
    }

    /// Registers Nodes until there are so many, each with an agent's value.
    async fn grow(&mut self, nodes: usize) {
        for_each(self.nodes..nodes, |number| self.register(number)).await;
        for_each(self.nodes..nodes, |number| self.publish(number, 10)).await;
        self.nodes = nodes;
    }

    async fn register(&self, number: usize) {
        send(&self.client, Method::POST, "/api/v1/nodes", "json", &node(number)).await;
    }

    /// Writes a score as an agent does, by its own code.
    async fn publish(&self, number: usize, score: u8) {
        let own = OwnNode { api: ApiClient::new(self.client.clone()), name: name(number) };
        let keys = own.get().await.unwrap();
        let outputs = OutputFlags { label: true, ..OutputFlags::default() };
        let patch = node_patch(&Prefix::default(), &keys, &published(score), &outputs);
        own.patch(&patch).await.unwrap();
    }

    /// Writes a Node's condition as a kubelet does.
    async fn report_status(&self, number: usize) {
        let path = format!("/api/v1/nodes/{}/status", name(number));
        let status = json!({"status": {"conditions": [condition(self.minute)]}});
        send(&self.client, Method::PATCH, &path, "strategic-merge-patch+json", &status).await;
    }

    async fn create_lease(&self, number: usize) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name(number), "namespace": "default"},
            "spec": {"holderIdentity": name(number)},
        });
        send(&self.client, Method::POST, LEASES, "json", &lease).await;
    }

    async fn renew_lease(&self, number: usize) {
        let path = format!("{LEASES}/{}", name(number));
        let time = format!("2026-01-02T00:{:02}:00.{number:06}Z", self.minute);
        let spec = json!({"spec": {"renewTime": time}});
        send(&self.client, Method::PATCH, &path, "merge-patch+json", &spec).await;
    }

    /// What etcd receives for each of [`WRITES`] such writes, in bytes.
    async fn etcd_bytes<F: Future<Output = ()>>(&self, write: impl FnMut(usize) -> F) -> f64 {
        let received = || self.cluster.etcd_metric("etcd_network_client_grpc_received_bytes_total");
        let before = received();
        for_each(0..WRITES, write).await;
        (received() - before) / WRITES as f64
    }

    /// Bytes of all events of Nodes that watches got so far.
    fn watched(&self) -> f64 {
        let metrics = self.cluster.kubectl(&["get", "--raw", "/metrics"], "");
        let series = parse(&metrics).into_iter().filter(|series| {
            series.name == "apiserver_watch_events_sizes_sum"
                && series.labels.get("resource").map(String::as_str) == Some("nodes")
        });
        series.map(|series| series.value).sum()
    }

    /// A bridge that knows all Nodes.
    fn start_bridge(&self) -> Agent {
        let kubeconfig = self.cluster.admin_kubeconfig();
        let flags = ["bridge", "--kubeconfig", kubeconfig.to_str().unwrap(), "--window", "10s"];
        let bridge = Agent::start_by(Command::new(static_binary()), &flags);
        wait_for("all Nodes are known", Duration::from_secs(120), || {
            let series = parse(&bridge.get("/metrics"));
            let known = series
                .iter()
                .find(|series| series.labels.get("standing").map(String::as_str) == Some("known"));
            (known?.value == self.nodes as f64).then_some(())
        });
        bridge
    }

    /// The most memory of a run of reap, in bytes.
    fn reap(&self) -> f64 {
        let mut reap = Command::new(static_binary());
        reap.args(["reap", "--older-than=15m", "--kubeconfig"]);
        peak_of(reap.arg(self.cluster.admin_kubeconfig()))
    }
}

#[tokio::test]
#[ignore = "needs etcd, a kube-apiserver and the static binary; takes 5 min and 6 GiB"]
async fn fifteen_thousand_nodes_fit_the_bridge_reap_and_etcd() {
    let mut scene = Scene::start().await;
    let size = node(0).to_string().len();
    for nodes in [5_000, AGENTS] {
        scene.grow(nodes).await;
        scene.minute += 1;
        let bridge = scene.start_bridge();
        let before = scene.watched();
        let write = scene.etcd_bytes(|number| scene.publish(number, 20)).await;
        let watched = (scene.watched() - before) / WRITES as f64;
        let status = scene.etcd_bytes(|number| scene.report_status(number)).await;
        let lease = scene.etcd_bytes(|number| scene.renew_lease(number)).await;
        for _ in 0..20 {
            bridge.get("/watcher");
            let values = bridge.get("/api/v1/query?query=slow-score");
            assert_eq!(values.matches("\"instance\"").count(), nodes);
        }
        let (bridge, reap) = (bridge.peak_memory() / MEBIBYTE, scene.reap() / MEBIBYTE);
        println!(
            "{nodes} Nodes of {size} bytes: etcd receives {write:.0} bytes for each write of an agent, \
             {status:.0} for each status of a kubelet, {lease:.0} for each renewed Lease; watches \
             of Nodes get {watched:.0} bytes for each write, the API server's own one included; at most {bridge:.1} MiB in the bridge and \
             {reap:.1} MiB in reap"
        );
        assert!(bridge < 128.0 && reap < 64.0);
    }
}
