//! A node as clusters have them: a guest of QEMU's emulator with systemd, containerd and runc from
//! Debian and the cluster's own kubelet, joined to the control plane of the test. `tests/node/build`
//! makes its disk; what differs from run to run is given to it as a second disk.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Cluster, REAL_NODE};
use super::free_port;

/// What a boot takes many times over, also on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// One thread and one CPU: with more of them the emulator's guest panics now and then. Without cx16,
/// which QEMU 7.2 emulates wrongly.
const MACHINE: &str = "-accel tcg,thread=single,tb-size=512 -cpu max,-cx16 -M q35 -m 1G -smp 1 \
                       -nodefaults -no-user-config -display none -no-reboot";
const KERNEL_FLAGS: &str = "console=ttyS0 root=/dev/nvme0n1 rw rootwait init=/lib/systemd/systemd \
                            psi=1 panic=-1 net.ifnames=0 systemd.show_status=0 quiet \
                            mitigations=off systemd.unified_cgroup_hierarchy=1";
/// The host, as the guest of QEMU's user network sees it.
const HOST: &str = "10.0.2.2";
const SHELL_PORT: u16 = 20250;

/// Where the guest finds what it was given.
pub(crate) const GIVEN: &str = "/run/given";

/// A running guest; it ends with the value.
pub(crate) struct RealNode {
    machine: Child,
    folder: PathBuf,
    pub(crate) shell: Shell,
    kubelet_port: u16,
}

/// Where the guest serves a root's bash for each connection.
#[derive(Clone, Copy)]
pub(crate) struct Shell {
    port: u16,
}

impl Shell {
    /// What a script for bash says as root of the guest; it must succeed.
    pub(crate) fn run(&self, script: &str) -> String {
        let said = self.ask(script).expect("the guest's shell answers");
        let (output, code) = said.rsplit_once("=== ").unwrap_or((&said, "none"));
        assert_eq!(code.trim(), "0", "{script}\nended by {code}, and said:\n{output}");
        output.to_owned()
    }

    fn ask(&self, script: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(BOOT_LIMIT))?;
        // The shell reads the script from where its commands would read.
        let script = format!("( set -eu\n{script}\n) </dev/null 2>&1; echo \"=== $?\"; exit\n");
        stream.write_all(script.as_bytes())?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        let _ = stream.shutdown(Shutdown::Both);
        Ok(said)
    }
}

impl RealNode {
    /// Boots the guest with files in [`GIVEN`], and waits until its Node is ready.
    pub(crate) fn join(cluster: &Cluster, files: &[PathBuf]) -> Self {
        // The emulator itself may fail; whatever else goes wrong is no reason to repeat.
        let first = Self::try_join(cluster, files);
        first.or_else(|_| Self::try_join(cluster, files)).unwrap_or_else(|console| {
            panic!("QEMU ended early, twice; the guest said last:\n{console}")
        })
    }

