//! What the API server and etcd do when many agents start at once, by their own metrics.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use psi_agent::client::cluster::{ApiClient, OwnNode};
use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::exposition::parse;
use crate::support::wait_for;

const NODES: usize = 50;
const PODS: usize = 5_000;
/// Lists that are measured, two for each node.
const LISTS: usize = 2 * NODES;

struct Scene {
    cluster: Cluster,
    client: Client,
}

impl Scene {
    /// An API server with the pods of all nodes.
    async fn start(cluster: Cluster) -> Self {
        let kubeconfig = Kubeconfig::read_from(cluster.admin_kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let pods = Api::<Pod>::namespaced(client.clone(), "default");
        let create = |number: usize| {
            let pod = json!({
                "metadata": {"name": format!("pod-{number}")},
                "spec": {
                    "nodeName": format!("node-{}", number % NODES),
                    "containers": [{"name": "main", "image": "any"}],
                },
            });
            let (pods, pod) = (pods.clone(), serde_json::from_value(pod).unwrap());
            async move { pods.create(&PostParams::default(), &pod).await.map(drop).unwrap() }
        };
        let _: Vec<()> = stream::iter(0..PODS).map(create).buffer_unordered(16).collect().await;
        let scene = Self { cluster, client };
        wait_for("the watch cache has all pods", Duration::from_secs(60), || {
            let cached = scene.metric("apiserver_watch_cache_resource_version", "pods");
            (cached >= scene.metric("apiserver_storage_objects", "pods")).then_some(())
        });
        scene
    }

    /// A metric of the API server for this resource, summed over its other labels.
    fn metric(&self, name: &str, resource: &str) -> f64 {
        let metrics = self.cluster.kubectl(&["get", "--raw", "/metrics"], "");
        let series = parse(&metrics).into_iter().filter(|series| {
            series.name == name && series.labels.get("resource").is_some_and(|of| of == resource)
        });
        series.map(|series| series.value).sum()
    }

    /// Ranges that etcd read so far, and pods that the API server read for lists.
    fn reads(&self) -> [f64; 2] {
        [
            self.cluster.etcd_metric("etcd_mvcc_range_total"),
            self.metric("apiserver_storage_list_fetched_objects_total", "pods"),
        ]
    }

    /// Lists the pods of a node, as each agent does at its start.
    async fn list(&self, number: usize) {
        let api = ApiClient::new(self.client.clone());
        let node = OwnNode { api, name: format!("node-{}", number % NODES) };
        let (pods, skipped) = node.pods().list().await.unwrap();
        assert_eq!((pods.len(), skipped.len()), (PODS / NODES, 0));
    }
}

#[tokio::test]
#[ignore = "needs etcd and a kube-apiserver; takes a minute"]
async fn an_agents_list_of_pods_is_served_without_etcd() {
    let scene = Scene::start(Cluster::start("pod-lists")).await;
    let before = scene.reads();
    for number in 0..LISTS {
        scene.list(number).await;
    }
    let after = scene.reads();
    let [ranges, listed] = [0, 1].map(|i| (after[i] - before[i]) / LISTS as f64);
    println!(
        "a list of {} of {PODS} pods: etcd reads {ranges:.2} ranges, the API server {listed:.0} pods",
        PODS / NODES
    );
    assert!(listed <= (PODS / NODES) as f64, "pods of other nodes are read: {listed}");
    assert!(ranges < 0.5, "{ranges}");
}
