//! Faults of a host: churn of cgroups, mounts that go, an agent that is stopped for a while,
//! and a full disk behind its log. What is exported is right or absent, and all is as before afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::agent::{Agent, BINARY, get_from};
use crate::support::cgroup::OwnCgroup;
use crate::support::exposition::{ids, parse};
use crate::support::folder::Folder;
use crate::support::free_port;
use crate::support::recorded_case::flags_of_one_vm;
use crate::support::wait_for;

const WAITING: &str = "container_pressure_cpu_waiting_seconds_total";
/// Many times what anything takes here.
const LIMIT: Duration = Duration::from_secs(120);

/// Errors of readings that are no consequence of a cgroup's end.
fn read_errors(text: &str) -> f64 {
    let series = parse(text).into_iter();
    let errors = series.filter(|series| {
        series.name == "psi_agent_read_errors_total" && series.labels["kind"] != "vanished"
    });
    errors.map(|series| series.value).sum()
}

/// Descriptors that a process has open.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount, takes 10 s"]
fn a_thousand_cgroups_a_second_that_come_and_go_leave_nothing_behind() {
    let own = OwnCgroup::new("churn-1000");
    own.make("stays");
    let root = own.path.to_str().unwrap();
    let agent = Agent::start(&["--cgroup-root", root, "--families", "pressure"]);
    wait_for("the first sample", LIMIT, || {
        ids(&parse(&agent.get("/metrics")), WAITING).contains(&"/stays").then_some(())
    });
    let before = descriptors(agent.child.id());
    let ended = Arc::new(AtomicBool::new(false));
    let churn = {
        let (folder, ended) = (own.path.clone(), Arc::clone(&ended));
        std::thread::spawn(move || {
            let start = Instant::now();
            for number in 0..10_000_u32 {
                let path = folder.join(format!("goes-{number}"));
                fs::create_dir(&path).unwrap();
                let due = start + Duration::from_millis(u64::from(number));
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                fs::remove_dir(&path).unwrap();
            }
            ended.store(true, Ordering::SeqCst);
        })
    };
    let (mut scrapes, mut seen) = (0, 0);
    while !ended.load(Ordering::SeqCst) {
        let text = agent.get("/metrics");
        let series = parse(&text);
        let ids = ids(&series, WAITING);
        assert!(ids.contains(&"/") && ids.contains(&"/stays"), "{ids:?}");
        (scrapes, seen) = (scrapes + 1, seen + ids.len() - 2);
        std::thread::sleep(Duration::from_millis(50));
    }
    churn.join().unwrap();
    println!("{scrapes} scrapes, {seen} short-lived cgroups in them");
    wait_for("none of them left", LIMIT, || {
        let text = agent.get("/metrics");
        let after = descriptors(agent.child.id());
        let is_over = ids(&parse(&text), WAITING) == ["/", "/stays"];
        // This connection and the scrape's own files count, too.
        (is_over && after <= before + 2).then_some(())
    });
    assert_eq!(read_errors(&agent.get("/metrics")), 0.0);
    assert_eq!(agent.get("/livez"), "ok\n");
}

/// The agent in a mount namespace of its own, in which the host's cgroups are mounted once more.
fn with_own_mount(mount: &Path, own: &OwnCgroup) -> Agent {
    let script = "mount -t cgroup2 none \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(mount).arg(BINARY);
    let root = format!("{}{}", mount.display(), own.id);
    Agent::start_by(command, &["--cgroup-root", &root, "--families", "pressure"])
}

/// Runs a shell script in the mount namespace of an agent.
fn in_mounts_of(agent: &Agent, script: &str, mount: &Path) {
    let target = format!("--target={}", agent.child.id());
    let mut command = Command::new("nsenter");
    command.args([&target, "--mount", "sh", "-ec", script]).arg(mount);
    assert!(command.status().unwrap().success(), "{script}");
}

#[test]
#[ignore = "needs root, mount namespaces and a writable cgroup2 mount"]
fn cgroups_are_followed_while_their_file_system_is_unmounted_and_mounted_again() {
    let own = OwnCgroup::new("remount");
    own.make("before");
    let mount = Folder::new("remount");
    let agent = with_own_mount(&mount.0, &own);
    let expect = |what: &str, expected: &[&str]| {
        wait_for(what, LIMIT, || {
            (ids(&parse(&agent.get("/metrics")), WAITING) == expected).then_some(())
        });
    };
    expect("the first cgroup", &["/", "/before"]);

    in_mounts_of(&agent, "mount -o remount,nosuid \"$0\"", &mount.0);
    own.make("remounted");
    expect("one after a remount", &["/", "/before", "/remounted"]);

    in_mounts_of(&agent, "umount --lazy \"$0\" && mount -t tmpfs none \"$0\"", &mount.0);
    own.make("unmounted");
    own.remove("remounted");
    expect("one while nothing is mounted", &["/", "/before", "/unmounted"]);

    in_mounts_of(&agent, "umount \"$0\" && mount -t cgroup2 none \"$0\"", &mount.0);
    own.make("mounted");
    expect("one after it was mounted again", &["/", "/before", "/mounted", "/unmounted"]);
    assert_eq!(read_errors(&agent.get("/metrics")), 0.0);
}

