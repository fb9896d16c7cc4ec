//! The agent as it is deployed, on a node as clusters have them: systemd, containerd, runc and a
//! kubelet, booted once for the whole story. docs/install.md is followed from the image to the end.

use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::support::cluster::{Audited, REAL_NODE};
use crate::support::wait_for;
use beside_the_kubelet::OfKubelet;
use scene::{CONSOLE, LIMIT, Reading, Scene, VMS, container_id, is_ready, name, wait_until};

mod beside_the_kubelet;
mod of_release;
mod scene;

/// The memory limit of the DaemonSet, in bytes.
const MEMORY_LIMIT: u64 = 64 << 20;
/// The share of what the kubelet beside it uses that it may use.
const OF_THE_KUBELETS: f64 = 0.05;
/// Windows of which one has to hold.
const COST_WINDOWS: usize = 4;

#[test]
#[ignore = "needs root, QEMU, a control plane and a node's disk (tests/node/build)"]
fn a_node_has_its_agent_from_install_to_removal() {
    let mut scene = Scene::start();
    scene.follow_the_document("Apply");
    scene.say("the agent runs and is ready");
    // Its jobs would come at any time; one is run below.
    let suspend = ["patch", "cronjob", "psi-agent-reap", "-n", "psi-agent", "-p"];
    scene.cluster.kubectl(&[&suspend[..], &[r#"{"spec":{"suspend":true}}"#]].concat(), "");
    start_vms(&scene);
    check_what_the_agent_is_allowed(&scene);
    scene.say("two VMs run");

    wait_until("the score stands on the Node", || scene.own_key("annotations", "observed-at"));
    check_whose_node_it_writes(&scene);
    check_reap(&scene);
    scene.say("a score stands on the Node, and on no other");

    a_throttled_console_is_not_the_nodes_fault(&scene);
    scene.say("a console that is throttled, and a score of 0");
    contention_is(&scene);
    scene.say("VMs that contend, and a high score");
    check_what_the_agent_costs(&scene);
    neither_a_crash_nor_an_update_is_seen(&scene);
    scene.say("a crash and a rolling update");
    another_cgroup_driver_is_followed(&scene);
    scene.say("another cgroup driver");

    of_release::the_dashboards_have_answers(&scene);
    scene.say("shown on the dashboards");
    scene.follow_the_document("Remove");
    check_that_nothing_is_left(&scene);
    scene.say("removed");

    of_release::the_chart_installs_what_kustomize_did(&scene);
    scene.say("installed by a release's chart");
    of_release::the_plugin_shows_nodes_and_vms(&scene);
    scene.say("shown by the plugin");
    of_release::the_dashboards_have_answers(&scene);
    scene.say("shown on the dashboards");
    of_release::helm_removes_what_the_agents_wrote(&scene);
    check_that_nothing_is_left(&scene);
    scene.say("removed again");
}

fn start_vms(scene: &Scene) {
    scene.cluster.add_namespace("vms");
    wait_for("the namespace has its account", LIMIT, || {
        let accounts = scene.cluster.get(&["serviceaccounts", "-n", "vms"]);
        accounts["items"].as_array().filter(|list| !list.is_empty()).map(drop)
    });
    VMS.iter().for_each(|vm| scene.start_vm(vm));
    VMS.iter().for_each(|vm| scene.wait_for_vm(vm));
}

/// Nobody, with no capability, and nothing to write to.
fn check_what_the_agent_is_allowed(scene: &Scene) {
    let cgroup = scene.cgroup(&scene.agent(), "psi-agent");
    let status = scene.node.run(&format!("cat /proc/$(cat {cgroup}/cgroup.procs)/status"));
    for line in ["Uid:\t19942\t19942", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
    {
        assert!(status.contains(line), "{line}: {status}");
    }
    let mounts = scene.node.run(&format!("cat /proc/$(cat {cgroup}/cgroup.procs)/mountinfo"));
    for folder in [" / ro,", " /host/sys/fs/cgroup ro,", " /host/proc ro,"] {
        assert!(mounts.contains(folder), "{folder}: {mounts}");
    }
}

/// With the token that the kubelet gave its pod: its own Node, and no other.
fn check_whose_node_it_writes(scene: &Scene) {
    let agent = scene.agent();
    let writes = scene.writes();
    assert!(writes.iter().all(|write| write.code == 200 && write.by == name(&agent)), "{writes:?}");
    scene.cluster.add_node("another");
    scene.cluster.kubectl(&["cordon", "another"], "");
    let uid = agent["metadata"]["uid"].as_str().unwrap();
    let volumes = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected");
    // Past the links: the kernel follows none of the agent's in a folder that all may write.
    let token = scene.node.run(&format!("cat {volumes}/*/..2*/token"));
    let stolen = scene.cluster.write_kubeconfig("stolen", token.trim());
    let annotate = |node: &str, value: &str| {
        let change = format!("psi-agent.io/of-the-test{value}");
        scene.cluster.kubectl_as(&stolen, &["annotate", "node", node, &change])
    };
    assert!(annotate(REAL_NODE, "=1").status.success());
    assert!(annotate(REAL_NODE, "-").status.success());
    let refused = annotate("another", "=1");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("may only change the Node that its pod runs on"), "{said}");
    let audited = scene.cluster.audited();
    let codes = audited.iter().filter(|event| event.node == "another" && event.verb == "patch");
    assert_eq!(codes.map(|event| event.code).collect::<Vec<_>>(), [403]);
    scene.cluster.kubectl(&["delete", "node", "another"], "");
}

/// The CronJob's own pod, in the cluster.
fn check_reap(scene: &Scene) {
    let create = ["create", "job", "reap-once", "-n", "psi-agent", "--from=cronjob/psi-agent-reap"];
    scene.cluster.kubectl(&create, "");
    let wait = ["wait", "job/reap-once", "-n", "psi-agent", "--for=condition=Complete"];
    scene.cluster.kubectl(&[&wait[..], &["--timeout=300s"]].concat(), "");
    assert!(scene.own_key("annotations", "score").is_some(), "reap took a live agent's value");
}

/// The sidecar of each VM uses up its 15 thousandths of a CPU, and the VMs sleep.
fn a_throttled_console_is_not_the_nodes_fault(scene: &Scene) {
    let agent = scene.agent();
    let consoles = VMS.map(|vm| scene.vm_cgroup(vm, CONSOLE));
    let [pod, _] = consoles.each_ref().map(|console| console.rsplit_once('/').unwrap().0);
    wait_until_vms_are_scored(scene, &agent);
    scene.signal("USR1", &consoles);
    let (began, before) = (scene.read(&agent), Stalls::read(scene, pod));
    compare_with_the_kubelet(scene, &agent);
    // From what the start of the pods left of it.
    wait_until("the score on the Node is 0", || {
        scene.own_key("annotations", "score").filter(|score| score == "0")
    });
    let (ended, after) = (scene.read(&agent), Stalls::read(scene, pod));
    let shares = after.shares_since(&before);
    let used = 1.0 - (after.idle - before.idle) / (after.time - before.time);
    let told = ended.value("psi_agent_node_utilization_ratio", &[("resource", "cpu")]).unwrap();
    eprintln!("waiting in the pod, kubepods and the node: {shares:.2?}");
    eprintln!("CPU in use: {used:.2}; in the agent's last window: {told:.2}");
    assert!(shares.iter().all(|share| *share > 0.5), "{shares:?}");
    // On a busy machine the kubelet alone takes most of the emulated CPU for its work; not all of it.
    assert!(used < 0.98, "{used}");
    let throttled = scene.node.run(&format!("grep nr_throttled {}/cpu.stat", consoles[0]));
    assert!(!throttled.ends_with(" 0\n"), "{throttled}");
    for vm in VMS {
        let by_node = [("namespace", "vms"), ("name", vm), ("cause", "node"), ("resource", "cpu")];
        let waited = |of: &Reading| of.value("psi_agent_vmi_wait_seconds_total", &by_node).unwrap();
        let waited = waited(&ended) - waited(&began);
        eprintln!("{vm} waited {waited:.2} s for the node, of {:.0}", after.time - before.time);
        assert!(waited < 0.02 * (after.time - before.time), "{vm} waited {waited} s for the node");
    }
    let score = |of: &Reading| of.value("psi_agent_node_score_ratio", &[]).unwrap();
    assert!(score(&ended) <= score(&began) && score(&ended) < 0.05, "{}", score(&ended));
    scene.signal("USR2", &consoles);
}

/// Containers are, until the node has had VMs for a minute; then the history starts anew.
fn wait_until_vms_are_scored(scene: &Scene, agent: &Value) {
    wait_until("a score of the VMs", || {
        let reading = scene.read(agent);
        let scored = reading.value("psi_agent_node_scored", &[("population", "vms")]);
        (scored == Some(2.0)).then(|| reading.value("psi_agent_node_score_ratio", &[])).flatten()
    });
}

/// Seconds of waiting so far: of a pod, of all pods, of the node; and the time of the node and of its one
/// CPU without work.
struct Stalls {
    waited: [f64; 3],
    time: f64,
    idle: f64,
}

impl Stalls {
    fn read(scene: &Scene, pod: &str) -> Self {
        let [kubepods, node] = ["/sys/fs/cgroup/kubepods.slice/cpu.pressure", "/proc/pressure/cpu"];
        let said = scene.node.run(&format!(
            "for file in {pod}/cpu.pressure {kubepods} {node}; do head -n 1 $file; done\n\
             cat /proc/uptime"
        ));
        let lines: Vec<&str> = said.lines().collect();
        let waited = [0, 1, 2].map(|line| {
            let total: f64 = lines[line].rsplit_once("total=").unwrap().1.parse().unwrap();
            total / 1e6
        });
        let (time, idle) = lines[3].split_once(' ').unwrap();
        let [time, idle] = [time, idle].map(|seconds| seconds.parse().unwrap());
        Self { waited, time, idle }
    }

    fn shares_since(&self, before: &Self) -> [f64; 3] {
        let time = self.time - before.time;
        [0, 1, 2].map(|at| (self.waited[at] - before.waited[at]) / time)
    }
}

/// Reads the agent until its readings enclose all samples of the kubelet, which are up to half a
/// minute old when it tells them.
fn compare_with_the_kubelet(scene: &Scene, agent: &Value) {
    let mut readings = vec![scene.read(agent)];
    let kubelet = wait_until("readings before and after the kubelet's", || {
        sleep(Duration::from_secs(2));
        readings.push(scene.read(agent));
        if readings.len() % 5 != 0 {
            return None;
        }
        let kubelet = OfKubelet::parse(scene.node.kubelet_metrics(&scene.cluster));
        for _ in 0..2 {
            sleep(Duration::from_millis(1500));
            readings.push(scene.read(agent));
        }
        (kubelet.is_whole() && kubelet.is_enclosed_by(&readings)).then_some(kubelet)
    });
    kubelet.check(&readings);
}

/// Both VMs want the node's one CPU.
fn contention_is(scene: &Scene) {
    let agent = scene.agent();
    let computes = VMS.map(|vm| scene.vm_cgroup(vm, "compute"));
    scene.signal("USR1", &computes);
    wait_until("the score is 30 points", || {
        scene.read(&agent).value("psi_agent_node_score_ratio", &[]).filter(|score| *score >= 0.3)
    });
    wait_until("the Node says so", || {
        let score: u32 = scene.own_key("annotations", "score")?.parse().unwrap();
        (score >= 30 && scene.own_key("labels", "pressure")? == "high").then_some(())
    });
}

/// While others burn all CPU that there is: it is not throttled, far from its limit of memory, and a small
/// part of what a node has anyway. How much of a CPU that is depends on how busy this machine is. The
/// guest's clock runs on while this machine runs other programs, so in a single window the agent can be
/// charged with CPU time that it did not have. One of a few windows has to hold.
fn check_what_the_agent_costs(scene: &Scene) {
    let agent = scene.cgroup(&scene.agent(), "psi-agent");
    let kubelet = "/sys/fs/cgroup/system.slice/kubelet.service";
    let counter = |said: &str, key: &str| -> u64 {
        let value = said.lines().find_map(|line| line.strip_prefix(key));
        value.unwrap_or_else(|| panic!("{key}: {said}")).trim().parse().unwrap()
    };
    let used = || {
        let said = scene.node.run(&format!("cat {agent}/cpu.stat; echo; cat {kubelet}/cpu.stat"));
        let (agent, kubelet) = said.split_once("\n\n").unwrap();
        assert_eq!(counter(agent, "nr_throttled "), 0);
        [agent, kubelet].map(|stat| counter(stat, "usage_usec "))
    };
    let mut shares = (0..COST_WINDOWS).map(|_| {
        let before = used();
        sleep(Duration::from_secs(30));
        let after = used();
        let [of_agent, of_kubelet] = [0, 1].map(|at| after[at] - before[at]);
        eprintln!("the agent: {of_agent} µs of CPU, the kubelet {of_kubelet}");
        #[allow(clippy::cast_precision_loss, reason = "microseconds of seconds")]
        let share = of_agent as f64 / of_kubelet as f64;
        share
    });
    assert!(shares.any(|share| share < OF_THE_KUBELETS), "in each of {COST_WINDOWS} windows");
    let said = scene.node.run(&format!("cd {agent}; cat memory.current memory.peak memory.max"));
    let memory: Vec<u64> = said.lines().map(|line| line.parse().unwrap()).collect();
    eprintln!("the agent: {memory:?} bytes");
    assert_eq!(memory[2], MEMORY_LIMIT);
    assert!(memory[1] < MEMORY_LIMIT / 2, "{memory:?}");
}

/// The VMs go on contending: whatever is written after it says so.
fn neither_a_crash_nor_an_update_is_seen(scene: &Scene) {
    let written = scene.writes().len();
    let agent = scene.agent();
    scene.signal("KILL", &[scene.cgroup(&agent, "psi-agent")]);
    wait_until("the kubelet has started it again", || {
        let pod = scene.cluster.get(&["pod", name(&agent), "-n", "psi-agent"]);
        let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        (restarts >= Some(1) && is_ready(&pod)).then_some(())
    });
    wait_for_what_was_before(scene);

    let image = agent["spec"]["containers"][0]["image"].as_str().unwrap();
    let newer = "localhost/psi-agent:newer";
    scene.node.run(&format!("ctr -n k8s.io images tag {image} {newer}"));
    let update = format!("kubectl -n psi-agent set image daemonset/psi-agent psi-agent={newer}");
    scene.run_as_admin(&update);
    scene.run_as_admin("kubectl -n psi-agent rollout status daemonset/psi-agent");
    let rolled = wait_for_what_was_before(scene);
    assert_ne!(name(&rolled), name(&agent));
    let score = wait_until("it has a score of its own", || {
        scene.read(&rolled).value("psi_agent_node_score_ratio", &[])
    });
    assert!(score >= 0.3, "{score}");
    for write in scene.writes().iter().skip(written) {
        let (score, level) = said(write);
        assert!(write.code == 200 && score >= 30 && level == "high", "{write:?}");
    }
}

/// The agent, once it goes on from the value on its Node.
fn wait_for_what_was_before(scene: &Scene) -> Value {
    wait_until("the agent continues from what is on its Node", || {
        let agent = scene.agent();
        let log = scene.cluster.kubectl(&["logs", "-n", "psi-agent", name(&agent)], "");
        log.contains("Continuing from the value that an earlier agent published").then_some(agent)
    })
}

fn said(write: &Audited) -> (u32, &str) {
    let metadata = &write.body["metadata"];
    let score = metadata["annotations"]["psi-agent.io/score"].as_str().unwrap();
    (score.parse().unwrap(), metadata["labels"]["psi-agent.io/pressure"].as_str().unwrap())
}

/// The kubelet starts all pods again in another tree, and leaves the one from before beside it.
fn another_cgroup_driver_is_followed(scene: &Scene) {
    let stale = VMS.map(|vm| {
        let console = scene.vm_cgroup(vm, CONSOLE);
        console.rsplit_once('/').unwrap().0.to_owned()
    });
    assert!(stale.iter().all(|folder| folder.starts_with("/sys/fs/cgroup/kubepods.slice/")));
    scene.node.run(
        "systemctl stop kubelet\n\
         sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' /etc/containerd/config.toml\n\
         sed -i 's/\"cgroupDriver\":\"systemd\"/\"cgroupDriver\":\"cgroupfs\"/' \
         /run/given/kubelet.yaml\n\
         systemctl restart containerd\n\
         systemctl start kubelet",
    );
    wait_until("all pods run in the other tree", || {
        let pods =
            scene.cluster.get(&["pods", "-A", "-l", "app.kubernetes.io/name!=psi-agent-reap"]);
        let pods = pods["items"].as_array().unwrap();
        // What find had listed may be gone before it looks into it.
        let running = scene.node.run("find /sys/fs/cgroup -path '*/kubepods/*' -type d || true");
        let moved = |pod: &Value| {
            let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
            let mut names = statuses.map(|status| status["name"].as_str().unwrap());
            is_ready(pod) && names.all(|name| running.contains(container_id(pod, name)))
        };
        (pods.len() == 3 && pods.iter().all(moved)).then_some(())
    });
    // One more, that the agent sees begin.
    scene.start_vm("vm-c");
    scene.wait_for_vm("vm-c");
    let agent = scene.agent();
    for vm in VMS.iter().chain(&["vm-c"]) {
        let pod = scene.cluster.get(&["pod", &format!("virt-launcher-{vm}"), "-n", "vms"]);
        let id = container_id(&pod, "compute");
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let place = format!("/kubepods/burstable/pod{uid}/{id}");
        let labels = [
            ("namespace", "vms"),
            ("pod", name(&pod)),
            ("container", "compute"),
            ("name", id),
            ("id", &place),
            ("image", "localhost/load:1"),
        ];
        wait_until(&format!("{place} has a series"), || {
            scene.read(&agent).value("container_pressure_cpu_waiting_seconds_total", &labels)
        });
    }
    for folder in stale {
        scene.node.run(&format!("test -d {folder}"));
    }
}

fn check_that_nothing_is_left(scene: &Scene) {
    let node = scene.cluster.get(&["node", REAL_NODE]);
    // The kubelet's list of images says `psi-agent` too.
    for part in [&node["metadata"], &node["spec"]] {
        assert!(!part.to_string().contains("psi-agent"), "{part}");
    }
    let kinds = "namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,\
                 validatingadmissionpolicybindings";
    let left = scene.cluster.kubectl(&["get", kinds, "-o", "name"], "");
    assert!(!left.contains("psi-agent"), "{left}");
}
