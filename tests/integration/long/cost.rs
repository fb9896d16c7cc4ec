//! What the shipped binary costs on a large node: the numbers of docs/operations.md. It prints what
//! it measured, and fails only beyond what the manifest asks for, since machines differ.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::cgroup::OwnCgroup;
use crate::support::cpu::BusyCpu;
use crate::support::exposition::parse;
use crate::support::host_proc::HostProc;
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
fn make_pods(own: &OwnCgroup) -> Value {
    let pods = (0..PODS).map(|vm| {
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

#[test]
#[ignore = "needs root, a cgroup2 mount and the static binary: tests/run builds it; takes 3 min"]
fn five_hundred_pods_cost_less_than_what_is_requested() {
    let cpu = BusyCpu::take();
    let mut own = OwnCgroup::new("cost");
    let pods = std::env::temp_dir().join(format!("psi-agent-{}-cost.json", std::process::id()));
    fs::write(&pods, make_pods(&own).to_string()).unwrap();
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
