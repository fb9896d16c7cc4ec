//! When the collector reads which file: pressure at most once a second for each cgroup by either pass,
//! costlier files only where a container waits; a scrape never shortens a tick's window.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use psi_agent::clock::Moment;
use psi_agent::collector::{Collector, Groups, Handles, Selection};
use psi_agent::kernel::cgroup_dir::CgroupRoot;
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::rates::{PressureRates, Ratio, tick_rates};
use psi_agent::sample::{
    CgroupSample, CpuLimits, CpuSource, Detail, OtherSample, PressureReading, Pressures,
    ScrapeSample, TickSample,
};
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

    fn collector(&self) -> Collector {
        self.collector_of(EVERYTHING)
    }

    fn collector_of(&self, selection: Selection) -> Collector {
        let proc = ProcRoot::open(&self.0.join("proc")).unwrap();
        let root = CgroupRoot::open(&self.0.join("cgroup")).unwrap();
        let handles = Handles { cgroups: 100, processes: 0 };
        Collector::new(proc, root, selection, Groups::default(), CpuSource::Psi, handles)
    }

    /// Run delay of all tasks of the node.
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
fn totals(pressures: &Pressures) -> (u64, u64) {
    (pressures.cpu.unwrap().some_us.unwrap(), pressures.memory.unwrap().some_us.unwrap())
}

fn ticked(sample: &TickSample) -> (u64, u64) {
    totals(&sample.containers.as_ref().unwrap()[0].pressure.pressures)
}

fn scraped(sample: &ScrapeSample) -> (u64, u64) {
    let vm = sample.cgroups.iter().find(|cgroup| &*cgroup.cgroup.path == VM).unwrap();
    totals(&vm.pressure.pressures)
}

fn moment(start: Instant, millis: u64) -> Moment {
    Moment { at: start + Duration::from_millis(millis), unix_ms: millis }
}

#[test]
fn a_pressure_file_is_read_at_most_once_a_second_by_either_pass() {
    let node = FakeNode::new("once-a-second");
    let mut collector = node.collector();
    let start = Instant::now();
    let scrape = |collector: &mut Collector, millis| {
        scraped(&collector.scrape(moment(start, millis), Detail::Exported, None))
    };
    let tick =
        |collector: &mut Collector, millis| ticked(&collector.tick(moment(start, millis), None));
    assert_eq!(scrape(&mut collector, 0), (0, 0));
    node.set_vm("cpu", 5);
    assert_eq!(scrape(&mut collector, 500), (0, 0));
    assert_eq!(tick(&mut collector, 999), (0, 0));
    assert_eq!(tick(&mut collector, 1000), (5, 0));
    node.set_vm("cpu", 9);
    assert_eq!(scrape(&mut collector, 1900), (5, 0));
    assert_eq!(scrape(&mut collector, 2000), (9, 0));
}

#[test]
fn memory_pressure_is_read_only_after_the_nodes_own_moved() {
    let node = FakeNode::new("standing-still");
    let mut collector = node.collector();
    let start = Instant::now();
    let at = |seconds: u64| moment(start, seconds * 1000);
    assert_eq!(ticked(&collector.tick(at(0), None)), (0, 0));
    node.set_vm("cpu", 1);
    node.set_vm("memory", 2);
    assert_eq!(ticked(&collector.tick(at(5), None)), (1, 0));
    node.set("proc/pressure/memory", 2);
    assert_eq!(ticked(&collector.tick(at(10), None)), (1, 2));
    node.set_vm("memory", 3);
    assert_eq!(ticked(&collector.tick(at(15), None)), (1, 2));
    assert_eq!(scraped(&collector.scrape(at(20), Detail::Exported, None)), (1, 2));
    node.set("proc/pressure/memory", 3);
    assert_eq!(scraped(&collector.scrape(at(25), Detail::Exported, None)), (1, 3));
}

