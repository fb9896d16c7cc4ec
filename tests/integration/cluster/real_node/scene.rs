//! What the story is told with: the cluster, its one real node, the agent there and two VMs' pods.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::cluster::{Audited, Cluster, REAL_NODE};
use crate::support::exposition::{Series, parse};
use crate::support::install_document::{Checkout, commands};
use crate::support::packed_release;
use crate::support::real_node::{GIVEN, RealNode};
use crate::support::wait_for;

/// What is to happen happens in a fraction of it, also on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(600);
pub(super) const VMS: [&str; 2] = ["vm-a", "vm-b"];
pub(super) const CONSOLE: &str = "guest-console-log";
const CONFLICT: u64 = 409;

/// An answer of `/metrics`, and between which moments of the node's own clock the agent gave it.
pub(super) struct Reading {
    pub(super) began_ms: u64,
    pub(super) ended_ms: u64,
    pub(super) text: String,
    pub(super) series: Vec<Series>,
}

impl Reading {
    /// The value of the one series that has this name and these labels.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |series: &&Series| {
            let mut labels = labels.iter();
            series.name == name && labels.all(|(key, value)| series.labels[*key] == *value)
        };
        self.series.iter().find(has).map(|series| series.value)
    }
}

pub(super) struct Scene {
    pub(super) node: RealNode,
    pub(super) cluster: Cluster,
    checkout: Checkout,
    stage: Instant,
}

impl Scene {
    /// A cluster with one node, which has the agent's image: made and imported as the document says.
    pub(super) fn start() -> Self {
        let stage = Instant::now();
        let cluster = Cluster::start_whole("real-node");
        let checkout = Checkout::naming("localhost/psi-agent");
        let mut image = commands("An image");
        // By its digest, by which a release's manifests name it.
        let of_release = commands("Install from a release");
        image.extend(of_release.into_iter().filter(|command| command.starts_with("ctr ")));
        let (on_host, on_node): (Vec<String>, Vec<String>) =
            image.into_iter().partition(|command| !command.starts_with("ctr "));
        for command in &on_host {
            if command.starts_with("RUSTFLAGS=") {
                check_that_the_tests_build_it_likewise(command);
            } else {
                eprint!("{}", checkout.run(command, &cluster));
            }
        }
        assert_eq!(on_node.len(), 2, "an own image and one of a release are imported once each");
        let images = ["psi-agent.tar", packed_release::IMAGE];
        let node = RealNode::join(&cluster, &images.map(|image| checkout.folder.join(image)));
        // Where no controller of Nodes is, nobody finds that it has become ready.
        cluster.kubectl(&["patch", "node", REAL_NODE, "--type=merge", "-p", NO_TAINTS], "");
        for command in &on_node {
            node.run(&format!("cd {GIVEN} && {command}"));
        }
        let mut scene = Self { node, cluster, checkout, stage };
        scene.say("a control plane, an image and a node that has joined");
        scene
    }

    /// Says what has been done since the last time, and how long it took.
    pub(super) fn say(&mut self, what: &str) {
        eprintln!("{what}: {:.0} s", self.stage.elapsed().as_secs_f64());
        self.stage = Instant::now();
    }

    /// The release's files, its manifests unpacked.
    pub(super) fn release(&self) -> &Path {
        &self.checkout.folder
    }

    /// Does what the document says below a heading.
    pub(super) fn follow_the_document(&self, heading: &str) {
        for command in commands(heading) {
            let said = self.checkout.run(&command, &self.cluster);
            eprintln!("$ {command}\n{said}");
        }
    }

    pub(super) fn run_as_admin(&self, command: &str) -> String {
        self.checkout.run(command, &self.cluster)
    }

    pub(super) fn start_vm(&self, vm: &str) {
        self.cluster.apply(&[launcher(vm)]);
    }

    pub(super) fn wait_for_vm(&self, vm: &str) {
        let pod = format!("virt-launcher-{vm}");
        wait_until(&format!("{pod} is ready"), || {
            is_ready(&self.cluster.get(&["pod", &pod, "-n", "vms"])).then_some(())
        });
    }

    /// The pod of the agent, once there is one that is ready.
    pub(super) fn agent(&self) -> Value {
        wait_until("an agent is ready", || {
            let list = ["pods", "-n", "psi-agent", "-l", "app.kubernetes.io/name=psi-agent"];
            let pods = self.cluster.get(&list)["items"].as_array().unwrap().clone();
            let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
            pods.iter().find(|pod| stays(pod) && is_ready(pod)).cloned()
        })
    }

