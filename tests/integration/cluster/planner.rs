//! `planner` with KubeVirt's own virt-controller on a real API server, as the account of its manifests: what
//! it creates and cancels, when it stops, and what its token can do.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::plan::{age, annotate};
use crate::support::agent::{Agent, BINARY};
use crate::support::exposition::parse;
use crate::support::folder::Folder;
use crate::support::kubevirt::{KubeVirt, MIGRATION, name, virtual_machine};
use crate::support::wait_for;

mod quota;
mod token;

const LIMIT: Duration = Duration::from_secs(90);

/// A control plane with KubeVirt, the manifests, and the account of the planner.
struct Scene {
    kubevirt: KubeVirt,
    account: PathBuf,
    folder: Folder,
}

impl Scene {
    fn start(name: &str) -> Self {
        let kubevirt = KubeVirt::start(name);
        let cluster = &kubevirt.cluster;
        let manifests = cluster.render_with(&["planner"]);
        cluster.kubectl(&["apply", "--validate=strict", "-f", "-"], &manifests);
        let account = cluster.write_kubeconfig("planner", &cluster.token("psi-agent-planner"));
        let scene = Self { kubevirt, account, folder: Folder::new(name) };
        wait_for("the API server knows the policy", LIMIT, || {
            let refusal = scene.refusal("vms", &migration("any", &[]));
            refusal.filter(|error| error.contains("psi-agent planner may only"))
        });
        scene
    }

    fn label_namespace(&self) {
        let label = ["label", "namespace", "vms", "psi-agent.io/plan=true"];
        self.kubevirt.cluster.kubectl(&label, "");
    }

    /// Why the planner's account may not create a migration; `None` if it may. Nothing is stored.
    fn refusal(&self, namespace: &str, migration: &Value) -> Option<String> {
        let file = self.write(migration);
        self.failure(&[
            "create",
            "--dry-run=server",
            "--validate=false",
            "-n",
            namespace,
            "-f",
            &file,
        ])
    }

    /// The path of a file with an object.
    fn write(&self, object: &Value) -> String {
        std::fs::write(self.folder.join("object.json"), object.to_string()).unwrap();
        self.folder.path("object.json")
    }

    /// The verbs of the planner's ClusterRole.
    fn rights(&self) -> Vec<String> {
        let role = self.kubevirt.cluster.get(&["clusterrole", "psi-agent-planner"]);
        let rules = role["rules"].as_array().unwrap().iter();
        let verbs = rules.flat_map(|rule| rule["verbs"].as_array().unwrap());
        verbs.map(|verb| verb.as_str().unwrap().to_owned()).collect()
    }

