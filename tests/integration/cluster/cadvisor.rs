//! The agent beside a cAdvisor that is built as the kubelet builds it in, on one cgroup2 tree.
//! cAdvisor writes when it read each sample, so the agent's readings before and after that moment
//! must enclose it: counters leave no room for a tolerance.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use crate::support::agent::{Agent, BINARY};
use crate::support::cadvisor::{in_own_mounts, start_cadvisor};
use crate::support::cgroup::OwnCgroup;
use crate::support::cpu::BusyCpu;
use crate::support::exposition::{PRESSURE, Series, families, parse, value_of};

const CPU: [&str; 3] = [
    "container_cpu_usage_seconds_total",
    "container_cpu_user_seconds_total",
    "container_cpu_system_seconds_total",
];
/// It never changes, so that both export the same at any time.
const STEADY: [&str; 1] = ["container_start_time_seconds"];

/// cAdvisor waits for 10 s at least and less than 30 s (it doubles what is 15 s at most, by
/// chance); the rest is for a busy machine.
const OLDEST_MS: u64 = 35_000;
/// cAdvisor stamps a sample when it has read all files of it, and the agent's own reading may be
/// up to a second older than the answer that it stands in.
const SLACK_MS: u64 = 2_000;
/// A float that went through nanoseconds instead of microseconds.
const ROUNDING: f64 = 1e-6;

const BUSY: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b6c3d52_1f7e_4c39_9d0b_6a1c8f2e4b71.slice/cri-containerd-1111111111111111111111111111111111111111111111111111111111111111.scope";
const LESS_BUSY: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b6c3d52_1f7e_4c39_9d0b_6a1c8f2e4b71.slice/cri-containerd-2222222222222222222222222222222222222222222222222222222222222222.scope";
const WRITING: &str = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod5a0f7c1e_83d2_4b6f_a7c4_2e9d10b8f365.slice/crio-3333333333333333333333333333333333333333333333333333333333333333.scope/container";
const IDLE: &str = "kubepods.slice/kubepods-podc4e19a60_7b25_4f83_8d1e_f03b6a5c9d27.slice/cri-containerd-4444444444444444444444444444444444444444444444444444444444444444.scope";
const ENDED: &str = "kubepods.slice/kubepods-podc4e19a60_7b25_4f83_8d1e_f03b6a5c9d27.slice/cri-containerd-5555555555555555555555555555555555555555555555555555555555555555.scope";
const BEGUN: &str = "kubepods.slice/kubepods-podc4e19a60_7b25_4f83_8d1e_f03b6a5c9d27.slice/cri-containerd-6666666666666666666666666666666666666666666666666666666666666666.scope";

/// An answer, and between which moments the server made it.
struct Scrape {
    began_ms: u64,
    ended_ms: u64,
    text: String,
    series: Vec<Series>,
}

impl Scrape {
    fn of(server: &Agent) -> Self {
        let began_ms = now_ms();
        let text = server.get("/metrics");
        let ended_ms = now_ms();
        let series = parse(&text);
        Self { began_ms, ended_ms, text, series }
    }

    /// A family's series by `id`: the root cgroup's, and those of the test's own.
    fn family(&self, name: &str, own: &OwnCgroup) -> BTreeMap<&str, &Series> {
        let of_family = self.series.iter().filter(|series| series.name == name);
        let by_id = of_family.map(|series| (series.labels["id"].as_str(), series));
        by_id.filter(|(id, _)| *id == "/" || id.starts_with(&own.id)).collect()
    }
}

#[test]
#[ignore = "needs root, cgroup2 and cAdvisor: tests/run builds it"]
fn cadvisor_agrees_on_names_ids_and_values() {
    let mut own = OwnCgroup::new("cadvisor");
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cadvisor-scratch");
    let cpu = BusyCpu::take();
    populate(&mut own, &cpu, &scratch);
    let cadvisor = start_cadvisor(&own.id);
    let mut command = in_own_mounts();
    command.arg(BINARY);
    // It has to find the mount by itself, past the host's own that is hidden below.
    let agent = Agent::start_by(command, &[]);

    let (ours, theirs) = watch_both(&agent, &cadvisor, &mut own);

    same_names(ours.last().unwrap(), theirs.last().unwrap());
    let mut agreement = Agreement::default();
    for scrape in &theirs {
        same_ids_and_values(&ours, scrape, &own, &mut agreement);
    }
    agreement.report();
    the_comparison_was_of_something(&ours, &theirs, &own);
    drop(own);
    let _ = fs::remove_file(scratch);
}

/// How close the two came.
#[derive(Default)]
struct Agreement {
    compared: usize,
    above_zero: usize,
    oldest_ms: u64,
    /// How far cAdvisor's pressure was behind the agent's of the same time, in seconds.
    furthest_behind: f64,
}

