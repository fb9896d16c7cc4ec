//! The command line of the kube-apiserver.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{Extent, program};

pub(super) fn start_api_server(
    folder: &Path,
    programs: &Path,
    etcd_port: u16,
    port: u16,
    extent: Extent,
) -> Child {
    let file = |name: &str| folder.join(name).display().to_string();
    let of_extent = match extent {
        // Where no controller makes the account that every pod would have.
        Extent::ApiServer => vec!["--disable-admission-plugins=ServiceAccount".to_owned()],
        // Aggregated servers, such as virt-api, read from it which certificates may impersonate users.
        Extent::Whole => vec![
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            format!("--requestheader-client-ca-file={}", file("to-kubelet.crt")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        ],
    };
    Command::new(program(programs, "kube-apiserver"))
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd_port}"))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        // It would publish its own address, and refuses one of loopback.
        .arg("--endpoint-reconciler-type=none")
        .arg(format!("--secure-port={port}"))
        .arg(format!("--cert-dir={}", file("certificates")))
        .arg(format!("--token-auth-file={}", file("tokens.csv")))
        .args(["--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=Node,RBAC"])
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-signing-key-file={}", file("accounts.key")))
        .arg(format!("--service-account-key-file={}", file("accounts.pub")))
        .arg(format!("--kubelet-client-certificate={}", file("to-kubelet.crt")))
        .arg(format!("--kubelet-client-key={}", file("to-kubelet.key")))
        .arg("--kubelet-preferred-address-types=Hostname")
        .arg(format!("--audit-policy-file={}", file("audit-policy.json")))
        .arg(format!("--audit-log-path={}", file("audit.log")))
        .args(of_extent)
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join("apiserver.log")).unwrap())
        .spawn()
        .expect("kube-apiserver starts: tests/kubernetes/build makes it")
}
