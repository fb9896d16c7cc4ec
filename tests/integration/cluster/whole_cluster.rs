//! Three nodes, ten pods, an agent each: real load on real cgroups, a real control plane with the
//! project's own rights in it, in real time. What agents did is read from the audit log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use psi_agent::contract::{NodeDemand, Prefix};

use crate::support::agent::Agent;
use crate::support::cluster::{Audited, Cluster, unplaced_vm};
use crate::support::cpu::BusyCpu;
use crate::support::exposition::parse;
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::wait_for;

const OUTPUTS: &[&str] =
    &["--label", "--taint-levels", "medium,high", "--settle", "30s", "--candidate-min-age", "1s"];
const MINUTE: Duration = Duration::from_secs(60);
const DOZE: &str = "sleep 3600";

struct Scene {
    cluster: Cluster,
    nodes: [StagedNode; 3],
    /// Cgroups of the VMs on the first node.
    vms: Vec<String>,
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::start_whole("whole");
        cluster.install_for_vms();
        let nodes = ["node-a", "node-b", "node-c"].map(|name| StagedNode::new("whole", name));
        let names = nodes.iter().map(|node| node.name).chain(["node-d", "node-e"]);
        for name in names {
            cluster.add_node(name);
            cluster.apply(&[agent_pod(&format!("psi-agent-{name}"), name)]);
        }
        // Nobody runs there; the scheduler has three nodes to choose from.
        cluster.kubectl(&["cordon", "node-d", "node-e"], "");
        let mut scene = Self { cluster, nodes, vms: Vec::new() };
        for (node, count) in [(0, 4), (1, 3), (2, 3)] {
            for number in 0..count {
                let vm = format!("vm-{node}-{number}");
                let container = node * 10 + number + 1;
                let staged = &mut scene.nodes[usize::try_from(node).unwrap()];
                let cgroup = staged.start_vm(&scene.cluster, &vm, container);
                staged.own.spawn(&cgroup, DOZE);
                if node == 0 {
                    scene.vms.push(cgroup);
                }
            }
        }
        scene
    }

    /// What an agent on a node wrote so far.
    fn writes(&self, node: &str) -> Vec<Audited> {
        let audited = self.cluster.audited().into_iter();
        audited.filter(|event| event.verb == "patch" && event.node == node).collect()
    }

    fn level(&self, node: &str) -> Option<String> {
        let node = self.cluster.get(&["node", node]);
        node["metadata"]["labels"]["psi-agent.io/pressure"].as_str().map(str::to_owned)
    }

    fn wait_for_level(&self, level: &str, limit: Duration) {
        let what = format!("node-a is {level}");
        wait_for(&what, limit, || (self.level("node-a").as_deref() == Some(level)).then_some(()));
    }

    /// A new agent takes the place of the one on the first node, in a pod of its own.
    fn replace_agent(&self, old: Agent, signal: &str, pod: &str) -> Agent {
        old.signal(signal);
        drop(old);
        self.cluster.apply(&[agent_pod(pod, "node-a")]);
        self.nodes[0].start_agent(&self.cluster, pod, OUTPUTS)
    }
}

fn label(write: &Audited) -> &str {
    write.body["metadata"]["labels"]["psi-agent.io/pressure"].as_str().unwrap_or_default()
}

fn without_repeats<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut values: Vec<&str> = values.collect();
    values.dedup();
    values
}

/// The number of a series that has no labels, or these.
fn metric(agent: &Agent, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let series = parse(&agent.get("/metrics")).into_iter().find(|series| {
        let has = |(key, value): &(&str, &str)| {
            series.labels.get(*key).map(String::as_str) == Some(*value)
        };
        series.name == name && labels.iter().all(has)
    });
    series.map(|series| series.value)
}

