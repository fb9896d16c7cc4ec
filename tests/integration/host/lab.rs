//! The agent on a real kernel, in a virtual machine with pure cgroup v2 and all
//! controllers: what it exports against what the files hold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::agent::BINARY;
use crate::support::exposition::{Series, parse};
use crate::support::virtual_machine::{Sections, boot};

const POD: &str = "kubepods.slice/kubepods-burstable.slice/\
                   kubepods-burstable-pod0f9d7b6e_1c55_4b0e_9a57_3c2f6f1d8a42.slice";

/// The only disk of the lab, and its row in `io.stat`.
const DISK: (&str, &str) = ("/dev/nvme0n1", "259:0");

/// The instants of the lab's clock: it starts with 2025, whatever the host's says.
const YEAR_2025: std::ops::Range<f64> = 1_735_689_600.0..1_767_225_600.0;

fn throttled() -> String {
    format!("{POD}/cri-containerd-{}.scope", "1".repeat(64))
}

pub(crate) fn limited() -> String {
    format!("{POD}/cri-containerd-{}.scope", "2".repeat(64))
}

/// The cgroup files of the guest, by their path below the mount.
struct Files(BTreeMap<String, String>);

impl Files {
    /// From `path:line`. An empty file has no line here, so it reads as one that is not there.
    fn parse(lines: &str) -> Self {
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for line in lines.lines() {
            let (path, line) = line.split_once(':').expect("path:line");
            files.entry(path.to_owned()).or_default().extend([line, "\n"]);
        }
        Self(files)
    }

    fn text(&self, cgroup: &str, file: &str) -> &str {
        self.0.get(&format!("{cgroup}/{file}")).map_or("", String::as_str)
    }

    /// The number that the file is; "max" is 0, as cAdvisor has it.
    fn number(&self, cgroup: &str, file: &str) -> f64 {
        let text = self.text(cgroup, file).trim();
        let number = if text == "max" { "0" } else { text };
        number.parse().unwrap_or_else(|_| panic!("{cgroup}/{file} is no number: {text}"))
    }

