//! A real control plane on loopback: Debian's etcd and a kube-apiserver, where it is wanted with a
//! scheduler and controllers, its objects made with kubectl. Nodes and pods are objects without a
//! kubelet behind them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::agent::get_from;
use super::exposition::parse;
use super::{built, free_port, wait_for};
pub(crate) use accounts::REAL_NODE;
use accounts::{ADMIN_TOKEN, make_keys};
use api_server::start_api_server;
use audit::audit_policy;
pub(crate) use audit::{Audited, Eviction};
pub(crate) use kustomize::with_components;
pub(crate) use scheduler::{LAUNCHER, unplaced_vm};

mod accounts;
mod api_server;
mod audit;
mod kustomize;
mod objects;
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

/// `KUBEBUILDER_ASSETS` where it is set, else what `tests/kubernetes/build` made.
fn programs() -> PathBuf {
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") {
        return assets.into();
    }
    let module = include_str!("../../kubernetes/1.37/go.mod");
    built("kubernetes", module, "k8s.io/kubernetes")
}

/// A program from there, or else from the PATH.
fn program(programs: &Path, name: &str) -> PathBuf {
    Some(programs.join(name)).filter(|path| path.exists()).unwrap_or_else(|| name.into())
}
