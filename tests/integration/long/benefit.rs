//! What moving VMs is worth on the real programs: a cluster with virt-controller, kube-scheduler and the descheduler,
//! three agents on real cgroups, and VMs that count the work that they get done. `tests/simulation/real` runs it, and
//! docs/benefit.md says what is real and what stands in.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::cluster::descheduler::by_instance;
use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::cpu::BusyCpu;
use crate::support::descheduler::Descheduler;
use crate::support::folder::Folder;
use crate::support::kubevirt::{KubeVirt, cgroup_of, name, node_of, virtual_machine};
use crate::support::prometheus::Prometheus;
use crate::support::snippet;
use crate::support::staged_node::agent_pod;

const NODES: [&str; 3] = ["a", "b", "c"];
/// Three vCPUs for each CPU, as in the simulation.
const VMS: usize = 9;
const PAIRS: usize = 5;
/// The trace begins at noon.
const FROM_MINUTE: &str = "720";
const MINUTE: Duration = Duration::from_secs(60);
/// Averages fill meanwhile, and the VMs get old enough to move.
const WARM_UP: Duration = Duration::from_secs(150);
const MEASURED: Duration = Duration::from_secs(600);
/// Seconds between two runs of the descheduler.
const INTERVAL: u32 = 120;
/// Age at which a VM may move. Age, interval and averages are shorter than in docs/consumers.
const MIN_AGE: &str = "2m";
/// Averages are shorter than the interval, because smoothing and publishing take as long as ever.
const WINDOW: &str = "1m";
const COPYING: Duration = Duration::from_secs(5);

/// Makes a `/proc` in which the node's pressure is that of its cgroups. It shows all processes.
const WITH_OWN_PRESSURE: &str = "mount -t proc proc \"$0\" && for one in cpu memory io; do \
    mount --bind \"$1/$one.pressure\" \"$0/pressure/$one\" || exit; done && shift && exec \"$@\"";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    Nothing,
    NodePsi,
    Candidate,
}

impl Arm {
    const ALL: [Self; 3] = [Self::Nothing, Self::NodePsi, Self::Candidate];

    fn title(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::NodePsi => "node PSI",
            Self::Candidate => "psi-agent, candidate",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Candidate => &[
                "--label",
                "--taint-levels",
                "medium,high",
                "--mark-candidate",
                "--candidate-min-age",
                MIN_AGE,
                "--settle",
                "30s",
            ],
            Self::Nothing | Self::NodePsi => &["--publish", "off"],
        }
    }

    /// The policy of docs/consumers. A node has its CPU for a third of the time, and so a third of the pressure.
    fn policy(self) -> String {
        let score = "node:psi_agent_node_score_ratio:avg10m_neutral";
        let (policy, age, query) = match self {
            Self::Candidate => ("descheduler-candidate.yaml", "6h", "slow-score".to_owned()),
            Self::Nothing | Self::NodePsi => (
                "descheduler-contention.yaml",
                "15m",
                by_instance(&format!(
                    "clamp_max(3 * max by (node) (rate(node_pressure_cpu_waiting_seconds_total[{WINDOW}])), 1)"
                )),
            ),
        };
        let (policy, age) = (snippet(policy), format!("minPodAge: {age}"));
        assert!(policy.contains(&age) && policy.contains(score), "{policy}");
        policy.replace(&age, &format!("minPodAge: {MIN_AGE}")).replace(score, &query)
    }
}

/// The work of all VMs, and what each wants of it.
struct Demand {
    folder: Folder,
    /// CPU seconds that a VM wants in [`MEASURED`].
    wanted: BTreeMap<String, f64>,
    program: PathBuf,
}

