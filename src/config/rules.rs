//! The rules for flags that depend on each other.

use super::command::{CheckConfig, Command, OnceConfig, RunConfig, TopConfig};
use super::flags::{Auth, Publish};
use super::source::{PodSource, SourceFlags};

/// Which flags contradict each other.
type Checked = Result<(), String>;

/// `in_cluster`: this process has a service account.
pub(super) fn check(command: &Command, in_cluster: bool) -> Checked {
    match command {
        Command::Run(config) => {
            let RunConfig { source, publishing, auth, .. } = &**config;
            check_source(source, in_cluster)?;
            check_server(source, publishing.publish.mode(source), *auth)
        }
        Command::Check(CheckConfig { source, publish, .. }) => {
            check_source(source, in_cluster)?;
            check_server(source, publish.mode(source), Auth::None)
        }
        Command::Once(OnceConfig { source, .. }) | Command::Top(TopConfig { source, .. }) => {
            check_source(source, in_cluster)
        }
        Command::Bridge(_)
        | Command::Nodes { .. }
        | Command::Reap { .. }
        | Command::Plan { .. }
        | Command::Planner(_) => Ok(()),
        Command::Demo(_) | Command::Completions { .. } | Command::Man { .. } => Ok(()),
    }
}

fn check_source(source: &SourceFlags, in_cluster: bool) -> Checked {
    let has_cluster = in_cluster || source.api.kubeconfig.is_some();
    match (source.pods(), has_cluster) {
        (PodSource::Cluster(_), false) => Err(
            "--node-name needs a cluster: run as a pod with a service account, or set --kubeconfig"
                .into(),
        ),
        (PodSource::Standalone, true) => {
            Err("in a cluster --node-name is required: set it (in a DaemonSet, from spec.nodeName)"
                .into())
        }
        (PodSource::Standalone, false) if source.selection(None).vms_only => {
            Err("--scope virt-launcher needs a source of pods: set --kubeconfig or --pods-file"
                .into())
        }
        (PodSource::Standalone | PodSource::File(_) | PodSource::Cluster(_), _) => Ok(()),
    }
}

fn check_server(source: &SourceFlags, publish: Publish, auth: Auth) -> Checked {
    let flag = match (publish, auth) {
        (Publish::On, _) => "--publish on",
        (_, Auth::Kubernetes) => "--auth kubernetes",
        (Publish::DryRun | Publish::Off, Auth::None) => return Ok(()),
    };
    match source.pods() {
        PodSource::Cluster(_) => Ok(()),
        PodSource::File(_) => Err(format!(
            "{flag} needs the API server, which --pods-file replaces: omit one of them"
        )),
        PodSource::Standalone => Err(format!(
            "{flag} needs a cluster: run as a pod with a service account, or set --kubeconfig and \
             --node-name"
        )),
    }
}
