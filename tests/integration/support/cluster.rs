//! A real control plane on loopback: Debian's etcd and a kube-apiserver, where it is wanted with a
//! scheduler and controllers, its objects made with kubectl. Nodes and pods are objects without a
//! kubelet behind them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::agent::get_from;
use super::exposition::parse;
use super::{cache_dir, free_port, project, wait_for};
pub(crate) use accounts::REAL_NODE;
use accounts::{ADMIN_TOKEN, make_keys};
use api_server::start_api_server;
use audit::audit_policy;
pub(crate) use audit::{Audited, Eviction};
pub(crate) use scheduler::{LAUNCHER, unplaced_vm};

mod accounts;
mod api_server;
mod audit;
mod scheduler;

/// The control plane; it ends with the value.
pub(crate) struct Cluster {
    folder: PathBuf,
    programs: PathBuf,
    etcd: Child,
    etcd_port: u16,
    api_server: Child,
    port: u16,
    extent: Extent,
    others: Vec<Child>,
}

/// How much of a control plane.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    /// An API server alone, which asks for no service account on a pod that names none.
    ApiServer,
    /// Also controllers and the scheduler, all as they are by default.
    Whole,
}

impl Cluster {
    /// An API server alone.
    pub(crate) fn start(name: &str) -> Self {
        Self::start_to(name, Extent::ApiServer, &[])
    }

    /// An API server whose etcd stores no more than so many bytes.
    pub(crate) fn start_with_quota(name: &str, bytes: u32) -> Self {
        let quota = format!("--quota-backend-bytes={bytes}");
        Self::start_to(name, Extent::ApiServer, &[&quota])
    }

    /// With controllers and a scheduler that has no configuration.
    pub(crate) fn start_whole(name: &str) -> Self {
        let mut cluster = Self::start_to(name, Extent::Whole, &[]);
        for (program, more) in [
            ("kube-scheduler", &[][..]),
            (
                "kube-controller-manager",
                // Nodes here have no kubelet that could be late.
                &[
                    "--use-service-account-credentials",
                    "--controllers=*,-node-lifecycle-controller",
                ],
            ),
        ] {
            let child = cluster.start_beside(program, more);
            cluster.others.push(child);
        }
        cluster
    }

    fn start_beside(&self, program_name: &str, more: &[&str]) -> Child {
        let kubeconfig = self.admin_kubeconfig().display().to_string();
        let mut command = Command::new(program(&self.programs, program_name));
        command
            .args(
                ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
                    .map(|flag| format!("--{flag}={kubeconfig}")),
            )
            .args(["--bind-address=127.0.0.1", "--leader-elect=false"])
            .arg(format!("--secure-port={}", free_port()))
            .arg(format!("--cert-dir={}", self.folder.join(program_name).display()))
            .args(more);
        if program_name == "kube-controller-manager" {
            let key = self.folder.join("accounts.key").display().to_string();
            let authority = self.folder.join("certificates/apiserver.crt").display().to_string();
            command.arg(format!("--service-account-private-key-file={key}"));
            command.arg(format!("--root-ca-file={authority}"));
        }
        let log = fs::File::create(self.folder.join(format!("{program_name}.log"))).unwrap();
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap_or_else(|error| {
            panic!("{program_name}: {error}: tests/kubernetes/build makes it")
        })
    }

    fn start_to(name: &str, extent: Extent, etcd_flags: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        make_keys(&folder);
        fs::write(folder.join("audit-policy.json"), audit_policy().to_string()).unwrap();
        let (etcd_port, peer_port, port) = (free_port(), free_port(), free_port());
        let (client, peer) =
            (format!("http://127.0.0.1:{etcd_port}"), format!("http://127.0.0.1:{peer_port}"));
        let programs = programs();
        let etcd = Command::new(program(&programs, "etcd"))
            .arg("--unsafe-no-fsync")
            .arg(format!("--data-dir={}", folder.join("etcd").display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=default={peer}"))
            .args(etcd_flags)
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("etcd.log")).unwrap())
            .spawn()
            .expect("this test needs etcd (Debian's package etcd-server)");
        let api_server = start_api_server(&folder, &programs, etcd_port, port, extent);
        let others = Vec::new();
        let cluster = Self { folder, programs, etcd, etcd_port, api_server, port, extent, others };
        cluster.write_kubeconfig("admin", ADMIN_TOKEN);
        cluster.wait_until_ready();
        cluster
    }