impl Agreement {
    /// Requires the agent's readings around the moment of cAdvisor's to enclose its value.
    fn enclose(&mut self, name: &str, id: &str, series: &Series, scrape: &Scrape, ours: &[Scrape]) {
        let read_ms = series.timestamp_ms.expect("cAdvisor says when it read");
        let age_ms = scrape.began_ms.saturating_sub(read_ms);
        assert!(age_ms <= OLDEST_MS, "{name} of {id} is {age_ms} ms old");
        let before = ours.iter().rfind(|ours| ours.ended_ms + SLACK_MS <= read_ms);
        let after = ours.iter().find(|ours| ours.began_ms >= read_ms + SLACK_MS);
        let value = |ours: Option<&Scrape>| value_of(&ours.unwrap().series, name, id).unwrap();
        let (before, after) = (value(before), value(after));
        assert!(
            before - ROUNDING <= series.value && series.value <= after + ROUNDING,
            "{name} of {id}: cAdvisor read {} between the agent's {before} and {after}",
            series.value
        );
        let at_once = ours.iter().find(|ours| ours.began_ms >= scrape.began_ms);
        self.compared += 1;
        self.above_zero += usize::from(series.value > 0.0);
        self.oldest_ms = self.oldest_ms.max(age_ms);
        if PRESSURE.contains(&name) {
            self.furthest_behind = self.furthest_behind.max(value(at_once) - series.value);
        }
    }

    #[allow(clippy::print_stderr, reason = "how close they came is worth reading")]
    fn report(&self) {
        let Self { compared, above_zero, oldest_ms, furthest_behind } = self;
        eprintln!(
            "{compared} values compared, {above_zero} of them above zero; cAdvisor's were up to \
             {oldest_ms} ms old, and their pressure up to {furthest_behind:.3} s behind the agent's"
        );
    }
}

/// Scrapes the agent every two seconds and, once cAdvisor's oldest sample must be from after the
/// first of these, both; meanwhile one container begins and one ends.
fn watch_both(agent: &Agent, cadvisor: &Agent, own: &mut OwnCgroup) -> (Vec<Scrape>, Vec<Scrape>) {
    let start = Instant::now();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..30u32 {
        sleep((Duration::from_secs(2) * round).saturating_sub(start.elapsed()));
        if round == 3 {
            own.remove(ENDED);
            own.make(BEGUN);
            own.spawn(BEGUN, "sleep 600");
        }
        if [20, 24, 28].contains(&round) {
            theirs.push(Scrape::of(cadvisor));
        }
        ours.push(Scrape::of(agent));
    }
    // cAdvisor may have read just now: whatever it was, this comes after.
    sleep(Duration::from_millis(SLACK_MS));
    ours.push(Scrape::of(agent));
    (ours, theirs)
}

/// The same cgroups in every family, with values that the agent's own vouch for.
fn same_ids_and_values(
    ours: &[Scrape],
    theirs: &Scrape,
    own: &OwnCgroup,
    agreement: &mut Agreement,
) {
    let at_once = ours.iter().find(|ours| ours.began_ms >= theirs.began_ms).unwrap();
    for name in PRESSURE.iter().chain(&CPU).chain(&STEADY) {
        let (ours_by_id, theirs_by_id) = (at_once.family(name, own), theirs.family(name, own));
        let ids: BTreeSet<&&str> = ours_by_id.keys().collect();
        assert_eq!(ids, theirs_by_id.keys().collect(), "{name}");
        for (id, series) in theirs_by_id {
            if !STEADY.contains(name) {
                agreement.enclose(name, id, series, theirs, ours);
            } else if id != "/" && !id.ends_with(WRITING) {
                assert_eq!(ours_by_id[id].value, series.value, "{name} of {id}");
            }
        }
    }
}

/// HELP, TYPE and labels of all that both export.
fn same_names(ours: &Scrape, theirs: &Scrape) {
    let (ours, theirs) = (families(&ours.text), families(&theirs.text));
    let common: Vec<&String> = ours.keys().filter(|name| theirs.contains_key(*name)).collect();
    for name in &common {
        assert_eq!(ours[*name], theirs[*name], "{name}");
    }
    for name in PRESSURE.iter().chain(&CPU) {
        assert!(common.iter().any(|common| common == name), "{name} is not exported by both");
    }
}

/// All zeros, or values that stand still, would agree as well. cAdvisor may keep a sample longer
/// than its scrapes here are apart, so its last is compared with the agent's first.
fn the_comparison_was_of_something(ours: &[Scrape], theirs: &[Scrape], own: &OwnCgroup) {
    let waited = |scrape: &Scrape| {
        value_of(&scrape.series, PRESSURE[1], &format!("{}/{BUSY}", own.id)).unwrap()
    };
    let (first, last) = (waited(ours.first().unwrap()), waited(theirs.last().unwrap()));
    assert!(last > first + 1.0, "two loops on one CPU wait: {first}, then {last}");
}

/// Makes the cgroups of pods, with something to do in some.
fn populate(own: &mut OwnCgroup, cpu: &BusyCpu, scratch: &Path) {
    for cgroup in [BUSY, LESS_BUSY, WRITING, IDLE, ENDED] {
        own.make(cgroup);
    }
    let busy = cpu.spin();
    own.spawn(BUSY, &busy);
    own.spawn(BUSY, &busy);
    own.spawn(LESS_BUSY, &busy);
    own.spawn(IDLE, "sleep 600");
    let file = scratch.display();
    let copy = format!("dd if=/dev/zero of={file} bs=64k count=16 conv=fsync 2>/dev/null");
    own.spawn(WRITING, &format!("sh -c 'while {copy}; do sleep 0.1; done'"));
}

fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since_epoch.as_millis()).unwrap()
}
