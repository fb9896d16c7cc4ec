//! Pods from a file: series wait for their labels, follow the file, and survive its errors.

use std::fs;
use std::time::Duration;

use crate::support::agent::Agent;
use crate::support::exposition::{Series, parse};
use crate::support::folder::Folder;
use crate::support::wait_for;

const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/virt-launcher");
const NO_PODS: &str = "{\"items\": []}";

/// A file of pods that the test writes, whole each time.
struct Pods(Folder);

impl Pods {
    fn new(name: &str, text: &str) -> Self {
        let pods = Self(Folder::new(name));
        pods.write(text);
        pods
    }

    fn write(&self, text: &str) {
        self.0.replace("pods.json", text);
    }

    fn start_agent(&self) -> Agent {
        let [proc, root] = ["proc", "sys/fs/cgroup"].map(|root| format!("{CASE}/{root}"));
        let pods = self.0.path("pods.json");
        Agent::start(&["--proc-root", &proc, "--cgroup-root", &root, "--pods-file", &pods])
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

const LIMIT: Duration = Duration::from_secs(60);

#[test]
#[ignore = "takes 4 s"]
fn series_wait_for_their_labels_and_unmatched_cgroups_are_counted() {
    let pods = Pods::new("pods-wait", NO_PODS);
    let agent = pods.start_agent();
    assert!(containers(&agent).is_empty());
    assert_eq!(gauge(&agent, "psi_agent_pods"), 0.0);
    // Two pods, and four containers in them.
    assert_eq!(gauge(&agent, "psi_agent_cgroups_without_pod"), 6.0);

    let others = pods_of_the_case().replace("9999abcd", "8888abcd").replace("dddd", "eeee");
    pods.write(&others);
    wait_for("labels", LIMIT, || {
        (containers(&agent) == ["compute", "guest-console-log"]).then_some(())
    });
    assert_eq!(gauge(&agent, "psi_agent_pods"), 2.0);
    // The pause container, and the pod that is not in the file with its container.
    assert_eq!(gauge(&agent, "psi_agent_cgroups_without_pod"), 3.0);

    pods.write(NO_PODS);
    wait_for("none again", LIMIT, || containers(&agent).is_empty().then_some(()));
}

#[test]
#[ignore = "takes 4 s"]
fn a_malformed_file_leaves_the_last_pods_in_use() {
    let pods = Pods::new("pods-break", &pods_of_the_case());
    let agent = pods.start_agent();
    assert_eq!(containers(&agent).len(), 2);
    pods.write("{\"items\": [{");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(containers(&agent).len(), 2);
    pods.write(NO_PODS);
    wait_for("the file again", LIMIT, || containers(&agent).is_empty().then_some(()));
}
