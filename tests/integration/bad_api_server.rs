//! The publisher and an API server that is away, hangs, or answers nonsense: scripted, since no
//! real one can be had that way, with time that passes by itself.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use psi_agent::cluster::own_node::OwnNode;
use psi_agent::contract::Prefix;
use psi_agent::publish::level::Thresholds;
use psi_agent::publish::node_patch::Outputs;
use psi_agent::publish::publisher::{Publisher, Report, Settings};
use serde_json::{Value, json};

use crate::support::short_node::ShortNode;

/// How the server takes a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Well,
    /// Nobody listens.
    Away,
    /// It accepts, and says nothing.
    Hangs,
    /// It answers so, and may say for how many seconds it wants to be left alone.
    Says(u16, &'static str, Option<u64>),
    /// It answers without an end.
    Endless,
}

/// A server, what it was asked, and a publisher that writes there.
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
        let mood = Arc::new(Mutex::new(Mood::Well));
        let patches = Arc::<Mutex<Vec<Value>>>::default();
        let asked = Arc::<Mutex<usize>>::default();
        let (now, seen, counted) = (Arc::clone(&mood), Arc::clone(&patches), Arc::clone(&asked));
        let service = tower::service_fn(move |request: Request<Body>| {
            let mood = *now.lock().unwrap();
            *counted.lock().unwrap() += 1;
            answer(mood, request, Arc::clone(&seen))
        });
        let settings = Settings {
            prefix: Prefix::default(),
            thresholds: Thresholds::default(),
            outputs: Outputs::default(),
            node: Some(OwnNode::new(Client::new(service, "default"), "node-a".into())),
            dry_run: false,
            chance: || 1.0,
        };
        let publisher = Publisher::new(settings);
        Self { mood, patches, asked, node: ShortNode::new(), publisher, failures: Vec::new() }
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Lets a time pass; answers how often the server was asked in it.
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
    patches: Arc<Mutex<Vec<Value>>>,
) -> Result<Response<Body>, std::io::Error> {
    match mood {
        Mood::Well => {
            if request.method() == http::Method::PATCH {
                let body = request.into_body().collect_bytes().await.unwrap();
                patches.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            }
            let node = json!({"metadata": {"name": "node-a", "resourceVersion": "1"}});
            Ok(Response::new(node.to_string().into_bytes().into()))
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
async fn ten_minutes_away_cost_a_few_tries_and_the_newest_value_is_written_after() {
    let mut scene = Scene::new();
    scene.pass(60, 0.0).await;
    scene.set(Mood::Away);
    // Each try is one look at the Node.
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
async fn a_server_that_hangs_is_given_up_on_after_ten_seconds() {
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
async fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
    let mut scene = Scene::new();
    scene.pass(60, 0.0).await;
    scene.set(Mood::Says(429, "Too many requests, please try again later.\n", Some(120)));
    assert_eq!(scene.pass(600, 0.5).await, 5);
    assert_eq!(scene.failures, ["throttled"; 5]);
    scene.set(Mood::Says(503, "{}", Some(300)));
    assert!(scene.pass(600, 0.5).await <= 3);
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_counted_and_nothing_else_is_lost() {
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
