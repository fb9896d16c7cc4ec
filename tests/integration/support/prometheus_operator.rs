//! The Prometheus operator at work on a cluster, and what it makes for a Prometheus to read.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::built;
use super::cluster::Cluster;
use super::free_port;
use super::prometheus::{both_promtools, newer_promtool, promtool};

/// Where the Prometheus that the operator looks after is, and as whom it asks: as OpenShift's own.
pub(crate) const NAMESPACE: &str = "openshift-monitoring";
pub(crate) const ACCOUNT: &str = "prometheus-k8s";
const NAME: &str = "test";

/// What `tests/prometheus-operator/build` made: the operator, and `crds`.
fn folder() -> PathBuf {
    let module = "github.com/prometheus-operator/prometheus-operator";
    built("prometheus-operator", include_str!("../../kubernetes/1.34/go.mod"), module)
}

/// What `tests/openshift/build` copied: `crds`.
fn openshift() -> PathBuf {
    let module = include_str!("../../openshift/go.mod");
    built("openshift", module, "github.com/openshift/api")
}

/// The resources that the Prometheus operator and OpenShift define become known.
pub(crate) fn install_definitions(cluster: &Cluster) {
    for folder in [folder(), openshift()] {
        // On the server's side: the definitions are too long for the annotation of a client's.
        let crds = folder.join("crds").display().to_string();
        cluster.kubectl(&["apply", "--server-side", "-f", &crds], "");
    }
    let wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
    cluster.kubectl(&wait, "");
}

/// The operator; it ends with the value.
pub(crate) struct Operator {
    child: Child,
    log: PathBuf,
}

impl Operator {
    /// Starts it, with a Prometheus to look after that watches the namespaces which OpenShift's would.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let metadata = |name: &str| json!({"name": name, "namespace": NAMESPACE});
        let namespaces = json!({"matchLabels": {"openshift.io/cluster-monitoring": "true"}});
        cluster.add_namespace(NAMESPACE);
        cluster.apply(&[
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(ACCOUNT)}),
            json!({
                "apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus",
                "metadata": metadata(NAME),
                "spec": {
                    "serviceAccountName": ACCOUNT,
                    "scrapeInterval": "2s", "evaluationInterval": "2s",
                    "podMonitorSelector": {}, "podMonitorNamespaceSelector": namespaces,
                    "ruleSelector": {}, "ruleNamespaceSelector": namespaces,
                },
            }),
        ]);
        let port = free_port();
        let log = std::env::temp_dir().join(format!("psi-agent-operator-{port}.log"));
        let program = folder().join("prometheus-operator");
        let child = Command::new(&program)
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .env("KUBECONFIG", cluster.admin_kubeconfig())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error}: tests/prometheus-operator/build makes it", program.display())
            });
        Self { child, log }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            super::show_end_of_log("the Prometheus operator", &self.log);
        }
        let _ = fs::remove_file(&self.log);
    }
}

/// What the operator made for its Prometheus, as files; they end with the value.
pub(crate) struct Generated {
    folder: PathBuf,
    /// `prometheus.yaml`, with the places of files here and with what the reloader fills in.
    pub(crate) config: Value,
}

impl Generated {
    /// `None` until the operator has seen the PodMonitor and the rules.
    pub(crate) fn fetch(cluster: &Cluster) -> Option<Self> {
        let objects = format!("secrets,configmaps --namespace={NAMESPACE} --ignore-not-found");
        let objects = cluster.get(&objects.split(' ').collect::<Vec<_>>());
        let named = |name: &str| {
            let objects = objects["items"].as_array()?;
            let object = objects.iter().find(|object| object["metadata"]["name"] == name)?;
            object["data"].as_object()
        };
        let packed = named(&format!("prometheus-{NAME}"))?.get("prometheus.yaml.gz")?.as_str()?;
        let rules = named(&format!("prometheus-{NAME}-rulefiles-0"))?;
        let config = decode(packed, "base64 -d | gunzip");
        if rules.is_empty() || !config.contains("job_name: podMonitor/psi-agent/psi-agent/0") {
            return None;
        }
        let folder = std::env::temp_dir().join(format!("psi-agent-generated-{}", free_port()));
        fs::create_dir_all(folder.join("certs")).unwrap();
        for (name, text) in rules {
            fs::write(folder.join(name), text.as_str().unwrap()).unwrap();
        }
        let files = named(&format!("prometheus-{NAME}-tls-assets-0"));
        for (name, packed) in files.into_iter().flatten() {
            let file = decode(packed.as_str().unwrap(), "base64 -d");
            fs::write(folder.join("certs").join(name), file).unwrap();
        }
        let here = folder.to_str().unwrap();
        let config = config
            .replace("$(POD_NAME)", "prometheus-test-0")
            .replace("$(SHARD)", "0")
            .replace(&format!("/etc/prometheus/rules/prometheus-{NAME}-rulefiles-0"), here)
            .replace("/etc/prometheus/certs", &format!("{here}/certs"));
        let config = serde_saphyr::from_str(&config).unwrap();
        Some(Self { folder, config })
    }

    /// The file that the rules are in.
    pub(crate) fn rule_file(&self) -> PathBuf {
        let files = fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files = files.filter(|path| path.extension().is_some_and(|it| it == "yaml"));
        let file = files.next().unwrap();
        assert_eq!(files.next(), None, "one PrometheusRule, one file");
        file
    }

    /// promtool finds nothing wrong.
    pub(crate) fn check(&self) {
        let config = self.folder.join("prometheus.json");
        fs::write(&config, self.config.to_string()).unwrap();
        promtool(&newer_promtool(), &["check", "config", config.to_str().unwrap()]);
        for program in both_promtools() {
            promtool(&program, &["check", "rules", self.rule_file().to_str().unwrap()]);
        }
    }
}

impl Drop for Generated {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Tells every discovery of a configuration, which would ask the API server of the cluster that it
/// runs in by its pod's account, where that is from outside, and who asks.
pub(crate) fn ask_from_outside(config: &mut Value, cluster: &Cluster, token: &str) {
    let view = ["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"];
    let server = cluster.kubectl(&view, "");
    let [authority, _] = cluster.certificate();
    for job in config["scrape_configs"].as_array_mut().unwrap() {
        for discovery in job["kubernetes_sd_configs"].as_array_mut().unwrap() {
            discovery["api_server"] = json!(server);
            discovery["tls_config"] = json!({"ca_file": authority});
            discovery["authorization"] = json!({"credentials": token});
        }
    }
}

/// A text as a command of the shell's makes another of it.
fn decode(text: &str, command: &str) -> String {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command}: {text}");
    String::from_utf8(output.stdout).unwrap()
}
