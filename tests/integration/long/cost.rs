//! What the shipped binary costs on a large node: the numbers of docs/operations.md. It prints what
//! it measured, and fails only beyond what the manifest asks for, since machines differ.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::cadvisor::start_cadvisor;
use crate::support::cgroup::OwnCgroup;
use crate::support::cpu::BusyCpu;
use crate::support::exposition::parse;
use crate::support::host_proc::HostProc;
use crate::support::node_exporter::start_node_exporter;
use crate::support::staged_node::{container_id, launcher};
use crate::support::stolen_time::Yardstick;
use crate::support::virtual_machine::static_binary;

/// A virt-launcher pod is three cgroups: its own and two containers'.
const PODS: u32 = 500;
const MINUTE: Duration = Duration::from_secs(60);
const SCRAPE_EVERY: Duration = Duration::from_secs(15);

/// The request and the limit of daemonset/base/daemonset.yaml.
const CPU_REQUEST_MS_A_MINUTE: f64 = 600.0;
const MEMORY_REQUEST: f64 = 32.0 * 1024.0 * 1024.0;

/// The VMs' cgroups, and what the API server would say of them.
fn make_pods(own: &OwnCgroup, count: u32) -> Value {
    let pods = (0..count).map(|vm| {
        let mut pod = launcher(&format!("vm-{vm}"), "node-a");
        pod["metadata"]["uid"] = json!(format!("{vm:08x}-0000-0000-0000-000000000000"));
        let statuses = ["compute", "guest-console-log"].iter().zip(0..).map(|(name, number)| {
            own.make(&cgroup_of(vm, number));
            let id = format!("containerd://{}", container_id(vm * 2 + number));
            json!({"name": name, "image": "launcher:v1", "containerID": id,
                   "state": {"running": {}}})
        });
        let statuses: Vec<Value> = statuses.collect();
        pod["status"] = json!({"phase": "Running", "containerStatuses": statuses});
        pod
    });
    json!({ "items": pods.collect::<Vec<_>>() })
}

fn cgroup_of(vm: u32, container: u32) -> String {
    let uid = format!("{vm:08x}_0000_0000_0000_000000000000");
    let id = container_id(vm * 2 + container);
    format!("kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{id}.scope")
}

/// CPU milliseconds and resident bytes of the agent, as it tells itself, and its series.
fn look(agent: &Agent) -> (f64, f64, usize) {
    let series = parse(&agent.get("/metrics"));
    let value = |name: &str| series.iter().find(|series| series.name == name).unwrap().value;
    let cpu_ms = value("process_cpu_seconds_total") * 1e3;
    let vms = series.iter().filter(|series| series.name == "psi_agent_vmi_info").count();
    assert_eq!(vms, PODS as usize, "an agent that does less would cost less");
    (cpu_ms, value("process_resident_memory_bytes"), series.len())
}

/// A minute of the agent's life, with a scrape every 15 s.
fn measure(agent: &Agent, what: &str) {
    let (start, yardstick) = (Instant::now(), Yardstick::start());
    let (before, _, _) = look(agent);
    while start.elapsed() < MINUTE {
        std::thread::sleep(SCRAPE_EVERY);
        look(agent);
    }
    let (after, resident, series) = look(agent);
    let charged_ms = (after - before) * MINUTE.as_secs_f64() / start.elapsed().as_secs_f64();
    let stretch = yardstick.stretch();
    let cpu_ms = charged_ms / stretch;
    let mebibytes = resident / 1024.0 / 1024.0;
    println!(
        "{what}: {cpu_ms:.0} ms of CPU a minute (charged {charged_ms:.0}, {stretch:.2} times what it \
         takes alone), {mebibytes:.1} MiB, {series} series"
    );
    assert!(cpu_ms < CPU_REQUEST_MS_A_MINUTE, "{what}: {cpu_ms} ms of CPU a minute");
    assert!(resident < MEMORY_REQUEST, "{what}: {mebibytes} MiB");
}

/// Budgets of the agent's CPU time, as shares of cAdvisor's in the same minutes.
const PRESSURE_SHARE: f64 = 1.0 / 30.0;
const RUN_DELAY_SHARE: f64 = 1.0 / 12.0;
const ALL_FAMILIES_SHARE: f64 = 1.0 / 20.0;
/// Budget of resident memory, families `pressure`.
const RESIDENT: f64 = 16.0 * 1024.0 * 1024.0;

/// Threads of each VM whose run delay is read: vCPUs, and one I/O thread.
const THREADS: u32 = 4;

/// Starts a process with sleeping threads, named as QEMU names them, in each VM's container, and prints their ids.
const VMS: &str = r#"
import os, sys, threading, time
def thread(name):
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
        comm.write(name)
    time.sleep(3600)
