//! The project's kustomizations, applied, removed and rendered.

use std::fs;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};

use super::Cluster;
use crate::support::{project, wait_for};

impl Cluster {
    /// Applies a kustomization of the project's.
    pub(crate) fn apply_folder(&self, folder: &str) -> String {
        self.kubectl(&["apply", "-k", project::path(folder).to_str().unwrap()], "")
    }

    /// Applies `daemonset/base` and makes the namespace `vms`; waits until the controllers are at work.
    pub(crate) fn install_for_vms(&self) {
        self.apply_folder("daemonset/base");
        self.add_namespace("vms");
        wait_for("the controllers are at work", Duration::from_secs(60), || {
            let accounts = self.get(&["serviceaccounts", "-n", "vms"]);
            accounts["items"].as_array().filter(|list| !list.is_empty()).map(drop)
        });
    }

    /// Removes it, and waits until it is gone; its pods end as if there were a kubelet.
    pub(crate) fn remove_folder(&self, folder: &str) {
        let folder = project::path(folder);
        self.kubectl(&["delete", "-k", folder.to_str().unwrap(), "--wait=false"], "");
        let end = ["delete", "pods", "-n", "psi-agent", "--all", "--force", "--grace-period=0"];
        wait_for("the namespace is gone", Duration::from_secs(90), || {
            self.kubectl_output(&[&end[..], &["--wait=false"]].concat(), "");
            let namespaces = self.kubectl(&["get", "namespaces", "-o", "name"], "");
            (!namespaces.contains("psi-agent")).then_some(())
        });
    }

    /// The base with components.
    pub(crate) fn render_with(&self, components: &[&str]) -> String {
        self.render(&with_components(components).to_string())
    }

    /// A kustomization that stands in a folder beside the base.
    pub(crate) fn render(&self, kustomization: &str) -> String {
        let output = self.try_render(kustomization);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What kustomize makes of it, which may be an error.
    pub(crate) fn try_render(&self, kustomization: &str) -> Output {
        let folder = self.folder.join("rendered");
        fs::create_dir_all(&folder).unwrap();
        // A kustomization names its parts relative to itself.
        let up = "../".repeat(folder.components().count() - 1);
        let beside =
            format!("{up}{}/", project::path("daemonset").strip_prefix("/").unwrap().display());
        fs::write(folder.join("kustomization.yaml"), kustomization.replace("../", &beside))
            .unwrap();
        self.kubectl_as(&self.admin_kubeconfig(), &["kustomize", folder.to_str().unwrap()])
    }
}

/// A kustomization of the base with components.
pub(crate) fn with_components(components: &[&str]) -> Value {
    let components: Vec<String> =
        components.iter().map(|name| format!("../components/{name}")).collect();
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../base"], "components": components,
    })
}
