//! The real kernel's cgroups: paths, churn, switches, removal, and running out of handles.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use psi_agent::clock;
use psi_agent::kernel::cgroup_dir::{CgroupDir, CgroupRoot, Resource};
use psi_agent::kernel::cgroup_tree::CgroupTree;
use psi_agent::kernel::{ReadError, ReadErrorKind};
use serde_json::Value;

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::{OwnCgroup, cgroup2_mount};
use crate::support::exposition::{ids, parse, value_of};
use crate::support::wait_for;

const WAITING: &str = "container_pressure_cpu_waiting_seconds_total";
/// Many times what anything takes here.
const LIMIT: Duration = Duration::from_secs(60);

/// Repeats something in another thread until `work` ends, even by a failure.
fn meanwhile(mut repeated: impl FnMut() + Send, work: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                repeated();
            }
        });
        let _stop = Stop(&stop);
        work();
    });
}

fn start_on(own: &OwnCgroup, flags: &[&str]) -> Agent {
    let root = ["--cgroup-root", own.path.to_str().unwrap()];
    Agent::start(&[&root, flags].concat())
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn every_path_pattern_is_recognised_as_real_directories() {
    let own = OwnCgroup::new("patterns");
    let agent = start_on(&own, &[]);
    let table = include_str!("../../cases/paths.tsv");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').collect())
        .collect();
    assert!(rows.len() >= 25, "the table of patterns went missing");
    for row in &rows {
        own.make(row[0]);
    }
    wait_for("all patterns in one sample", LIMIT, || {
        let snapshot: Value = serde_json::from_str(&agent.get("/snapshot.json")).unwrap();
        let cgroups = snapshot["cgroups"].as_array().unwrap().clone();
        let find = |id: &str| cgroups.iter().find(|cgroup| cgroup["id"] == id);
        if rows.iter().any(|row| find(row[0]).is_none()) {
            return None;
        }
        for row in &rows {
            assert_eq!(find(row[0]).unwrap()["level"], row[1], "{}", row[0]);
        }
        Some(())
    });
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn cgroups_that_come_and_go_while_scraped_are_neither_missed_nor_left() {
    let own = OwnCgroup::new("churn");
    let agent = start_on(&own, &["--families", "pressure"]);
    let mut scrapes = 0;
    let scrape = || {
        parse(&agent.get("/metrics"));
        scrapes += 1;
    };
    meanwhile(scrape, || {
        let pods = |number: usize| format!("kubepods/burstable/pod{number}/{:064x}", number);
        for number in 0..250 {
            own.make(&pods(number));
        }
        wait_for("500 cgroups and three above them", LIMIT, || {
            let text = agent.get("/metrics");
            (ids(&parse(&text), WAITING).len() == 503).then_some(())
        });
        own.remove("kubepods");
        wait_for("none left", LIMIT, || {
            let text = agent.get("/metrics");
            (ids(&parse(&text), WAITING) == ["/"]).then_some(())
        });
    });
    assert!(scrapes > 0, "it was scraped all the while");
    let after = agent.get("/metrics");
    assert_eq!(read_errors(&after, |_| true), 0.0);
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn a_cgroup_that_took_the_place_of_another_is_found() {
    let own = OwnCgroup::new("replaced");
    let agent = start_on(&own, &["--families", "pressure"]);
    own.make("goes");
    own.make("group/late");
    let wait_for_all = |expected: &[&str]| {
        wait_for(expected[1], LIMIT, || {
            (ids(&parse(&agent.get("/metrics")), WAITING) == expected).then_some(())
        });
    };
    wait_for_all(&["/", "/goes", "/group", "/group/late"]);
    // Their parents have as many children as before.
    agent.signal("STOP");
    own.remove("goes");
    own.make("stays");
    fs::remove_dir(own.path.join("group/late")).unwrap();
    own.make("group/late/below");
    agent.signal("CONT");
    wait_for_all(&["/", "/group", "/group/late", "/group/late/below", "/stays"]);
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn a_cgroup_that_came_for_one_outside_the_tree_is_found_within_a_minute() {
    let own = OwnCgroup::new("links");
    own.make("slice/x.mount");
    let mut tree = CgroupTree::new(CgroupRoot::open(&own.path).unwrap(), false, 9);
    let start = clock::now().at;
    let mut count = |seconds| {
        tree.follow(start + Duration::from_secs(seconds));
        tree.count()
    };
    assert_eq!(count(0), 2);
    own.remove("slice/x.mount");
    own.make("slice/new.service");
    assert_eq!(count(60), 3);
    own.make("slice/next.service");
    assert_eq!(count(61), 4);
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn pressure_switched_off_for_a_cgroup_takes_its_series_away_and_back() {
    let own = OwnCgroup::new("toggle");
    own.make("quiet");
    own.make("loud");
    let agent = start_on(&own, &[]);
    let seen = || {
        let text = agent.get("/metrics");
        let series = parse(&text);
        let mut ids: Vec<String> = ids(&series, WAITING).into_iter().map(str::to_owned).collect();
        ids.retain(|id| id != "/");
        // The cgroup itself stays: only its pressure is off.
        assert!(value_of(&series, "container_cpu_usage_seconds_total", "/quiet").is_some());
        ids
    };
    let switch = own.path.join("quiet/cgroup.pressure");
    for (state, expected) in
        [("1", &["/loud", "/quiet"][..]), ("0", &["/loud"]), ("1", &["/loud", "/quiet"])]
    {
        fs::write(&switch, state).unwrap();
        wait_for(state, LIMIT, || (seen() == expected).then_some(()));
    }
    let text = agent.get("/metrics");
    assert_eq!(read_errors(&text, |kind| kind == "vanished"), 0.0);
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn a_cgroup_removed_between_opening_and_reading_has_vanished() {
    let own = OwnCgroup::new("vanish");
    let root = CgroupRoot::open(&own.path).unwrap();

    own.make("one");
    let dir = CgroupDir::open(&root, "/one", true).unwrap();
    let file = fs::File::open(own.path.join("one/cpu.pressure")).unwrap();
    assert!(dir.pressure(Resource::Cpu).is_ok());
    own.remove("one");
    let error = std::io::read_to_string(file).unwrap_err();
    let errno = nix::errno::Errno::from_raw(error.raw_os_error().unwrap());
    assert_eq!(ReadErrorKind::from(errno).into_str(), "vanished");
    assert_eq!(dir.pressure(Resource::Cpu).unwrap_err().kind.into_str(), "vanished");
    assert!(!dir.is_alive());

    // The same name again is another cgroup.
    own.make("one");
    assert!(!dir.is_alive());
    assert!(dir.pressure(Resource::Cpu).is_err());
    assert_ne!(CgroupDir::open(&root, "/one", true).unwrap().cgroup.id, dir.cgroup.id);
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn readers_racing_with_removal_see_a_value_or_nothing() {
    let own = OwnCgroup::new("race");
    let root = CgroupRoot::open(&own.path).unwrap();
    let blink = || {
        fs::create_dir(own.path.join("blink")).unwrap();
        fs::remove_dir(own.path.join("blink")).unwrap();
    };
    let (mut values, mut gone) = (0, 0);
    // Which of the two a reading finds is by chance, and by who else runs: it goes on until both came.
    let started = Instant::now();
    meanwhile(blink, || {
        while values < 100 || gone < 100 {
            assert!(started.elapsed() < LIMIT, "{values} read, {gone} gone: both should happen");
            let Ok(dir) = CgroupDir::open(&root, "/blink", true) else { continue };
            match dir.pressure(Resource::Cpu) {
                Ok(_) => values += 1,
                Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => gone += 1,
                Err(other) => panic!("{other}"),
            }
        }
    });
}

#[test]
#[ignore = "needs root and a writable cgroup2 mount"]
fn without_descriptors_to_spare_every_cgroup_is_read_by_path() {
    let own = OwnCgroup::new("handles");
    for number in 0..100 {
        own.make(&format!("group{number}"));
    }
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=40:40", BINARY]);
    let root = own.path.to_str().unwrap();
    let agent = Agent::start_by(limited, &["--cgroup-root", root]);
    let text = agent.get("/metrics");
    assert_eq!(ids(&parse(&text), WAITING).len(), 101);
}

#[test]
#[ignore = "needs root and a cgroup2 mount"]
fn a_user_without_rights_reads_all_there_is() {
    let copy = std::env::temp_dir().join(format!("psi-agent-{}-nobody", std::process::id()));
    fs::copy(BINARY, &copy).unwrap();
    let once = |command: &mut Command| {
        let output = command.args(["once", "--families", "pressure"]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let series = parse(&String::from_utf8(output.stdout).unwrap());
        ids(&series, WAITING).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let own = OwnCgroup::new("nobody");
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    let seen = once(nobody.arg(&copy));
    fs::remove_file(&copy).unwrap();
    assert!(seen.contains(&own.id) && seen.contains(&"/".to_owned()), "{seen:?}");
    assert!(cgroup2_mount().exists());
}

/// Read errors of some kinds. A kind has no series before its first error.
fn read_errors(text: &str, counts: impl Fn(&str) -> bool) -> f64 {
    let series =
        parse(text).into_iter().filter(|series| series.name == "psi_agent_read_errors_total");
    series.filter(|series| counts(&series.labels["kind"])).map(|series| series.value).sum()
}