/// The counters of all cgroups, by series.
fn counters(text: &str) -> BTreeMap<String, f64> {
    let series = parse(text).into_iter();
    let counters = series.filter(|series| series.name.starts_with("container_pressure_"));
    counters.map(|one| (format!("{}{:?}", one.name, one.labels), one.value)).collect()
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount, takes 12 s"]
fn an_agent_that_was_stopped_goes_on_with_the_present() {
    let own = OwnCgroup::new("stopped");
    own.make("stays");
    own.make("goes");
    let agent = Agent::start(&["--cgroup-root", own.path.to_str().unwrap()]);
    let before = wait_for("a second tick", LIMIT, || {
        let text = agent.get("/metrics");
        text.contains("psi_agent_node_utilization_ratio{").then_some(text)
    });
    agent.signal("STOP");
    let stopped = Instant::now();
    own.remove("goes");
    own.make("comes");
    // A request that came in the meantime is answered from what is there afterwards.
    std::thread::sleep(Duration::from_secs(4));
    let (text, (slept, resumed)) = std::thread::scope(|scope| {
        let scrape = scope.spawn(|| agent.get("/metrics"));
        std::thread::sleep(Duration::from_secs(4));
        let resumed = (stopped.elapsed(), jiff::Timestamp::now());
        agent.signal("CONT");
        (scrape.join().unwrap(), resumed)
    });
    assert_eq!(ids(&parse(&text), WAITING), ["/", "/comes", "/stays"]);
    let (before, after) = (counters(&before), counters(&text));
    for (series, value) in &after {
        assert!(before.get(series).is_none_or(|before| before <= value), "{series}");
    }
    // The tick after spans that time, and the next one begins there.
    let tick = || {
        let snapshot: Value = serde_json::from_str(&agent.get("/snapshot.json")).unwrap();
        let number = |key: &str| snapshot["agent"][key].as_f64().unwrap();
        (number("tick_window_s"), number("ticked_at_ms"))
    };
    let (spanned, ticked_at_ms) = tick();
    #[allow(clippy::cast_precision_loss, reason = "milliseconds of some decades")]
    let begins_after = ticked_at_ms - spanned * 1e3 > resumed.as_millisecond() as f64 - 10.0;
    assert!(spanned >= slept.as_secs_f64() || begins_after, "{spanned} s, stopped for {slept:?}");
    wait_for("another tick", LIMIT, || (tick().1 > ticked_at_ms).then_some(()));
    assert_eq!(agent.get("/livez"), "ok\n");
}

#[test]
#[ignore = "needs root and mount namespaces"]
fn a_log_on_a_full_disk_stops_nothing_and_goes_on_when_there_is_space() {
    let disk = Folder::new("full-disk");
    let address = format!("127.0.0.1:{}", free_port());
    let script = "mount -t tmpfs -o size=16k none \"$0\" && exec \"$@\" 2>>\"$0/log\"";
    let child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .args([&disk.0, Path::new(BINARY)])
        .args(flags_of_one_vm())
        .args(["--listen-address", &address, "--log-level", "debug", "--log-format", "json"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let log = format!("/proc/{}/root{}/log", child.id(), disk.text());
    let mut agent = Agent::other(child, address);
    let livez =
        |agent: &Agent| get_from(&agent.address, "GET /livez HTTP/1.1\r\nHost: localhost\r\n").ok();
    wait_for("it listens", LIMIT, || livez(&agent));
    // Each is a line.
    let fill = || {
        let garbage = get_garbage(&agent.address);
        assert!(garbage.contains("400"), "{garbage}");
        fs::metadata(&log).unwrap().len()
    };
    let mut length = 0;
    wait_for("the disk is full", LIMIT, || {
        let before = std::mem::replace(&mut length, fill());
        (length == before && length >= 12 * 1024).then_some(())
    });
    for _ in 0..100 {
        fill();
    }
    assert!(fs::metadata(&log).unwrap().len() <= 16 * 1024);
    assert!(agent.get("/metrics").contains(WAITING));
    assert_eq!(agent.get("/livez"), "ok\n");
    fs::File::options().write(true).open(&log).unwrap().set_len(0).unwrap();
    wait_for("lines are written again", LIMIT, || {
        fill();
        fs::read_to_string(&log).unwrap().ends_with("}\n").then_some(())
    });
    agent.signal("TERM");
    let ended = wait_for("it ends", LIMIT, || agent.child.try_wait().unwrap());
    assert!(ended.success());
}

/// The answer to what is no HTTP.
fn get_garbage(address: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let _ = stream.write_all(b"no HTTP\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}