names = [f"CPU {number}/KVM" for number in range(int(sys.argv[1]) - 1)] + ["IO iothread1"]
for procs in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        os.close(1)
        with open(procs, "w") as file:
            file.write("0")
        for name in names:
            threading.Thread(target=thread, args=[name], daemon=True).start()
        time.sleep(3600)
    print(child, flush=True)
"#;

/// CPU milliseconds and resident bytes of a process, with threads that ended.
fn consumption(server: &Agent) -> (f64, f64) {
    let of =
        |file: &str| fs::read_to_string(format!("/proc/{}/{file}", server.child.id())).unwrap();
    let (stat, statm) = (of("stat"), of("statm"));
    let numbers: Vec<f64> =
        stat.rsplit(')').next().unwrap().split(' ').filter_map(|word| word.parse().ok()).collect();
    let tick_ms =
        1000.0 / nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).unwrap().unwrap() as f64;
    let pages: f64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    // Of the words behind the state: utime and stime are the 11th and 12th.
    ((numbers[10] + numbers[11]) * tick_ms, pages * 4096.0)
}

/// Whether it reads the vCPU threads and the I/O threads of all VMs.
fn reads_all_threads(agent: &Agent) -> bool {
    let series = parse(&agent.get("/metrics"));
    let named = |name: &str| series.iter().filter(|one| one.name == name).collect::<Vec<_>>();
    named("psi_agent_hidden_containers")[0].value == 0.0
        && named("psi_agent_vmi_iothread_wait_seconds_total").len() == PODS as usize
}