    /// Why kubectl fails as the planner's account.
    fn failure(&self, arguments: &[&str]) -> Option<String> {
        let output = self.kubevirt.cluster.kubectl_as(&self.account, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        (!output.status.success()).then_some(error)
    }

    fn start_planner(&self, holder: &str, flags: &[&str]) -> Agent {
        let account = self.account.to_str().unwrap();
        let own = ["planner", "--interval=1s", "--lease-holder", holder, "--kubeconfig", account];
        Agent::start(&[&own[..], flags].concat())
    }

    /// What agents write: node-a is contended, and this pod's VM is its candidate.
    fn publish(&self, candidate: &Value) {
        let uid = candidate["metadata"]["uid"].as_str().unwrap();
        let candidate = format!("uid={uid},demand=1.00,relief=1.00");
        annotate(&self.kubevirt, "node-a", 40, 9.0, Some(candidate));
        annotate(&self.kubevirt, "node-b", 0, 0.5, None);
    }

    fn migrations(&self) -> Vec<Value> {
        self.kubevirt.cluster.get(&["vmim", "-n", "vms"])["items"].as_array().unwrap().clone()
    }

    fn events(&self, reason: &str) -> Vec<Value> {
        let all = self.kubevirt.cluster.get(&["events", "-n", "vms"]);
        let events = all["items"].as_array().unwrap().iter();
        events.filter(|event| event["reason"] == reason).cloned().collect()
    }

    fn lease(&self) -> Value {
        self.kubevirt.cluster.get(&["lease", "psi-agent-planner", "-n", "psi-agent"])
    }

    /// Number of VMs whose migrations failed in a row.
    fn failed(&self) -> usize {
        self.state()["failed"].as_array().map_or(0, Vec::len)
    }

    fn state(&self) -> Value {
        let state = &self.lease()["metadata"]["annotations"]["psi-agent.io/state"];
        state.as_str().map_or(Value::Null, |state| serde_json::from_str(state).unwrap())
    }

    fn resume(&self) -> String {
        let mut command = Command::new(BINARY);
        let command = command.args(["plan", "--resume", "--kubeconfig"]);
        let output = command.arg(self.kubevirt.cluster.admin_kubeconfig()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A migration as the planner creates it, with these changes. `Null` removes a field.
fn migration(name: &str, changes: &[(&str, Value)]) -> Value {
    let mut migration = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name, "labels": {"psi-agent.io/planner": "true"}},
        "spec": {"vmiName": "demo", "addedNodeSelector": {"kubernetes.io/hostname": "node-b"}},
    });
    for (path, value) in changes {
        let (parent, key) = path.rsplit_once('/').unwrap();
        let fields = migration.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value.is_null() {
            fields.remove(key);
        } else {
            fields.insert(key.to_owned(), value.clone());
        }
    }
    migration
}

fn stopped(planner: &Agent) -> Option<f64> {
    let series = parse(&planner.get("/metrics"));
    series.iter().find(|one| one.name == "psi_agent_planner_stopped").map(|one| one.value)
}

/// The rounds so far.
fn planned(planner: &Agent) -> f64 {
    let series = parse(&planner.get("/metrics"));
    let rounds = series.iter().filter(|one| one.name == "psi_agent_planner_rounds_total");
    rounds
        .filter(|one| ["planned", "held"].contains(&&*one.labels["result"]))
        .map(|one| one.value)
        .sum()
}

/// Lets kube-scheduler bind the pods of no target, which a plan cannot foresee: as with volumes of a zone.
fn keep_targets_pending(scene: &Scene) {
    let group = "admissionregistration.k8s.io/v1";
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    });
    let add = r#"[JSONPatch{op: "add", path: "/spec/nodeSelector/nowhere", value: "true"}]"#;
    let exists = json!({"key": MIGRATION, "operator": "Exists"});
    scene.kubevirt.cluster.apply(&[
        json!({
            "apiVersion": group, "kind": "MutatingAdmissionPolicy", "metadata": {"name": "pending"},
            "spec": {
                "failurePolicy": "Fail", "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "resourceRules": [rule], "objectSelector": {"matchExpressions": [exists]},
                },
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": add}}],
            },
        }),
        json!({
            "apiVersion": group, "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": "pending"}, "spec": {"policyName": "pending"},
        }),
    ]);
    wait_for("targets stay pending", LIMIT, || are_kept_pending(scene).then_some(()));
}

fn are_kept_pending(scene: &Scene) -> bool {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "try", "namespace": "vms", "labels": {MIGRATION: "m"}},
        "spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "a", "image": "a"}]},
    });
    let create = ["create", "--dry-run=server", "-o", "yaml", "-f", "-"];
    scene.kubevirt.cluster.kubectl(&create, &pod.to_string()).contains("nowhere")
}

/// kube-scheduler found long ago that there is no Node for these pods.
fn age_pending_pods(scene: &Scene) {
    let since = format!("{:.0}", Timestamp::now() - SignedDuration::from_secs(61));
    let scheduled = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "lastTransitionTime": since,
    });
    let pods = scene.kubevirt.cluster.get(&["pods", "-n", "vms"]);
    for pod in pods["items"].as_array().unwrap() {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut scheduling = conditions.filter(|one| one["type"] == "PodScheduled");
        if scheduling.any(|one| one["status"] == "False") {
            let status = json!({ "conditions": [&scheduled] });
            scene.kubevirt.cluster.set_status("vms", name(pod), &status);
        }
    }
}

const VMS: [&str; 4] = ["first", "second", "third", "fourth"];

/// Without --apply there is an Event, whatever the namespace, and nothing else.
fn check_a_dry_run(scene: &Scene) {
    let planner = scene.start_planner("test", &[]);
    let proposed = wait_for("a move is proposed", LIMIT, || scene.events("MoveProposed").pop());
    assert_eq!(proposed["involvedObject"]["name"], "first");
    let message = proposed["message"].as_str().unwrap();
    assert!(message.starts_with("Move from node-a to node-b: "), "{message}");
    assert_eq!(scene.lease()["spec"]["holderIdentity"], "test");
    assert_eq!((scene.migrations(), scene.state()), (vec![], Value::Null));
    drop(planner);
}

