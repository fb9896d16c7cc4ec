//! An agent under the admission policies of the last release, which deny the label of the headroom.

use std::time::Duration;

use serde_json::json;

use super::publishing::{NODE, Scene};
use crate::support::helm::last_release;
use crate::support::short_node::assessment;
use crate::support::wait_for;

const LABEL: &str = "psi-agent.io/headroom";

impl Scene {
    /// Lets a time pass in which the node is contended, and its demand known.
    async fn pass_with_demand(&mut self, seconds: u64) {
        for _ in 0..seconds / 5 {
            let assessment = assessment(&mut self.node, 0.5, 2.0, 1.5);
            self.take(&assessment).await;
        }
    }

    fn wait_until_the_label_is(&self, allowed: bool) {
        let patch = json!({"metadata": {"labels": {LABEL: "1"}}}).to_string();
        let try_it = ["patch", "node", NODE, "--type=merge", "--dry-run=server", "-p", &patch];
        wait_for("the API server knows the policies", Duration::from_secs(60), || {
            let output = self.cluster.kubectl_as(&self.kubeconfig, &try_it);
            (output.status.success() == allowed).then_some(())
        });
    }

    /// The label and the annotation of the headroom.
    fn headroom(&self) -> [Option<String>; 2] {
        let node = self.api_node();
        let value = |kind| node["metadata"][kind][LABEL].as_str().map(str::to_owned);
        ["labels", "annotations"].map(value)
    }
}

#[tokio::test]
#[ignore = "needs etcd, a kube-apiserver (tests/kubernetes/build) and what tests/helm/build makes"]
async fn earlier_policies_deny_the_label_only_and_later_ones_allow_it() {
    let mut scene = Scene::start("earlier-policies").await;
    let values = ["image.repository=psi-agent", "agent.label=true"];
    let release = last_release("template", "psi-agent", &values, &[]);
    let objects = release.split("\n---\n");
    let policies = objects.filter(|object| object.contains("\nkind: ValidatingAdmissionPolicy"));
    let policies: Vec<&str> = policies.collect();
    assert_eq!(policies.len(), 6, "three, and their bindings");
    scene.cluster.kubectl(&["apply", "-f", "-"], &policies.join("\n---\n"));
    scene.wait_until_the_label_is(false);

    scene.pass_with_demand(600).await;
    let metadata = scene.api_node()["metadata"].clone();
    assert_eq!(metadata["annotations"]["psi-agent.io/score"], "50");
    assert_eq!(metadata["labels"]["psi-agent.io/pressure"], "high");
    assert_eq!(scene.headroom(), [None, Some("0".to_owned())]);
    let denials = scene.outcomes().iter().filter(|word| **word == "label denied").count();
    assert_eq!(denials, 1, "{:?}", scene.outcomes());
    assert!(scene.outcomes().iter().all(|word| ["written", "label denied"].contains(word)));

    scene.cluster.apply_folder("daemonset/base");
    scene.wait_until_the_label_is(true);
    scene.pass_with_demand(300).await;
    assert_eq!(scene.headroom(), [Some("0".to_owned()), Some("0".to_owned())]);
}