    fn try_join(cluster: &Cluster, files: &[PathBuf]) -> Result<Self, String> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = folder.join(format!("node-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (shell_port, kubelet_port) = (free_port(), free_port());
        give(&folder, files, cluster, kubelet_port);
        let machine = boot(&folder, shell_port, kubelet_port);
        let shell = Shell { port: shell_port };
        let mut node = Self { machine, folder, shell, kubelet_port };
        let start = Instant::now();
        while !is_ready(cluster) {
            if node.machine.try_wait().unwrap().is_some() {
                return Err(node.console());
            }
            assert!(start.elapsed() < BOOT_LIMIT, "no Node within {BOOT_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(250));
        }
        Ok(node)
    }

    /// As [`Shell::run`].
    pub(crate) fn run(&self, script: &str) -> String {
        self.shell.run(script)
    }

    /// Where this host reaches the guest's kubelet.
    pub(crate) fn kubelet_address(&self) -> String {
        format!("127.0.0.1:{}", self.kubelet_port)
    }

    /// What the kubelet exports of containers.
    pub(crate) fn kubelet_metrics(&self, cluster: &Cluster) -> String {
        // The API server passes requests on to no address of loopback.
        let server = format!("--server=https://127.0.0.1:{}", self.kubelet_port);
        let get = ["get", "--raw", "/metrics/cadvisor", "--insecure-skip-tls-verify", &server];
        cluster.kubectl(&get, "")
    }

    fn console(&self) -> String {
        last_lines(&fs::read(self.folder.join("console")).unwrap_or_default())
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the guest's console ends with:\n{}", self.console());
            for log in ["kubelet", "containerd"] {
                let said = self.shell.ask(&format!("tail -n 40 /var/log/{log}.log"));
                eprintln!("{log} said last:\n{}", said.unwrap_or_default());
            }
        }
        let _ = self.machine.kill();
        let _ = self.machine.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let from = text.lines().count().saturating_sub(40);
    text.lines().skip(from).map(|line| format!("{line}\n")).collect()
}

fn is_ready(cluster: &Cluster) -> bool {
    let nodes = cluster.get(&["nodes"]);
    let mut nodes = nodes["items"].as_array().unwrap().iter();
    let node = nodes.find(|node| node["metadata"]["name"] == REAL_NODE);
    let conditions = node.and_then(|node| node["status"]["conditions"].as_array());
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

/// Writes the second disk: the files, and how the cluster is reached.
fn give(folder: &Path, files: &[PathBuf], cluster: &Cluster, kubelet_port: u16) {
    let given = folder.join("given");
    fs::create_dir_all(&given).unwrap();
    let copy = |from: &Path, name: &str| fs::copy(from, given.join(name)).unwrap();
    for file in files {
        copy(file, file.file_name().unwrap().to_str().unwrap());
    }
    let [authority, _] = cluster.certificate();
    copy(&authority, "authority.crt");
    copy(&cluster.client_of_kubelets(), "client.crt");
    let write = |name: &str, text: String| fs::write(given.join(name), text).unwrap();
    write("kubeconfig", cluster.kubelet_kubeconfig(HOST, &format!("{GIVEN}/authority.crt")));
    write("kubelet.yaml", kubelet_configuration(kubelet_port).to_string());
    write("environment", format!("API_SERVER_PORT={}\n", cluster.port()));
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(folder.join("given.tar")).arg("-C").arg(&given).arg(".");
    assert!(tar.status().unwrap().success());
}

fn kubelet_configuration(port: u16) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        // The API server's own host forwards the same port.
        "port": port,
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": format!("{GIVEN}/client.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "failSwapOn": false, "enforceNodeAllocatable": ["pods"],
        // The disk is small, and nothing on it is to be cleaned up.
        "evictionHard": {
            "memory.available": "30Mi", "nodefs.available": "1%", "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "2s", "syncFrequency": "5s",
    })
}

fn boot(folder: &Path, shell_port: u16, kubelet_port: u16) -> Child {
    let made = made();
    let forward = format!(
        "user,id=net,net=10.0.2.0/24,hostfwd=tcp:127.0.0.1:{shell_port}-:{SHELL_PORT},\
         hostfwd=tcp:127.0.0.1:{kubelet_port}-:{kubelet_port}"
    );
    let disk = |id: &str, path: &Path| {
        format!("file={},if=none,id={id},format=raw,snapshot=on", path.display())
    };
    // What others take of its CPUs would be its own use to the guest: it goes before other tests.
    Command::new("nice")
        .args(["-n", "-20", "qemu-system-x86_64"])
        .args(MACHINE.split_whitespace())
        .arg("-serial")
        .arg(format!("file:{}", folder.join("console").display()))
        .args(["-drive", &disk("root", &made.join("disk"))])
        .args(["-device", "nvme,drive=root,serial=root"])
        .args(["-drive", &disk("given", &folder.join("given.tar"))])
        .args(["-device", "nvme,drive=given,serial=given"])
        .args(["-netdev", &forward, "-device", "virtio-net-pci,netdev=net,romfile="])
        .args(["-device", "virtio-rng-pci", "-append", KERNEL_FLAGS, "-kernel"])
        .arg(made.join("kernel"))
        .stdin(Stdio::null())
        .spawn()
        .expect("qemu-system-x86_64 starts (Debian's package qemu-system-x86)")
}

/// Where `tests/node/build` has put kernel and disk; it makes them where they are not.
fn made() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/build");
    let build = Command::new(script).stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8(build.stdout).unwrap();
    assert!(build.status.success(), "{script} failed: {said}");
    let last = said.lines().last().and_then(|line| line.strip_prefix("node: ")).unwrap();
    last.split(',').next().unwrap().into()
}
