//! An upgrade from the last release, and the way back, by kubectl and by Helm.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::support::cluster::{Cluster, with_components};
use crate::support::helm::{IMAGE, REUSE, helm_output, last_release};
use crate::support::wait_for;

const MINUTE: Duration = Duration::from_secs(60);
const VALUES_BEFORE: [&str; 3] =
    ["image.repository=psi-agent", "agent.label=true", "bridge.enabled=true"];
const IMAGE_BEFORE: &str = "psi-agent:0.2.0";
const NAMESPACE: [&str; 2] = ["-n", "psi-agent"];

/// Kind and name of each object.
fn names(yaml: &str) -> BTreeSet<String> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let objects = objects.iter().filter(|object| !object.is_null());
    objects.map(|object| format!("{} {}", object["kind"], object["metadata"]["name"])).collect()
}

/// Waits until the controllers have replaced the agent's pod by one with this image.
fn expect_agent(cluster: &Cluster, image: &str) {
    let list = ["pods", "-l", "app.kubernetes.io/name=psi-agent"];
    wait_for(&format!("an agent of {image}"), MINUTE, || {
        let pods = cluster.get(&[&list[..], &NAMESPACE].concat());
        let pods = pods["items"].as_array().unwrap().clone();
        // No kubelet ends a pod here.
        for pod in pods.iter().filter(|pod| pod["metadata"].get("deletionTimestamp").is_some()) {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let end = ["delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found"];
            cluster.kubectl(&[&end[..], &NAMESPACE].concat(), "");
        }
        let [pod] = &pods[..] else { return None };
        (pod["spec"]["containers"][0]["image"] == image).then_some(())
    });
}

fn start(name: &str) -> Cluster {
    let cluster = Cluster::start_whole(name);
    cluster.add_node("node-a");
    cluster
}

fn image_now() -> String {
    format!("{}:{}", IMAGE.strip_prefix("image.repository=").unwrap(), env!("CARGO_PKG_VERSION"))
}

#[test]
#[ignore = "needs etcd, a control plane and what tests/helm/build makes"]
fn kubectl_upgrades_from_the_last_release_and_back_without_leftovers() {
    let cluster = start("upgrade-kubectl");
    cluster.kubectl(&["create", "namespace", "psi-agent"], "");
    // The chart and kustomize make the same objects.
    let before = last_release("template", "psi-agent", &VALUES_BEFORE, &[]);
    let now = cluster.render(&with_components(&["bridge", "label"]).to_string());
    // What `kubectl apply` would leave behind, since it removes nothing.
    let (old, new) = (names(&before), names(&now));
    assert_eq!(old.difference(&new).collect::<Vec<_>>(), Vec::<&String>::new());
    let apply = ["apply", "--validate=strict", "-f", "-"];
    for (manifests, image) in
        [(&before, IMAGE_BEFORE), (&now, &*image_now()), (&before, IMAGE_BEFORE)]
    {
        cluster.kubectl(&apply, manifests);
        expect_agent(&cluster, image);
        let again = cluster.kubectl(&apply, manifests);
        assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
    }
}

#[test]
#[ignore = "needs etcd, a control plane and what tests/helm/build makes"]
fn helm_upgrades_from_the_last_release_and_back() {
    let cluster = start("upgrade-helm");
    let kubeconfig = cluster.admin_kubeconfig();
    let client = ["--kubeconfig", kubeconfig.to_str().unwrap()];
    let install = [&client[..], &["--create-namespace"]].concat();
    last_release("install", "psi-agent", &VALUES_BEFORE, &install);
    expect_agent(&cluster, IMAGE_BEFORE);
    helm_output("upgrade", "psi-agent", &[IMAGE], &[&client[..], &[REUSE]].concat());
    expect_agent(&cluster, &image_now());
    cluster.get(&["deployment", "psi-agent-bridge", "-n", "psi-agent"]);
    helm_output("rollback", "psi-agent", &[], &[&client[..], &["1"]].concat());
    expect_agent(&cluster, IMAGE_BEFORE);
    helm_output("uninstall", "psi-agent", &[], &client);
    let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,\
                 validatingadmissionpolicybindings";
    let left = cluster.kubectl(&["get", kinds, "-o", "name"], "");
    assert!(!left.contains("psi-agent"), "{left}");
}
