//! Scenarios of the lab whose VMs are KVM guests, on a real kernel in real time. `tests/lab/run --only guests`
//! runs all of them.

use std::process::Command;

/// Enough CPUs for all, and too few.
const CHOSEN: [&str; 2] = ["guest-two-on-two-cpus", "guest-two-beside-batch"];

#[test]
#[ignore = "needs QEMU, a Debian kernel and the static binary: tests/run prepares them; takes 4 min"]
fn the_score_is_near_the_work_that_kvm_guests_lose() {
    let output = Command::new("tests/lab/run")
        .args(CHOSEN)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let [table, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{table}");
    assert!(output.status.success(), "{table}\n{said}");
    for scenario in CHOSEN {
        assert!(table.contains(&format!("\n{scenario},")), "{scenario} is not in {table}");
    }
}
