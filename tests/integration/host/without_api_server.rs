//! An agent that cannot reach its API server.

use std::time::Duration;

use serde_json::json;

use crate::support::agent::Agent;
use crate::support::cgroup::OwnCgroup;
use crate::support::folder::Folder;
use crate::support::staged_node::container_id;
use crate::support::wait_for;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root and a cgroup2 mount"]
fn without_an_api_server_the_agent_serves_and_reports_what_it_waits_for() {
    let own = OwnCgroup::new("alone");
    own.make(&format!("kubepods/pod1/{}", container_id(1)));
    let folder = Folder::new("without-api-server");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "test", "user": {"token": "none"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    folder.write("kubeconfig", &config.to_string());
    let root = own.path.to_str().unwrap();
    let agent = Agent::start(&[
        "--node-name",
        "node-a",
        "--kubeconfig",
        &folder.path("kubeconfig"),
        "--cgroup-root",
        root,
    ]);
    let waiting = agent.request("GET /readyz HTTP/1.1\r\nHost: localhost\r\n");
    assert_eq!((waiting.status, waiting.text().as_str()), (503, "waiting for the list of pods\n"));
    assert_eq!(agent.get("/livez"), "ok\n");
    let text = agent.get("/metrics");
    assert!(!text.contains("container=\"compute\""));
    assert!(text.contains("container_pressure_cpu_waiting_seconds_total{container=\"\",id=\"/\""));
    assert!(text.contains("\npsi_agent_cgroups_without_pod 2\n"));
    wait_for("its failing is counted", LIMIT, || {
        let text = agent.get("/metrics");
        (!text.contains("\npsi_agent_pod_watch_errors_total 0\n")).then_some(())
    });
}
