//! Errors of the command line as a whole.

/// Flags that contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// `--scope virt-launcher` without a source of pods.
    #[error("--scope virt-launcher needs a source of pods: set --kubeconfig or --pods-file")]
    ScopeWithoutPods,
    /// A service account or a kubeconfig without a node name.
    #[error("in a cluster --node-name is required: set it (in a DaemonSet, from spec.nodeName)")]
    ClusterWithoutNode,
    /// A node name without a cluster.
    #[error(
        "--node-name needs a cluster: run as a pod with a service account, or set --kubeconfig"
    )]
    NodeWithoutCluster,
    /// `--publish on` without a Node.
    #[error(
        "--publish on needs a cluster: set --kubeconfig and --node-name, or use --publish dry-run"
    )]
    PublishWithoutCluster,
    /// A certificate without a key, or the reverse.
    #[error("--tls-cert-file and --tls-private-key-file require each other: set both, or neither")]
    HalfACertificate,
    /// `--auth kubernetes` without an API server.
    #[error(
        "--auth kubernetes needs a cluster, whose API server reviews tokens: run as a pod with a \
         service account, or set --kubeconfig and --node-name"
    )]
    AuthWithoutCluster,
    /// `--auth kubernetes` without TLS.
    #[error(
        "--auth kubernetes needs TLS, since tokens in plain HTTP can be read on the network: set \
         --tls-cert-file and --tls-private-key-file"
    )]
    AuthWithoutTls,
    /// `--auth kubernetes` for the bridge.
    #[error(
        "the bridge does not support --auth kubernetes, since schedulers send it no tokens: \
         restrict access by its network policy"
    )]
    AuthOfTheBridge,
}