    /// The number behind `key` in lines of `key number`.
    fn keyed(&self, cgroup: &str, file: &str, key: &str) -> f64 {
        let text = self.text(cgroup, file);
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("{cgroup}/{file} has no {key}: {text}"));
        value.parse().unwrap()
    }

    /// The number behind `key=` in the line that begins with `row`.
    fn in_row(&self, cgroup: &str, file: &str, row: &str, key: &str) -> f64 {
        let text = self.text(cgroup, file);
        let line = text.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(' '));
        let line = line.unwrap_or_else(|| panic!("{cgroup}/{file} has no row {row}: {text}"));
        let mut words = line.split(' ');
        let value = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {key} in {line}")).parse().unwrap()
    }

    /// What the exposition should have for a cgroup, without the families of devices.
    fn expected(&self, cgroup: &str) -> BTreeMap<String, f64> {
        let mut all = self.pressure_and_cpu(cgroup);
        let number = |file| self.number(cgroup, file);
        let memory = |key| self.keyed(cgroup, "memory.stat", key);
        let usage = number("memory.current");
        let working_set = (usage - memory("inactive_file")).max(0.0);
        all.extend(
            [
                ("container_memory_usage_bytes", usage),
                ("container_memory_working_set_bytes", working_set),
                ("container_memory_rss", memory("anon")),
                ("container_memory_cache", memory("file")),
                ("container_memory_swap", number("memory.swap.current")),
                ("container_oom_events_total", self.keyed(cgroup, "memory.events", "oom_kill")),
                ("container_spec_memory_limit_bytes", number("memory.max")),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        all
    }

    fn pressure_and_cpu(&self, cgroup: &str) -> BTreeMap<String, f64> {
        let mut all = BTreeMap::new();
        for resource in ["cpu", "memory", "io"] {
            for (row, word) in [("some", "waiting"), ("full", "stalled")] {
                let micros = self.in_row(cgroup, &format!("{resource}.pressure"), row, "total");
                all.insert(
                    format!("container_pressure_{resource}_{word}_seconds_total"),
                    micros / 1e6,
                );
            }
        }
        let mut add = |name: &str, value| all.insert(name.to_owned(), value);
        let cpu = |key| self.keyed(cgroup, "cpu.stat", key);
        add("container_cpu_usage_seconds_total", cpu("usage_usec") / 1e6);
        add("container_cpu_user_seconds_total", cpu("user_usec") / 1e6);
        add("container_cpu_system_seconds_total", cpu("system_usec") / 1e6);
        let (quota, period) = self.text(cgroup, "cpu.max").trim().split_once(' ').unwrap();
        add("container_spec_cpu_period", period.parse().unwrap());
        if quota != "max" {
            add("container_spec_cpu_quota", quota.parse().unwrap());
            add("container_cpu_cfs_periods_total", cpu("nr_periods"));
            add("container_cpu_cfs_throttled_periods_total", cpu("nr_throttled"));
            add("container_cpu_cfs_throttled_seconds_total", cpu("throttled_usec") / 1e6);
        }
        all
    }

    /// The same for the families of devices.
    fn expected_io(&self, cgroup: &str) -> BTreeMap<String, f64> {
        let text = self.text(cgroup, "io.stat");
        if text.is_empty() {
            return BTreeMap::new();
        }
        assert_eq!(text.lines().count(), 1, "one disk, one row: {text}");
        let counters = [
            ("container_fs_reads_bytes_total", "rbytes"),
            ("container_fs_reads_total", "rios"),
            ("container_fs_writes_bytes_total", "wbytes"),
            ("container_fs_writes_total", "wios"),
        ];
        let value = |key| self.in_row(cgroup, "io.stat", DISK.1, key);
        counters.map(|(name, key)| (name.to_owned(), value(key))).into()
    }
}

/// The values of a cgroup's series by their names, of one device or of none.
fn exported(series: &[Series], cgroup: &str, device: Option<&str>) -> BTreeMap<String, f64> {
    let id = format!("/{cgroup}");
    let label = |series: &Series, key: &str| series.labels.get(key).cloned();
    let own = series.iter().filter(|series| {
        label(series, "id").as_ref() == Some(&id) && label(series, "device").as_deref() == device
    });
    own.map(|series| (series.name.clone(), series.value)).collect()
}

pub(crate) fn names(series: &[Series]) -> BTreeSet<&str> {
    series.iter().map(|series| series.name.as_str()).collect()
}

fn check_everything_is_ok(guest: &Sections) {
    let check = guest.text("check", 0);
    let verdicts = check.lines().filter(|line| !line.starts_with("ok "));
    assert_eq!(verdicts.count(), 0, "{check}");
    for finding in [
        "cpu, memory, io and pids are on v2",
        "on for every cgroup",
        "1 pods and 2 containers found by path",
        "Linux 6.12",
    ] {
        assert!(check.contains(finding), "no {finding:?} in {check}");
    }
}

fn check_values(series: &[Series], files: &Files) {
    let (throttled, limited) = (throttled(), limited());
    let containers = [throttled.as_str(), &limited];
    let above = POD.match_indices('/').map(|(end, _)| &POD[..end]).chain([POD]);
    for cgroup in above.chain(containers) {
        let mut own = exported(series, cgroup, None);
        let start = own.remove("container_start_time_seconds").expect("a start time");
        assert!(YEAR_2025.contains(&start), "{cgroup} started at {start}");
        // The score is no file's content.
        own.remove("psi_agent_workload_contention_ratio");
        assert_eq!(own, files.expected(cgroup), "{cgroup}");
        let io = exported(series, cgroup, Some(DISK.0));
        assert_eq!(io, files.expected_io(cgroup), "{cgroup}");
    }
}

/// All of it would also agree if nothing had happened.
fn check_the_limits_were_felt(series: &[Series]) {
    let throttled = exported(series, &throttled(), None);
    let mut limited_all = exported(series, &limited(), None);
    limited_all.extend(exported(series, &limited(), Some(DISK.0)));
    let above_zero = |own: &BTreeMap<String, f64>, names: &[&str]| {
        for name in names {
            assert!(own.get(*name).is_some_and(|&value| value > 0.0), "{name} of {own:#?}");
        }
    };
    above_zero(
        &throttled,
        &[
            "container_cpu_usage_seconds_total",
            "container_cpu_user_seconds_total",
            "container_cpu_cfs_periods_total",
            "container_cpu_cfs_throttled_periods_total",
            "container_cpu_cfs_throttled_seconds_total",
            "container_pressure_cpu_waiting_seconds_total",
            "container_pressure_cpu_stalled_seconds_total",
        ],
    );
    above_zero(
        &limited_all,
        &[
            "container_cpu_system_seconds_total",
            "container_memory_working_set_bytes",
            "container_memory_cache",
            "container_memory_swap",
            "container_fs_reads_bytes_total",
            "container_fs_reads_total",
            "container_fs_writes_bytes_total",
            "container_fs_writes_total",
            "container_pressure_memory_waiting_seconds_total",
            "container_pressure_io_waiting_seconds_total",
        ],
    );
    assert_eq!(throttled["container_spec_cpu_quota"], 5000.0);
    assert_eq!(limited_all["container_spec_memory_limit_bytes"], 24.0 * 1024.0 * 1024.0);
    assert_eq!(limited_all["container_oom_events_total"], 1.0);
    assert!(limited_all["container_memory_rss"] > 4.0 * 1024.0 * 1024.0, "{limited_all:#?}");
}

/// The root cgroup's numbers move, and some have no file: only their presence is compared.
fn check_the_node(series: &[Series]) {
    let root = exported(series, "", None);
    for name in [
        "container_pressure_cpu_waiting_seconds_total",
        "container_cpu_usage_seconds_total",
        "container_memory_usage_bytes",
        "container_memory_working_set_bytes",
        "container_memory_rss",
        "container_memory_swap",
        "container_spec_memory_limit_bytes",
    ] {
        assert!(root.get(name).is_some_and(|&value| value > 0.0), "{name} of {root:#?}");
    }
    for series in series {
        match series.name.as_str() {
            "psi_agent_pressure_supported" => assert_eq!(series.value, 1.0, "{series:?}"),
            "psi_agent_read_errors_total" => assert_eq!(series.value, 0.0, "{series:?}"),
            _ => {}
        }
    }
    let names = names(series);
    for resource in ["cpu", "memory", "io"] {
        let name = format!("node_pressure_{resource}_waiting_seconds_total");
        assert!(names.contains(&*name), "{name}");
    }
}

#[test]
#[ignore = "needs QEMU and a Debian kernel: tests/run prepares them"]
fn exposition_has_what_the_files_of_limited_containers_hold() {
    check_exposition(Path::new(BINARY));
}

/// Boots with everything on, and compares what this binary exports with the files.
pub(crate) fn check_exposition(binary: &Path) {
    let guest = boot(binary, "everything-on", 1);
    check_everything_is_ok(&guest);
    let series = parse(guest.text("once", 0));
    assert!(!guest.has("once.stderr"), "{guest:?}");
    let files = Files::parse(guest.text("files", 0));
    check_values(&series, &files);
    check_the_limits_were_felt(&series);
    check_the_node(&series);

    let capabilities = guest.text("unprivileged.capabilities", 0);
    assert!(capabilities.ends_with("0000000000000000\n"), "{capabilities}");
    let unprivileged = parse(guest.text("unprivileged", 0));
    let without_values = |series: &[Series]| -> BTreeSet<String> {
        series.iter().map(|series| format!("{} {:?}", series.name, series.labels)).collect()
    };
    assert_eq!(without_values(&unprivileged), without_values(&series));
}
