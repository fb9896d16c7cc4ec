//! What a bridge takes on a cluster of two thousand Nodes that many ask at once: less than what its
//! manifest asks for. A small server lists the Nodes.

use std::process::Command;
use std::time::Instant;

use serde_json::json;

use super::{MINUTE, answered, post};
use crate::support::agent::Agent;
use crate::support::exposition::parse;
use crate::support::listed_nodes::{BridgeOfMany, name};
use crate::support::stolen_time::Yardstick;
use crate::support::virtual_machine::static_binary;

const NODES: usize = 2_000;
/// Of daemonset/components/bridge/deployment.yaml.
const CPU_REQUEST_MS_A_MINUTE: f64 = 600.0;
const MEMORY_REQUEST: f64 = 32.0 * 1024.0 * 1024.0;
const MEMORY_LIMIT: f64 = 64.0 * 1024.0 * 1024.0;

/// One of the bridge's own numbers.
fn metric(bridge: &Agent, name: &str) -> f64 {
    let series = parse(&bridge.get("/metrics"));
    series.iter().find(|series| series.name == name).unwrap().value
}

#[test]
#[ignore = "needs the static binary: tests/run builds it"]
fn two_thousand_nodes_take_less_than_what_is_requested() {
    let scene = BridgeOfMany::start("size", Command::new(static_binary()), NODES, &[]);
    let bridge = &scene.bridge;

    // As often as a descheduler, a Trimaran and a scheduler that places a VM a second ask in a minute.
    let names: Vec<String> = (0..NODES).map(name).collect();
    let arguments = json!({"Pod": {}, "Nodes": null, "NodeNames": names}).to_string();
    let before = metric(bridge, "process_cpu_seconds_total");
    let (started, yardstick) = (Instant::now(), Yardstick::start());
    for second in 0..60 {
        assert_eq!(
            answered(&post(bridge, "/prioritize", &arguments)).as_array().unwrap().len(),
            NODES
        );
        if second % 30 == 0 {
            bridge.get("/watcher");
            answered(&post(bridge, "/api/v1/query", "query=slow-score"));
        }
    }
    let charged_ms = (metric(bridge, "process_cpu_seconds_total") - before) * 1e3;
    let stretch = yardstick.stretch();
    let cpu_ms = charged_ms / stretch;
    let resident = bridge.peak_memory();
    let mebibytes = |bytes: f64| bytes / 1024.0 / 1024.0;
    println!(
        "{NODES} Nodes: {cpu_ms:.0} ms of CPU a minute (charged {charged_ms:.0}, {stretch:.2} times \
         what it takes alone), {:.1} MiB",
        mebibytes(resident)
    );
    assert!(started.elapsed() < 5 * MINUTE && cpu_ms < CPU_REQUEST_MS_A_MINUTE, "{cpu_ms} ms");
    assert!(resident < MEMORY_REQUEST, "{} MiB", mebibytes(resident));

    // Four of the largest bodies at once, and more that wait.
    let longest =
        format!("{{\"NodeNames\":[],\"Pod\":{{\"status\":\"{}\"}}}}", "x".repeat(4_000_000));
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let send = || post(bridge, "/prioritize", &longest).status;
        let senders: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    // On a busy machine, the turn of some does not come within 3 s.
    assert!(statuses.contains(&200), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 408].contains(status)), "{statuses:?}");
    let resident = bridge.peak_memory();
    println!("after eight of the longest bodies: {:.1} MiB", mebibytes(resident));
    assert!(resident < MEMORY_LIMIT, "{} MiB", mebibytes(resident));
}
