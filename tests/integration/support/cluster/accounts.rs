//! Who asks: keys, tokens and kubeconfigs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::Cluster;

pub(super) const ADMIN_TOKEN: &str = "admin-of-the-test";
const KUBELET_TOKEN: &str = "kubelet-of-the-test";

/// The Node that a real kubelet may be: the API server finds it on its own host's loopback.
pub(crate) const REAL_NODE: &str = "localhost";

impl Cluster {
    /// A token of a service account of the agent's, bound to a pod of its namespace.
    pub(crate) fn bound_token(&self, account: &str, pod: &str) -> String {
        let bound = format!("--bound-object-name={pod}");
        let create = ["create", "token", account, "-n", "psi-agent", "--bound-object-kind=Pod"];
        self.kubectl(&[&create[..], &[&bound]].concat(), "").trim().to_owned()
    }

    /// A token of a service account of the agent's namespace.
    pub(crate) fn token(&self, account: &str) -> String {
        self.kubectl(&["create", "token", account, "-n", "psi-agent"], "").trim().to_owned()
    }

    /// A token with these claims, signed as the API server signs those of service accounts.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        let openssl = |arguments: &[&str], input: &[u8]| {
            let mut child = Command::new("openssl")
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this test needs openssl");
            child.stdin.take().unwrap().write_all(input).unwrap();
            child.wait_with_output().unwrap().stdout
        };
        let base64url = |bytes: &[u8]| {
            let text = String::from_utf8(openssl(&["base64", "-A"], bytes)).unwrap();
            text.trim_end_matches('=').replace('+', "-").replace('/', "_")
        };
        let header = json!({"alg": "RS256", "typ": "JWT"}).to_string();
        let claims = claims.to_string();
        let signed = format!("{}.{}", base64url(header.as_bytes()), base64url(claims.as_bytes()));
        let key = self.folder.join("accounts.key");
        let sign = ["dgst", "-sha256", "-sign", key.to_str().unwrap()];
        let signature = openssl(&sign, signed.as_bytes());
        format!("{signed}.{}", base64url(&signature))
    }

    /// A kubeconfig for whoever has this token.
    pub(crate) fn write_kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        self.write_kubeconfig_of(name, &json!({ "token": token }))
    }

    /// A kubeconfig for the agent in this pod.
    pub(crate) fn agent_kubeconfig(&self, pod: &str) -> PathBuf {
        self.write_kubeconfig(pod, &self.bound_token("psi-agent", pod))
    }

    /// A kubeconfig for whoever is told apart by this.
    pub(crate) fn write_kubeconfig_of(&self, name: &str, user: &Value) -> PathBuf {
        self.write_kubeconfig_by(self.port, name, user)
    }

    /// The same, with another port of loopback that leads to the API server.
    pub(crate) fn write_kubeconfig_by(&self, port: u16, name: &str, user: &Value) -> PathBuf {
        let path = self.kubeconfig(name);
        let authority = self.folder.join("certificates/apiserver.crt");
        let server = json!({
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": authority,
        });
        fs::write(&path, kubeconfig_of(&server, user).to_string()).unwrap();
        path
    }

    /// What the kubelet of [`REAL_NODE`] needs to join from a guest that sees this host as `host`.
    pub(crate) fn kubelet_kubeconfig(&self, host: &str, authority: &str) -> String {
        let server = json!({
            "server": format!("https://{host}:{}", self.port), "tls-server-name": "kubernetes",
            "certificate-authority": authority,
        });
        kubeconfig_of(&server, &json!({ "token": KUBELET_TOKEN })).to_string()
    }
}

fn kubeconfig_of(server: &Value, user: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
}

/// Keys for the tokens of service accounts, the tokens of the administrator and of a kubelet, and
/// a certificate by which the API server is known to that kubelet.
pub(super) fn make_keys(folder: &Path) {
    let key = folder.join("accounts.key");
    let openssl = |arguments: &[&str]| {
        let run = Command::new("openssl").args(arguments).stderr(Stdio::null()).status();
        assert!(run.expect("this test needs openssl").success());
    };
    let (key, public) = (key.to_str().unwrap(), folder.join("accounts.pub"));
    openssl(&["genrsa", "-out", key, "2048"]);
    openssl(&["rsa", "-in", key, "-pubout", "-out", public.to_str().unwrap()]);
    let tokens = format!(
        "{ADMIN_TOKEN},admin,1,\"system:masters\"\n\
         {KUBELET_TOKEN},system:node:{REAL_NODE},2,\"system:nodes\"\n"
    );
    fs::write(folder.join("tokens.csv"), tokens).unwrap();
    let path = |name: &str| folder.join(name).display().to_string();
    let subject = ["-subj", "/O=system:masters/CN=kube-apiserver", "-nodes", "-x509"];
    let (key, certificate) = (path("to-kubelet.key"), path("to-kubelet.crt"));
    let new = ["req", "-newkey", "rsa:2048", "-keyout", &key, "-out", &certificate];
    openssl(&[&new[..], &subject].concat());
}
