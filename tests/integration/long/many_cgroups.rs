//! More cgroups than any node has.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::exposition::{ids, parse};
use crate::support::wait_for;

const WAITING: &str = "container_pressure_cpu_waiting_seconds_total";
/// Many times what anything takes here.
const LIMIT: Duration = Duration::from_secs(600);

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn ten_thousand_and_fifty_thousand_cgroups_are_all_exported() {
    let own = OwnCgroup::new("many");
    let root = own.path.to_str().unwrap();
    // Fewer descriptors than cgroups: the others are read by their paths.
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=20000:20000", BINARY]);
    let agent = Agent::start_by(limited, &["--cgroup-root", root, "--families", "pressure"]);
    let mut made = 0;
    for count in [10_000_usize, 50_000] {
        for number in made..count {
            // As wide as pods are on a node, and none of them in the root itself.
            own.make(&format!("part{}/group{number}", number / 1000));
        }
        made = count;
        let expected = count + count.div_ceil(1000) + 1;
        let started = Instant::now();
        wait_for("all of them in one response", LIMIT, || {
            let answer = agent.request("GET /metrics HTTP/1.1\r\nHost: localhost\r\n");
            let found = (answer.status == 200).then(|| answer.text().matches(WAITING).count());
            // HELP and TYPE name the family as well.
            (found == Some(expected + 2)).then_some(())
        });
        println!(
            "{count}: in {:?}, resident {} bytes at most",
            started.elapsed(),
            agent.peak_memory()
        );
    }
    assert_eq!(agent.get("/livez"), "ok\n");
    for part in 0..50 {
        own.remove(&format!("part{part}"));
    }
    wait_for("none of them left", LIMIT, || {
        let answer = agent.request("GET /metrics HTTP/1.1\r\nHost: localhost\r\n");
        (answer.status == 200 && ids(&parse(&answer.text()), WAITING) == ["/"]).then_some(())
    });
}