impl Demand {
    /// Generated with a seed, as in the simulation, but each VM has one vCPU.
    fn generate(seed: u64, user: &str) -> Self {
        let program =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("target/release/psi-agent-simulation");
        let (vms, seed) = (VMS.to_string(), seed.to_string());
        let output = Command::new(&program)
            .args(["generate", "--vms", &vms, "--seed", &seed])
            .output()
            .unwrap_or_else(|error| {
                panic!("{}: {error}: tests/simulation/real builds it", program.display())
            });
        assert!(output.status.success());
        let rows = String::from_utf8(output.stdout).unwrap();
        let (header, rows) = rows.split_once('\n').unwrap();
        let mut trace = format!("{header}\n");
        let mut shares: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
        for row in rows.lines() {
            let fields: Vec<&str> = row.split(',').collect();
            let [vm, _, memory, minute, share] = fields[..] else { panic!("{row}") };
            trace += &format!("{vm},1,{memory},{minute},{share}\n");
            let of_vm = shares.entry(vm.to_owned()).or_default();
            of_vm.insert(minute.parse().unwrap(), share.parse().unwrap());
        }
        let folder = Folder::new(&format!("benefit-{seed}-{user}"));
        folder.write("demand.csv", &trace);
        let from: u64 = FROM_MINUTE.parse().unwrap();
        let minutes = MEASURED.as_secs() / 60;
        let wanted = shares.into_iter().map(|(vm, shares)| {
            let share = |minute| *shares.range(..=minute).next_back().unwrap().1;
            let sum: f64 = (from..from + minutes).map(share).sum();
            (vm, sum * 60.0 / NODES.len() as f64)
        });
        let wanted = wanted.collect();
        Self { folder, wanted, program }
    }

    /// Whether one node has much too little CPU, and all of them together enough.
    fn can_be_shared_better(&self) -> bool {
        let of_node = |node| self.wanted.values().skip(node).step_by(NODES.len()).sum::<f64>();
        let cpu = MEASURED.as_secs_f64() / NODES.len() as f64;
        let most = (0..NODES.len()).map(of_node).fold(0.0, f64::max);
        most >= 1.2 * cpu && self.wanted.values().sum::<f64>() <= 2.7 * cpu
    }

    /// The command of a VM's work on a node, and where it counts.
    fn work(&self, vm: &str, node: usize, start: SystemTime, part: usize) -> (String, PathBuf) {
        let counter = self.folder.join(format!("{vm}-{part}"));
        let start = start.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        let command = format!(
            "{} load --trace {} --vm {vm} --node {node} --nodes {} --from-minute {FROM_MINUTE} \
             --start-ms {start} --counter {}",
            self.program.display(),
            self.folder.path("demand.csv"),
            NODES.len(),
            counter.display(),
        );
        (command, counter)
    }
}

/// A VM: its pod, where its work runs, and the counters of that, one for each node on which it was.
struct Vm {
    name: String,
    pod: Value,
    process: u32,
    counters: Vec<PathBuf>,
}

struct Scene<'a> {
    arm: Arm,
    demand: &'a Demand,
    start: SystemTime,
    /// The CPU on which the nodes take turns.
    cpu: usize,
    kubevirt: KubeVirt,
    cgroups: Vec<OwnCgroup>,
    vms: Vec<Vm>,
    moved: HashSet<String>,
    beat: Instant,
}

impl<'a> Scene<'a> {
    fn start(arm: Arm, demand: &'a Demand, cpu: usize) -> Self {
        let mut kubevirt = KubeVirt::start(&format!("benefit-{cpu}"));
        kubevirt.start_api();
        let rendered = kubevirt.cluster.render_with(&["bridge", "candidate"]);
        kubevirt.cluster.kubectl(&["apply", "-f", "-"], &rendered);
        for node in NODES {
            kubevirt.add_node(node, 20);
            kubevirt.cluster.apply(&[agent_pod(&format!("psi-agent-{node}"), node)]);
        }
        let cgroups = NODES.map(|node| OwnCgroup::new(&format!("benefit-{cpu}-{node}"))).into();
        let (vms, start, beat) = (Vec::new(), SystemTime::now(), Instant::now());
        let moved = HashSet::new();
        Self { arm, demand, start, cpu, kubevirt, cgroups, vms, moved, beat }
    }

    fn start_agents(&self) -> Vec<Agent> {
        let agents = NODES.iter().zip(&self.cgroups).map(|(node, own)| {
            let pod = format!("psi-agent-{node}");
            let kubeconfig = self.kubevirt.cluster.agent_kubeconfig(&pod);
            let proc = self.demand.folder.join(format!("proc-{node}"));
            fs::create_dir_all(&proc).unwrap();
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation=private", "sh", "-c", WITH_OWN_PRESSURE]);
            command.args([&proc, &own.path]).arg(BINARY);
            let (cgroups, proc) = (own.path.to_str().unwrap(), proc.to_str().unwrap());
            let kubeconfig = kubeconfig.to_str().unwrap();
            let flags = ["--node-name", node, "--kubeconfig", kubeconfig, "--cgroup-root", cgroups];
            Agent::start_by(
                command,
                &[&flags[..], &["--proc-root", proc], self.arm.flags()].concat(),
            )
        });
        agents.collect()
    }

