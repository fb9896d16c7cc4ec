//! When files are read: at most once a second for each cgroup, whoever asks, and a refresh never
//! shortens a tick's window.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use psi_agent::clock::Moment;
use psi_agent::kernel::cgroup_dir::CgroupRoot;
use psi_agent::kernel::pressure::Pressure;
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::rates::{PressureRates, Ratio, rates_between};
use psi_agent::reader::{Groups, Reader, Selection};
use psi_agent::sample::{BystanderSample, CgroupSample, CpuRoom, Depth, PressureReading, Sample};
use psi_agent::sampler::Sampler;

const EVERYTHING: Selection =
    Selection { everything: true, root: true, pods: true, containers: true, vms_only: false };

/// A container's cgroup: ticks read no others.
const VM: &str = "/kubepods/pod1/1111111111111111111111111111111111111111111111111111111111111111";

/// A node of plain files, whose totals the test sets.
struct FakeNode(PathBuf);

impl FakeNode {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("proc/pressure")).unwrap();
        fs::create_dir_all(path.join(format!("cgroup{VM}"))).unwrap();
        let node = Self(path);
        for resource in ["cpu", "memory", "io"] {
            node.set(&format!("proc/pressure/{resource}"), 0);
            node.set_vm(resource, 0);
        }
        node
    }

    fn set_vm(&self, resource: &str, total: u64) {
        self.set(&format!("cgroup{VM}/{resource}.pressure"), total);
    }

    fn set(&self, file: &str, total: u64) {
        let [some, full] = ["some", "full"]
            .map(|what| format!("{what} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"));
        let text = some + &full;
        fs::write(self.0.join(file), text).unwrap();
    }

    fn reader(&self) -> Reader {
        self.reader_of(EVERYTHING)
    }

    fn reader_of(&self, selection: Selection) -> Reader {
        let proc = ProcRoot::open(&self.0.join("proc")).unwrap();
        let root = CgroupRoot::open(&self.0.join("cgroup")).unwrap();
        let whole_node = !root.is_namespaced();
        Reader::new(proc, root, whole_node, selection, Groups::default(), 100)
    }

    /// For how long the node's tasks waited for a CPU.
    fn set_run_delay(&self, delay: Duration) {
        let nanos = delay.as_nanos();
        let text = format!("version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 0 {nanos} 0\n");
        fs::write(self.0.join("proc/schedstat"), text).unwrap();
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Totals of cpu and memory of the VM's cgroup.
fn totals(sample: &Sample) -> (u64, u64) {
    let cgroups = sample.cgroups.iter().map(|cgroup| (&cgroup.cgroup, &cgroup.pressure));
    let members = sample.members.iter().flatten();
    let mut all = cgroups.chain(members.map(|member| (&member.cgroup, &member.pressure)));
    let pressures = all.find(|(cgroup, _)| &*cgroup.path == VM).unwrap().1.pressures;
    (pressures.cpu.unwrap().some_us.unwrap(), pressures.memory.unwrap().some_us.unwrap())
}

fn moment(start: Instant, millis: u64) -> Moment {
    Moment { at: start + Duration::from_millis(millis), unix_ms: millis }
}

#[test]
fn a_cgroup_is_read_at_most_once_a_second_whatever_the_reason() {
    let node = FakeNode::new("once-a-second");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut read = |millis, depth| totals(&reader.sample(moment(start, millis), depth, None));
    assert_eq!(read(0, Depth::Exported), (0, 0));
    node.set_vm("cpu", 5);
    assert_eq!(read(500, Depth::Exported), (0, 0));
    assert_eq!(read(999, Depth::Score), (0, 0));
    assert_eq!(read(1000, Depth::Score), (5, 0));
    node.set_vm("cpu", 9);
    assert_eq!(read(1900, Depth::Exported), (5, 0));
    assert_eq!(read(2000, Depth::Everything), (9, 0));
}

#[test]
fn memory_is_read_only_after_the_nodes_own_moved() {
    let node = FakeNode::new("standing-still");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut read =
        |seconds: u64, depth| totals(&reader.sample(moment(start, seconds * 1000), depth, None));
    assert_eq!(read(0, Depth::Score), (0, 0));
    node.set_vm("cpu", 1);
    node.set_vm("memory", 2);
    assert_eq!(read(5, Depth::Score), (1, 0));
    node.set("proc/pressure/memory", 2);
    assert_eq!(read(10, Depth::Score), (1, 2));
    node.set_vm("memory", 3);
    assert_eq!(read(15, Depth::Score), (1, 2));
    assert_eq!(read(20, Depth::Exported), (1, 2));
    node.set("proc/pressure/memory", 3);
    assert_eq!(read(25, Depth::Exported), (1, 3));
}

#[test]
fn people_see_who_uses_the_node_whatever_is_exported() {
    let node = FakeNode::new("users");
    for cgroup in ["system.slice/sshd.service", "user.slice"] {
        fs::create_dir_all(node.0.join("cgroup").join(cgroup)).unwrap();
    }
    let vms = Selection { everything: false, containers: false, ..EVERYTHING };
    let mut reader = node.reader_of(vms);
    let start = Instant::now();
    let mut read = |seconds: u64, depth| {
        let sample = reader.sample(moment(start, seconds * 1000), depth, None);
        let paths = |cgroups: &[CgroupSample]| -> Vec<String> {
            cgroups.iter().map(|cgroup| cgroup.cgroup.path.to_string()).collect()
        };
        assert_eq!(sample.in_scope, sample.cgroups.len());
        let users = sample.users.len();
        (paths(&sample.cgroups), paths(&sample.beside), users)
    };
    let exported = vec!["/".to_owned(), "/kubepods/pod1".into()];
    let beside = vec![VM.to_owned(), "/system.slice".into(), "/user.slice".into()];
    assert_eq!(read(0, Depth::Exported), (exported.clone(), vec![], 0));
    assert_eq!(read(5, Depth::Everything), (exported, beside, 3));
}

#[test]
fn a_path_that_was_used_again_has_no_rate_across_its_two_lives() {
    let node = FakeNode::new("two-lives");
    let mut reader = node.reader();
    let start = Instant::now();
    let before = reader.sample(moment(start, 0), Depth::Score, None);
    let vm = node.0.join(format!("cgroup{VM}"));
    fs::rename(&vm, node.0.join("cgroup/old")).unwrap();
    fs::create_dir(&vm).unwrap();
    node.set_vm("cpu", 100);
    let after = reader.sample(moment(start, 5000), Depth::Score, None);
    let rates = rates_between(&before, &after);
    let cgroups = |sample: &Sample| -> Vec<_> {
        sample.members.iter().flatten().map(|member| member.cgroup.id).collect()
    };
    assert_eq!((cgroups(&before).len(), cgroups(&after).len()), (1, 1));
    assert_ne!(cgroups(&before), cgroups(&after));
    assert_eq!(rates.members.unwrap()[0].pressure, PressureRates::default());
}

#[test]
fn refreshes_do_not_shorten_the_window_of_a_tick() {
    let node = FakeNode::new("windows");
    let tick = Duration::from_millis(1200);
    let mut sampler =
        Sampler::start(node.reader(), tokio::sync::watch::channel(None).1, tick).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        sampler.next_tick().await.unwrap();
        let asking = sampler.clone();
        let asked = tokio::spawn(async move {
            loop {
                asking.refresh(Depth::Exported).await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        for _ in 0..3 {
            let ticked = sampler.next_tick().await.unwrap();
            let window = ticked.rates.as_ref().unwrap().window;
            assert!(window >= tick - Duration::from_millis(100), "{window:?}");
        }
        asked.abort();
    });
}

#[test]
fn who_waits_is_looked_at_at_every_tick_and_others_every_half_minute() {
    let node = FakeNode::new("attention");
    let mut reader = node.reader();
    let start = Instant::now();
    // The time of the last reading of `cpu.stat`, at each tick.
    let mut read_at = |seconds: u64| {
        let stat = format!("usage_usec {seconds}\n");
        fs::write(node.0.join(format!("cgroup{VM}/cpu.stat")), stat).unwrap();
        if seconds == 35 {
            node.set_vm("cpu", 50_000);
        }
        let sample = reader.sample(moment(start, seconds * 1000), Depth::Score, None);
        sample.members.unwrap()[0].cpu.last.unwrap().usage_us.unwrap()
    };
    let ticks = (0..=100).step_by(5);
    let read: Vec<u64> = ticks.map(|seconds| seconds - read_at(seconds)).collect();
    let (calm, waits) = ([0, 0, 5, 10, 15, 20, 25], [0; 12]);
    assert_eq!(read, [&calm[..], &waits, &[5, 10]].concat());
}

#[test]
fn what_a_limit_took_is_read_again_only_after_somebody_waited() {
    let node = FakeNode::new("limits");
    let write = |file: &str, text: &str| {
        fs::write(node.0.join(format!("cgroup{VM}/{file}")), text).unwrap();
    };
    write("cpu.stat", "usage_usec 1000\nnr_periods 0\nnr_throttled 0\nthrottled_usec 10\n");
    write("memory.events.local", "low 0\nhigh 1\nmax 2\noom 0\noom_kill 0\n");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut read = |seconds: u64| {
        let sample = reader.sample(moment(start, seconds * 1000), Depth::Score, None);
        let member = &sample.members.unwrap()[0];
        let cpu = member.cpu.last.unwrap();
        let throttled = cpu.throttled.unwrap().container_us;
        (cpu.usage_us, throttled, member.memory.limit_hits, member.io.has_max)
    };
    assert_eq!(read(0), (Some(1000), 10, Some(3), Some(false)));
    // Nobody waited: no limit's files are opened.
    write("cpu.stat", "usage_usec 2000\nnr_periods 1\nnr_throttled 1\nthrottled_usec 20\n");
    write("memory.events.local", "low 0\nhigh 1\nmax 7\noom 0\noom_kill 0\n");
    write("io.max", "8:0 rbps=1 wbps=max riops=max wiops=max\n");
    node.set_vm("cpu", 999);
    assert_eq!(read(5), (Some(2000), 10, Some(3), Some(false)));
    node.set_vm("cpu", 50_999);
    assert_eq!(read(10), (Some(2000), 20, Some(3), Some(false)));
    for resource in ["memory", "io"] {
        node.set(&format!("proc/pressure/{resource}"), 5);
        node.set_vm(resource, 5);
    }
    assert_eq!(read(15), (Some(2000), 20, Some(8), Some(true)));
}

#[test]
fn whose_doing_a_wait_is_gets_read_where_somebody_waits() {
    let node = FakeNode::new("whose-doing");
    let write = |file: &str, text: &str| fs::write(node.0.join(file), text).unwrap();
    let vm = |file: &str| format!("cgroup{VM}/{file}");
    let limit_hits = |hits| format!("low 0\nhigh 0\nmax {hits}\noom 0\noom_kill 0\n");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut tick = |number: u64| {
        // Memory and disk are waited for all the time from the first tick on.
        for resource in ["memory", "io"] {
            node.set(&format!("proc/pressure/{resource}"), number * 5_000_000);
            node.set_vm(resource, number * 5_000_000);
        }
        write("proc/vmstat", "pgscan_kswapd 0\npgscan_direct 0\n");
        write("cgroup/kubepods/memory.current", "4000\n");
        write("cgroup/kubepods/pod1/memory.current", "1000\n");
        write("proc/diskstats", &format!("8 0 sda {} 0 0 0 0 0 0 0 0 0 0\n", number * 400));
        write(&vm("io.stat"), &format!("8:0 rbytes=1 wbytes=1 rios={} wios=0\n", number * 100));
        write(
            &vm("memory.stat"),
            &format!(
                "pgscan_kswapd {number}\npgscan_direct {}\nworkingset_refault_anon 0\n\
                 workingset_restore_anon 0\nworkingset_refault_file {number}\n",
                number * 3
            ),
        );
        reader.sample(moment(start, number * 5000), Depth::Score, None)
    };
    write(&vm("memory.events.local"), &limit_hits(1));
    write("cgroup/kubepods/memory.events.local", &limit_hits(7));
    let first = tick(1);
    let member = &first.members.as_ref().unwrap()[0];
    assert_eq!((member.memory.limit_hits, member.memory.scanned), (Some(1), None));
    assert_eq!((first.node.pods_limit_hits, &member.io.operations), (Some(7), &None));

    write(&vm("memory.events.local"), &limit_hits(2));
    let second = tick(2);
    let rates = rates_between(&first, &second);
    let member = &rates.members.unwrap()[0];
    assert_eq!((member.memory.own_limit, member.memory.scanned_for_node), (Some(true), None));
    assert_eq!((rates.reclaims, member.io.others), (Some(false), None));

    write("cgroup/kubepods/memory.events.local", &limit_hits(8));
    let third = tick(3);
    let rates = rates_between(&second, &third);
    let member = &rates.members.unwrap()[0];
    let share = |ratio: Option<Ratio>| ratio.map(Ratio::get);
    assert_eq!(share(member.memory.scanned_for_node), Some(0.25));
    assert_eq!((rates.reclaims, share(member.io.others)), (Some(true), Some(0.75)));
    assert_eq!(share(member.io.displaced), None);

    // Its pod has a quarter of all pods' memory.
    write("cgroup/kubepods/memory.events.local", &limit_hits(9));
    let rates = rates_between(&third, &tick(4));
    assert_eq!(share(rates.members.unwrap()[0].io.displaced), Some(0.75));
}

#[test]
fn limits_are_read_every_half_minute_and_a_pods_throttling_only_where_it_has_one() {
    let node = FakeNode::new("rooms");
    let pod = node.0.join("cgroup/kubepods/pod1");
    fs::write(pod.join("cpu.max"), "max 100000\n").unwrap();
    fs::write(pod.join("cpu.stat"), "throttled_usec 700000\n").unwrap();
    let mut reader = node.reader();
    let start = Instant::now();
    let mut tick = |seconds: u64| {
        node.set_vm("cpu", seconds * 100_000);
        reader.sample(moment(start, seconds * 1000), Depth::Score, None)
    };
    let of_pod = |sample: &Sample| {
        let cpu = sample.members.as_ref().unwrap()[0].cpu;
        let quota = cpu.room.unwrap().pod_max.unwrap().cpus();
        (quota, cpu.last.unwrap().throttled.unwrap().pod_us)
    };
    assert_eq!(of_pod(&tick(0)), (None, None));
    fs::write(pod.join("cpu.max"), "50000 100000\n").unwrap();
    assert_eq!(of_pod(&tick(5)), (None, None));
    let mut before = tick(10);
    for seconds in [15, 20, 25] {
        before = tick(seconds);
    }
    let limited = tick(30);
    assert_eq!(of_pod(&limited), (Some(0.5), Some(700_000)));
    // What it took long before nobody looked is not told of now.
    let throttled = |before, after| rates_between(before, after).members.unwrap()[0].cpu.throttled;
    assert_eq!(throttled(&before, &limited), Some(0.0));
    fs::write(pod.join("cpu.stat"), "throttled_usec 5700000\n").unwrap();
    assert_eq!(throttled(&limited, &tick(35)), Some(1.0));
}

#[test]
fn those_beside_the_vms_are_read_while_they_wait_or_the_node_waits_for_more() {
    let node = FakeNode::new("bystanders");
    let system = |file: &str| node.0.join(format!("cgroup/system.slice/{file}"));
    fs::create_dir_all(system("a.service")).unwrap();
    let set_system = |total| {
        for resource in ["cpu", "memory", "io"] {
            node.set(&format!("cgroup/system.slice/{resource}.pressure"), total);
        }
    };
    set_system(0);
    fs::write(system("cpu.stat"), "usage_usec 1000\n").unwrap();
    fs::write(system("pids.current"), "7\n").unwrap();
    fs::write(system("cpuset.cpus.effective"), "0-3\n").unwrap();
    let mut reader = node.reader();
    let start = Instant::now();
    let stalled = |reading: PressureReading| reading.pressures.cpu.unwrap().some_us.unwrap();
    let mut bystander = |seconds: u64| {
        let sample = reader.sample(moment(start, seconds * 1000), Depth::Score, None);
        // `/system.slice` alone: pods stand below `/kubepods`.
        let [one] = <[BystanderSample; 1]>::try_from(sample.bystanders?).unwrap();
        let used = one.cpu.last.and_then(|counters| counters.usage_us);
        Some((one.before.map(stalled), stalled(one.pressure), used, one.cpu.room))
    };
    // Without the node's total there is nothing to explain.
    assert_eq!(bystander(0), None);
    node.set_run_delay(Duration::ZERO);
    assert_eq!(bystander(5), Some((None, 0, None, None)));
    set_system(49_000);
    assert_eq!(bystander(10), Some((Some(0), 49_000, None, None)));
    set_system(200_000);
    assert_eq!(bystander(15), Some((Some(0), 49_000, None, None)));
    // Somebody waits: it was this one, and nobody knows since when.
    node.set_run_delay(Duration::from_secs(1));
    let room = Some(CpuRoom { cpus: Some(4), tasks: Some(7), ..CpuRoom::default() });
    assert_eq!(bystander(20), Some((None, 200_000, Some(1000), room)));
    assert_eq!(bystander(25), Some((Some(200_000), 200_000, Some(1000), room)));
    set_system(201_000);
    assert_eq!(bystander(79), Some((Some(200_000), 201_000, Some(1000), room)));
    assert_eq!(bystander(80), Some((Some(200_000), 201_000, None, None)));
}

#[test]
fn a_scrape_takes_over_what_a_tick_read_within_the_second() {
    let node = FakeNode::new("taken-over");
    let set_system = |total| {
        for resource in ["cpu", "memory", "io"] {
            node.set(&format!("cgroup/system.slice/{resource}.pressure"), total);
        }
    };
    fs::create_dir_all(node.0.join("cgroup/system.slice")).unwrap();
    set_system(1);
    node.set_run_delay(Duration::ZERO);
    let mut reader = node.reader();
    let start = Instant::now();
    reader.sample(moment(start, 0), Depth::Score, None);
    // Of a bystander a tick reads CPU alone.
    set_system(2);
    let scraped = reader.sample(moment(start, 500), Depth::Exported, None);
    let path = |sample: &CgroupSample| &*sample.cgroup.path == "/system.slice";
    let scraped = scraped.cgroups.into_iter().find(path).unwrap().pressure.pressures;
    let some = |pressure: Option<Pressure>| pressure.unwrap().some_us.unwrap();
    assert_eq!((some(scraped.cpu), some(scraped.memory)), (1, 2));
}

#[test]
fn the_nodes_total_of_waiting_counts_for_a_score_and_by_the_second() {
    let node = FakeNode::new("run-delay");
    let mut reader = node.reader();
    let start = Instant::now();
    let mut read = |seconds: u64, depth| reader.sample(moment(start, seconds * 1000), depth, None);
    node.set_run_delay(Duration::from_secs(1));
    let before = read(0, Depth::Score);
    node.set_run_delay(Duration::from_secs(11));
    assert_eq!(read(2, Depth::Exported).node.run_delay_ns, None);
    let after = read(5, Depth::Score);
    let run_delay = |before, after| rates_between(before, after).run_delay;
    assert_eq!(run_delay(&before, &after), Some(2.0));
    // A CPU that went offline takes its delay along.
    assert_eq!(run_delay(&after, &before), None);
    // Of a part of the host nothing is told by the host's total.
    fs::write(node.0.join("cgroup/cgroup.events"), "populated 1\n").unwrap();
    let part = node.reader().sample(moment(start, 0), Depth::Score, None);
    assert_eq!(part.node.run_delay_ns, None);
}