#[test]
#[ignore = "needs root, a cgroup2 mount, python3, cAdvisor and the static binary; takes 4 min"]
fn the_agent_costs_a_small_share_of_cadvisor() {
    let _alone = BusyCpu::take();
    let own = OwnCgroup::new("share");
    let pods = std::env::temp_dir().join(format!("psi-agent-{}-share.json", std::process::id()));
    fs::write(&pods, make_pods(&own, PODS).to_string()).unwrap();
    let proc = HostProc::new("share");
    let procs = (0..PODS).map(|vm| own.path.join(cgroup_of(vm, 0)).join("cgroup.procs"));
    let mut vms = Command::new("python3")
        .args(["-c", VMS, &THREADS.to_string()])
        .args(procs)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(vms.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.for_each(|process| proc.show(process.parse().unwrap()));
    assert!(vms.wait().unwrap().success());
    let start = |source: &str, more: &[&str]| {
        let (proc, pods) = (proc.0.to_str().unwrap(), pods.to_str().unwrap());
        let flags = ["--proc-root", proc, "--pods-file", pods, "--cpu-source", source];
        Agent::start_by(Command::new(static_binary()), &[&flags[..], more].concat())
    };
    let pressure = ["--families", "pressure"];
    // Without a cluster it logs what it would write.
    let all = ["--scope", "all", "--label", "--taint-levels=medium,high", "--mark-candidate"];
    let cadvisor = start_cadvisor(&own.id);
    let servers = [
        ("cAdvisor", cadvisor, 1.0),
        ("node_exporter, without cgroups", start_node_exporter(), 1.0),
        ("families pressure", start("psi", &pressure), PRESSURE_SHARE),
        ("the same, 2,000 threads of VMs", start("run-delay", &pressure), RUN_DELAY_SHARE),
        ("all families", start("psi", &["--scope", "all"]), ALL_FAMILIES_SHARE),
        ("everything, 2,000 threads of VMs", start("run-delay", &all), RUN_DELAY_SHARE),
    ];
    // All of them list everything at their start.
    std::thread::sleep(MINUTE);
    let read = [3, 5].map(|at| reads_all_threads(&servers[at].1));
    assert_eq!(read, [true; 2], "threads that are not read would cost nothing");
    let before = servers.each_ref().map(|(_, server, _)| consumption(server).0);
    for _ in 0..2 * MINUTE.as_secs() / SCRAPE_EVERY.as_secs() {
        std::thread::sleep(SCRAPE_EVERY);
        servers.iter().for_each(|(_, server, _)| drop(server.get("/metrics")));
    }
    let after = servers.each_ref().map(|(_, server, _)| consumption(server));
    let (theirs, mut failures) = (after[0].0 - before[0], Vec::new());
    for (((what, server, budget), (ms, resident)), before) in servers.iter().zip(after).zip(before)
    {
        let share = (ms - before) / theirs;
        let mebibytes = resident / 1024.0 / 1024.0;
        let of_cadvisor = 1.0 / share;
        let lines = server.get("/metrics").lines().filter(|line| !line.starts_with('#')).count();
        println!(
            "{what}: {:.0} ms of CPU a minute, 1/{of_cadvisor:.1} of cAdvisor's (at most 1/{:.0}), \
             {mebibytes:.1} MiB, {lines} series",
            (ms - before) / 2.0,
            1.0 / budget
        );
        if share > *budget || *what == "families pressure" && resident > RESIDENT {
            failures.push(*what);
        }
    }
    fs::remove_file(&pods).unwrap();
    assert!(failures.is_empty(), "beyond their budgets: {failures:?}");
}

#[test]
#[ignore = "needs root, a cgroup2 mount and the static binary: tests/run builds it; takes 3 min"]
fn five_hundred_pods_cost_less_than_what_is_requested() {
    let cpu = BusyCpu::take();
    let mut own = OwnCgroup::new("cost");
    let pods = std::env::temp_dir().join(format!("psi-agent-{}-cost.json", std::process::id()));
    fs::write(&pods, make_pods(&own, PODS).to_string()).unwrap();
    // The host's whole tree: of a part of it the agent would not look at all that run there.
    let proc = HostProc::new("cost");
    let flags = ["--families", "pressure", "--proc-root", proc.0.to_str().unwrap()];
    let flags = [&flags[..], &["--pods-file", pods.to_str().unwrap()]].concat();
    let agent = Agent::start_by(Command::new(static_binary()), &flags);
    std::thread::sleep(MINUTE / 3);
    measure(&agent, "calm");
    for vm in 0..2 {
        own.spawn(&cgroup_of(vm, 0), &cpu.spin());
    }
    std::thread::sleep(MINUTE / 6);
    measure(&agent, "two VMs wait for one CPU");
    drop(agent);
    fs::remove_file(&pods).unwrap();
}

/// System calls of a process in a minute with four scrapes, in all its threads.
fn system_calls(agent: &Agent) -> u64 {
    let counts = std::env::temp_dir().join(format!("psi-agent-{}-calls", std::process::id()));
    let mut strace = Command::new("strace")
        .args(["-f", "-c", "-U", "calls,name", "-o", counts.to_str().unwrap()])
        .args(["-p", &agent.child.id().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("this test needs strace");
    let start = Instant::now();
    while start.elapsed() < MINUTE {
        std::thread::sleep(SCRAPE_EVERY);
        agent.get("/metrics");
    }
    let pid = strace.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    strace.wait().unwrap();
    let text = fs::read_to_string(&counts).unwrap();
    fs::remove_file(&counts).unwrap();
    let total = text.lines().find(|line| line.trim_end().ends_with("total"));
    let total = total.unwrap_or_else(|| panic!("{text}")).split_whitespace().next().unwrap();
    total.parse().unwrap()
}

#[test]
#[ignore = "needs root, a cgroup2 mount, strace and the static binary; takes 12 min"]
fn cost_grows_with_the_number_of_cgroups_and_not_faster() {
    let _alone = BusyCpu::take();
    let mut costs = Vec::new();
    for pods in [33, 133, 533, 2_133] {
        let own = OwnCgroup::new(&format!("growth-{pods}"));
        let file =
            std::env::temp_dir().join(format!("psi-agent-{}-{pods}.json", std::process::id()));
        fs::write(&file, make_pods(&own, pods).to_string()).unwrap();
        let proc = HostProc::new(&format!("growth-{pods}"));
        let flags = ["--families", "pressure", "--proc-root", proc.0.to_str().unwrap()];
        let flags = [&flags[..], &["--pods-file", file.to_str().unwrap()]].concat();
        let agent = Agent::start_by(Command::new(static_binary()), &flags);
        std::thread::sleep(MINUTE / 2);
        let before = consumption(&agent).0;
        let start = Instant::now();
        while start.elapsed() < MINUTE {
            std::thread::sleep(SCRAPE_EVERY);
            agent.get("/metrics");
        }
        let (after, resident) = consumption(&agent);
        let ms = (after - before) * MINUTE.as_secs_f64() / start.elapsed().as_secs_f64();
        let cgroups = pods * 3;
        let calls = system_calls(&agent);
        println!(
            "{cgroups} cgroups: {ms:.0} ms of CPU a minute, {:.1} MiB, {calls} system calls a minute",
            resident / 1024.0 / 1024.0
        );
        costs.push((f64::from(cgroups), calls as f64));
        fs::remove_file(&file).unwrap();
    }
    // CPU time is what the machine makes of them. Four times as many cgroups, four times as many calls.
    for pair in costs.windows(2) {
        let ((cgroups, calls), (more_cgroups, more_calls)) = (pair[0], pair[1]);
        assert!(more_calls / calls < 1.2 * more_cgroups / cgroups, "{costs:?}");
    }
}
