//! An hour of the shipped agent and bridge among pods that come and go, scrapes, broken requests, and an
//! API server that stalls and restarts: their memory doesn't grow.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::agent::{Agent, get_from};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::staged_node::{StagedNode, agent_pod, container_cgroup};
use crate::support::virtual_machine::static_binary;
use crate::support::wait_for;

const NODE: &str = "node-a";
const POD: &str = "psi-agent-node-a";
const STEADY_VMS: u32 = 50;
const LIMIT: Duration = Duration::from_secs(60);
/// Caches, tables and the allocator's heap reach their size meanwhile.
const WARM_UP: Duration = Duration::from_secs(10 * 60);
const LENGTH: Duration = Duration::from_secs(60 * 60);
const ROUND: Duration = Duration::from_secs(5);
/// Student's t for ten values, 99 %, two-sided.
const BLOCKS: usize = 10;
const STUDENT: f64 = 3.36;
/// glibc extends its heap by this at a time (`M_TOP_PAD`): one such step is no trend.
const HEAP_STEP: f64 = 128.0;

/// Anonymous resident memory of a process, in KiB. File pages are the binary's, and come and go.
fn anonymous(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// KiB an hour that the values, taken at equal distances over [`LENGTH`], grow by, and the standard error
/// of that: of the medians of ten blocks, since neighbouring values depend on each other.
fn trend(values: &[f64]) -> (f64, f64) {
    let medians = values.chunks(values.len().div_ceil(BLOCKS)).map(|block| {
        let mut block = block.to_vec();
        block.sort_by(f64::total_cmp);
        block[block.len() / 2]
    });
    let medians: Vec<f64> = medians.collect();
    let count = medians.len() as f64;
    let hours = |at: usize| (at as f64 + 0.5) / count - 0.5;
    let mean = medians.iter().sum::<f64>() / count;
    let square: f64 = (0..medians.len()).map(|at| hours(at).powi(2)).sum();
    let slope =
        medians.iter().enumerate().map(|(at, value)| hours(at) * value).sum::<f64>() / square;
    let errors = medians.iter().enumerate().map(|(at, value)| value - mean - slope * hours(at));
    let variance = errors.map(|error| error.powi(2)).sum::<f64>() / (count - 2.0);
    (slope, (variance / square).sqrt())
}

#[test]
fn a_leak_is_told_from_noise() {
    let noise = |at: usize| ((at * 7919) % 101) as f64;
    let flat: Vec<f64> = (0..720).map(|at| 9_000.0 + noise(at)).collect();
    let (slope, error) = trend(&flat);
    assert!(slope.abs() < STUDENT * error + HEAP_STEP, "{slope} {error}");
    let leak: Vec<f64> = flat.iter().zip(0..).map(|(value, at)| value + f64::from(at)).collect();
    let (slope, error) = trend(&leak);
    assert!((slope - 720.0).abs() < 40.0 && slope > STUDENT * error + HEAP_STEP, "{slope} {error}");
}

/// The memory of both over the hour, as a picture.
fn draw(series: &[(&str, &[f64])]) -> String {
    let largest = series.iter().flat_map(|(_, values)| *values).fold(0.0_f64, |a, b| a.max(*b));
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"240\"><style>svg{background:#fff}\
         text{font:11px sans-serif;fill:#333}polyline{fill:none;stroke:#3274d9}</style>\n",
    );
    for (name, values) in series {
        let points = values.iter().enumerate().map(|(at, value)| {
            let x = 40.0 + 560.0 * at as f64 / values.len() as f64;
            format!("{x:.1},{:.1}", 210.0 - 190.0 * value / largest)
        });
        let points = points.collect::<Vec<_>>().join(" ");
        let y = 210.0 - 190.0 * values.last().unwrap() / largest;
        let last = values.last().unwrap() / 1024.0;
        let text = format!("<text x=\"605\" y=\"{y:.0}\">{name}: {last:.1} MiB</text>");
        writeln!(svg, "<polyline points=\"{points}\"/>{text}").unwrap();
    }
    svg + "<text x=\"40\" y=\"230\">0 min</text><text x=\"580\" y=\"230\">60 min</text>\
           <text x=\"2\" y=\"213\">0 MiB</text></svg>\n"
}

