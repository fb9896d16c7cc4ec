//! What a bridge takes on a cluster of two thousand Nodes that many ask at once: less than what its
//! manifest asks for. The Nodes are a list that a small server tells, page by page.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{MINUTE, answered, post};
use crate::support::agent::Agent;
use crate::support::exposition::parse;
use crate::support::stolen_time::Yardstick;
use crate::support::virtual_machine::static_binary;
use crate::support::wait_for;

const NODES: usize = 2_000;
/// Of daemonset/components/bridge/deployment.yaml.
const CPU_REQUEST_MS_A_MINUTE: f64 = 600.0;
const MEMORY_REQUEST: f64 = 32.0 * 1024.0 * 1024.0;
const MEMORY_LIMIT: f64 = 64.0 * 1024.0 * 1024.0;

/// The metadata of a Node with an agent's annotations, and as much of others' as a real one has.
fn node(number: usize) -> Value {
    let observed_at = Timestamp::now() - SignedDuration::from_mins(6);
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": name(number), "resourceVersion": "1",
            "annotations": {
                "psi-agent.io/score": "15", "psi-agent.io/cpu": "15", "psi-agent.io/memory": "0",
                "psi-agent.io/observed-at": format!("{observed_at:.0}"),
                "psi-agent.io/basis": "psi/2", "others.example/config": "x".repeat(1_000),
            },
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": "y".repeat(2_000)}}],
        },
    })
}

fn name(number: usize) -> String {
    format!("worker-{number}.rack-4.example.org")
}

/// Answers lists, and watches in which nothing happens.
fn serve_nodes(listener: &TcpListener) {
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        std::thread::spawn(move || converse(&stream));
    }
}

fn converse(mut stream: &TcpStream) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        lines.by_ref().find(|line| line.is_empty());
        if request.contains("watch=true") {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            std::thread::sleep(10 * MINUTE);
            return;
        }
        let asked = |key: &str| {
            let value = request.split_once(&format!("{key}="))?.1;
            value.split(['&', ' ']).next()?.parse::<usize>().ok()
        };
        let first = asked("continue").unwrap_or(0);
        let next = (first + asked("limit").expect("a list by pages")).min(NODES);
        let more = if next < NODES { next.to_string() } else { String::new() };
        let page = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
            "metadata": {"resourceVersion": "1", "continue": more},
            "items": (first..next).map(node).collect::<Vec<_>>(),
        });
        let page = page.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            page.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(page.as_bytes()).unwrap();
    }
}

/// One of the bridge's own numbers.
fn metric(bridge: &Agent, name: &str) -> f64 {
    let series = parse(&bridge.get("/metrics"));
    series.iter().find(|series| series.name == name).unwrap().value
}

/// The most memory that it had at once, in bytes.
fn peak(bridge: &Agent) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", bridge.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

#[test]
#[ignore = "needs the static binary: tests/run builds it"]
fn two_thousand_nodes_take_less_than_what_is_requested() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || serve_nodes(&listener));
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    let path = std::env::temp_dir().join(format!("psi-agent-{}-size.json", std::process::id()));
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let flags = ["bridge", "--kubeconfig", path.to_str().unwrap()];
    let bridge = Agent::start_by(Command::new(static_binary()), &flags);
    wait_for("all Nodes are known", MINUTE, || {
        let series = parse(&bridge.get("/metrics"));
        let known = series
            .iter()
            .find(|series| series.labels.get("standing").map(String::as_str) == Some("known"));
        (known?.value == 2_000.0).then_some(())
    });

    // As often as a descheduler, a Trimaran and a scheduler that places a VM a second ask in a minute.
    let names: Vec<String> = (0..NODES).map(name).collect();
    let arguments = json!({"Pod": {}, "Nodes": null, "NodeNames": names}).to_string();
    let before = metric(&bridge, "process_cpu_seconds_total");
    let (started, yardstick) = (Instant::now(), Yardstick::start());
    for second in 0..60 {
        assert_eq!(
            answered(&post(&bridge, "/prioritize", &arguments)).as_array().unwrap().len(),
            NODES
        );
        if second % 30 == 0 {
            bridge.get("/watcher");
            answered(&post(&bridge, "/api/v1/query", "query=slow-score"));
        }
    }
    let charged_ms = (metric(&bridge, "process_cpu_seconds_total") - before) * 1e3;
    let stretch = yardstick.stretch();
    let cpu_ms = charged_ms / stretch;
    let resident = peak(&bridge);
    let mebibytes = |bytes: f64| bytes / 1024.0 / 1024.0;
    println!(
        "{NODES} Nodes: {cpu_ms:.0} ms of CPU a minute (charged {charged_ms:.0}, {stretch:.2} times \
         what it takes alone), {:.1} MiB",
        mebibytes(resident)
    );
    assert!(started.elapsed() < 5 * MINUTE && cpu_ms < CPU_REQUEST_MS_A_MINUTE, "{cpu_ms} ms");
    assert!(resident < MEMORY_REQUEST, "{} MiB", mebibytes(resident));

    // Four of the largest bodies at once, and more that wait.
    let longest = format!("{{\"NodeNames\":[],\"Pod\":\"{}\"}}", "x".repeat(4_000_000));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(post(&bridge, "/prioritize", &longest).status, 200));
        }
    });
    let resident = peak(&bridge);
    println!("after eight of the longest bodies: {:.1} MiB", mebibytes(resident));
    assert!(resident < MEMORY_LIMIT, "{} MiB", mebibytes(resident));
    std::fs::remove_file(&path).unwrap();
}
