//! Authentication by a real API server with the manifests' rights, also when rights are revoked or the
//! API server is unreachable.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::agent::Agent;
use crate::support::cluster::Cluster;
use crate::support::project::yaml;
use crate::support::prometheus::Prometheus;
use crate::support::staged_node::agent_pod;
use crate::support::tls::{Client, Secret};
use crate::support::wait_for;

const POD: &str = "psi-agent-node-a";
const READER: &str = "psi-agent-metrics-reader";
const MINUTE: Duration = Duration::from_secs(60);

/// A recorded node with authentication, and an API server with the manifests.
struct Scene {
    cluster: Cluster,
    secret: Secret,
    client: Client,
    agent: Agent,
}

impl Scene {
    fn start(name: &str, more: &[&str]) -> Self {
        let cluster = Cluster::start(name);
        let rendered = cluster.render_with(&["auth"]);
        cluster.kubectl(&["apply", "-f", "-"], &rendered);
        cluster.add_node("node-a");
        cluster.apply(&[agent_pod(POD, "node-a")]);
        // An account that is somebody's, and may nothing.
        cluster.kubectl(&["create", "serviceaccount", "visitor", "-n", "psi-agent"], "");
        let kubeconfig = cluster.agent_kubeconfig(POD);
        let secret = Secret::new(name);
        let agent = start_agent(&kubeconfig, &secret, more);
        let client = secret.client();
        Self { cluster, secret, client, agent }
    }

    fn ask(&self, path: &str, token: Option<&str>) -> (u16, String) {
        let answer = self.client.ask(&self.agent.address, path, token);
        (answer.status, answer.text())
    }

    fn metrics(&self, token: &str) -> u16 {
        self.ask("/metrics", Some(token)).0
    }

    fn wait_for_metrics(&self, what: &str, token: &str, status: u16) {
        wait_for(what, 2 * MINUTE, || (self.metrics(token) == status).then_some(()));
    }

