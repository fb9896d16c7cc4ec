//! Real units without pods: what is scored, and that busy ones have a score.

use std::time::Duration;

use serde_json::Value;

use crate::support::agent::Agent;
use crate::support::cgroup::OwnCgroup;
use crate::support::wait_for;

/// Many times what a score takes.
const LIMIT: Duration = Duration::from_secs(120);

fn snapshot(agent: &Agent) -> Value {
    serde_json::from_str(&agent.get("/snapshot.json")).unwrap()
}

/// An agent that reads this cgroup as the root.
fn start_on(own: &OwnCgroup) -> Agent {
    Agent::start(&["--cgroup-root", own.path.to_str().unwrap()])
}

/// What else runs can only add to the waiting.
#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn units_that_share_the_cpus_wait_for_two_thirds_of_their_demand() {
    let mut own = OwnCgroup::new("units");
    let cpus = std::thread::available_parallelism().unwrap().get();
    for unit in ["system.slice/a.service", "system.slice/b.service"] {
        own.make(unit);
        // Three busy tasks for two CPUs, in each of two units.
        (0..3 * cpus / 2).for_each(|_| _ = own.spawn(unit, "sh -c 'while :; do :; done'"));
    }
    let agent = start_on(&own);
    let found = wait_for("a score", LIMIT, || {
        let found = snapshot(&agent);
        found["node"]["score"].is_number().then_some(found)
    });
    assert_eq!(found["node"]["population"], "units");
    assert_eq!(found["node"]["contended"], 2);
    let score = found["node"]["score"].as_f64().unwrap();
    assert!((0.55..0.97).contains(&score), "{score}");
}

#[test]
#[ignore = "needs root, a writable cgroup2 mount, and QEMU"]
fn a_vm_of_qemu_in_a_scope_of_libvirt_is_scored_by_its_vcpus() {
    let mut own = OwnCgroup::new("libvirt");
    let scope = r"machine.slice/machine-qemu\x2d1\x2dweb.scope";
    own.make(scope);
    own.make("system.slice/a.service");
    // Without a disk the firmware looks for one for ever, on the first of the vCPUs.
    let qemu = "qemu-system-x86_64 -name guest=web,debug-threads=on -accel tcg,thread=multi -smp 2 \
                -m 64 -nodefaults -no-user-config -display none";
    let folder = own.path.join(scope);
    let procs = folder.to_str().unwrap().replace('\\', r"\\");
    own.spawn(
        "system.slice/a.service",
        &format!("sh -c 'echo 0 > \"{procs}/cgroup.procs\"; exec {qemu}'"),
    );
    let agent = start_on(&own);
    let found = wait_for("a scored VM", LIMIT, || {
        let found = snapshot(&agent);
        found["node"]["score"].is_number().then_some(found)
    });
    assert_eq!(found["node"]["population"], "VMs");
    let cgroups = found["cgroups"].as_array().unwrap();
    let vm = cgroups.iter().find(|cgroup| cgroup["vm"] == "web").expect("the VM by its name");
    assert_eq!((&vm["id"], &vm["is_vm"]), (&Value::from(format!("/{scope}")), &true.into()));
    let cpu = &vm["scored"]["waiting"]["cpu"];
    assert!(cpu["demand"].as_f64().unwrap() > 0.0, "{cpu}");
    assert!(agent.get("/metrics").contains("psi_agent_hidden_containers{resource=\"cpu\"} 0"));
}
