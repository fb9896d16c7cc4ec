//! A node of a cluster whose files are a recording of a real kernel (`tests/recordings`), played in
//! real time and again from its start, with counters that go on.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use super::agent::Agent;
use super::cluster::Cluster;
use super::fake_node::FakeNode;
use super::project::text;
use super::written_files::{Writer, replace, write_memory};

const PERIOD_US: f64 = 100_000.0;

/// The node; the recording begins when its VM starts.
pub(crate) struct ReplayedNode {
    pub(crate) name: &'static str,
    recording: Recording,
    player: Option<Writer>,
    pub(crate) files: FakeNode,
}

impl ReplayedNode {
    /// A node by the recording of this name.
    pub(crate) fn new(scene: &str, name: &'static str, recording: &str) -> Self {
        let files = FakeNode::new(&format!("{scene}-{name}"));
        symlink("/proc/diskstats", files.0.join("proc/diskstats")).unwrap();
        write_memory(&files.0, &files.0.join("proc"));
        let node = Self { name, recording: Recording::read(recording), player: None, files };
        node.recording.write(0.0, &node.files.0, None);
        node
    }

    /// Starts the agent of this node, as its pod of this name.
    pub(crate) fn start_agent(&self, cluster: &Cluster, pod: &str, more: &[&str]) -> Agent {
        self.files.start_agent_of(self.name, cluster, pod, more)
    }

    /// From now on the recorded VM runs there, in the container of this cgroup.
    pub(crate) fn start_vm(&mut self, cgroup: &str) {
        let (folder, cgroup) = (self.files.0.clone(), cgroup.to_owned());
        let recording = self.recording.clone();
        let play = move |seconds| recording.write(seconds, &folder, Some(&cgroup));
        self.player = Some(Writer::start(play));
    }

    /// The same in a test's own time: the files so many seconds after the start of the VM.
    pub(crate) fn play(&self, cgroup: &str, seconds: u32) {
        self.recording.write(f64::from(seconds), &self.files.0, Some(cgroup));
    }
}

/// What the lab wrote down of a node with one VM.
#[derive(Clone)]
struct Recording {
    record: Value,
}

impl Recording {
    fn read(name: &str) -> Self {
        let text = text(&format!("tests/recordings/{name}.json"));
        Self { record: serde_json::from_str(&text).unwrap() }
    }

    /// The counters so many seconds after the start, between two points in proportion.
    fn at(&self, seconds: f64) -> Value {
        let points = self.record["points"].as_array().unwrap();
        let (first, last) = (points.first().unwrap(), points.last().unwrap());
        let time = |point: &Value| point["at"].as_f64().unwrap();
        let length = time(last) - time(first);
        let (rounds, rest) = ((seconds / length).floor(), seconds % length + time(first));
        let next = points.iter().position(|point| time(point) > rest).unwrap_or(points.len() - 1);
        let (before, after) = (&points[next - 1], &points[next]);
        let share = (rest - time(before)) / (time(after) - time(before));
        let within = map_numbers(before, after, &|before, after| before + (after - before) * share);
        let whole = map_numbers(first, last, &|first, last| (last - first) * rounds);
        map_numbers(&within, &whole, &|within, whole| within + whole)
    }

