//! The rules for flags that depend on each other.

use super::command::{Command, RunConfig};
use super::flags::{Auth, Publish, TlsFlags};
use super::source::{PodSource, SourceFlags};

/// Which flags contradict each other.
type Checked = Result<(), &'static str>;

/// `in_cluster`: this process has a service account.
pub(super) fn check(command: &Command, in_cluster: bool) -> Checked {
    match command {
        Command::Run(config) => {
            check_tls(&config.server.tls)?;
            check_source(&config.source, in_cluster)?;
            check_run(config)
        }
        Command::Once(config) => check_source(&config.source, in_cluster),
        Command::Top(config) => check_source(&config.source, in_cluster),
        Command::Check(config) => {
            check_tls(&config.tls)?;
            check_source(&config.source, in_cluster)
        }
        Command::Bridge(config) => check_tls(&config.server.tls),
        Command::Nodes { .. } | Command::Reap { .. } => Ok(()),
        Command::Completions { .. } | Command::Man { .. } => Ok(()),
    }
}

fn check_tls(tls: &TlsFlags) -> Checked {
    if tls.tls_cert_file.is_some() != tls.tls_private_key_file.is_some() {
        return Err(
            "--tls-cert-file and --tls-private-key-file require each other: set both, or neither",
        );
    }
    Ok(())
}

fn check_source(source: &SourceFlags, in_cluster: bool) -> Checked {
    let has_cluster = in_cluster || source.kubeconfig.kubeconfig.is_some();
    match (source.pods(), has_cluster) {
        (PodSource::Cluster(_), false) => Err(
            "--node-name needs a cluster: run as a pod with a service account, or set --kubeconfig",
        ),
        (PodSource::Standalone, true) => {
            Err("in a cluster --node-name is required: set it (in a DaemonSet, from spec.nodeName)")
        }
        (PodSource::Standalone, false) if source.selection(None).vms_only => {
            Err("--scope virt-launcher needs a source of pods: set --kubeconfig or --pods-file")
        }
        (PodSource::Standalone | PodSource::File(_) | PodSource::Cluster(_), _) => Ok(()),
    }
}

fn check_run(config: &RunConfig) -> Checked {
    let publishes = config.publishing.publish.mode(&config.source) == Publish::On;
    match config.source.pods() {
        PodSource::File(_) if publishes => {
            Err("--publish on needs the API server, which --pods-file replaces: omit one of them")
        }
        PodSource::Standalone if publishes => {
            Err("--publish on needs a cluster: set --kubeconfig and --node-name, or use --publish \
             dry-run")
        }
        _ if config.access.auth == Auth::None => Ok(()),
        _ if config.server.tls.certificate().is_none() => Err(
            "--auth kubernetes needs TLS, since tokens in plain HTTP can be read on the network: \
             set --tls-cert-file and --tls-private-key-file",
        ),
        PodSource::Cluster(_) => Ok(()),
        PodSource::File(_) => Err(
            "--auth kubernetes needs the API server, which --pods-file replaces: omit one of them",
        ),
        PodSource::Standalone => Err(
            "--auth kubernetes needs a cluster, whose API server reviews tokens: run as a pod with \
             a service account, or set --kubeconfig and --node-name",
        ),
    }
}
