//! The whole loop: a node gets short, its agent says so, the descheduler evicts one of its VMs,
//! KubeVirt migrates it, and the scheduler puts it where no agent warns. Beside it a VM that its own
//! limit holds back, which moves nothing, and which the same descheduler does move when it is fed
//! with the node's plain pressure.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::descheduler::by_instance;
use crate::support::agent::Agent;
use crate::support::cluster::{Audited, Eviction};
use crate::support::cpu::BusyCpu;
use crate::support::descheduler::Descheduler;
use crate::support::kubevirt::{KubeVirt, cgroup_of, name, node_of, virtual_machine};
use crate::support::prometheus::Prometheus;
use crate::support::replayed_node::ReplayedNode;
use crate::support::staged_node::{StagedNode, agent_pod};
use crate::support::{snippet, wait_for};

const OUTPUTS: &[&str] = &["--label", "--taint-levels", "medium,high"];
const MINUTE: Duration = Duration::from_secs(60);

/// The nodes, with room for so many VMs: the scheduler likes the roomiest best. `crowded` is short
/// from the beginning, and its only VM is not to be moved.
const NODES: [(&str, u32); 4] = [("short", 20), ("calm", 8), ("throttled", 1), ("crowded", 40)];
const VMS: [&str; 3] = ["web", "db", "cache"];

const SCORE: &str = "node:psi_agent_node_score_ratio:avg10m_neutral";
/// What is asked of a node without an agent: for how much of the time anybody waits there.
const PLAIN_PRESSURE: &str =
    "clamp_max(max by (node) (rate(node_pressure_cpu_waiting_seconds_total[1m])), 1)";

struct Scene {
    agents: [Agent; 4],
    bridge: Agent,
    short: StagedNode,
    calm: StagedNode,
    _replayed: [ReplayedNode; 2],
    /// The pods of the VMs on `short`, and their loops, as soon as there are any.
    vms: Vec<(Value, Option<u32>)>,
    kubevirt: KubeVirt,
    start: Instant,
}