/// The node's pods and what happens to them and to the API server.
struct Scene {
    cluster: Cluster,
    node: StagedNode,
    proxy: Proxy,
    vms: u32,
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::start("soak");
        let rendered = cluster.render_with(&["bridge"]);
        cluster.kubectl(&["apply", "-f", "-"], &rendered);
        cluster.add_node(NODE);
        cluster.kubectl(&["label", "node", NODE, "kubevirt.io/schedulable=true"], "");
        cluster.add_namespace("vms");
        cluster.apply(&[agent_pod(POD, NODE)]);
        let proxy = Proxy::start(cluster.port());
        let mut scene = Self { cluster, node: StagedNode::new("soak", NODE), proxy, vms: 0 };
        (0..STEADY_VMS).for_each(|_| scene.add_vm());
        scene
    }

    fn add_vm(&mut self) {
        let vm = format!("vm-{}", self.vms);
        self.node.start_vm(&self.cluster, &vm, self.vms);
        self.vms += 1;
    }

    fn remove_vm(&self, number: u32) {
        let pod = format!("virt-launcher-vm-{number}");
        let cgroup = container_cgroup(&self.cluster, &pod, number);
        self.node.own.remove(cgroup.rsplit_once('/').unwrap().0);
        let delete = ["delete", "pod", &pod, "-n", "vms", "--force", "--grace-period=0"];
        self.cluster.kubectl(&delete, "");
    }

    /// A kubeconfig through the proxy.
    fn kubeconfig(&self, name: &str, token: &str) -> String {
        let user = json!({ "token": token });
        let path = self.cluster.write_kubeconfig_by(self.proxy.port, name, &user);
        path.to_str().unwrap().to_owned()
    }

    fn start_agent(&self) -> Agent {
        let token = self.cluster.bound_token("psi-agent", POD);
        let kubeconfig = self.kubeconfig("soak-agent", &token);
        let root = self.node.own.path.to_str().unwrap();
        let flags = ["--node-name", NODE, "--kubeconfig", &kubeconfig, "--cgroup-root", root];
        let more = ["--label", "--taint-levels", "medium,high"];
        Agent::start_by(Command::new(static_binary()), &[&flags[..], &more].concat())
    }

    fn start_bridge(&self) -> Agent {
        let token = self.cluster.token("psi-agent-bridge");
        let kubeconfig = self.kubeconfig("soak-bridge", &token);
        let flags = ["bridge", "--kubeconfig", &kubeconfig];
        Agent::start_by(Command::new(static_binary()), &flags)
    }

    /// What a round of the hour does besides the clients' requests.
    fn pass(&mut self, round: u32) {
        for number in 0..20 {
            let path = self.node.own.make(&format!("goes-{round}-{number}"));
            fs::remove_dir(path).unwrap();
        }
        // Every half minute a VM comes and the oldest of those that came so goes.
        if round.is_multiple_of(6) {
            self.add_vm();
            self.remove_vm(self.vms - STEADY_VMS - 1);
        }
        match round % 60 {
            30 => self.proxy.stall(),
            42 => self.proxy.resume(),
            _ => {}
        }
        if round % 120 == 100 {
            self.cluster.kill_api_server();
            std::thread::sleep(ROUND);
            self.cluster.start_api_server_again();
        }
    }
}

/// Requests of a round, well-formed and not; the former are answered.
fn ask(agent: &Agent, bridge: &Agent) {
    let scraped = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n";
    assert_eq!(agent.request(scraped).status, 200);
    assert_eq!(agent.request("GET /snapshot.json HTTP/1.1\r\nHost: localhost\r\n").status, 200);
    assert_eq!(bridge.request("GET /metrics HTTP/1.1\r\nHost: localhost\r\n").status, 200);
    // 503 while no Node has a known score.
    bridge.request("GET /api/v1/query?query=slow-score HTTP/1.1\r\nHost: localhost\r\n");
    for server in [agent, bridge] {
        // They are refused, or the connection is closed: both are well.
        let _ = get_from(&server.address, "GET /\u{1} HTTP/9\r\n");
        let _ =
            get_from(&server.address, &format!("GET / HTTP/1.1\r\nX: {}\r\n", "x".repeat(20_000)));
        drop(std::net::TcpStream::connect(&server.address).unwrap());
    }
}

#[test]
#[ignore = "needs root, etcd, a kube-apiserver (tests/kubernetes/build) and the static binary; takes 75 min"]
fn an_hour_of_changes_and_faults_leaves_no_memory_behind() {
    let mut scene = Scene::start();
    let (agent, bridge) = (scene.start_agent(), scene.start_bridge());
    wait_for("a first sample", LIMIT, || {
        (agent.request("GET /readyz HTTP/1.1\r\nHost: localhost\r\n").status == 200).then_some(())
    });
    let (start, mut memory) = (Instant::now(), [Vec::new(), Vec::new()]);
    for round in 0.. {
        scene.pass(round);
        ask(&agent, &bridge);
        if start.elapsed() > WARM_UP {
            memory[0].push(anonymous(agent.child.id()));
            memory[1].push(anonymous(bridge.child.id()));
        }
        if start.elapsed() > WARM_UP + LENGTH {
            break;
        }
        std::thread::sleep((start + (round + 1) * ROUND).saturating_duration_since(Instant::now()));
    }
    let picture = draw(&[("agent", &memory[0]), ("bridge", &memory[1])]);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::write(folder.join("soak.svg"), picture).unwrap();
    println!("{}/soak.svg; {} VMs came and went", folder.display(), scene.vms - STEADY_VMS);
    let grown = ["agent", "bridge"].iter().zip(&memory).filter(|(name, values)| {
        let (slope, error) = trend(values);
        println!(
            "{name}: {slope:+.0} KiB an hour, standard error {error:.0}, {} values",
            values.len()
        );
        slope > STUDENT * error + HEAP_STEP
    });
    assert_eq!(grown.count(), 0, "memory grows");
}
