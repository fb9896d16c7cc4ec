//! Scenarios of the lab, on a real kernel in virtual time, with the shipped binary beside them: is
//! its score near what the VMs really waited for? `tests/lab/run` runs all of them.

use std::process::Command;

/// One of each kind: nobody short, own limits in all company, too few CPUs for all or for one,
/// weights, what is no VM, and a node of eight CPUs.
const CHOSEN: [&str; 14] = [
    "idle",
    "full-not-contended",
    "throttled-alone",
    "throttled-beside-full",
    "throttled-beside-contended",
    "limit-half-node",
    "console-busy",
    "contended-six",
    "more-vcpus-than-node",
    "huge-starved",
    "dedicated-too-few",
    "stress-beside",
    "daemons",
    "eight-cpus-half",
];

#[test]
#[ignore = "needs QEMU, a Debian kernel and the static binary: tests/run prepares them; takes 3 min"]
fn the_score_is_near_what_vms_waited_for() {
    // In virtual time a slow machine changes nothing; what others measure meanwhile should not be it.
    let mut command = Command::new("nice");
    command.args(["-n", "19", "tests/lab/run"]);
    agree(command, &CHOSEN);
}

/// Runs these scenarios. The lab itself compares the scores with what VMs waited for, and fails beyond its bounds.
pub(super) fn agree(mut command: Command, scenarios: &[&str]) {
    let command = command.args(scenarios).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().unwrap();
    let [table, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{table}");
    assert!(output.status.success(), "{table}\n{said}");
    for scenario in scenarios {
        assert!(table.contains(&format!("\n{scenario},")), "{scenario} is not in {table}");
    }
}