impl Scene {
    fn start() -> Self {
        let start = Instant::now();
        let mut kubevirt = KubeVirt::start("loop");
        kubevirt.start_api();
        let cluster = &kubevirt.cluster;
        cluster.kubectl(&["apply", "-f", "-"], &cluster.render_with(&["bridge"]));
        for (node, room) in NODES {
            kubevirt.add_node(node, room);
            cluster.apply(&[agent_pod(&agent_of(node), node)]);
        }
        let [short, calm] = ["short", "calm"].map(|name| StagedNode::new("loop", name));
        let mut replayed = [("throttled", "throttled-alone"), ("crowded", "more-vcpus-than-node")]
            .map(|(name, recording)| ReplayedNode::new("loop", name, recording));
        let agents = [
            short.start_agent(cluster, &agent_of("short"), OUTPUTS),
            calm.start_agent(cluster, &agent_of("calm"), OUTPUTS),
            replayed[0].start_agent(cluster, &agent_of("throttled"), OUTPUTS),
            replayed[1].start_agent(cluster, &agent_of("crowded"), OUTPUTS),
        ];
        for node in &mut replayed {
            let mut vm = virtual_machine(node.name);
            if node.name == "crowded" {
                let stays = json!({"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""});
                vm["metadata"]["annotations"] = stays;
            }
            let pod = start_vm_on(&kubevirt, node.name, &vm);
            node.start_vm(&cgroup_of(&pod));
        }
        let vms = VMS.map(|vm| {
            let pod = start_vm_on(&kubevirt, "short", &virtual_machine(vm));
            short.own.make(&cgroup_of(&pod));
            (pod, None)
        });
        let (bridge, vms) = (start_bridge(&kubevirt), vms.into());
        Self { agents, bridge, short, calm, _replayed: replayed, vms, kubevirt, start }
    }

    fn say(&self, what: &str) {
        eprintln!("{:6.1} s: {what}", self.start.elapsed().as_secs_f64());
    }

    fn prometheus(&self) -> Prometheus {
        let nodes = NODES.iter().zip(&self.agents);
        let agents: Vec<(&str, &str)> =
            nodes.map(|((node, _), agent)| (*node, &*agent.address)).collect();
        Prometheus::of_agents(&agents)
    }

    /// The VMs want to run, all on one CPU, which they leave to all other programs.
    fn contend(&mut self, cpu: &BusyCpu) {
        for (pod, spinning) in &mut self.vms {
            *spinning = Some(self.short.own.spawn(&cgroup_of(pod), &cpu.spin_by("nice -n 19")));
        }
    }

    /// Waits for long, and asks now and then.
    fn wait<T>(&self, what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
        let answer = wait_for(what, limit, || {
            let answer = ask();
            if answer.is_none() {
                std::thread::sleep(Duration::from_millis(450));
            }
            answer
        });
        self.say(what);
        answer
    }

    fn node(&self, name: &str) -> Value {
        self.kubevirt.cluster.get(&["node", name])
    }

    /// How many taints the agent of a node has on it.
    fn taints(&self, name: &str) -> usize {
        let node = self.node(name);
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let key = |taint: &&Value| taint["key"].as_str().unwrap().starts_with("psi-agent.io/");
        taints.filter(key).count()
    }

    fn level(&self, name: &str) -> Option<String> {
        let node = self.node(name);
        node["metadata"]["labels"]["psi-agent.io/pressure"].as_str().map(str::to_owned)
    }

    /// Pairs of a VM and the node that it is to be brought away from.
    fn evacuated(&self) -> Vec<(String, String)> {
        let vms = self.kubevirt.cluster.get(&["vmi", "-n", "vms"]);
        let from = |vm: &Value| {
            Some((name(vm).to_owned(), vm["status"]["evacuationNodeName"].as_str()?.to_owned()))
        };
        vms["items"].as_array().unwrap().iter().filter_map(from).collect()
    }

    /// What an agent wrote on its node so far.
    fn writes(&self, node: &str) -> Vec<Audited> {
        let audited = self.kubevirt.cluster.audited().into_iter();
        audited.filter(|event| event.verb == "patch" && event.node == node).collect()
    }

    /// The descheduler with this policy, asking there, and every 30 s.
    fn deschedule(&self, name: &str, policy: &str, source: &str) -> Descheduler {
        Descheduler::start(&self.kubevirt.cluster, name, policy, source, 30)
    }

    /// Two looks at all nodes later, nobody is to be moved: not the throttled VM, whose node is as
    /// calm as any, nor the one that asked to stay where it is.
    fn expect_nothing_moves(&self, descheduler: &Descheduler) {
        self.wait(
            "the node that was short from the start is high and overutilized",
            4 * MINUTE,
            || {
                let class = descheduler.last_class("crowded")?.0;
                (self.taints("crowded") == 2 && class == "overutilized").then_some(())
            },
        );
        let looks = descheduler.cycles().len() + 2;
        self.wait("a descheduler has looked twice", 3 * MINUTE, || {
            (descheduler.cycles().len() >= looks).then_some(())
        });
        let class = |node| descheduler.last_class(node).unwrap();
        // A replay that is late beside other load shows some waiting.
        assert_ne!(class("throttled").0, "overutilized");
        assert_eq!(class("crowded").0, "overutilized");
        assert_eq!((self.taints("throttled"), self.taints("crowded")), (0, 2));
        assert_eq!(descheduler.evictions(&self.kubevirt.cluster).len(), 0);
    }

    /// A VM is brought away from the short node, and nobody else: answers its migration and the
    /// target's pod.
    fn expect_a_move(&self, descheduler: &Descheduler, contended: Instant) -> (String, Value) {
        let marked = self.wait("an eviction marks a VM", 4 * MINUTE, || {
            Some(self.evacuated()).filter(|marked| !marked.is_empty())
        });
        let evicted = Instant::now();
        let [(vm, from)] = &marked[..] else { panic!("{marked:?}") };
        assert_eq!(from, "short");
        let job = self
            .wait("virt-controller makes a migration", 2 * MINUTE, || self.kubevirt.evacuation(vm));
        let period = evicted.elapsed();
        let target = self.kubevirt.wait_for_target(&job);
        let whole = contended.elapsed();
        self.say(&format!("{vm} goes to {}", node_of(&target)));
        eprintln!("from contention: {whole:?}, of which virt-controller's own: {period:?}");
        assert_eq!(node_of(&target), "calm");
        // The webhook refused it, and the descheduler takes that for an eviction under way.
        let evictions = descheduler.evictions(&self.kubevirt.cluster);
        let refused = |eviction: &Eviction| {
            eviction.code == 429 && eviction.pod.starts_with(&format!("virt-launcher-{vm}-"))
        };
        assert!(evictions.iter().all(refused) && !evictions.is_empty(), "{evictions:?}");
        (job, target)
    }

    /// The migration goes well, and the VM's work goes along.
    fn finish_move(&mut self, (job, target): &(String, Value)) {
        self.calm.own.make(&cgroup_of(target));
        self.kubevirt.send_memory(job, target);
        self.kubevirt.finish_migration(job, target);
        let domain = |pod: &Value| pod["metadata"]["annotations"]["kubevirt.io/domain"].clone();
        let source = self.vms.iter().position(|(pod, _)| domain(pod) == domain(target)).unwrap();
        let (source, spinning) = self.vms.remove(source);
        self.short.own.kill(spinning.unwrap());
        self.kubevirt.end_pod(&source);
        self.short.own.remove(&cgroup_of(&source));
    }

    /// No level came back: those of the short node rose to high and fell again, those of calm ones
    /// stayed low. A node that gets short fast enough is never written as medium on its way up.
    fn expect_no_flapping(&self) {
        for node in ["short", "calm", "throttled"] {
            let writes = self.writes(node);
            assert!(writes.iter().all(|write| write.code == 200), "{node}: {writes:?}");
            let levels = levels(&writes);
            if node == "short" {
                let down: &[&str] = &["high", "medium", "low"];
                let up = levels.strip_suffix(down).unwrap_or_else(|| panic!("{levels:?}"));
                assert!(matches!(up, ["low"] | ["low", "medium"]), "{levels:?}");
            } else {
                assert_eq!(levels, ["low"], "{node}");
            }
        }
        let crowded = self.writes("crowded");
        assert_eq!(levels(&crowded).last(), Some(&"high"));
        for write in self.writes("short") {
            let Some(taints) = write.body["spec"]["taints"].as_array() else { continue };
            let expected = ["low", "medium", "high"].iter().position(|it| *it == label(&write));
            assert_eq!(Some(taints.len()), expected, "{write:?}");
        }
    }

    /// Where the scheduler puts a new VM.
    fn place(&self, vm: &str) -> String {
        node_of(&self.kubevirt.start_vm(&virtual_machine(vm))).to_owned()
    }
}

fn start_bridge(kubevirt: &KubeVirt) -> Agent {
    let token = kubevirt.cluster.token("psi-agent-bridge");
    let kubeconfig = kubevirt.cluster.write_kubeconfig("bridge", &token);
    Agent::start(&["bridge", "--window", "1m", "--kubeconfig", kubeconfig.to_str().unwrap()])
}

/// Of how many nodes the bridge knows a slow score.
fn nodes_of(bridge: &Agent) -> usize {
    let head = "GET /api/v1/query?query=slow-score HTTP/1.1\r\nHost: localhost\r\n";
    let answer: Value = serde_json::from_slice(&bridge.request(head).body).unwrap();
    answer["data"]["result"].as_array().map_or(0, Vec::len)
}

/// A snippet's policy, but that VMs may move which were moved just now.
fn policy(name: &str) -> String {
    let (policy, age) = (snippet(name), "minPodAge: 15m");
    assert!(policy.contains(age), "{policy}");
    policy.replace(age, "minPodAge: 1s")
}

fn agent_of(node: &str) -> String {
    format!("psi-agent-{node}")
}

/// Starts a VM on this node, while the others take none.
fn start_vm_on(kubevirt: &KubeVirt, node: &str, vm: &Value) -> Value {
    let others: Vec<&str> = NODES.iter().map(|(name, _)| *name).filter(|it| *it != node).collect();
    let all = |verb| [&[verb][..], &others].concat();
    kubevirt.cluster.kubectl(&all("cordon"), "");
    let pod = kubevirt.start_vm(vm);
    kubevirt.cluster.kubectl(&all("uncordon"), "");
    assert_eq!(node_of(&pod), node);
    pod
}

/// The level that an agent wrote.
fn label(write: &Audited) -> &str {
    write.body["metadata"]["labels"]["psi-agent.io/pressure"].as_str().unwrap_or_default()
}

/// The levels that it wrote, without repeats.
fn levels(writes: &[Audited]) -> Vec<&str> {
    let mut levels: Vec<&str> = writes.iter().map(label).collect();
    levels.dedup();
    levels
}

#[test]
#[ignore = "needs root, a cgroup2 mount, two CPUs, Prometheus, etcd and what tests/run builds"]
fn a_vm_of_a_short_node_moves_to_a_calm_one_and_a_throttled_one_stays() {
    let mut scene = Scene::start();
    let prometheus = scene.prometheus();
    scene.say("all VMs run");
    scene.wait("Prometheus has each node's slow score", 3 * MINUTE, || {
        prometheus.query(&format!("count({SCORE})")).filter(|nodes| *nodes == 4.0)
    });
    scene.wait("the bridge has them, too", 3 * MINUTE, || {
        (nodes_of(&scene.bridge) == 4).then_some(())
    });
    let sources = [prometheus.address(), &scene.bridge.address];
    let [prometheus_url, bridge_url] = sources.map(|address| format!("http://{address}"));
    let by_score = policy("descheduler-contention.yaml");
    let by_bridge = policy("bridge-descheduler.yaml");
    let first = scene.deschedule("prometheus", &by_score, &prometheus_url);
    let second = scene.deschedule("bridge", &by_bridge, &bridge_url);
    scene.expect_nothing_moves(&first);
    scene.expect_nothing_moves(&second);
    drop(second);

    assert!(scene.kubevirt.beat());
    let cpu = BusyCpu::share();
    scene.contend(&cpu);
    let contended = Instant::now();
    let moved = scene.expect_a_move(&first, contended);
    drop(first);
    scene.wait("the node is high", 2 * MINUTE, || {
        scene.level("short").filter(|level| level == "high")
    });
    assert_eq!(scene.place("while-high"), "calm");
    scene.finish_move(&moved);
    // Two VMs are left that want one CPU. The bridge takes the place of Prometheus.
    let second = scene.deschedule("bridge-again", &by_bridge, &bridge_url);
    let moved = scene.expect_a_move(&second, Instant::now());
    scene.finish_move(&moved);
    scene.short.own.kill_all();
    let calmed = Instant::now();
    assert!(scene.kubevirt.beat());

    // Meanwhile, what the node's own pressure would have done all along.
    assert!(by_score.contains(SCORE));
    let by_pressure = by_score.replace(SCORE, &by_instance(PLAIN_PRESSURE));
    let misled = scene.deschedule("pressure", &by_pressure, &prometheus_url);
    let throttled = ("throttled".to_owned(), "throttled".to_owned());
    scene.wait("plain pressure brings the throttled VM away", 2 * MINUTE, || {
        scene.evacuated().contains(&throttled).then_some(())
    });
    assert_eq!(misled.last_class("throttled").unwrap().0, "overutilized");
    drop(misled);

    scene.wait("the node is low again", 4 * MINUTE, || {
        scene.level("short").filter(|level| level == "low")
    });
    eprintln!("low after {:?}", calmed.elapsed());
    assert_eq!(scene.taints("short"), 0);
    assert_eq!(scene.place("when-calm"), "short");
    scene.expect_no_flapping();
}