    /// Writes the files of that moment; of the VM only where its cgroup is known.
    fn write(&self, seconds: f64, folder: &Path, vm: Option<&str>) {
        let (moment, scenario) = (self.at(seconds), &self.record["scenario"]);
        let node = &moment["node"];
        let cpus = scenario["vcpus"].as_u64().unwrap();
        let mut files = vec![
            ("proc/stat".to_owned(), proc_stat(node, cpus)),
            ("proc/schedstat".to_owned(), schedstat(node)),
        ];
        files.extend(pressure("proc/pressure/", "", &node["pressure"]));
        files.extend(pressure("cgroup/", ".pressure", &node["pressure"]));
        files.extend(pressure("cgroup/kubepods.slice/", ".pressure", &node["kubepods"]));
        if let Some(container) = vm {
            let (name, counters) = moment["pods"].as_object().unwrap().iter().next().unwrap();
            let limits = &scenario["pod"][0];
            assert_eq!(&limits["name"], name, "a recording is of one VM");
            let pod = container.rsplit_once('/').unwrap().0;
            files.extend(cgroup(pod, &counters["pod"], &limits["pod_cpus"]));
            files.extend(cgroup(container, &counters["container"], &limits["container_cpus"]));
            let tasks = counters["threads"].as_object().unwrap().len();
            files.push((format!("cgroup/{container}/pids.current"), format!("{tasks}\n")));
            let set = format!("cgroup/{container}/cpuset.cpus.effective");
            files.push((set, format!("0-{}\n", cpus - 1)));
        }
        for (path, text) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            replace(folder, &path, &text);
        }
    }
}

/// Two documents of one shape made one, number by number; what is no number is the first one's.
fn map_numbers(a: &Value, b: &Value, of: &impl Fn(f64, f64) -> f64) -> Value {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => json!(of(a.as_f64().unwrap(), b.as_f64().unwrap())),
        (Value::Array(a), Value::Array(b)) => {
            a.iter().zip(b).map(|(a, b)| map_numbers(a, b, of)).collect()
        }
        (Value::Object(a), Value::Object(b)) => a
            .iter()
            .map(|(key, a)| (key.clone(), map_numbers(a, b.get(key).unwrap_or(a), of)))
            .collect(),
        _ => a.clone(),
    }
}

/// As the kernel writes it.
fn counter(value: &Value) -> String {
    format!("{:.0}", value.as_f64().unwrap())
}

fn pressure(before: &str, after: &str, pressures: &Value) -> Vec<(String, String)> {
    let file = |resource: &str| {
        let line = |(what, number): (&str, usize)| {
            let total = counter(&pressures[resource][number]);
            format!("{what} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")
        };
        (format!("{before}{resource}{after}"), [("some", 0), ("full", 1)].map(line).concat())
    };
    ["cpu", "memory", "io"].map(file).into()
}

fn cgroup(path: &str, counters: &Value, cpus: &Value) -> Vec<(String, String)> {
    let path = format!("cgroup/{path}/");
    let mut files = pressure(&path, ".pressure", &counters["pressure"]);
    let [usage, periods, throttled_periods, throttled, local] =
        ["usage_us", "nr_periods", "nr_throttled", "throttled_us", "throttled_here_or_above_us"]
            .map(|key| counter(&counters[key]));
    let stat = format!(
        "usage_usec {usage}\nuser_usec {usage}\nsystem_usec 0\nnr_periods {periods}\n\
         nr_throttled {throttled_periods}\nthrottled_usec {throttled}\n"
    );
    let quota = cpus.as_f64().map_or("max".into(), |cpus| format!("{:.0}", cpus * PERIOD_US));
    files.push((format!("{path}cpu.stat"), stat));
    files.push((format!("{path}cpu.stat.local"), format!("throttled_usec {local}\n")));
    files.push((format!("{path}cpu.max"), format!("{quota} {PERIOD_US:.0}\n")));
    files
}

fn proc_stat(node: &Value, cpus: u64) -> String {
    let (busy, total) = (node["busy"].as_f64().unwrap(), node["total"].as_f64().unwrap());
    let each: String = (0..cpus).map(|cpu| format!("cpu{cpu} 0 0 0 0\n")).collect();
    format!("cpu  {busy:.0} 0 0 {:.0} 0 0 0 0\n{each}btime 1735689600\n", total - busy)
}

fn schedstat(node: &Value) -> String {
    format!("version 17\ncpu0 0 0 0 0 0 0 0 {} 0\n", counter(&node["run_delay_ns"]))
}