#[test]
#[ignore = "starts a control plane"]
fn the_planner_cancels_what_stays_pending_stops_after_three_failures_and_is_resumed() {
    let scene = Scene::start("planner");
    let kubevirt = &scene.kubevirt;
    kubevirt.add_node("node-a", 8);
    let pods = VMS.map(|vm| kubevirt.start_vm(&virtual_machine(vm)));
    VMS.iter().for_each(|vm| age(kubevirt, vm));
    kubevirt.add_node("node-b", 8);
    scene.publish(&pods[0]);

    check_a_dry_run(&scene);

    // Another process waits for the Lease.
    let planner = scene.start_planner("other", &["--apply"]);
    wait_for("it waits", LIMIT, || planner.log().contains("Another process holds").then_some(()));
    assert_eq!(stopped(&planner), None);
    drop(planner);

    // VMs stay until the namespace is labelled.
    keep_targets_pending(&scene);
    let mut planner = scene.start_planner("test", &["--apply"]);
    let no_moves = "No moves: no candidate may move";
    wait_for("the VM stays", LIMIT, || planner.log().contains(no_moves).then_some(()));
    assert_eq!((scene.migrations(), stopped(&planner)), (vec![], Some(0.0)));
    scene.label_namespace();

    for (failures, (vm, pod)) in (1..).zip(VMS.iter().zip(&pods).take(3)) {
        scene.publish(pod);
        let what = format!("the migration of {vm} is cancelled");
        wait_for(&what, LIMIT, || {
            age_pending_pods(&scene);
            (scene.failed() == failures).then_some(())
        });
        wait_for("it is gone", LIMIT, || scene.migrations().is_empty().then_some(()));
        assert!(scene.state()["leftAloneUntil"][format!("vms/{vm}")].is_string(), "{vm}");
        if failures == 1 {
            // The state survives a restart, and the VM stays.
            drop(planner);
            planner = scene.start_planner("test", &["--apply"]);
            let no_moves = "No moves: no candidate may move";
            wait_for("the VM stays", LIMIT, || planner.log().contains(no_moves).then_some(()));
        }
    }
    wait_for("the planner stops", LIMIT, || stopped(&planner).filter(|stopped| *stopped == 1.0));
    assert!(planner.log().contains("no more migrations: migrations of 3 VMs in a row failed"));
    scene.publish(&pods[3]);
    let delete = ["delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "pending"];
    kubevirt.cluster.kubectl(&delete, "");
    wait_for("targets are bound", LIMIT, || (!are_kept_pending(&scene)).then_some(()));
    let rounds = planned(&planner);
    wait_for("two more rounds", LIMIT, || (planned(&planner) >= rounds + 2.0).then_some(()));
    assert_eq!(scene.migrations(), Vec::<Value>::new());

    let resumed = scene.resume();
    assert!(resumed.starts_with("The planner is resumed. It had stopped at "), "{resumed}");
    let created = wait_for("a migration", LIMIT, || scene.migrations().pop());
    assert_eq!(
        created["spec"],
        json!({"vmiName": "fourth", "addedNodeSelector": {"kubernetes.io/hostname": "node-b"}})
    );
    assert_eq!(created["metadata"]["labels"]["psi-agent.io/planner"], "true");
    let target = kubevirt.wait_for_target(name(&created));
    assert_eq!(target["spec"]["nodeName"], "node-b");
    wait_for("it goes on", LIMIT, || stopped(&planner).filter(|stopped| *stopped == 0.0));
    assert_eq!(scene.resume(), "The planner had not stopped\n");
    check_that_moves_have_to_pay(&scene, &planner);
}

/// The planner remembers its moves, and stops when they together increased the waiting.
fn check_that_moves_have_to_pay(scene: &Scene, planner: &Agent) {
    let mut state = scene.state();
    let moved = state["brake"]["moves"].as_array().unwrap().last().unwrap().clone();
    let uid = scene.kubevirt.get("vmi", VMS[3])["metadata"]["uid"].clone();
    let nodes = (&json!("node-a"), &json!("node-b"));
    assert_eq!((&moved["vm"], (&moved["source"], &moved["target"])), (&uid, nodes));
    let verdict = json!({"at": moved["at"], "ended": -1.0});
    state["brake"]["verdicts"] = json!(vec![verdict; 5]);
    let annotation = format!("psi-agent.io/state={state}");
    let lease = ["annotate", "--overwrite", "-n", "psi-agent", "lease", "psi-agent-planner"];
    scene.kubevirt.cluster.kubectl(&[&lease[..], &[&annotation]].concat(), "");
    wait_for("the planner stops", LIMIT, || stopped(planner).filter(|stopped| *stopped == 1.0));
    let reason = "after 5 moves of the last day, VMs on their nodes wait for 5.0 CPUs more";
    assert!(planner.log().contains(&format!("creates no more migrations: {reason}")));
    assert!(scene.resume().contains(reason));
    wait_for("it goes on", LIMIT, || stopped(planner).filter(|stopped| *stopped == 0.0));
}
