//! A real Prometheus, ended when dropped.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::agent::{Answer, BINARY, get_from};
use super::cgroup::OwnCgroup;
use super::folder::Folder;
use super::{built, free_port, wait_for};

/// Debian's Prometheus on loopback, its data in a folder of its own.
pub(crate) struct Prometheus {
    child: Child,
    address: String,
    folder: Folder,
}

impl Prometheus {
    /// One that scrapes a single target.
    pub(crate) fn start(target: &str) -> Self {
        Self::scraping(&format!(
            "- job_name: psi-agent\n  scrape_interval: 5s\n  scrape_timeout: 5s\n  \
             static_configs: [{{targets: ['{target}']}}]\n"
        ))
    }

    /// One with these `scrape_configs`, all scraped every 2 s.
    pub(crate) fn scraping(scrape_configs: &str) -> Self {
        Self::start_with(&format!(
            "global: {{scrape_interval: 2s, scrape_timeout: 2s}}\n\
             scrape_configs:\n{scrape_configs}"
        ))
    }

    /// One with this configuration.
    pub(crate) fn start_with(config_text: &str) -> Self {
        Self::start_program(Path::new("prometheus"), config_text, "")
    }

    /// One that can ask Kubernetes, with this configuration, which may name `rules.yaml`.
    pub(crate) fn in_cluster(config_text: &str, rules: &str) -> Self {
        Self::start_program(&newer_program("prometheus"), config_text, rules)
    }

    /// One with the project's rules, that scrapes these agents: pairs of a node and an address. Its
    /// slow views are over one minute where they are over ten.
    pub(crate) fn of_agents(agents: &[(&str, &str)]) -> Self {
        let targets: Vec<Value> =
            agents.iter().map(|(node, address)| running_agent(node, address)).collect();
        let mut config = scrape_by_hand(&targets);
        config["rule_files"] = json!(["rules.yaml"]);
        let rules = include_str!("../../../daemonset/prometheus/rules.yaml");
        // Twenty values of which half must be there, as before.
        let faster = rules.replace("[10m]", "[1m]").replace("interval: 30s", "interval: 3s");
        assert!(!faster.contains("10m]") && faster.contains("interval: 3s"), "{faster}");
        Self::start_program(Path::new("prometheus"), &config.to_string(), &faster)
    }

    fn start_program(program: &Path, config_text: &str, rules: &str) -> Self {
        let folder = Self::folder(config_text);
        folder.write("rules.yaml", rules);
        Self::serve(program, folder)
    }

    /// One that scrapes nothing and has the samples of this OpenMetrics file.
    pub(crate) fn with_history(file: &str) -> Self {
        let folder = Self::folder("scrape_configs: []\n");
        let data = folder.path("data");
        let arguments = ["tsdb", "create-blocks-from", "openmetrics", file, &data];
        promtool(&debians_promtool(), &arguments);
        Self::serve(Path::new("prometheus"), folder)
    }

    fn folder(config_text: &str) -> Folder {
        let folder = Folder::new(&format!("prometheus-{}", free_port()));
        folder.write("prometheus.yml", config_text);
        folder
    }

    fn serve(program: &Path, folder: Folder) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new(program)
            .arg(format!("--config.file={}", folder.path("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", folder.path("data")))
            .arg(format!("--web.listen-address={address}"))
            .stderr(fs::File::create(folder.path("log")).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| not_there(program, &error));
        let prometheus = Self { child, address, folder };
        wait_for("Prometheus is ready", Duration::from_secs(60), || {
            prometheus.get("/-/ready").filter(|answer| answer.status == 200)
        });
        prometheus
    }

    /// Where it serves: `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    fn get(&self, path: &str) -> Option<Answer> {
        get_from(&self.address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n")).ok()
    }

    /// All that answers a query, at this moment or, with `&start=…&end=…&step=…`, over time.
    pub(crate) fn ask(&self, query: &str, range: Option<&str>) -> Vec<Value> {
        let data = self.data(query, range.is_none(), range.unwrap_or_default());
        serde_json::from_value(data["result"].clone()).unwrap()
    }

    /// The series, and the CPU seconds that Prometheus used. `when` is `&time=…` of an instant
    /// query, or `&start=…&end=…&step=…`.
    pub(crate) fn measured(&self, query: &str, instant: bool, when: &str) -> (Vec<Value>, f64) {
        let before = self.own_counter("process_cpu_seconds_total");
        let data = self.data(query, instant, when);
        let used = self.own_counter("process_cpu_seconds_total") - before;
        (serde_json::from_value(data["result"].clone()).unwrap(), used)
    }

    fn data(&self, query: &str, instant: bool, when: &str) -> Value {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = if instant { "query" } else { "query_range" };
        let answer = self.get(&format!("/api/v1/{path}?query={encoded}{when}")).unwrap();
        let mut json: Value = serde_json::from_str(&answer.text()).unwrap();
        assert_eq!(json["status"], "success", "{query}: {json}");
        json["data"].take()
    }

