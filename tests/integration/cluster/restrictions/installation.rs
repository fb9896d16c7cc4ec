//! Installations of the manifests or of the chart in a namespace: made, and removed.

use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::helm::{IMAGE, helm_output};

/// How and where an installation is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Installation {
    pub(super) namespace: &'static str,
    pub(super) way: Way,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    Kustomize { name_prefix: &'static str },
    Helm,
}

pub(super) const BASE: Way = Way::Kustomize { name_prefix: "" };

impl Installation {
    fn manifests(&self, cluster: &Cluster, name_prefix: &str) -> String {
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": ["../base"], "namespace": self.namespace, "namePrefix": name_prefix,
        });
        cluster.render(&kustomization.to_string())
    }

    pub(super) fn install(&self, cluster: &Cluster) {
        match self.way {
            Way::Kustomize { name_prefix } => {
                cluster.kubectl(&["apply", "-f", "-"], &self.manifests(cluster, name_prefix));
            }
            Way::Helm => {
                let client = cluster.admin_kubeconfig().display().to_string();
                let more = ["--kubeconfig", &client, "--create-namespace"];
                helm_output("install", self.namespace, &[IMAGE], &more);
            }
        }
    }

    /// Removes all but the namespace, which stays for want of a controller.
    pub(super) fn uninstall(&self, cluster: &Cluster) {
        match self.way {
            Way::Kustomize { name_prefix } => {
                let manifests = self.manifests(cluster, name_prefix);
                let objects = manifests.split("\n---\n");
                let kept = objects.filter(|object| !object.contains("\nkind: Namespace\n"));
                let kept = kept.collect::<Vec<_>>().join("\n---\n");
                cluster.kubectl(&["delete", "-f", "-", "--wait=false"], &kept);
            }
            Way::Helm => {
                let client = cluster.admin_kubeconfig().display().to_string();
                // Without a kubelet, the Job of the hook would not run.
                let flags = ["--kubeconfig", &client, "--no-hooks"];
                helm_output("uninstall", self.namespace, &[], &flags);
            }
        }
    }

    pub(super) fn account(&self, name: &str) -> String {
        match self.way {
            Way::Kustomize { name_prefix } => format!("{name_prefix}{name}"),
            Way::Helm => name.into(),
        }
    }
}
