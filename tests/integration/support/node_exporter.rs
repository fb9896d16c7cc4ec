//! A node_exporter with the collectors that the agent replaces on a node: pressure, CPU and memory.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::agent::{Agent, get_from};
use super::{built, free_port, wait_for};

pub(crate) fn start_node_exporter() -> Agent {
    let go_mod = include_str!("../../node-exporter/go.mod");
    let folder = built("node-exporter", go_mod, "github.com/prometheus/node_exporter");
    let address = format!("127.0.0.1:{}", free_port());
    let child = Command::new(folder.join("node_exporter"))
        .args(["--collector.disable-defaults", "--collector.pressure", "--collector.cpu"])
        .args([
            "--collector.meminfo",
            "--collector.stat",
            "--collector.loadavg",
            "--collector.vmstat",
        ])
        .arg(format!("--web.listen-address={address}"))
        .stderr(Stdio::null())
        .spawn()
        .expect("node_exporter starts: tests/node-exporter/build makes it");
    let exporter = Agent::other(child, address);
    wait_for("node_exporter serves", Duration::from_secs(10), || {
        get_from(&exporter.address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n").ok()
    });
    exporter
}
