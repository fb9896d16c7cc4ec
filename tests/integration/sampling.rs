//! When files are read: at most once a second for each cgroup, whoever asks, and a refresh never
//! shortens a tick's window.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use psi_agent::kernel::cgroup_dir::CgroupRoot;
use psi_agent::kernel::pressure::Pressure;
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::rates::{PressureRates, rates_between};
use psi_agent::reader::{Groups, Reader, Selection};
use psi_agent::sample::{CgroupSample, CpuRoom, Depth, Moment, Sample};
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
        let proc = ProcRoot::open(&self.0.join("proc")).unwrap();
        let root = CgroupRoot::open(&self.0.join("cgroup")).unwrap();
        Reader::new(proc, root, EVERYTHING, Groups::default(), 100)
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
fn a_tick_reads_memory_only_after_the_nodes_own_moved_and_a_scrape_always_does() {
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
    assert_eq!(read(20, Depth::Exported), (1, 3));
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
        let throttled = member.cpu.throttled.unwrap().container_us;
        (member.cpu.usage_us, throttled, member.memory_limit_hits, member.has_io_max)
    };
    assert_eq!(read(0), (Some(1000), 10, Some(3), Some(false)));
    // Nobody waited: neither the CPU's nor any limit's files are opened.
    write("cpu.stat", "usage_usec 2000\nnr_periods 1\nnr_throttled 1\nthrottled_usec 20\n");
    write("memory.events.local", "low 0\nhigh 1\nmax 7\noom 0\noom_kill 0\n");
    write("io.max", "8:0 rbps=1 wbps=max riops=max wiops=max\n");
    node.set_vm("cpu", 999);
    assert_eq!(read(5), (None, 10, Some(3), Some(false)));
    node.set_vm("cpu", 1999);
    assert_eq!(read(10), (Some(2000), 20, Some(3), Some(false)));
    for resource in ["memory", "io"] {
        node.set(&format!("proc/pressure/{resource}"), 5);
        node.set_vm(resource, 5);
    }
    assert_eq!(read(15), (Some(2000), 20, Some(8), Some(true)));
    // For ten minutes everybody's CPU time is read.
    write("cpu.stat", "usage_usec 3000\n");
    assert_eq!(read(609).0, Some(3000));
    assert_eq!(read(611).0, None);
}

#[test]
fn those_beside_the_vms_are_read_only_while_somebody_waits() {
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
    let bystanders = |sample: &Sample| {
        let all = sample.bystanders.as_ref()?;
        // `/system.slice` alone: pods stand below `/kubepods`.
        assert_eq!(all.len(), 1);
        let stalled = all[0].pressure.pressures.cpu.unwrap().some_us;
        Some((stalled.unwrap(), all[0].cpu.usage_us, all[0].cpu.room))
    };
    let mut tick = |seconds: u64| reader.sample(moment(start, seconds * 1000), Depth::Score, None);
    node.set_vm("cpu", 1);
    assert_eq!(bystanders(&tick(0)), None);
    node.set_vm("cpu", 100_000);
    // Without the node's total there is nothing to explain.
    assert_eq!(bystanders(&tick(5)), None);
    let schedstat = "version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 0 5000 0\n";
    fs::write(node.0.join("proc/schedstat"), schedstat).unwrap();
    assert_eq!(bystanders(&tick(10)), Some((0, None, None)));
    set_system(49_000);
    assert_eq!(bystanders(&tick(15)), Some((49_000, None, None)));
    set_system(99_000);
    let room = CpuRoom { cpus: Some(4), tasks: Some(7), ..CpuRoom::default() };
    assert_eq!(bystanders(&tick(20)), Some((99_000, Some(1000), Some(room))));
    // A scrape within the second takes over what was read, and reads the rest.
    set_system(100_000);
    let scraped = reader.sample(moment(start, 20_500), Depth::Exported, None);
    let path = |sample: &CgroupSample| &*sample.cgroup.path == "/system.slice";
    let scraped = scraped.cgroups.into_iter().find(path).unwrap().pressure.pressures;
    let some = |pressure: Option<Pressure>| pressure.unwrap().some_us.unwrap();
    assert_eq!((some(scraped.cpu), some(scraped.memory)), (99_000, 100_000));
    let mut tick = |seconds: u64| reader.sample(moment(start, seconds * 1000), Depth::Score, None);
    assert_eq!(bystanders(&tick(79)), Some((100_000, Some(1000), Some(room))));
    assert_eq!(bystanders(&tick(81)), Some((100_000, None, None)));
    assert_eq!(bystanders(&tick(621)), None);
}

#[test]
fn the_nodes_total_of_waiting_counts_for_a_score_and_by_the_second() {
    let node = FakeNode::new("run-delay");
    let set = |delay: u64| {
        let text = format!("version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 0 {delay} 0\n");
        fs::write(node.0.join("proc/schedstat"), text).unwrap();
    };
    let mut reader = node.reader();
    let start = Instant::now();
    let mut read = |seconds: u64, depth| reader.sample(moment(start, seconds * 1000), depth, None);
    set(1_000_000_000);
    let before = read(0, Depth::Score);
    set(11_000_000_000);
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