    /// All VMs, each on the node of the same number in all arms.
    fn start_vms(&mut self) {
        let names: Vec<&String> = self.demand.wanted.keys().collect();
        for (number, vm) in names.into_iter().enumerate() {
            let node = NODES[number % NODES.len()];
            let others: Vec<&str> = NODES.into_iter().filter(|one| *one != node).collect();
            self.kubevirt.cluster.kubectl(&[&["cordon"][..], &others].concat(), "");
            let pod = self.kubevirt.start_vm(&virtual_machine(vm));
            self.kubevirt.cluster.kubectl(&[&["uncordon"][..], &others].concat(), "");
            assert_eq!(node_of(&pod), node);
            let name = vm.clone();
            self.vms.push(Vm { name, pod, process: 0, counters: Vec::new() });
        }
        self.start = SystemTime::now() + WARM_UP;
        for number in 0..self.vms.len() {
            self.run(number);
        }
    }

    /// Starts a VM's work where its pod is.
    fn run(&mut self, number: usize) {
        let vm = &mut self.vms[number];
        let node = NODES.iter().position(|node| *node == node_of(&vm.pod)).unwrap();
        let part = vm.counters.len();
        let (command, counter) = self.demand.work(&vm.name, node, self.start, part);
        let (own, cgroup) = (&mut self.cgroups[node], cgroup_of(&vm.pod));
        own.make(&cgroup);
        // Not SCHED_IDLE, as the servers.
        let command = format!("taskset -c {} chrt --other 0 {command}", self.cpu);
        vm.process = own.spawn(&cgroup, &command);
        vm.counters.push(counter);
    }

    /// Ends a migration that virt-controller began: the VM's work ends here and starts there.
    fn finish_moves(&mut self) {
        let migrations = self.kubevirt.cluster.get(&["vmim", "-n", "vms"]);
        for migration in migrations["items"].as_array().unwrap() {
            let job = name(migration).to_owned();
            if !job.starts_with("kubevirt-evacuation-") || !self.moved.insert(job.clone()) {
                continue;
            }
            let vm = migration["spec"]["vmiName"].as_str().unwrap();
            let number = self.vms.iter().position(|one| one.name == vm).unwrap();
            let target = self.kubevirt.wait_for_target(&job);
            self.kubevirt.send_memory(&job, &target);
            std::thread::sleep(COPYING);
            self.kubevirt.finish_migration(&job, &target);
            let source = std::mem::replace(&mut self.vms[number].pod, target);
            let from = NODES.iter().position(|node| *node == node_of(&source)).unwrap();
            self.cgroups[from].kill(self.vms[number].process);
            self.run(number);
            self.kubevirt.end_pod(&source);
            self.cgroups[from].remove(&cgroup_of(&source));
            let (arm, to) = (self.arm.title(), node_of(&self.vms[number].pod));
            let at = self.start.elapsed().unwrap_or_default().as_secs();
            eprintln!("{arm}, {at} s: {vm} moved from {} to {to}", node_of(&source));
        }
    }

    /// Migrates what is evicted until the time is over; answers what each VM got done, in CPU seconds.
    fn watch(&mut self) -> BTreeMap<String, f64> {
        while self.start.elapsed().unwrap_or_default() < MEASURED {
            self.finish_moves();
            if self.beat.elapsed() > MINUTE {
                self.kubevirt.beat();
                self.beat = Instant::now();
            }
            std::thread::sleep(Duration::from_secs(2));
        }
        for vm in &self.vms {
            // What a load that has ended did not do would count as lost.
            assert!(
                Path::new(&format!("/proc/{}/exe", vm.process)).exists(),
                "{} has ended",
                vm.name
            );
        }
        // A load that ran for less than 100 ms has not written its counter.
        let done = |counter: &PathBuf| match fs::read_to_string(counter).unwrap().trim() {
            "" => 0.0,
            seconds => seconds.parse::<f64>().unwrap(),
        };
        let of_vm = |vm: &Vm| (vm.name.clone(), vm.counters.iter().map(done).sum());
        self.vms.iter().map(of_vm).collect()
    }
}

/// What an arm got done.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// Work that was wanted and not done, as a share.
    lost: f64,
    /// The same of the VM that lost the largest share.
    worst: f64,
    moves: usize,
}