    /// The command that reads an agent's exposition on its node.
    pub(super) fn ask(agent: &Value) -> String {
        let address = agent["status"]["podIP"].as_str().unwrap();
        format!("wget -q -O - http://{address}:9942/metrics")
    }

    /// What the agent exports now, asked from another address than its own.
    pub(super) fn read(&self, agent: &Value) -> Reading {
        let ask = Self::ask(agent);
        let said = self.node.run(&format!("date +%s%3N; {ask}; date +%s%3N"));
        let (began, rest) = said.split_once('\n').unwrap();
        let (text, ended) = rest.trim_end().rsplit_once('\n').unwrap();
        let [began_ms, ended_ms] = [began, ended].map(|moment| moment.parse().unwrap());
        Reading { began_ms, ended_ms, text: text.to_owned(), series: parse(text) }
    }

    /// The folder of a container's cgroup on the node.
    pub(super) fn cgroup(&self, pod: &Value, container: &str) -> String {
        let id = container_id(pod, container);
        let find = format!("find /sys/fs/cgroup/kubepods* -type d -name '*{id}*'");
        let found = self.node.run(&find);
        let mut found = found.lines();
        let folder = found.next().unwrap_or_else(|| panic!("{id} has no cgroup"));
        assert_eq!(found.next(), None);
        folder.to_owned()
    }

    pub(super) fn vm_cgroup(&self, vm: &str, container: &str) -> String {
        let pod = self.cluster.get(&["pod", &format!("virt-launcher-{vm}"), "-n", "vms"]);
        self.cgroup(&pod, container)
    }

    /// Sends a signal to all processes of cgroups: USR1 lets the load burn CPU, USR2 ends that.
    pub(super) fn signal(&self, signal: &str, cgroups: &[String]) {
        let files: Vec<String> = cgroups.iter().map(|it| format!("{it}/cgroup.procs")).collect();
        self.node.run(&format!("kill -{signal} $(cat {})", files.join(" ")));
    }

    /// An annotation, label or anything else of the Node that the agent keeps.
    pub(super) fn own_key(&self, kind: &str, key: &str) -> Option<String> {
        let node = self.cluster.get(&["node", REAL_NODE]);
        node["metadata"][kind][format!("psi-agent.io/{key}")].as_str().map(str::to_owned)
    }

    /// What agents wrote on the Node so far. A conflict is no write: the kubelet had changed the Node since
    /// the agent saw it, and the agent makes the change again.
    pub(super) fn writes(&self) -> Vec<Audited> {
        let audited = self.cluster.audited().into_iter();
        let patches = audited.filter(|event| event.verb == "patch" && event.node == REAL_NODE);
        patches.filter(|event| event.code != CONFLICT).collect()
    }
}

const NO_TAINTS: &str = r#"{"spec":{"taints":null}}"#;

/// The static binary was made before: by the same words as in the document.
fn check_that_the_tests_build_it_likewise(command: &str) {
    let script = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run")).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let script = words(&script.replace("\\\n", " "));
    assert!(script.contains(&words(command)), "tests/run has no {command}");
}

/// As [`wait_for`], less often: the node's one emulated CPU serves every question.
pub(super) fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    wait_for(what, LIMIT, || {
        let answer = ask();
        if answer.is_none() {
            sleep(Duration::from_secs(1));
        }
        answer
    })
}

pub(super) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

pub(super) fn container_id<'a>(pod: &'a Value, container: &str) -> &'a str {
    let mut statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let status = statuses.find(|status| status["name"] == container).expect("a container's status");
    status["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://")).unwrap()
}

/// The pod of a VM as KubeVirt makes it, with loads for what would run there.
fn launcher(vm: &str) -> Value {
    let load = |name: &str, resources: Value| {
        json!({
            "name": name, "image": "localhost/load:1", "imagePullPolicy": "Never",
            "resources": resources,
        })
    };
    let limited = json!({
        "requests": {"cpu": "5m", "memory": "35Mi"}, "limits": {"cpu": "15m", "memory": "60Mi"},
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("virt-launcher-{vm}"), "namespace": "vms",
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/nodeName": REAL_NODE},
            "annotations": {"kubevirt.io/domain": vm},
        },
        "spec": {
            "nodeName": REAL_NODE, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5,
            "containers": [
                load("compute", json!({"requests": {"cpu": "100m"}})), load(CONSOLE, limited),
            ],
        },
    })
}
