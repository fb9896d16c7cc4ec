//! The publisher and a scripted API server, which can be unreachable, hang, or answer nonsense, in
//! virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use psi_agent::cluster::{ApiClient, OwnNode};
use psi_agent::contract::{Level, Prefix, Thresholds};
use psi_agent::kernel::cgroup_dir::Resource;
use psi_agent::publish::node_patch::Outputs;
use psi_agent::publish::publisher::{Publisher, Report, Settings};
use serde_json::{Value, json};

use crate::support::short_node::ShortNode;

/// How the server answers a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Well,
    /// It is unreachable.
    Away,
    /// It accepts the connection and never answers.
    Hangs,
    /// It answers with this status and body, and perhaps Retry-After.
    Says(u16, &'static str, Option<u64>),
    /// It answers without an end.
    Endless,
}

/// A server, the requests that it got, and a publisher that writes there.
struct Scene {
    mood: Arc<Mutex<Mood>>,
    patches: Arc<Mutex<Vec<Value>>>,
    asked: Arc<Mutex<usize>>,
    node: ShortNode,
    publisher: Publisher,
    failures: Vec<&'static str>,
}

impl Scene {
    fn new() -> Self {
        let node = json!({"metadata": {"name": "node-a", "resourceVersion": "1"}});
        Self::with(Outputs::default(), node)
    }