    /// The only value of an instant query; `None` where there is none.
    pub(crate) fn query(&self, query: &str) -> Option<f64> {
        let result = self.ask(query, None);
        assert!(result.len() <= 1, "{query}: {result:?}");
        result.first()?["value"][1].as_str().unwrap().parse().ok()
    }

    /// All rules that it evaluates, with how that goes.
    pub(crate) fn rules(&self) -> Vec<Value> {
        let answer = self.get("/api/v1/rules").unwrap();
        let json: Value = serde_json::from_str(&answer.text()).unwrap();
        let groups = json["data"]["groups"].as_array().unwrap().iter();
        groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path("log")).unwrap()
    }

    /// The sum of one of Prometheus' own counters.
    pub(crate) fn own_counter(&self, name: &str) -> f64 {
        let text = self.get("/metrics").unwrap().text();
        let values = text.lines().filter(|line| line.starts_with(name));
        let sum = values.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
        sum.reduce(|sum, value| sum + value).unwrap_or_else(|| panic!("it has no {name}"))
    }
}

/// The agents' job of `scrape.yaml` with targets by hand: Debian's Prometheus cannot ask Kubernetes.
pub(crate) fn scrape_by_hand(targets: &[Value]) -> Value {
    let scrape = include_str!("../../../daemonset/prometheus/scrape.yaml");
    let mut scrape: Value = serde_saphyr::from_str(scrape).unwrap();
    scrape["global"] = json!({"scrape_interval": "2s", "evaluation_interval": "2s"});
    let jobs = scrape["scrape_configs"].as_array_mut().unwrap();
    jobs.truncate(1);
    let job = jobs[0].as_object_mut().unwrap();
    assert!(job.remove("kubernetes_sd_configs").is_some());
    job.insert("static_configs".into(), targets.into());
    scrape
}

/// A target for it, which says of itself what Kubernetes would of a running agent's pod.
pub(crate) fn running_agent(node: &str, address: &str) -> Value {
    json!({"targets": [address], "labels": {
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": "psi-agent",
        "__meta_kubernetes_pod_container_port_name": "metrics",
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_node_name": node,
    }})
}

/// Serves what this answers at each scrape; answers where. It ends with the tests.
pub(crate) fn serve_target(mut exposition: impl FnMut() -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let body = exposition();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n";
            let length = body.len();
            let _ =
                write!(stream, "{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        }
    });
    address
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that `tests/prometheus/build` made: newer than Debian's, and able to ask Kubernetes.
pub(crate) fn newer_program(name: &str) -> PathBuf {
    let module = include_str!("../../kubernetes/1.37/go.mod");
    built("prometheus", module, "github.com/prometheus/prometheus").join(name)
}

/// Debian's promtool.
pub(crate) fn debians_promtool() -> PathBuf {
    PathBuf::from("promtool")
}

/// The promtool that `tests/prometheus/build` made, which knows Kubernetes.
pub(crate) fn newer_promtool() -> PathBuf {
    newer_program("promtool")
}

/// Debian's promtool and the newer one.
pub(crate) fn both_promtools() -> [PathBuf; 2] {
    [debians_promtool(), newer_promtool()]
}

/// Fails unless promtool finds nothing wrong.
pub(crate) fn promtool(program: &Path, arguments: &[&str]) {
    let (good, said) = run_promtool(program, arguments, b"");
    assert!(good && !said.contains("FAILED"), "{arguments:?}:\n{said}");
}

/// Fails unless promtool finds no fault with metrics of the agent's own in this exposition.
pub(crate) fn lint_metrics(program: &Path, exposition: &[u8]) {
    let (good, said) = run_promtool(program, &["check", "metrics"], exposition);
    assert!(good, "{said}");
    // The other names are cAdvisor's, which promtool would have called otherwise.
    let of_ours = |line: &&str| line.contains("psi_agent_") || line.contains("error");
    assert_eq!(said.lines().filter(of_ours).count(), 0, "{said}");
}

/// Fails unless promtool finds no fault with what the agent exports of these cgroups.
pub(crate) fn lint_agent(program: &Path, own: &OwnCgroup) {
    own.make("kubepods/burstable/pod1");
    for scope in ["all", "pods"] {
        // Of this host's own cgroups, which other tests make thousands of, promtool would count all.
        let root = own.path.to_str().unwrap();
        let flags = ["once", "--scope", scope, "--cgroup-root", root];
        let once = Command::new(BINARY).args(flags).output().unwrap();
        assert!(once.status.success());
        lint_metrics(program, &once.stdout);
    }
}

/// Fails unless promtool accepts the project's rules and proves its tests of them.
pub(crate) fn prove_rules(program: &Path) {
    promtool(program, &["check", "rules", "daemonset/prometheus/rules.yaml"]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules");
    for file in fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        promtool(program, &["test", "rules", file.to_str().unwrap()]);
    }
}

fn run_promtool(program: &Path, arguments: &[&str], input: &[u8]) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| not_there(program, &error));
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), said + &String::from_utf8_lossy(&output.stderr))
}

fn not_there(program: &Path, error: &std::io::Error) -> ! {
    let from = "Debian's package prometheus, or tests/prometheus/build";
    panic!("{}: {error}: comes from {from}", program.display())
}
