//! What moving VMs is worth on the real programs: a cluster with virt-controller, kube-scheduler and the descheduler,
//! three agents on real cgroups, and VMs that count the work that they get done. `tests/simulation/real` runs it, and
//! docs/benefit.md says what is real and what stands in.

mod demand;
mod scene;
mod stat;

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use demand::Demand;
use scene::Scene;

use crate::cluster::descheduler::by_instance;
use crate::support::agent::Agent;
use crate::support::cpu::BusyCpu;
use crate::support::descheduler::Descheduler;
use crate::support::exposition::parse;
use crate::support::prometheus::Prometheus;
use crate::support::snippet;

const NODES: [&str; 3] = ["a", "b", "c"];
/// Three vCPUs for each CPU, as in the simulation.
const VMS: usize = 9;
const PAIRS: usize = 5;
/// The trace begins at noon.
const FROM_MINUTE: &str = "720";
/// Averages fill meanwhile, and the VMs get old enough to move.
const WARM_UP: Duration = Duration::from_secs(150);
const MEASURED: Duration = Duration::from_secs(1200);
/// Seconds between two runs of the descheduler, and between two plans.
const INTERVAL: u32 = 120;
/// Age at which a VM may move. Age, interval and averages are shorter than in docs/consumers.
const MIN_AGE: &str = "2m";
/// Averages are shorter than the interval, because smoothing and publishing take as long as ever.
const WINDOW: &str = "1m";
/// CPUs of a node.
const CPUS: &str = "334m";
/// Least gain of a planned move, CPUs: about the default's share of a node with 32.
const LEAST_GAIN: &str = "0.01";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    Nothing,
    NodePsi,
    Candidate,
    Planner,
}

impl Arm {
    const ALL: [Self; 4] = [Self::Nothing, Self::NodePsi, Self::Candidate, Self::Planner];

    fn title(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::NodePsi => "node PSI",
            Self::Candidate => "psi-agent, candidate",
            Self::Planner => "psi-agent, planner",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Candidate => &[
                "--label",
                "--taint-levels",
                "high",
                "--mark-candidate",
                "--candidate-min-age",
                MIN_AGE,
                "--settle",
                "30s",
            ],
            Self::Planner => &["--candidate-min-age", MIN_AGE, "--settle", "30s"],
            Self::Nothing | Self::NodePsi => &["--publish", "off"],
        }
    }

    /// The policy of docs/consumers, but VMs do not prefer headroom: nodes of a third of a CPU have none. A node
    /// has its CPU for a third of the time, and so a third of the pressure.
    fn policy(self) -> String {
        let (policy, age, score, query) = match self {
            Self::Candidate => {
                ("descheduler-candidate.yaml", "6h", "max_neutral", "slow-score".to_owned())
            }
            Self::Nothing | Self::NodePsi | Self::Planner => (
                "descheduler-contention.yaml",
                "15m",
                "avg10m_neutral",
                by_instance(&format!(
                    "clamp_max(3 * max by (node) (rate(node_pressure_cpu_waiting_seconds_total[{WINDOW}])), 1)"
                )),
            ),
        };
        let (policy, age) = (snippet(policy), format!("minPodAge: {age}"));
        let score = format!("node:psi_agent_node_score_ratio:{score}");
        assert!(policy.contains(&age) && policy.contains(&score), "{policy}");
        policy.replace(&age, &format!("minPodAge: {MIN_AGE}")).replace(&score, &query)
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
    let bridge = (arm == Arm::Candidate).then(|| scene.start_bridge());
    let source = prometheus.as_ref().map(Prometheus::address);
    let source = source.or(bridge.as_ref().map(|bridge| &*bridge.address));
    std::thread::sleep(scene.start.duration_since(SystemTime::now()).unwrap_or_default());
    let descheduler = source.map(|address| {
        let url = format!("http://{address}");
        Descheduler::start(&scene.kubevirt.cluster, "benefit", &arm.policy(), &url, INTERVAL)
    });
    let planner = (arm == Arm::Planner).then(|| scene.start_planner());
    let done = scene.watch();
    if let Some(planner) = &planner {
        let planned = rounds(planner);
        assert!(planned >= 4.0, "the planner planned {planned} times:\n{}", planner.log());
    }
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

/// The plans so far.
fn rounds(planner: &Agent) -> f64 {
    let series = parse(&planner.get("/metrics"));
    let rounds = series.iter().filter(|one| one.name == "psi_agent_planner_rounds_total");
    rounds
        .filter(|one| ["planned", "held"].contains(&&*one.labels["result"]))
        .map(|one| one.value)
        .sum()
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
#[ignore = "needs root, a cgroup2 mount, two CPUs and what tests/run --cluster builds; takes 50 min for each seed"]
fn vms_get_more_done_with_moves() {
    let _last_cpu = BusyCpu::take();
    let seeds = seeds();
    // Two at a time have different demand: VMs of both would want the CPUs at the same moments, and leave the servers
    // none.
    let runs = Arm::ALL.into_iter().flat_map(|arm| seeds.iter().map(move |&seed| (seed, arm)));
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