#[test]
#[ignore = "needs root, a cgroup2 mount, two CPUs, etcd and a control plane (tests/kubernetes/build)"]
fn a_node_that_gets_short_is_marked_and_avoided_until_it_is_calm_again() {
    let mut scene = Scene::start();
    let started = Instant::now();
    let agents = scene
        .nodes
        .each_ref()
        .map(|node| node.start_agent(&scene.cluster, &format!("psi-agent-{}", node.name), OUTPUTS));
    // One that only says what it would do, and one whose token is another node's.
    let [busy, ..] = &scene.nodes;
    let dry_run = ["--publish", "dry-run"];
    let dry = busy.start_agent_of("node-d", &scene.cluster, "psi-agent-node-d", &dry_run);
    let wrong = busy.start_agent_of("node-e", &scene.cluster, "psi-agent-node-c", &[]);
    check_names(&agents);
    for node in ["node-a", "node-b", "node-c"] {
        wait_for("a first value", MINUTE, || scene.level(node).filter(|level| level == "low"));
    }
    assert!(started.elapsed() >= Duration::from_secs(30));

    // Two VMs want one CPU.
    let cpu = BusyCpu::share();
    for vm in scene.vms.clone().iter().take(2) {
        scene.nodes[0].own.spawn(vm, &cpu.spin());
    }
    let loaded = Instant::now();
    scene.wait_for_level("high", 2 * MINUTE);
    eprintln!("high after {:?}", loaded.elapsed());
    let [agent, _calm, _idle] = agents;
    check_what_is_told_of_vms(&agent);
    check_demand(&scene);

    // The scheduler, as it is by default, prefers the others.
    assert_eq!(scene.cluster.place(&unplaced_vm("while-high"), 6, ["node-a"]), [0]);

    // Neither a rolling update nor a crash changes what the Node says.
    let agent = scene.replace_agent(agent, "TERM", "psi-agent-rolled");
    std::thread::sleep(MINUTE / 3);
    let agent = scene.replace_agent(agent, "KILL", "psi-agent-crashed");
    std::thread::sleep(MINUTE / 3);
    assert!(agent.log().contains("Continuing from the value that an earlier agent published"));
    for write in scene.writes("node-a") {
        if ["psi-agent-rolled", "psi-agent-crashed"].contains(&write.by.as_str()) {
            assert_eq!((label(&write), write.body.get("spec")), ("high", None), "{write:?}");
        }
    }

    // A taint that somebody takes away comes back with the next write.
    let remove = ["taint", "node", "node-a", "psi-agent.io/pressure-high-"];
    scene.cluster.kubectl(&remove, "");
    let calmed = Instant::now();
    scene.nodes[0].own.kill_all();
    scene.wait_for_level("low", 4 * MINUTE);
    eprintln!("low again after {:?}", calmed.elapsed());
    assert_ne!(scene.cluster.place(&unplaced_vm("when-calm"), 12, ["node-a"]), [0]);

    check_the_audit_log(&scene, started.elapsed());
    check_rights(&scene);
    check_who_must_not_write(&scene, &dry, &wrong);
}

/// Each VM's container has a series with its pod's name.
fn check_names(agents: &[Agent; 3]) {
    for (agent, vms) in agents.iter().zip([4, 3, 3]) {
        wait_for("every VM's container has a series", MINUTE / 4, || {
            let series = parse(&agent.get("/metrics"));
            let named = series.iter().filter(|series| {
                series.name == "container_pressure_cpu_waiting_seconds_total"
                    && series.labels["container"] == "compute"
                    && series.labels["pod"].starts_with("virt-launcher-vm-")
            });
            (named.count() == vms).then_some(())
        });
    }
}

