//! Errors of the command line as a whole.

/// Flags that contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("--scope virt-launcher needs a source of pods: set --kubeconfig or --pods-file")]
    ScopeWithoutPods,
    #[error("in a cluster --node-name is required: set it (in a DaemonSet, from spec.nodeName)")]
    ClusterWithoutNode,
    #[error(
        "--node-name needs a cluster: run as a pod with a service account, or set --kubeconfig"
    )]
    NodeWithoutCluster,
    #[error(
        "--publish on needs a cluster: set --kubeconfig and --node-name, or use --publish dry-run"
    )]
    PublishWithoutCluster,
    #[error("--tls-cert-file and --tls-private-key-file require each other: set both, or neither")]
    HalfACertificate,
    #[error(
        "--auth kubernetes needs a cluster, whose API server reviews tokens: run as a pod with a \
         service account, or set --kubeconfig and --node-name"
    )]
    AuthWithoutCluster,
    #[error(
        "--auth kubernetes needs TLS, since tokens in plain HTTP can be read on the network: set \
         --tls-cert-file and --tls-private-key-file"
    )]
    AuthWithoutTls,
    #[error("{0} needs the API server, which --pods-file replaces: omit one of them")]
    WithPodsFile(&'static str),
}
