//! The client and its connection. The calls are in the modules of their subjects, such as `nodes`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// Time without a byte from the API server after which a connection is closed, so that a list
/// request without a response ends. A watch without events ends earlier, after 290 s.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Access of the agent to the API server, and the name of its Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The kubeconfig; `None` for the pod's own service account.
    pub kubeconfig: Option<PathBuf>,
    pub node_name: String,
}

/// Why no client can be created. An unreachable API server is not among the reasons: creating a
/// client sends no request.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("cannot use the kubeconfig {path}: {reason}")]
    Kubeconfig { path: String, reason: String },
    #[error(
        "cannot use the service account: {0}: set --kubeconfig, or let the pod mount its token"
    )]
    ServiceAccount(String),
    /// There is neither a kubeconfig in one of kubectl's locations nor a service account.
    #[error("no cluster: cannot use the default kubeconfig ({0}): set --kubeconfig or KUBECONFIG")]
    NoCluster(String),
    /// The configuration is unusable, for example because of a malformed certificate.
    #[error("cannot make a client for the API server: {0}")]
    Client(#[source] kube::Error),
    #[error("cannot start the event loop: {0}")]
    EventLoop(std::io::Error),
}

/// A client of the API server. Clones share its connections: create one per process.
#[derive(Clone)]
pub struct ApiClient {
    pub(super) client: Client,
}

impl ApiClient {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The client of the kube crate, for calls that this type does not have.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Creates a client for commands, by kubectl's rules: the given file, else KUBECONFIG, else
    /// `~/.kube/config`, else the service account. `context` names a context of the file; `None` is
    /// the current one. Sends no request.
    pub async fn connect_as_kubectl(
        kubeconfig: Option<&PathBuf>,
        context: Option<String>,
    ) -> Result<Self, ClusterError> {
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let config = match kubeconfig {
            Some(path) => from_kubeconfig(path, &options).await?,
            None => match Config::from_kubeconfig(&options).await {
                Ok(config) => config,
                Err(error) => {
                    Config::incluster().map_err(|_| ClusterError::NoCluster(reason(&error)))?
                }
            },
        };
        client(config).map(Self::new)
    }
}

#[derive(Clone)]
pub struct OwnNode {
    pub api: ApiClient,
    pub name: String,
}

impl OwnNode {
    /// Creates the agent's client. Sends no request.
    pub async fn connect(cluster: &Cluster) -> Result<Self, ClusterError> {
        let mut config = match &cluster.kubeconfig {
            None => Config::incluster()
                .map_err(|error| ClusterError::ServiceAccount(error.to_string()))?,
            Some(path) => from_kubeconfig(path, &KubeConfigOptions::default()).await?,
        };
        // The agent has its own rules for retries: see publish/plan.rs.
        config.default_retry = false;
        Ok(Self { api: ApiClient::new(client(config)?), name: cluster.node_name.clone() })
    }
}

fn client(mut config: Config) -> Result<Client, ClusterError> {
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    Client::try_from(config).map_err(ClusterError::Client)
}

/// The first line of an error: the parser's errors quote the file in further lines.
fn reason(error: &KubeconfigError) -> String {
    if let KubeconfigError::ReadConfig(error, _) = error {
        return error.to_string();
    }
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

async fn from_kubeconfig(path: &Path, options: &KubeConfigOptions) -> Result<Config, ClusterError> {
    let failed = |error: KubeconfigError| ClusterError::Kubeconfig {
        path: path.display().to_string(),
        reason: reason(&error),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    Config::from_custom_kubeconfig(kubeconfig, options).await.map_err(failed)
}

/// Runs `work` on an event loop on the calling thread. Returns without waiting for threads that are
/// blocked in a name lookup or in reading a kernel file.
pub fn block_on<T, E: From<ClusterError>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let event_loop = event_loop.map_err(ClusterError::EventLoop)?;
    let outcome = event_loop.block_on(work);
    event_loop.shutdown_background();
    outcome
}