fn run(arm: Arm, demand: &Demand, cpu: usize) -> Outcome {
    let mut scene = Scene::start(arm, demand, cpu);
    let agents = scene.start_agents();
    scene.start_vms();
    let named: Vec<(&str, &str)> =
        NODES.iter().zip(&agents).map(|(node, agent)| (*node, &*agent.address)).collect();
    let prometheus = (arm == Arm::NodePsi).then(|| Prometheus::of_agents(&named));
    let bridge = (arm == Arm::Candidate).then(|| {
        let token = scene.kubevirt.cluster.token("psi-agent-bridge");
        let kubeconfig = scene.kubevirt.cluster.write_kubeconfig("bridge", &token);
        let kubeconfig = kubeconfig.to_str().unwrap();
        Agent::start(&["bridge", "--window", WINDOW, "--kubeconfig", kubeconfig])
    });
    let source = prometheus.as_ref().map(Prometheus::address);
    let source = source.or(bridge.as_ref().map(|bridge| &*bridge.address));
    std::thread::sleep(scene.start.duration_since(SystemTime::now()).unwrap_or_default());
    let descheduler = source.map(|address| {
        let url = format!("http://{address}");
        Descheduler::start(&scene.kubevirt.cluster, "benefit", &arm.policy(), &url, INTERVAL)
    });
    let done = scene.watch();
    if let Some(descheduler) = &descheduler {
        let cycles = descheduler.cycles().len();
        assert!(cycles >= 4, "the descheduler looked {cycles} times:\n{}", descheduler.log());
    }
    let share = |vm: &String, wanted: f64| (1.0 - done[vm] / wanted).max(0.0);
    let worst = demand.wanted.iter().map(|(vm, &wanted)| share(vm, wanted)).fold(0.0, f64::max);
    let wanted: f64 = demand.wanted.values().sum();
    let got: f64 = done.values().sum();
    // A load that counts too much would hide what is lost.
    assert!(got <= wanted * 1.02, "{got} of {wanted}");
    Outcome { lost: 1.0 - got / wanted, worst, moves: scene.moved.len() }
}

/// Gives this thread, and the servers that it starts, only the CPU time that VMs leave: VMs interrupt them
/// whenever they want a CPU.
fn become_idle() {
    let thread = fs::read_link("/proc/thread-self").unwrap();
    let id = thread.file_name().unwrap();
    let chrt = Command::new("chrt").args(["--idle", "--pid", "0"]).arg(id).status();
    assert!(chrt.expect("this test needs chrt").success());
}

/// `SEEDS="9 23"`, or the first five seeds with which moves can help.
fn seeds() -> Vec<u64> {
    match std::env::var("SEEDS") {
        Ok(seeds) => {
            let seeds = seeds.split_whitespace();
            seeds.map(|seed| seed.parse().expect("SEEDS are numbers")).collect()
        }
        Err(_) => (1..)
            .filter(|&seed| Demand::generate(seed, "choice").can_be_shared_better())
            .take(PAIRS)
            .collect(),
    }
}

#[test]
#[ignore = "needs root, a cgroup2 mount, two CPUs and what tests/run --cluster builds; takes 25 min for each seed"]
fn vms_get_more_done_with_moves() {
    let _last_cpu = BusyCpu::take();
    let runs = seeds().into_iter().flat_map(|seed| Arm::ALL.map(|arm| (seed, arm)));
    let runs = Mutex::new(runs);
    println!(
        "| seed | rebalancer | work wanted, share of the CPUs | work lost | of the worst VM | moves |"
    );
    println!("|---:|---|---:|---:|---:|---:|");
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let runs = &runs;
            scope.spawn(move || {
                become_idle();
                while let Some((seed, arm)) = { runs.lock().unwrap().next() } {
                    let demand = Demand::generate(seed, &cpu.to_string());
                    let wanted: f64 = demand.wanted.values().sum::<f64>() / MEASURED.as_secs_f64();
                    let Outcome { lost, worst, moves } = run(arm, &demand, cpu);
                    let [wanted, lost, worst] = [wanted, lost, worst].map(|share| 100.0 * share);
                    let arm = arm.title();
                    println!(
                        "| {seed} | {arm} | {wanted:.0} % | {lost:.1} % | {worst:.1} % | {moves} |"
                    );
                }
            });
        }
    });
}
