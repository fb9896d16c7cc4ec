//! A real Prometheus on the running agent, and promtool on what it prints.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::agent::{Agent, BINARY};
use crate::support::cgroup::OwnCgroup;
use crate::support::prometheus::{Prometheus, lint_metrics};

#[test]
#[ignore = "needs promtool (also that of tests/prometheus/build) and a cgroup2 mount"]
fn promtool_finds_nothing_wrong() {
    let own = OwnCgroup::new("lint");
    own.make("kubepods/burstable/pod1");
    for scope in ["all", "pods"] {
        // Of this host's own cgroups, which other tests make thousands of, promtool would count all.
        let root = own.path.to_str().unwrap();
        let flags = ["once", "--scope", scope, "--cgroup-root", root];
        let once = Command::new(BINARY).args(flags).output().unwrap();
        assert!(once.status.success());
        lint_metrics(&once.stdout);
    }
}

#[test]
#[ignore = "needs Prometheus, root and a writable cgroup2 mount; takes 75 s"]
fn prometheus_scrapes_for_a_minute_and_its_rate_is_the_kernels() {
    let mut own = OwnCgroup::new("prometheus");
    own.make("busy");
    // Its own cgroups: all of this host's, of which other tests make thousands, may take longer than
    // the five seconds that a scrape here has.
    let agent = Agent::start(&["--cgroup-root", own.path.to_str().unwrap()]);
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
    let rate = prometheus
        .query("rate(container_pressure_cpu_waiting_seconds_total{id=\"/busy\"}[30s])")
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
    assert!(scrapes >= 10.0, "{scrapes} scrapes in a minute");
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
    let log = prometheus.log();
    assert!(!log.contains("level=error") && !log.contains("level=warn"), "{log}");
}