    /// What the agent counted of tokens, by what came of them.
    fn counted(&self, token: &str, result: &str) -> u64 {
        let (_, text) = self.ask("/metrics", Some(token));
        let start = format!("psi_agent_token_reviews_total{{result=\"{result}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        // A result has no series before its first count.
        line.map_or(0, |count| count.parse().unwrap())
    }

    fn bind_reader(&self) {
        let role = format!("--clusterrole={READER}");
        let account = format!("--serviceaccount=psi-agent:{READER}");
        self.cluster.kubectl(&["create", "clusterrolebinding", READER, &role, &account], "");
    }
}

fn start_agent(kubeconfig: &Path, secret: &Secret, more: &[&str]) -> Agent {
    let case = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/virt-launcher");
    let [proc, root] = ["proc", "sys/fs/cgroup"].map(|name| format!("{case}/{name}"));
    let mut flags = vec!["--node-name=node-a", "--auth=kubernetes", "--proc-root", &proc];
    flags.extend(["--cgroup-root", &root, "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let tls = secret.flags();
    flags.extend(tls.iter().map(String::as_str));
    flags.extend(more);
    Agent::start(&flags)
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build), openssl"]
fn only_accounts_with_the_right_get_the_metrics() {
    let scene = Scene::start("authentication", &["--page=anywhere"]);
    let (reader, visitor) = (scene.cluster.token(READER), scene.cluster.token("visitor"));
    let (status, text) = scene.ask("/metrics", None);
    assert_eq!((status, text.contains("Authorization: Bearer")), (401, true), "{text}");
    let unknown = scene.client.ask(&scene.agent.address, "/metrics", Some("made-up"));
    assert_eq!(unknown.status, 401, "{}", unknown.text());
    assert!(unknown.headers.contains("www-authenticate: bearer"), "{}", unknown.headers);
    let (status, text) = scene.ask("/metrics", Some(&visitor));
    assert_eq!((status, text.contains("nonResourceURLs")), (403, true), "{text}");
    assert_eq!(scene.metrics(&reader), 200);
    let admin = fs::read_to_string(scene.cluster.admin_kubeconfig()).unwrap();
    let admin: Value = serde_json::from_str(&admin).unwrap();
    let admin = admin["users"][0]["user"]["token"].as_str().unwrap();
    // A token of another kind; groups count as well as accounts.
    assert_eq!(scene.metrics(admin), 200);
    // The signature of another account's token.
    let [(claims, _), (_, signature)] =
        [&reader, &visitor].map(|token| token.rsplit_once('.').unwrap());
    let forged = format!("{claims}.{signature}");
    assert_eq!(scene.metrics(&forged), 401);

    // Probes need none, and loopback its page neither.
    for path in ["/livez", "/", "/snapshot.json"] {
        assert_eq!(scene.ask(path, None).0, 200, "{path}");
    }
    assert_eq!(scene.counted(&reader, "allowed"), 2);
    assert_eq!(scene.counted(&reader, "forbidden"), 1);
    assert_eq!(scene.counted(&reader, "unauthenticated"), 2);
    let said = scene.agent.log();
    assert!(![&reader, &visitor, "made-up"].iter().any(|token| said.contains(*token)), "{said}");

    // The agent has the rights for this that it uses, and no others.
    let granted = rights(&scene.cluster, "system:auth-delegator");
    let base = rights(&scene.cluster, "psi-agent");
    let used = scene.cluster.used_rights();
    assert_eq!(used.difference(&base).cloned().collect::<BTreeSet<_>>(), granted);
}

fn rights(cluster: &Cluster, role: &str) -> BTreeSet<(String, String)> {
    let role = cluster.get(&["clusterrole", role]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for resource in rule["resources"].as_array().unwrap() {
            let verbs = rule["verbs"].as_array().unwrap();
            rights.extend(verbs.iter().map(|verb| (text(resource), text(verb))));
        }
    }
    rights
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build), openssl"]
fn hundreds_of_wrong_tokens_cause_few_reviews_and_known_tokens_keep_access() {
    let scene = Scene::start("flood", &[]);
    let reader = scene.cluster.token(READER);
    assert_eq!(scene.metrics(&reader), 200);
    let before = scene.cluster.uses_of("tokenreviews");
    let started = Instant::now();
    std::thread::scope(|scope| {
        for flood in 0..8 {
            let scene = &scene;
            scope.spawn(move || {
                for number in 0..60 {
                    let status = scene.metrics(&format!("guess-{flood}-{number}"));
                    assert!([401, 503].contains(&status), "{status}");
                }
            });
        }
        for _ in 0..20 {
            assert_eq!(scene.metrics(&reader), 200);
        }
    });
    let took = usize::try_from(started.elapsed().as_secs()).unwrap();
    let reviews = scene.cluster.uses_of("tokenreviews") - before;
    println!("480 wrong tokens in {took} s made {reviews} reviews");
    // Ten at once, one a second, and one for the reader if it took so long.
    assert!(reviews <= 10 + took + 2, "{reviews} in {took} s");
    assert!(scene.counted(&reader, "not_asked") > 0);
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build), openssl; takes 2 min"]
fn revoked_rights_and_an_unreachable_api_server_end_access() {
    let mut scene = Scene::start("revoked", &[]);
    let (reader, visitor) = (scene.cluster.token(READER), scene.cluster.token("visitor"));
    let late = scene.cluster.token(READER);
    assert_eq!((scene.metrics(&reader), scene.metrics(&visitor)), (200, 403));
    let since = Instant::now();
    scene.cluster.kubectl(&["delete", "clusterrolebinding", READER], "");
    scene.wait_for_metrics("who was not looked at before is refused", &late, 403);

    // What was allowed is so for its minute and no longer, API server or none.
    scene.cluster.kill_api_server();
    let (status, text) = scene.ask("/metrics", Some("a-stranger"));
    assert_eq!((status, text.contains("no client gets access")), (503, true), "{text}");
    assert_eq!(scene.metrics(&reader), 200);
    scene.wait_for_metrics("the verdict is too old", &reader, 503);
    println!("closed {:?} after the right was taken away", since.elapsed());
    for path in ["/livez", "/snapshot.json"] {
        assert_eq!(scene.ask(path, None).0, 200, "{path}");
    }

    scene.cluster.start_api_server_again();
    scene.wait_for_metrics("the right is gone", &reader, 403);
    scene.bind_reader();
    scene.wait_for_metrics("it is given back", &reader, 200);
    assert!(scene.counted(&reader, "unanswered") >= 2);
    let said = scene.agent.log();
    assert_eq!(said.matches("Cannot review tokens").count(), 1, "{said}");
    assert!(said.contains("The API server reviews tokens again"), "{said}");
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build), openssl"]
fn without_the_right_to_review_no_client_gets_access_and_the_log_gives_the_reason() {
    let scene = Scene::start("no-delegator", &[]);
    scene.cluster.kubectl(&["delete", "clusterrolebinding", "psi-agent-auth-delegator"], "");
    let reader = scene.cluster.token(READER);
    // An API server that is slow to answer keeps them out, too.
    wait_for("the log says why nobody gets in", MINUTE, || {
        scene.wait_for_metrics("nobody gets in", &reader, 503);
        scene.agent.log().contains("system:auth-delegator").then_some(())
    });
}

#[test]
#[ignore = "needs etcd and a kube-apiserver (tests/kubernetes/build), openssl and Prometheus"]
fn prometheus_scrapes_with_an_accounts_token_and_the_authority() {
    let scene = Scene::start("scraped", &[]);
    let token = std::env::temp_dir().join(format!("psi-agent-{}-scrape", std::process::id()));
    fs::write(&token, scene.cluster.token(READER)).unwrap();
    let file = "daemonset/prometheus/scrape-auth.yaml";
    let mut scrape = yaml(file);
    scrape["global"] = serde_json::json!({"scrape_interval": "2s"});
    let jobs = scrape["scrape_configs"].as_array_mut().unwrap();
    jobs.truncate(1);
    let job = jobs[0].as_object_mut().unwrap();
    // Debian's Prometheus cannot ask Kubernetes; what the files say is as it is in a cluster.
    assert!(job.remove("kubernetes_sd_configs").is_some());
    job["tls_config"]["ca_file"] = scene.secret.authority().to_str().into();
    job["authorization"]["credentials_file"] = token.to_str().into();
    let target = serde_json::json!([{"targets": [scene.agent.address], "labels": {
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": "psi-agent",
        "__meta_kubernetes_pod_container_port_name": "metrics",
        "__meta_kubernetes_pod_node_name": "node-a",
    }}]);
    job.insert("static_configs".into(), target);
    let prometheus = Prometheus::start_with(&scrape.to_string());
    wait_for("a scrape", MINUTE, || prometheus.query("up{job=\"psi-agent\",node=\"node-a\"} == 1"));
    wait_for("its series", MINUTE, || {
        prometheus.query("psi_agent_token_reviews_total{result=\"allowed\"} == 1")
    });
    fs::remove_file(&token).unwrap();
}