    fn wait_until_ready(&self) {
        wait_for("the API server is ready", Duration::from_secs(90), || {
            self.kubectl_output(&["get", "--raw", "/readyz"], "").filter(|answer| answer == "ok")
        });
    }

    /// A number of etcd's own, summed over its labels.
    pub(crate) fn etcd_metric(&self, name: &str) -> f64 {
        let address = format!("127.0.0.1:{}", self.etcd_port);
        let metrics = get_from(&address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n").unwrap();
        let series = parse(&metrics.text()).into_iter();
        series.filter(|series| series.name == name).map(|series| series.value).sum()
    }

    /// Ends the API server at once, as a crash would.
    pub(crate) fn kill_api_server(&mut self) {
        let _ = self.api_server.kill();
        let _ = self.api_server.wait();
    }

    /// Starts it again where it was.
    pub(crate) fn start_api_server_again(&mut self) {
        let Self { folder, programs, etcd_port, port, extent, .. } = self;
        self.api_server = start_api_server(folder, programs, *etcd_port, *port, *extent);
        self.wait_until_ready();
    }

    /// A request to etcd's own interface.
    pub(crate) fn etcd(&self, path: &str, body: &Value) -> Value {
        let url = format!("http://127.0.0.1:{}{path}", self.etcd_port);
        let output = Command::new("curl").args(["-sS", "-d", &body.to_string(), &url]).output();
        let output = output.expect("this test needs curl").stdout;
        serde_json::from_slice(&output).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Makes the objects, or brings them to this state.
    pub(crate) fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.kubectl(&["apply", "--validate=false", "-f", "-"], &list);
    }

    /// Makes a resource known, and waits until the API server serves it.
    pub(crate) fn define(&self, definition: &Value) {
        // Some are too large for the annotation that applying would keep.
        self.kubectl(&["create", "-f", "-"], &definition.to_string());
        let name = definition["metadata"]["name"].as_str().unwrap();
        wait_for(&format!("{name} is served"), Duration::from_secs(60), || {
            let definition = self.get(&["customresourcedefinition", name]);
            let conditions = definition["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.into_iter().flatten();
            conditions.find(|it| it["type"] == "Established" && it["status"] == "True").map(drop)
        });
    }

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

    pub(crate) fn add_namespace(&self, name: &str) {
        self.apply(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})]);
    }

    /// A Node that pods can be bound to.
    pub(crate) fn add_node(&self, name: &str) {
        self.apply(&[json!({"apiVersion": "v1", "kind": "Node", "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        }})]);
        let room = json!({"cpu": "16", "memory": "64Gi", "pods": "110",
            "ephemeral-storage": "100Gi"});
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
            "lastHeartbeatTime": null, "lastTransitionTime": null});
        let status = json!({"status": {
            "capacity": room, "allocatable": room, "conditions": [ready],
        }});
        let patch = ["patch", "node", name, "--type=merge", "-p"];
        let status = status.to_string();
        self.kubectl(&[&patch[..], &[&status, "--subresource=status"]].concat(), "");
        // Admission taints what no kubelet has called ready yet.
        self.kubectl(&[&patch[..], &[r#"{"spec":{"taints":null}}"#]].concat(), "");
    }

    /// An object as the API server has it.
    pub(crate) fn get(&self, arguments: &[&str]) -> Value {
        let arguments = [&["get"], arguments, &["-o", "json"]].concat();
        serde_json::from_str(&self.kubectl(&arguments, "")).unwrap()
    }

    /// Runs kubectl as somebody else, who may be refused.
    pub(crate) fn kubectl_as(&self, kubeconfig: &Path, arguments: &[&str]) -> Output {
        Command::new(program(&self.programs, "kubectl"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(arguments)
            .output()
            .expect("kubectl starts: tests/kubernetes/build makes it")
    }

    /// Sets the status of a pod, which is the kubelet's to do elsewhere.
    pub(crate) fn set_status(&self, namespace: &str, pod: &str, status: &Value) {
        let patch = json!({ "status": status }).to_string();
        let arguments =
            ["patch", "pod", pod, "-n", namespace, "--subresource=status", "--type=merge", "-p"];
        self.kubectl(&[&arguments[..], &[&patch]].concat(), "");
    }

    /// Runs kubectl as the administrator; it must succeed.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        self.kubectl_output(arguments, input).unwrap_or_else(|| panic!("kubectl {arguments:?}"))
    }

    /// What kubectl prints as the administrator; `None` if it fails.
    pub(crate) fn kubectl_output(&self, arguments: &[&str], input: &str) -> Option<String> {
        let mut child = Command::new(program(&self.programs, "kubectl"))
            .arg(format!("--kubeconfig={}", self.kubeconfig("admin").display()))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(self.folder.join("kubectl.log")).unwrap())
            .spawn()
            .expect("kubectl starts: tests/kubernetes/build makes it");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.kubeconfig("admin")
    }

    /// Starts a program that works on the cluster as the administrator: one that
    /// `tests/kubernetes/build` made, or another by its path.
    pub(crate) fn start_program(&self, name: &str, arguments: &[&str]) -> Companion {
        let path = program(&self.programs, name);
        let stem = path.file_name().unwrap().to_str().unwrap();
        let (output, log) = (
            self.folder.join(format!("{stem}-beside.out")),
            self.folder.join(format!("{stem}-beside.log")),
        );
        let child = Command::new(&path)
            .arg(format!("--kubeconfig={}", self.kubeconfig("admin").display()))
            .args(arguments)
            .stdout(fs::File::create(&output).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Companion { child, output, log }
    }

    /// Where kubectl is.
    pub(crate) fn programs(&self) -> &Path {
        &self.programs
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// By which a kubelet knows the API server that asks it for logs and metrics.
    pub(crate) fn client_of_kubelets(&self) -> PathBuf {
        self.folder.join("to-kubelet.crt")
    }

    /// The API server's own certificate and key, for another server on loopback.
    pub(crate) fn certificate(&self) -> [PathBuf; 2] {
        ["crt", "key"].map(|kind| self.folder.join(format!("certificates/apiserver.{kind}")))
    }

    fn kubeconfig(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.kubeconfig"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let others = self.others.iter_mut();
        for child in others.chain([&mut self.api_server, &mut self.etcd]) {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.join("kubectl.log")).unwrap_or_default();
            eprintln!("kubectl said last: {log}");
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A program beside the control plane; it ends with the value.
pub(crate) struct Companion {
    child: Child,
    output: PathBuf,
    log: PathBuf,
}

impl Companion {
    /// What it has written to stdout by now.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// What it has logged by now.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            super::show_end_of_log(&self.log.display().to_string(), &self.log);
        }
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

/// `KUBEBUILDER_ASSETS` where it is set, else what `tests/kubernetes/build` made.
fn programs() -> PathBuf {
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") {
        return assets.into();
    }
    let module = include_str!("../../kubernetes/1.37/go.mod");
    let version = module.split("require k8s.io/kubernetes v").nth(1).unwrap();
    cache_dir().join(format!("kubernetes-{}", version.lines().next().unwrap()))
}

/// A program from there, or else from the PATH.
fn program(programs: &Path, name: &str) -> PathBuf {
    Some(programs.join(name)).filter(|path| path.exists()).unwrap_or_else(|| name.into())
}
