//! Thousands of Nodes that a small server lists, and a bridge that watches them.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::agent::Agent;
use super::exposition::parse;
use super::folder::Folder;
use super::wait_for;

const MINUTE: Duration = Duration::from_secs(60);

/// The Nodes' bridge.
pub(crate) struct BridgeOfMany {
    pub(crate) bridge: Agent,
    _folder: Folder,
}

impl BridgeOfMany {
    /// Starts a bridge of so many Nodes, and waits until it knows a value of each.
    pub(crate) fn start(name: &str, binary: Command, nodes: usize, more: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || serve_nodes(&listener, nodes));
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        let folder = Folder::new(name);
        let path = folder.0.join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let flags = ["bridge", "--kubeconfig", path.to_str().unwrap()];
        let bridge = Agent::start_by(binary, &[&flags[..], more].concat());
        wait_for("all Nodes are known", MINUTE, || {
            let series = parse(&bridge.get("/metrics"));
            let known = series
                .iter()
                .find(|series| series.labels.get("standing").map(String::as_str) == Some("known"));
            (known?.value == nodes as f64).then_some(())
        });
        Self { bridge, _folder: folder }
    }
}

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

pub(crate) fn name(number: usize) -> String {
    format!("worker-{number}.rack-4.example.org")
}

/// Answers lists, and watches in which nothing happens.
fn serve_nodes(listener: &TcpListener, nodes: usize) {
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        std::thread::spawn(move || converse(&stream, nodes));
    }
}

fn converse(mut stream: &TcpStream, nodes: usize) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        lines.by_ref().find(|line| line.is_empty());
        if request.contains("watch=true") {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            std::thread::sleep(10 * MINUTE);
            return;
        }
        let list = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
            "metadata": {"resourceVersion": "1"},
            "items": (0..nodes).map(node).collect::<Vec<_>>(),
        });
        let list = list.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            list.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(list.as_bytes()).unwrap();
    }
}
