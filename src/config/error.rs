//! Reasons to refuse a command line.

/// A command line whose parts do not fit together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// `--scope virt-launcher` where nobody tells of pods.
    #[error("--scope virt-launcher needs to know pods: name a --kubeconfig or a --pods-file")]
    ScopeWithoutPods,
    /// A service account or a kubeconfig, but not which node this is.
    #[error(
        "in a cluster the agent needs to know its node: give --node-name (in a DaemonSet, from spec.nodeName)"
    )]
    ClusterWithoutNode,
    /// A node's name, but no cluster that it could be in.
    #[error(
        "--node-name needs a cluster: run as a pod with a service account, or name a --kubeconfig"
    )]
    NodeWithoutCluster,
    /// `--publish on` where there is no Node to write on.
    #[error(
        "--publish on needs a cluster: name a --kubeconfig and a --node-name, or leave it at dry-run"
    )]
    PublishWithoutCluster,
    /// A certificate without a key, or the other way round.
    #[error("--tls-cert-file and --tls-private-key-file go together: name both, or neither")]
    HalfACertificate,
    /// `--auth kubernetes` where there is no API server to ask.
    #[error(
        "--auth kubernetes needs a cluster, whose API server says what tokens are good for: run as a pod with a service account, or name a --kubeconfig and a --node-name"
    )]
    AuthWithoutCluster,
    /// `--auth kubernetes` by plain HTTP.
    #[error(
        "--auth kubernetes needs TLS, or tokens would go over the network for all to read: name a --tls-cert-file and a --tls-private-key-file"
    )]
    AuthWithoutTls,
    /// `--auth kubernetes` of the bridge.
    #[error(
        "--auth kubernetes is not for the bridge: the schedulers that ask it show no tokens; see its network policy"
    )]
    AuthOfTheBridge,
}
