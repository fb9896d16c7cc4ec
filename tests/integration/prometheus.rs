//! A real Prometheus on the running agent, and promtool on what it prints.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::agent::{Agent, Answer, BINARY, get_from};
use crate::support::cgroup::OwnCgroup;
use crate::support::wait_for;

#[test]
#[ignore = "needs promtool and a cgroup2 mount"]
fn promtool_finds_nothing_wrong() {
    let own = OwnCgroup::new("lint");
    own.make("kubepods/burstable/pod1");
    for scope in ["all", "pods"] {
        let once = Command::new(BINARY).args(["once", "--scope", scope]).output().unwrap();
        assert!(once.status.success());
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test needs promtool (Debian's package prometheus)");
        promtool.stdin.take().unwrap().write_all(&once.stdout).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let found = said.lines().chain(std::str::from_utf8(&output.stdout).unwrap().lines());
        // Names are cAdvisor's, which promtool would have called otherwise.
        let of_ours = |line: &&str| line.contains("psi_agent_") || line.contains("error");
        assert_eq!(found.filter(of_ours).count(), 0, "{said}");
    }
}

/// Debian's Prometheus with one target, on loopback, its data in a folder of its own.
struct Prometheus {
    child: Child,
    address: String,
    folder: PathBuf,
}

impl Prometheus {
    fn start(target: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let folder = std::env::temp_dir().join(format!("psi-agent-prometheus-{port}"));
        fs::create_dir_all(&folder).unwrap();
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 2s, scrape_timeout: 2s}}\n\
             scrape_configs:\n- job_name: psi-agent\n  static_configs: [{{targets: ['{target}']}}]\n"
        );
        fs::write(&config, text).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stderr(fs::File::create(folder.join("log")).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .expect("this test needs Prometheus (Debian's package prometheus)");
        let prometheus = Self { child, address, folder };
        wait_for("Prometheus is ready", Duration::from_secs(60), || {
            prometheus.get("/-/ready").filter(|answer| answer.status == 200)
        });
        prometheus
    }

    fn get(&self, path: &str) -> Option<Answer> {
        get_from(&self.address, &format!("GET {path} HTTP/1.1\r\nHost: test\r\n")).ok()
    }

    /// The only value of an instant query; `None` where there is none.
    fn query(&self, query: &str) -> Option<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={encoded}"))?;
        let json: Value = serde_json::from_str(&answer.text()).unwrap();
        assert_eq!(json["status"], "success", "{json}");
        let result = json["data"]["result"].as_array().unwrap();
        assert!(result.len() <= 1, "{query}: {json}");
        result.first()?["value"][1].as_str().unwrap().parse().ok()
    }

    /// The sum of one of Prometheus' own counters.
    fn own_counter(&self, name: &str) -> f64 {
        let text = self.get("/metrics").unwrap().text();
        let values = text.lines().filter(|line| line.starts_with(name));
        values.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
#[ignore = "needs Prometheus, root and a writable cgroup2 mount; takes 75 s"]
fn prometheus_scrapes_for_a_minute_and_its_rate_is_the_kernels() {
    let mut own = OwnCgroup::new("prometheus");
    own.make("busy");
    let agent = Agent::start(&[]);
    let prometheus = Prometheus::start(&agent.address);
    for _ in 0..2 {
        own.spawn("busy", "taskset -c 0 sh -c 'while :; do :; done'");
    }
    let started = Instant::now();
    std::thread::sleep(Duration::from_secs(25));
    let total_us = || {
        let text = fs::read_to_string(own.path.join("busy/cpu.pressure")).unwrap();
        let total = text.lines().next().unwrap().rsplit_once("total=").unwrap().1.to_owned();
        (total.parse::<f64>().unwrap(), Instant::now())
    };
    let (before, at) = total_us();
    std::thread::sleep(Duration::from_secs(32));
    let (after, until) = total_us();
    let id = format!("{}/busy", own.id);
    let rate = prometheus
        .query(&format!("rate(container_pressure_cpu_waiting_seconds_total{{id=\"{id}\"}}[30s])"))
        .expect("a rate");
    let kernel = (after - before) / 1e6 / until.duration_since(at).as_secs_f64();
    println!("Prometheus reads {rate:.3}, the kernel's file {kernel:.3}");
    assert!(kernel > 0.3, "two loops on one CPU wait: {kernel}");
    assert!((0.7..=1.3).contains(&(rate / kernel)), "{rate} against {kernel}");

    let left = Duration::from_secs(62).saturating_sub(started.elapsed());
    std::thread::sleep(left);
    let up = "{job=\"psi-agent\"}";
    assert_eq!(prometheus.query(&format!("min_over_time(up{up}[50s])")), Some(1.0));
    let scrapes = prometheus.query(&format!("count_over_time(up{up}[1m])")).unwrap();
    assert!(scrapes >= 25.0, "{scrapes} scrapes in a minute");
    let lost = format!(
        "max_over_time((scrape_samples_scraped{up} - scrape_samples_post_metric_relabeling{up})[50s:2s])"
    );
    assert_eq!(prometheus.query(&lost), Some(0.0));
    for counter in [
        "prometheus_target_scrapes_sample_duplicate_timestamp_total",
        "prometheus_target_scrapes_sample_out_of_order_total",
        "prometheus_target_scrapes_sample_out_of_bounds_total",
        "prometheus_target_scrapes_exceeded_sample_limit_total",
    ] {
        assert_eq!(prometheus.own_counter(counter), 0.0, "{counter}");
    }
    let log = fs::read_to_string(prometheus.folder.join("log")).unwrap();
    assert!(!log.contains("level=error") && !log.contains("level=warn"), "{log}");
}