#[test]
fn the_page_shows_all_workloads_whatever_is_exported() {
    let node = FakeNode::new("users");
    for cgroup in ["system.slice/sshd.service", "user.slice"] {
        fs::create_dir_all(node.0.join("cgroup").join(cgroup)).unwrap();
    }
    let vms = Selection { everything: false, containers: false, ..EVERYTHING };
    let mut collector = node.collector_of(vms);
    let start = Instant::now();
    let mut read = |seconds: u64, detail| {
        let sample = collector.scrape(moment(start, seconds * 1000), detail, None);
        let paths = |cgroups: &[CgroupSample]| -> Vec<String> {
            cgroups.iter().map(|cgroup| cgroup.cgroup.path.to_string()).collect()
        };
        assert_eq!(sample.report.in_scope, sample.cgroups.len());
        let workloads = sample.workloads.len();
        (paths(&sample.cgroups), paths(&sample.beside), workloads)
    };
    let exported = vec!["/".to_owned(), "/kubepods/pod1".into()];
    let beside = vec![VM.to_owned(), "/system.slice".into(), "/user.slice".into()];
    assert_eq!(read(0, Detail::Exported), (exported.clone(), vec![], 0));
    assert_eq!(read(5, Detail::Everything), (exported, beside, 3));
}

#[test]
fn a_path_that_was_used_again_has_no_rate_across_its_two_lives() {
    let node = FakeNode::new("two-lives");
    let mut collector = node.collector();
    let start = Instant::now();
    let before = collector.tick(moment(start, 0), None);
    let vm = node.0.join(format!("cgroup{VM}"));
    fs::rename(&vm, node.0.join("cgroup/old")).unwrap();
    fs::create_dir(&vm).unwrap();
    node.set_vm("cpu", 100);
    let after = collector.tick(moment(start, 5000), None);
    let rates = tick_rates(&before, &after);
    let cgroups = |sample: &TickSample| -> Vec<_> {
        sample.containers.iter().flatten().map(|container| container.cgroup.id).collect()
    };
    assert_eq!((cgroups(&before).len(), cgroups(&after).len()), (1, 1));
    assert_ne!(cgroups(&before), cgroups(&after));
    assert_eq!(rates.containers.unwrap()[0].pressure, PressureRates::default());
}

