//! KVM guests in the lab, in real time: does the score say how much work they lost? `tests/lab/run` runs all of
//! them.

use std::process::Command;

use super::lab_scenarios::agree;

/// One that waits for a CPU, and one that waits for a disk by native AIO. Their nodes have one CPU: emulated nodes of
/// more hang now and then while they run guests.
const CHOSEN: [&str; 2] = ["guest-one-cpu", "guest-one-cpu-io"];

#[test]
#[ignore = "needs QEMU, a Debian kernel and the static binary: tests/run prepares them; takes 4 min"]
fn the_score_is_near_what_kvm_guests_lost() {
    agree(Command::new("tests/lab/run"), &CHOSEN);
}
