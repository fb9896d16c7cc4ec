use std::sync::{Arc, Mutex};

use futures_util::{SinkExt, StreamExt};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use super::*;

const METRICS_PORT: u16 = 9942;

/// An API server with one pod of an agent, and the connections to the pod.
#[derive(Clone, Default)]
struct ApiServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    pod: &'static str,
    lists: usize,
    forwards: Vec<AbortHandle>,
}

impl ApiServer {
    async fn start(self) -> ApiClient {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.clone().respond(stream));
            }
        });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        ApiClient::new(Client::try_from(config).unwrap())
    }

    /// Replaces the pod, which ends the connections to it.
    fn replace(&self, pod: &'static str) {
        let mut state = self.0.lock().unwrap();
        state.pod = pod;
        state.forwards.iter().for_each(AbortHandle::abort);
    }

    fn requests(&self) -> (usize, usize) {
        let state = self.0.lock().unwrap();
        (state.lists, state.forwards.len())
    }

    async fn respond(self, mut stream: TcpStream) {
        let mut head = [0; 4096];
        let length = stream.peek(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..length]).into_owned();
        let pod = self.0.lock().unwrap().pod;
        if head.contains(&format!("/pods/{pod}/portforward")) {
            let forward = tokio::spawn(forward(stream, pod));
            self.0.lock().unwrap().forwards.push(forward.abort_handle());
            return;
        }
        let ports = json!([{"name": "metrics", "containerPort": METRICS_PORT}]);
        let pods = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [{
            "metadata": {"namespace": "psi-agent", "name": pod},
            "spec": {"containers": [{"name": "agent", "ports": ports}]},
        }]});
        let status = if head.contains("portforward") {
            "404 Not Found"
        } else {
            self.0.lock().unwrap().lists += 1;
            "200 OK"
        };
        let response = response(&format!("{status}\r\nConnection: close"), &pods);
        let _ = stream.read(&mut [0; 4096]).await;
        stream.write_all(response.as_bytes()).await.unwrap();
    }
}

fn response(status: &str, body: &Value) -> String {
    let body = body.to_string();
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Forwards a port to an agent whose version is the pod's name.
#[allow(clippy::result_large_err, reason = "the type of the callback is the library's")]
async fn forward(stream: TcpStream, pod: &str) {
    let accept = |_: &Request, mut response: Response| {
        let protocol = "v4.channel.k8s.io".parse().unwrap();
        response.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
        Ok(response)
    };
    let mut socket = accept_hdr_async(stream, accept).await.unwrap();
    let [low, high] = METRICS_PORT.to_le_bytes();
    for channel in [0, 1] {
        socket.send(Message::binary(vec![channel, low, high])).await.unwrap();
    }
    let snapshot = json!({"version": pod, "observed_at_ms": 0, "cgroups": [],
        "node": {"contention": {}, "contended": 0}});
    let snapshot = format!("\0{}", response("200 OK", &snapshot));
    while let Some(Ok(message)) = socket.next().await {
        if message.into_data().ends_with(b"\r\n\r\n") {
            socket.send(Message::binary(snapshot.clone())).await.unwrap();
        }
    }
}

#[tokio::test]
async fn one_connection_is_kept_and_the_pod_is_looked_up_again_when_it_is_replaced() {
    let server = ApiServer::default();
    server.replace("agent-1");
    let (api, node) = (server.clone().start().await, "node-a".into());
    let mut source = AgentPod { api, node, namespace: None, connection: None };
    for _ in 0..3 {
        let (description, _) = source.next().await.unwrap();
        assert_eq!(description, "agent agent-1 on node-a");
    }
    assert_eq!(server.requests(), (1, 1));
    server.replace("agent-2");
    for _ in 0..3 {
        let (description, _) = source.next().await.unwrap();
        assert_eq!(description, "agent agent-2 on node-a");
    }
    assert_eq!(server.requests(), (2, 2));
}
