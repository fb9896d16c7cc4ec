//! Three nodes that take turns on a CPU, with agents and VMs.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::demand::Demand;
use super::stat::Stat;
use super::{Arm, CPUS, INTERVAL, LEAST_GAIN, MEASURED, NODES, WARM_UP, WINDOW};
use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::kubevirt::{KubeVirt, cgroup_of, name, node_of, virtual_machine};
use crate::support::staged_node::agent_pod;

const MINUTE: Duration = Duration::from_secs(60);
const COPYING: Duration = Duration::from_secs(5);

/// Makes a `/proc` in which the node's CPU time and pressure are its own. It shows all processes.
const WITH_OWN_FILES: &str = "mount -t proc proc \"$0\" && mount --bind \"$2\" \"$0/stat\" && \
    for one in cpu memory io; do \
    mount --bind \"$1/$one.pressure\" \"$0/pressure/$one\" || exit; done && shift 2 && exec \"$@\"";

/// A clock that is seven hours ahead, so that no VM started or moved within six hours: those of agents and
/// planner agree, and that of the API server is the host's.
const AHEAD: [&str; 4] = [
    "LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1",
    "FAKETIME=+7h",
    "FAKETIME_DONT_FAKE_MONOTONIC=1",
    "FAKETIME_DISABLE_SHM=1",
];

/// The program with that clock.
fn ahead(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(AHEAD).arg(program);
    command
}

/// A VM: its pod, where its work runs, and the counters of that, one for each node on which it was.
struct Vm {
    name: String,
    pod: Value,
    process: u32,
    counters: Vec<PathBuf>,
}

pub(super) struct Scene<'a> {
    arm: Arm,
    demand: &'a Demand,
    pub(super) start: SystemTime,
    /// The CPU on which the nodes take turns.
    cpu: usize,
    pub(super) kubevirt: KubeVirt,
    /// It ends before the cgroups that it reads.
    _stat: Stat,
    stats: Vec<PathBuf>,
    cgroups: Vec<OwnCgroup>,
    vms: Vec<Vm>,
    pub(super) moved: HashSet<String>,
    beat: Instant,
}

impl<'a> Scene<'a> {
    pub(super) fn start(arm: Arm, demand: &'a Demand, cpu: usize) -> Self {
        let mut kubevirt = KubeVirt::start(&format!("benefit-{cpu}"));
        kubevirt.start_api();
        let rendered = kubevirt.cluster.render_with(&["bridge", "candidate", "planner"]);
        kubevirt.cluster.kubectl(&["apply", "-f", "-"], &rendered);
        kubevirt.cluster.kubectl(&["label", "namespace", "vms", "psi-agent.io/plan=true"], "");
        for node in NODES {
            kubevirt.add_node(node, 20);
            // What there is, which the planner compares with demand. What may be requested is more.
            let capacity = json!({"status": {"capacity": {"cpu": CPUS}}}).to_string();
            let patch = ["patch", "node", node, "--subresource=status", "--type=merge", "-p"];
            kubevirt.cluster.kubectl(&[&patch[..], &[&capacity]].concat(), "");
            kubevirt.cluster.apply(&[agent_pod(&format!("psi-agent-{node}"), node)]);
        }
        let cgroups: Vec<OwnCgroup> =
            NODES.map(|node| OwnCgroup::new(&format!("benefit-{cpu}-{node}"))).into();
        let paths: Vec<PathBuf> = cgroups.iter().map(|own| own.path.clone()).collect();
        let (stat, stats) = Stat::start(&demand.folder, &paths);
        let (vms, start, beat) = (Vec::new(), SystemTime::now(), Instant::now());
        let moved = HashSet::new();
        Self { arm, demand, start, cpu, kubevirt, _stat: stat, stats, cgroups, vms, moved, beat }
    }

    pub(super) fn start_agents(&self) -> Vec<Agent> {
        let files = self.cgroups.iter().zip(&self.stats);
        let agents = NODES.iter().zip(files).map(|(node, (own, stat))| {
            let pod = format!("psi-agent-{node}");
            let kubeconfig = self.kubevirt.cluster.agent_kubeconfig(&pod);
            let proc = self.demand.folder.join(format!("proc-{node}"));
            fs::create_dir_all(&proc).unwrap();
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation=private", "sh", "-c", WITH_OWN_FILES]);
            command.args([&proc, &own.path, stat]);
            if self.arm == Arm::Planner {
                command.arg("env").args(AHEAD);
            }
            command.arg(BINARY);
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

    /// The bridge, as the account of its manifests.
    pub(super) fn start_bridge(&self) -> Agent {
        let kubeconfig = self.kubeconfig("bridge");
        Agent::start(&["bridge", "--window", WINDOW, "--kubeconfig", &kubeconfig])
    }

    /// The planner, as the account of its manifests.
    pub(super) fn start_planner(&self) -> Agent {
        let is_ahead = ahead("date").arg("+%s").output().unwrap().stdout;
        let time = String::from_utf8(is_ahead).unwrap().trim().parse::<u64>().unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert!(time > now + 6 * 3_600, "this test needs Debian's package libfaketime");
        let (kubeconfig, interval) = (self.kubeconfig("planner"), format!("{INTERVAL}s"));
        let flags = ["--apply", "--least-gain", LEAST_GAIN, "--interval", &interval];
        let own = ["planner", "--lease-holder", "benefit", "--kubeconfig", &kubeconfig];
        Agent::start_by(ahead(BINARY), &[&own[..], &flags].concat())
    }

    fn kubeconfig(&self, component: &str) -> String {
        let token = self.kubevirt.cluster.token(&format!("psi-agent-{component}"));
        let path = self.kubevirt.cluster.write_kubeconfig(component, &token);
        path.to_str().unwrap().to_owned()
    }

    /// All VMs, each on the node of the same number in all arms.
    pub(super) fn start_vms(&mut self) {
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
        // While VMs want all CPUs, the servers have none.
        let list = ["get", "vmim", "-n", "vms", "-o", "json"];
        let Some(listed) = self.kubevirt.cluster.kubectl_output(&list, "") else { return };
        let migrations: Value = serde_json::from_str(&listed).unwrap();
        for migration in migrations["items"].as_array().unwrap() {
            let job = name(migration).to_owned();
            if !self.moved.insert(job.clone()) {
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
    pub(super) fn watch(&mut self) -> BTreeMap<String, f64> {
        while self.start.elapsed().unwrap_or_default() < MEASURED {
            self.finish_moves();
            if self.beat.elapsed() > MINUTE && self.kubevirt.beat() {
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