#[test]
fn scrapes_do_not_shorten_the_window_of_a_tick() {
    let node = FakeNode::new("windows");
    let tick = Duration::from_millis(1200);
    let mut sampler =
        Sampler::start(node.collector(), tokio::sync::watch::channel(None).1, tick).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        sampler.next_tick().await.unwrap();
        let asking = sampler.clone();
        let asked = tokio::spawn(async move {
            loop {
                asking.scrape(Detail::Exported).await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        for _ in 0..3 {
            let ticked = sampler.next_tick().await.unwrap();
            let window = ticked.rates.as_ref().unwrap().node.window;
            assert!(window >= tick - Duration::from_millis(100), "{window:?}");
        }
        asked.abort();
    });
}

#[test]
fn cpu_stat_is_read_at_every_tick_of_a_container_that_waits_and_else_every_half_minute() {
    let node = FakeNode::new("attention");
    let mut collector = node.collector();
    let start = Instant::now();
    // The time of the last reading of `cpu.stat`, at each tick.
    let mut read_at = |seconds: u64| {
        let stat = format!("usage_usec {seconds}\n");
        fs::write(node.0.join(format!("cgroup{VM}/cpu.stat")), stat).unwrap();
        if seconds == 35 {
            node.set_vm("cpu", 50_000);
        }
        let sample = collector.tick(moment(start, seconds * 1000), None);
        sample.containers.unwrap()[0].cpu.last.unwrap().usage_us.unwrap()
    };
    let ages: Vec<u64> = (0..=100).step_by(5).map(|seconds| seconds - read_at(seconds)).collect();
    let (calm, waits) = ([0, 5, 10, 15, 20, 25, 0], [0; 12]);
    assert_eq!(ages, [&calm[..], &waits, &[5, 10]].concat());
}

#[test]
fn limits_have_their_effects_read_only_after_the_container_waited() {
    let node = FakeNode::new("limits");
    let write = |file: &str, text: &str| {
        fs::write(node.0.join(format!("cgroup{VM}/{file}")), text).unwrap();
    };
    write("cpu.max", "50000 100000\n");
    write("cpu.stat", "usage_usec 1000\nnr_periods 0\nnr_throttled 0\nthrottled_usec 10\n");
    write("memory.events.local", "low 0\nhigh 1\nmax 2\noom 0\noom_kill 0\n");
    let mut collector = node.collector();
    let start = Instant::now();
    let mut read = |seconds: u64| {
        let sample = collector.tick(moment(start, seconds * 1000), None);
        let container = &sample.containers.unwrap()[0];
        let cpu = container.cpu.last.unwrap();
        let throttled = cpu.throttled.unwrap().container_us;
        (cpu.usage_us, throttled, container.memory.limit_hits, container.io.has_max)
    };
    assert_eq!(read(0), (Some(1000), 10, Some(3), Some(false)));
    // The container did not wait: no file of a limit is opened.
    write("cpu.stat", "usage_usec 2000\nnr_periods 1\nnr_throttled 1\nthrottled_usec 20\n");
    write("memory.events.local", "low 0\nhigh 1\nmax 7\noom 0\noom_kill 0\n");
    write("io.max", "8:0 rbps=1 wbps=max riops=max wiops=max\n");
    node.set_vm("cpu", 999);
    assert_eq!(read(5), (Some(1000), 10, Some(3), Some(false)));
    node.set_vm("cpu", 50_999);
    assert_eq!(read(10), (Some(2000), 20, Some(3), Some(false)));
    for resource in ["memory", "io"] {
        node.set(&format!("proc/pressure/{resource}"), 5);
        node.set_vm(resource, 5);
    }
    assert_eq!(read(15), (Some(2000), 20, Some(8), Some(true)));
}

#[test]
fn memory_in_use_is_read_while_tasks_of_the_node_wait_for_memory() {
    let node = FakeNode::new("memory-current");
    fs::write(node.0.join(format!("cgroup{VM}/memory.current")), "4096\n").unwrap();
    let mut collector = node.collector();
    let start = Instant::now();
    let mut read = |seconds: u64| {
        let sample = collector.tick(moment(start, seconds * 1000), None);
        sample.containers.unwrap()[0].memory.current
    };
    assert_eq!((read(0), read(5)), (Some(4096), None));
    node.set("proc/pressure/memory", 5);
    assert_eq!((read(10), read(15)), (Some(4096), None));
}

#[test]
fn causes_of_a_wait_are_read_where_a_container_waits() {
    let node = FakeNode::new("whose-doing");
    let write = |file: &str, text: &str| fs::write(node.0.join(file), text).unwrap();
    let vm = |file: &str| format!("cgroup{VM}/{file}");
    let limit_hits = |hits| format!("low 0\nhigh 0\nmax {hits}\noom 0\noom_kill 0\n");
    let mut collector = node.collector();
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
        collector.tick(moment(start, number * 5000), None)
    };
    write(&vm("memory.events.local"), &limit_hits(1));
    write("cgroup/kubepods/memory.events.local", &limit_hits(7));
    let first = tick(1);
    let member = &first.containers.as_ref().unwrap()[0];
    assert_eq!((member.memory.limit_hits, member.memory.scanned), (Some(1), None));
    assert_eq!((first.pods.limit_hits, &member.io.operations), (Some(7), &None));

    write(&vm("memory.events.local"), &limit_hits(2));
    let second = tick(2);
    let rates = tick_rates(&first, &second);
    let member = &rates.containers.unwrap()[0];
    assert_eq!((member.memory.own_limit, member.memory.scanned_for_node), (Some(true), None));
    assert_eq!((rates.reclaims, member.io.others), (Some(false), None));

    write("cgroup/kubepods/memory.events.local", &limit_hits(8));
    let third = tick(3);
    let rates = tick_rates(&second, &third);
    let member = &rates.containers.unwrap()[0];
    let share = |ratio: Option<Ratio>| ratio.map(Ratio::get);
    assert_eq!(share(member.memory.scanned_for_node), Some(0.25));
    assert_eq!((rates.reclaims, share(member.io.others)), (Some(true), Some(0.75)));
    assert_eq!(share(member.io.displaced), None);

    // Its pod has a quarter of all pods' memory.
    write("cgroup/kubepods/memory.events.local", &limit_hits(9));
    let rates = tick_rates(&third, &tick(4));
    assert_eq!(share(rates.containers.unwrap()[0].io.displaced), Some(0.75));
}

