//! Pods from a file: series wait for their labels, follow the file, and survive its errors.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::agent::{Agent, BINARY};
use crate::support::exposition::{Series, parse};
use crate::support::wait_for;

const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/virt-launcher");
const NO_PODS: &str = "{\"items\": []}";

/// A file of pods that the test writes, whole each time.
struct Pods(PathBuf);

impl Pods {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
        let pods = Self(path);
        pods.write(text);
        pods
    }

    fn write(&self, text: &str) {
        let part = self.0.with_extension("part");
        fs::write(&part, text).unwrap();
        fs::rename(part, &self.0).unwrap();
    }

    fn start_agent(&self, flags: &[&str]) -> Agent {
        let (proc, root) = (format!("{CASE}/proc"), format!("{CASE}/sys/fs/cgroup"));
        let fixed = ["--proc-root", &proc, "--cgroup-root", &root, "--pods-file"];
        Agent::start(&[&fixed, &[self.0.to_str().unwrap()][..], flags].concat())
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn pods_of_the_case() -> String {
    fs::read_to_string(format!("{CASE}/pods.json")).unwrap()
}

/// Containers of VMs' pods, as labelled.
fn containers(agent: &Agent) -> Vec<String> {
    let series = parse(&agent.get("/metrics"));
    let waiting = |series: &&Series| series.name == "container_pressure_cpu_waiting_seconds_total";
    let named = series.iter().filter(waiting).map(|series| series.labels["container"].clone());
    named.filter(|name| !name.is_empty()).collect()
}

fn gauge(agent: &Agent, name: &str) -> f64 {
    let series = parse(&agent.get("/metrics"));
    series.iter().find(|series| series.name == name).expect(name).value
}

const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn series_wait_for_their_labels_and_unmatched_cgroups_are_counted() {
    let pods = Pods::new("waits.json", NO_PODS);
    let agent = pods.start_agent(&[]);
    assert!(containers(&agent).is_empty());
    assert_eq!(gauge(&agent, "psi_agent_pods"), 0.0);
    // Two pods, and four containers in them.
    assert_eq!(gauge(&agent, "psi_agent_cgroups_without_pod"), 6.0);

    pods.write(&pods_of_the_case().replace("9999abcd", "8888abcd"));
    wait_for("labels", LIMIT, || {
        (containers(&agent) == ["compute", "guest-console-log"]).then_some(())
    });
    assert_eq!(gauge(&agent, "psi_agent_pods"), 2.0);
    assert_eq!(gauge(&agent, "psi_agent_pods_without_cgroup"), 1.0);
    // The pause container, and the pod that is not in the file with its container.
    assert_eq!(gauge(&agent, "psi_agent_cgroups_without_pod"), 3.0);

    pods.write(NO_PODS);
    wait_for("none again", LIMIT, || containers(&agent).is_empty().then_some(()));
}

#[test]
fn in_the_scope_all_cgroups_outside_pods_keep_their_series() {
    let pods = Pods::new("all.json", &pods_of_the_case());
    let agent = pods.start_agent(&["--scope", "all"]);
    let text = agent.get("/metrics");
    for expected in ["/kubepods.slice\"", "/housekeeping\"", "container=\"shop\""] {
        assert!(text.contains(expected), "{expected}");
    }
    let pause = "c".repeat(64);
    assert!(!text.contains(&pause));
}

#[test]
fn a_malformed_file_leaves_the_last_pods_in_use() {
    let pods = Pods::new("breaks.json", &pods_of_the_case());
    let agent = pods.start_agent(&[]);
    assert_eq!(containers(&agent).len(), 2);
    pods.write("{\"items\": [{");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(containers(&agent).len(), 2);
    pods.write(NO_PODS);
    wait_for("the file again", LIMIT, || containers(&agent).is_empty().then_some(()));
}

#[test]
fn an_invalid_file_at_the_start_is_refused() {
    for (text, expected) in [
        (None, "cannot read the pods in /nowhere/pods.json: No such file or directory"),
        (Some("[]"), "is no list of pods as `kubectl get pods -o json` prints it"),
    ] {
        let pods = text.map(|text| Pods::new("wrong.json", text));
        let path = pods.as_ref().map_or("/nowhere/pods.json".into(), |pods| pods.0.clone());
        for command in ["run", "once"] {
            let mut agent = Command::new(BINARY);
            agent.args([command, "--listen-address", "127.0.0.1:0", "--pods-file"]).arg(&path);
            let output = agent.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
        }
    }
}