fn check_what_is_told_of_vms(agent: &Agent) {
    let of_cpu = [("resource", "cpu")];
    let contention = metric(agent, "psi_agent_node_contention_ratio", &of_cpu).unwrap();
    // More, where other tests use the same CPU.
    assert!((0.3..1.0).contains(&contention), "{contention}");
    let vm = [("namespace", "vms"), ("name", "vm-0-0")];
    let by_node = [&vm[..], &of_cpu, &[("cause", "node")]].concat();
    let waited = metric(agent, "psi_agent_vmi_wait_seconds_total", &by_node).unwrap();
    assert!(waited > 10.0, "{waited}");
    assert_eq!(metric(agent, "psi_agent_vmi_info", &vm), Some(1.0));
    assert_eq!(metric(agent, "psi_agent_node_contended", &[]), Some(2.0));
}

/// The headroom of each node, and a busy VM as the candidate of the contended one.
fn check_demand(scene: &Scene) {
    let prefix = Prefix::default();
    let demand = |node| {
        let node = scene.cluster.get(&["node", node]);
        let annotations: BTreeMap<String, String> =
            serde_json::from_value(node["metadata"]["annotations"].clone()).unwrap();
        NodeDemand::from_annotations(&prefix, &annotations).unwrap()
    };
    let contended = wait_for("node-a has a candidate", 2 * MINUTE, || {
        demand("node-a").filter(|demand| !demand.candidates.is_empty())
    });
    let uids = ["vm-0-0", "vm-0-1"].map(|vm| {
        let pod = scene.cluster.get(&["pod", &format!("virt-launcher-{vm}"), "-n", "vms"]);
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    });
    assert!(uids.contains(&contended.candidates[0].uid), "{contended:?} {uids:?}");
    let calm = demand("node-b").unwrap();
    assert!(calm.candidates.is_empty() && calm.waiting < contended.waiting, "{calm:?}");
    let node = scene.cluster.get(&["node", "node-b"]);
    let class = calm.headroom_class().to_string();
    assert_eq!(node["metadata"]["labels"]["psi-agent.io/headroom"], class);
}

fn check_who_must_not_write(scene: &Scene, dry: &Agent, wrong: &Agent) {
    let said = dry.log();
    assert!(said.contains("Would publish"), "{said}");
    assert!(scene.writes("node-d").is_empty());
    let refused = [("result", "forbidden")];
    let count = metric(wrong, "psi_agent_publishes_total", &refused).unwrap();
    assert!((2.0..=15.0).contains(&count), "{count}");
    let said = wrong.log();
    assert_eq!(said.matches("Cannot publish the score").count(), 1, "{said}");
    assert!(said.contains("may only change the Node that its pod runs on"), "{said}");
    assert!(scene.writes("node-e").iter().all(|write| write.code == 403));
}

/// The agent has the rights that it uses, and no others.
fn check_rights(scene: &Scene) {
    let granted = scene.cluster.granted_rights("psi-agent");
    assert_eq!(scene.cluster.used_rights(), granted);
}

fn check_the_audit_log(scene: &Scene, time: Duration) {
    let writes = scene.writes("node-a");
    assert!(writes.iter().all(|write| write.code == 200));
    let levels = without_repeats(writes.iter().map(label));
    let lists = writes.iter().filter_map(|write| write.body["spec"]["taints"].as_array());
    let lists: Vec<usize> = lists.map(Vec::len).collect();
    // Up in two steps, or in one where others load the same CPU and both thresholds are passed in
    // one tick; the one that was taken away put back; down in two steps.
    if levels.get(1) == Some(&"medium") {
        assert_eq!(levels, ["low", "medium", "high", "medium", "low"]);
        assert_eq!(lists, [1, 2, 2, 1, 0]);
    } else {
        assert_eq!(levels, ["low", "high", "medium", "low"]);
        assert_eq!(lists, [2, 2, 1, 0]);
    }
    let heartbeats = usize::try_from(time.as_secs() / 300).unwrap() + 1;
    for node in ["node-b", "node-c"] {
        let writes = scene.writes(node);
        // The first, and three that only the demand causes.
        assert!(writes.len() <= 4 + heartbeats, "{node}: {writes:?}");
        assert_eq!(without_repeats(writes.iter().map(label)), ["low"]);
    }
}
