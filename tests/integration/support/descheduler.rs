//! The descheduler at work on a cluster, installed as docs/consumers says: its own manifests with the
//! project's policy. It runs as its pod would: with those arguments and rights, and its account where
//! a kubelet puts it, in a mount namespace of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::cluster::{Cluster, Eviction};
use super::{built, free_port, show_end_of_log, snippet};

const NAMESPACE: &str = "kube-system";

/// How a user installs it.
const KUSTOMIZATION: &str = "descheduler-kustomization.yaml";
/// The policy that this names.
const POLICY: &str = "descheduler-contention.yaml";

/// Puts a folder where a kubelet puts a pod's account. A file system of its own lies over `/run`, so
/// nothing stays behind on the host.
const AS_POD: &str = "run=$(realpath /var/run) && mount -t tmpfs -o mode=755 tmpfs \"$run\" && \
    mkdir -p \"$run/secrets/kubernetes.io\" && \
    ln -s \"$0\" \"$run/secrets/kubernetes.io/serviceaccount\" && exec \"$@\"";

/// What `tests/descheduler/build` made: the program, and its manifests in `kubernetes`.
fn built_folder() -> PathBuf {
    let module = include_str!("../../kubernetes/1.37/go.mod");
    built("descheduler", module, "sigs.k8s.io/descheduler")
}

/// The descheduler; it ends with the value.
pub(crate) struct Descheduler {
    child: Child,
    account: String,
    folder: PathBuf,
}

impl Descheduler {
    /// Starts it with a policy whose Prometheus is at this URL, with an account of this name. It looks
    /// at the nodes every `seconds`.
    pub(crate) fn start(
        cluster: &Cluster,
        name: &str,
        policy: &str,
        prometheus: &str,
        seconds: u32,
    ) -> Self {
        let account = format!("descheduler-{name}");
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("psi-agent-{account}-{port}"));
        let arguments = install(cluster, &folder, &asking(policy, prometheus), seconds);
        let secrets = folder.join("account");
        fs::create_dir_all(&secrets).unwrap();
        fs::write(secrets.join("token"), add_account(cluster, &account)).unwrap();
        fs::copy(&cluster.certificate()[0], secrets.join("ca.crt")).unwrap();
        fs::write(secrets.join("namespace"), NAMESPACE).unwrap();
        let program = built_folder().join("descheduler");
        let child = Command::new("unshare")
            .args(["--mount", "--propagation=private", "sh", "-c", AS_POD])
            .args([&secrets, &program])
            .args(arguments)
            .args(["--bind-address=127.0.0.1", &format!("--secure-port={port}")])
            .arg(format!("--cert-dir={}", folder.join("certificates").display()))
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", cluster.port().to_string())
            .env_remove("KUBECONFIG")
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log")).unwrap())
            .spawn()
            .expect("this test needs unshare");
        Self { child, account, folder }
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// How many pods it says to have evicted, for each time that it has looked at all nodes so far.
    pub(crate) fn cycles(&self) -> Vec<usize> {
        let log = self.log();
        let ends = log.lines().filter(|line| line.contains("\"Number of evictions/requests\""));
        let evicted = ends.map(|line| {
            let after = line.split_once("totalEvicted=").unwrap().1;
            after.split(' ').next().unwrap().parse().unwrap()
        });
        evicted.collect()
    }

    /// What it took a node for when it last looked: `underutilized`, `overutilized`, or
    /// `appropriate`, with the node's value in percent.
    pub(crate) fn last_class(&self, node: &str) -> Option<(String, i64)> {
        let log = self.log();
        let of_node = format!("node=\"{node}\"");
        let line = log.lines().rev().find(|line| {
            let says = line.contains("\"Node has been classified\"")
                || line.contains("\"Node is appropriately utilized\"");
            says && line.contains(&of_node)
        })?;
        let after = |key: &str| line.split(key).nth(1)?.split(['"', '}', ',']).next();
        let class = after("category=\"").unwrap_or("appropriate");
        let value = after("\"MetricResource\":\"").or_else(|| after("\"MetricResource\":"))?;
        Some((class.to_owned(), value.parse().ok()?))
    }

    /// The evictions that it asked for so far, by the API server's audit log.
    pub(crate) fn evictions(&self, cluster: &Cluster) -> Vec<Eviction> {
        let by = format!("system:serviceaccount:{NAMESPACE}:{}", self.account);
        cluster.evictions().into_iter().filter(|eviction| eviction.by == by).collect()
    }
}

impl Drop for Descheduler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            show_end_of_log(&self.account, &self.folder.join("log"));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The policy with this URL in place of the one that its document has, if it has one.
fn asking(policy: &str, prometheus: &str) -> String {
    let lines = policy.lines().map(|line| match line.split_once("url: ") {
        Some((indent, _)) => format!("{indent}url: {prometheus}\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Applies the manifests as a user does; answers the arguments of the pod's container, with the policy
/// where the pod has it mounted, and another interval.
fn install(cluster: &Cluster, folder: &Path, policy: &str, seconds: u32) -> Vec<String> {
    fs::create_dir_all(folder).unwrap();
    let manifests = built_folder().join("kubernetes");
    let copied = Command::new("cp").arg("-r").args([manifests.as_path(), folder]).status().unwrap();
    assert!(copied.success(), "{}: tests/descheduler/build makes it", manifests.display());
    let lines = snippet(KUSTOMIZATION).lines().map(here).collect::<String>();
    fs::write(folder.join("kustomization.yaml"), lines).unwrap();
    fs::write(folder.join(POLICY), policy).unwrap();
    cluster.kubectl(&["apply", "-k", folder.to_str().unwrap()], "");
    let get = |kind, name| cluster.get(&[kind, name, "-n", NAMESPACE]);
    let deployment = get("deployment", "descheduler");
    let pod = &deployment["spec"]["template"]["spec"];
    let volume = pod["volumes"][0]["configMap"]["name"].as_str().unwrap();
    let mounted = folder.join("policy.yaml");
    let policy = get("configmap", volume)["data"]["policy.yaml"].clone();
    fs::write(&mounted, policy.as_str().unwrap()).unwrap();
    let arguments = pod["containers"][0]["args"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| match argument.as_str().unwrap().split_once('=') {
        Some(("--policy-config-file", _)) => {
            format!("--policy-config-file={}", mounted.display())
        }
        Some(("--descheduling-interval", _)) => format!("--descheduling-interval={seconds}s"),
        _ => argument.as_str().unwrap().to_owned(),
    });
    arguments.collect()
}

/// A line of the kustomization, with the manifests as they are here.
fn here(line: &str) -> String {
    let line = if line.starts_with("- https://") { "- kubernetes/deployment" } else { line };
    format!("{line}\n")
}

/// An account of its own with the rights of the manifests, so that the audit log tells several apart;
/// answers its token.
fn add_account(cluster: &Cluster, account: &str) -> String {
    let metadata = json!({"name": account, "namespace": NAMESPACE});
    let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE});
    let objects: [Value; 2] = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": account}, "subjects": [subject],
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": "descheduler-cluster-role",
            },
        }),
    ];
    cluster.apply(&objects);
    cluster.kubectl(&["create", "token", account, "-n", NAMESPACE], "").trim().to_owned()
}