    /// A publisher with these outputs, and a server that has this Node.
    fn with(outputs: Outputs, api_node: Value) -> Self {
        let mood = Arc::new(Mutex::new(Mood::Well));
        let patches = Arc::<Mutex<Vec<Value>>>::default();
        let asked = Arc::<Mutex<usize>>::default();
        let (now, seen, counted) = (Arc::clone(&mood), Arc::clone(&patches), Arc::clone(&asked));
        let service = tower::service_fn(move |request: Request<Body>| {
            let mood = *now.lock().unwrap();
            *counted.lock().unwrap() += 1;
            answer(mood, request, api_node.to_string(), Arc::clone(&seen))
        });
        let api = ApiClient::new(Client::new(service, "default"));
        let settings = Settings {
            prefix: Prefix::default(),
            thresholds: Thresholds::default(),
            counted: vec![Resource::Cpu, Resource::Memory],
            outputs,
            node: Some(OwnNode { api, name: "node-a".into() }),
            dry_run: false,
            random: || 1.0,
        };
        let publisher = Publisher::new(settings);
        Self { mood, patches, asked, node: ShortNode::new(), publisher, failures: Vec::new() }
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Lets a time pass; the number of requests in it.
    async fn pass(&mut self, seconds: u64, contention: f64) -> usize {
        let before = *self.asked.lock().unwrap();
        for _ in 0..seconds / 5 {
            let score = self.node.tick(contention);
            let failures = &mut self.failures;
            self.publisher
                .take(&score, |report| {
                    if let Report::Failed(error) = report {
                        failures.push(error.word());
                    }
                })
                .await;
        }
        *self.asked.lock().unwrap() - before
    }

    fn last_score(&self) -> Value {
        let patches = self.patches.lock().unwrap();
        patches.last().unwrap()["metadata"]["annotations"]["psi-agent.io/score"].clone()
    }
}

async fn answer(
    mood: Mood,
    request: Request<Body>,
    node: String,
    patches: Arc<Mutex<Vec<Value>>>,
) -> Result<Response<Body>, std::io::Error> {
    match mood {
        Mood::Well => {
            if request.method() == http::Method::PATCH {
                let body = request.into_body().collect_bytes().await.unwrap();
                patches.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            }
            Ok(Response::new(node.into_bytes().into()))
        }
        Mood::Away => Err(std::io::ErrorKind::ConnectionRefused.into()),
        Mood::Hangs => std::future::pending().await,
        Mood::Says(code, text, retry_after) => {
            let mut answer = Response::builder().status(code);
            if let Some(seconds) = retry_after {
                answer = answer.header("Retry-After", seconds);
            }
            Ok(answer.body(text.as_bytes().to_vec().into()).unwrap())
        }
        Mood::Endless => Ok(Response::new(vec![b' '; 5 << 20].into())),
    }
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_of_outage_cost_a_few_tries_and_the_newest_value_is_written_after() {
    let mut scene = Scene::new();
    scene.pass(60, 0.0).await;
    scene.set(Mood::Away);
    // Each try is one read of the Node.
    let tries = scene.pass(600, 0.5).await;
    assert!((8..=15).contains(&tries), "{tries}");
    assert_eq!(scene.failures, vec!["unreachable"; tries]);
    assert_eq!(scene.patches.lock().unwrap().len(), 1);
    assert_eq!(scene.last_score(), "0");
    scene.set(Mood::Well);
    assert_eq!(scene.pass(65, 0.5).await, 2);
    assert_eq!(scene.last_score(), "50");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_is_given_up_after_ten_seconds() {
    let mut scene = Scene::new();
    scene.pass(60, 0.0).await;
    scene.set(Mood::Hangs);
    let start = tokio::time::Instant::now();
    let tries = scene.pass(120, 0.5).await;
    let waited = start.elapsed();
    assert!((3..=6).contains(&tries), "{tries}");
    assert_eq!(waited, Duration::from_secs(10) * u32::try_from(tries).unwrap());
    assert_eq!(scene.failures, vec!["unreachable"; tries]);
    scene.set(Mood::Well);
    scene.pass(65, 0.5).await;
    assert_eq!(scene.last_score(), "50");
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_as_long_as_a_busy_server_requests() {
    let mut scene = Scene::new();
    scene.pass(60, 0.0).await;
    scene.set(Mood::Says(429, "Too many requests, please try again later.\n", Some(120)));
    assert_eq!(scene.pass(600, 0.5).await, 5);
    assert_eq!(scene.failures, ["throttled"; 5]);
    scene.set(Mood::Says(503, "{}", Some(300)));
    assert!(scene.pass(600, 0.5).await <= 3);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_node_is_a_failure_and_later_values_are_written() {
    for (mood, word) in [
        (Mood::Says(200, "<html>", None), "unreachable"),
        (Mood::Says(200, "{\"metadata\": {\"annotations\": 5}}", None), "unreachable"),
        (Mood::Endless, "unreachable"),
        (Mood::Says(301, "", None), "failed"),
        (Mood::Says(401, "", None), "unauthorized"),
        (Mood::Says(404, "no", None), "not_found"),
        (Mood::Says(409, "\u{0}", None), "conflict"),
        (Mood::Says(422, "[]", None), "refused"),
        (Mood::Says(500, "boom", None), "failed"),
    ] {
        let mut scene = Scene::new();
        scene.set(mood);
        let tries = scene.pass(300, 0.5).await;
        assert!((3..=9).contains(&tries), "{mood:?}: {tries}");
        assert_eq!(scene.failures, vec![word; tries], "{mood:?}");
        scene.set(Mood::Well);
        scene.pass(310, 0.5).await;
        assert_eq!(scene.last_score(), "50", "{mood:?}");
    }
}

/// A Node on which an agent of another basis published the level high half a minute ago.
fn node_of_another_basis() -> Value {
    let observed_at = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(30);
    let taint = |key: &str| json!({"key": key, "value": "true", "effect": "PreferNoSchedule"});
    json!({
        "metadata": {
            "name": "node-a", "resourceVersion": "1",
            "annotations": {
                "psi-agent.io/score": "60", "psi-agent.io/cpu": "60", "psi-agent.io/memory": "0",
                "psi-agent.io/io": "0", "psi-agent.io/observed-at": format!("{observed_at:.0}"),
                "psi-agent.io/basis": "psi/1",
            },
            "labels": {"psi-agent.io/pressure": "high"},
        },
        "spec": {"taints": [
            taint("psi-agent.io/pressure-medium"), taint("psi-agent.io/pressure-high"),
        ]},
    })
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_to_another_basis_keeps_the_label_and_taints_of_a_node_that_is_short() {
    let outputs = Outputs { label: true, taints: [Level::Medium, Level::High].into() };
    let mut scene = Scene::with(outputs, node_of_another_basis());
    scene.pass(400, 0.5).await;
    let short = scene.patches.lock().unwrap().clone();
    assert!(short.len() >= 2, "{short:#?}");
    for patch in short {
        assert_eq!(patch["metadata"]["labels"]["psi-agent.io/pressure"], "high");
        assert_eq!(patch.get("spec"), None, "the taints stay");
        // The old score is not adopted: the new one comes from the agent's own readings.
        assert_eq!(patch["metadata"]["annotations"]["psi-agent.io/score"], "50");
        assert_eq!(patch["metadata"]["annotations"]["psi-agent.io/basis"], "psi/9");
    }
    // The level follows the new scores from then on.
    scene.pass(180, 0.0).await;
    let patches = scene.patches.lock().unwrap();
    let last = patches.last().unwrap();
    assert_eq!(last["metadata"]["labels"]["psi-agent.io/pressure"], "low");
    assert_eq!(last["spec"]["taints"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_to_another_basis_clears_a_node_that_is_calm() {
    let mut scene =
        Scene::with(Outputs { label: true, ..Outputs::default() }, node_of_another_basis());
    scene.pass(90, 0.0).await;
    let patches = scene.patches.lock().unwrap();
    let last = patches.last().unwrap();
    assert_eq!(last["metadata"]["labels"]["psi-agent.io/pressure"], "low");
}