#[test]
fn limits_are_read_every_half_minute_and_throttling_of_a_pod_only_where_it_has_a_quota() {
    let node = FakeNode::new("rooms");
    let pod = node.0.join("cgroup/kubepods/pod1");
    fs::write(pod.join("cpu.max"), "max 100000\n").unwrap();
    fs::write(pod.join("cpu.stat"), "throttled_usec 700000\n").unwrap();
    let mut collector = node.collector();
    let start = Instant::now();
    let mut tick = |seconds: u64| {
        node.set_vm("cpu", seconds * 100_000);
        collector.tick(moment(start, seconds * 1000), None)
    };
    let of_pod = |sample: &TickSample| {
        let cpu = sample.containers.as_ref().unwrap()[0].cpu;
        let quota = cpu.limits.unwrap().pod_max.unwrap().cpus();
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
    // Throttling from before the quota was known is not of this window.
    let throttled = |before, after| tick_rates(before, after).containers.unwrap()[0].cpu.throttled;
    assert_eq!(throttled(&before, &limited), Some(0.0));
    fs::write(pod.join("cpu.stat"), "throttled_usec 5700000\n").unwrap();
    assert_eq!(throttled(&limited, &tick(35)), Some(1.0));
}

/// A node with system services beside its VM.
fn with_system_services(name: &str) -> (FakeNode, impl Fn(&FakeNode, u64)) {
    let node = FakeNode::new(name);
    fs::create_dir_all(node.0.join("cgroup/system.slice/a.service")).unwrap();
    let set_system = |node: &FakeNode, total| {
        for resource in ["cpu", "memory", "io"] {
            node.set(&format!("cgroup/system.slice/{resource}.pressure"), total);
        }
    };
    set_system(&node, 0);
    (node, set_system)
}

#[test]
fn other_workloads_are_read_while_a_vm_waits() {
    let (node, set_system) = with_system_services("others");
    let system = |file: &str| node.0.join(format!("cgroup/system.slice/{file}"));
    fs::write(system("cpu.stat"), "usage_usec 1000\n").unwrap();
    fs::write(system("pids.current"), "7\n").unwrap();
    fs::write(system("cpuset.cpus.effective"), "0-3\n").unwrap();
    let mut collector = node.collector();
    let start = Instant::now();
    let stalled = |reading: PressureReading| reading.pressures.cpu.unwrap().some_us.unwrap();
    let mut other = |seconds: u64| {
        let sample = collector.tick(moment(start, seconds * 1000), None);
        // `/system.slice` alone: pods are below `/kubepods`.
        let [one] = <[OtherSample; 1]>::try_from(sample.others?).unwrap();
        let used = one.cpu.last.and_then(|counters| counters.usage_us);
        Some((stalled(one.pressure), used, one.cpu.limits))
    };
    node.set_run_delay(Duration::ZERO);
    assert_eq!((other(0), other(5)), (None, None));
    node.set_vm("cpu", 1_000_000);
    set_system(&node, 49_000);
    assert_eq!(other(10), Some((49_000, None, None)));
    set_system(&node, 200_000);
    let limits = Some(CpuLimits { cpus: Some(4), tasks: Some(7), ..CpuLimits::default() });
    assert_eq!(other(15), Some((200_000, Some(1000), limits)));
    // Without the node's run delay there is nothing to share out.
    fs::remove_file(node.0.join("proc/schedstat")).unwrap();
    assert_eq!(other(20), None);
    node.set_run_delay(Duration::ZERO);
    assert_eq!(other(65), Some((200_000, Some(1000), limits)));
    assert_eq!(other(70), None, "the VM did not wait within the last minute");
}

#[test]
fn a_scrape_takes_over_what_a_tick_read_within_the_second() {
    let (node, set_system) = with_system_services("taken-over");
    node.set_run_delay(Duration::ZERO);
    let mut collector = node.collector();
    let start = Instant::now();
    collector.tick(moment(start, 0), None);
    node.set_vm("cpu", 1_000_000);
    set_system(&node, 1);
    collector.tick(moment(start, 5000), None);
    // Of another workload a tick reads CPU alone.
    set_system(&node, 2);
    let scraped = collector.scrape(moment(start, 5500), Detail::Exported, None);
    let path = |sample: &CgroupSample| &*sample.cgroup.path == "/system.slice";
    let scraped = scraped.cgroups.into_iter().find(path).unwrap().pressure.pressures;
    assert_eq!(totals(&scraped), (1, 2));
}

#[test]
fn the_nodes_run_delay_counts_where_the_tree_is_the_whole_nodes() {
    let node = FakeNode::new("run-delay");
    let mut collector = node.collector();
    let start = Instant::now();
    let mut tick = |seconds: u64| collector.tick(moment(start, seconds * 1000), None);
    node.set_run_delay(Duration::from_secs(1));
    let before = tick(0);
    node.set_run_delay(Duration::from_secs(11));
    let after = tick(5);
    let run_delay = |before, after| tick_rates(before, after).run_delay;
    assert_eq!(run_delay(&before, &after), Some(2.0));
    // A CPU that went offline takes its delay along.
    assert_eq!(run_delay(&after, &before), None);
    fs::write(node.0.join("cgroup/cgroup.events"), "populated 1\n").unwrap();
    assert_eq!(node.collector().tick(moment(start, 0), None).run_delay_ns, None);
}
