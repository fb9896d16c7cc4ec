//! A real cAdvisor beside the agent on the same cgroups: the same ids, the same words, and values
//! that differ by no more than the age of what cAdvisor keeps.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::support::agent::{Agent, BINARY, get_from};
use crate::support::cgroup::OwnCgroup;
use crate::support::exposition::{families, ids, parse, value_of};
use crate::support::{cache_dir, wait_for};

const FAMILIES: [&str; 6] = [
    "container_pressure_cpu_stalled_seconds_total",
    "container_pressure_cpu_waiting_seconds_total",
    "container_pressure_io_stalled_seconds_total",
    "container_pressure_io_waiting_seconds_total",
    "container_pressure_memory_stalled_seconds_total",
    "container_pressure_memory_waiting_seconds_total",
];

/// Both read at moments of their own, and reading itself moves the totals a little.
const TOLERANCE_S: f64 = 0.1;

/// A command in a mount namespace of its own with cgroup2 where cAdvisor looks for it.
fn in_pure_v2(program: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"";
    command.args(["-m", "--propagation", "private", "sh", "-c", script, "-", program]);
    command
}

struct Cadvisor {
    child: Child,
    address: String,
}

impl Cadvisor {
    fn start(prefix: &str) -> Self {
        let program = cache_dir().join("cadvisor/cadvisor");
        assert!(program.exists(), "{} is missing: tests/cadvisor/build", program.display());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let child = in_pure_v2(program.to_str().unwrap())
            .args(["-listen", &address, "-prefix", prefix])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, address }
    }

    fn metrics(&self) -> Option<String> {
        let answer = get_from(&self.address, "GET /metrics HTTP/1.1\r\nHost: test\r\n").ok()?;
        (answer.status == 200).then(|| answer.text())
    }
}

impl Drop for Cadvisor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Without the collection times that cAdvisor writes behind its values.
fn without_timestamps(text: &str) -> String {
    let lines = text.lines().map(|line| match line.rsplit_once(' ') {
        Some((series, time)) if !line.starts_with('#') && series.contains("} ") => {
            time.parse::<u64>().map_or(line, |_| series)
        }
        _ => line,
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// When cAdvisor read a series, seconds since the epoch.
fn collected_at(text: &str, family: &str, id: &str) -> Option<f64> {
    let id = format!("id=\"{id}\"");
    let own = |line: &&str| line.starts_with(&format!("{family}{{")) && line.contains(&id);
    let line = text.lines().find(own)?;
    line.rsplit_once(' ')?.1.parse::<f64>().ok().map(|millis| millis / 1e3)
}

/// Pods and containers with different loads; the last is idle.
fn make_pods(own: &mut OwnCgroup) {
    let pod = |number: u32| {
        format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{number:032x}.slice")
    };
    for number in 1..=3 {
        let container = format!("{}/cri-containerd-{number:064x}.scope", pod(number));
        own.make(&container);
        for _ in 1..number {
            own.spawn(&container, "taskset -c 0 sh -c 'while :; do :; done'");
        }
    }
}

#[test]
#[ignore = "needs root, a cgroup2 mount and cAdvisor (tests/cadvisor/build); takes a minute"]
fn cadvisor_has_the_same_ids_words_and_values() {
    let mut own = OwnCgroup::new("cadvisor");
    make_pods(&mut own);
    let agent = Agent::start_by(in_pure_v2(BINARY), &[]);
    let cadvisor = Cadvisor::start(&own.id);
    wait_for("cAdvisor answers", Duration::from_secs(30), || cadvisor.metrics());

    // The agent's readings around every moment at which cAdvisor may have made its own.
    let mut readings = Vec::new();
    let start = now_s();
    while now_s() < start + 45.0 {
        let before = now_s();
        let series = parse(&agent.get("/metrics"));
        readings.push((before - 1.0, now_s(), series));
        std::thread::sleep(Duration::from_secs(2));
    }
    let theirs = cadvisor.metrics().unwrap();
    let series = parse(&without_timestamps(&theirs));
    let (_, _, ours) = readings.last().unwrap();

    let below_own = |ids: Vec<&str>| -> BTreeSet<String> {
        let own_ids = ids.into_iter().filter(|id| id.starts_with(&own.id));
        own_ids.map(str::to_owned).collect()
    };
    let mut compared = 0;
    for family in FAMILIES {
        let found = below_own(ids(ours, family));
        assert_eq!(found, below_own(ids(&series, family)), "{family}");
        assert_eq!(found.len(), 9, "three pods, three containers, what is above: {found:?}");
        for id in found {
            let at = collected_at(&theirs, family, &id).expect("a time of collection");
            let age = now_s() - at;
            assert!(age < 45.0, "{id} is {age} s old");
            let value = value_of(&series, family, &id).unwrap();
            let of = |series| value_of(series, family, &id).unwrap();
            let before = readings.iter().rev().find(|(_, until, _)| *until < at);
            let after = readings.iter().find(|(since, _, _)| *since > at);
            if let Some((_, _, before)) = before {
                assert!(of(before) <= value + TOLERANCE_S, "{family} {id}");
                compared += 1;
            }
            if let Some((_, _, after)) = after {
                assert!(value <= of(after) + TOLERANCE_S, "{family} {id}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 54, "only {compared} bounds were held");
    let busy = format!("{}/kubepods.slice", own.id);
    let waited = value_of(&series, FAMILIES[1], &busy).unwrap();
    assert!(waited > 10.0, "three loops on one CPU waited {waited} s by cAdvisor");

    let theirs = families(&without_timestamps(&theirs));
    let ours = families(&agent.get("/metrics"));
    let common: Vec<&String> = ours.keys().filter(|name| theirs.contains_key(*name)).collect();
    // Pressure, base CPU time and the spec: what a host has whose controllers are not on v2.
    assert!(common.len() >= 13, "{common:?}");
    for name in common {
        assert_eq!(ours[name], theirs[name], "{name}");
    }
}
