//! The client and its connection. The calls are in the modules of their subjects, such as `nodes`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// Time without a byte from the API server after which a connection is closed, so that a list
/// request without a response ends. Watches end earlier.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// A client of the API server. Clones share its connections: create one per process.
#[derive(Clone)]
pub struct ApiClient {
    /// For calls that this type does not have.
    pub client: Client,
}

impl ApiClient {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates a client for commands, by kubectl's rules: the given file, else KUBECONFIG, else
    /// `~/.kube/config`, else, if there is none, the service account. `context` names a context of the
    /// file; `None` is the current one. Sends no request.
    pub async fn connect_as_kubectl(
        kubeconfig: Option<&PathBuf>,
        context: Option<String>,
    ) -> anyhow::Result<Self> {
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        if let Some(path) = kubeconfig {
            return client(from_kubeconfig(path, &options).await?).map(Self::new);
        }
        let config = from_environment(&options).await.or_else(|error| {
            // If a cluster is named, the pod's own may be another one.
            let may_be_own = options.context.is_none() && is_empty(&error);
            let own = may_be_own.then(|| Config::incluster().ok()).flatten();
            let (path, reason) = (std::env::var("KUBECONFIG"), reason(&error));
            let path = path.unwrap_or("~/.kube/config".into());
            own.with_context(|| {
                format!("no cluster: cannot use {path} ({reason}): set --kubeconfig or KUBECONFIG")
            })
        })?;
        client(config).map(Self::new)
    }
}

#[derive(Clone)]
pub struct OwnNode {
    pub api: ApiClient,
    pub name: String,
}

impl OwnNode {
    /// Creates the agent's client, by a kubeconfig, or else by the pod's service account. Sends no
    /// request.
    pub async fn connect(kubeconfig: Option<&PathBuf>, name: String) -> anyhow::Result<Self> {
        let config = match kubeconfig {
            None => Config::incluster().map_err(|error| {
                anyhow!(
                    "cannot use the service account: {error}: set --kubeconfig, or let the pod mount \
                     its token"
                )
            })?,
            Some(path) => from_kubeconfig(path, &KubeConfigOptions::default()).await?,
        };
        Ok(Self { api: ApiClient::new(client(config)?), name })
    }
}

fn client(mut config: Config) -> anyhow::Result<Client> {
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // It would wait for as long as a proxy asks, up to hours. All programs have their own rules for retries.
    config.default_retry = false;
    let variable = |name| std::env::var(name).ok()?.parse().ok();
    let of_environment = variable("HTTPS_PROXY").or_else(|| variable("https_proxy"));
    if config.proxy_url == of_environment && is_excepted(&config.cluster_url) {
        config.proxy_url = None;
    }
    Client::try_from(config).context("cannot make a client for the API server")
}

/// Whether a server is reached directly, although the environment names a proxy: kube compares NO_PROXY with the
/// proxy.
#[cfg(feature = "proxy")]
fn is_excepted(server: &http::Uri) -> bool {
    hyper_util::client::proxy::matcher::Matcher::from_env().intercept(server).is_none()
}

/// Without the feature nothing is reached through a proxy.
#[cfg(not(feature = "proxy"))]
fn is_excepted(_: &http::Uri) -> bool {
    true
}

/// The files of KUBECONFIG, or else `~/.kube/config`. Of several, those that do not exist are skipped.
async fn from_environment(options: &KubeConfigOptions) -> Result<Config, KubeconfigError> {
    let listed = std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty());
    let mut paths: Vec<PathBuf> = match listed {
        Some(list) => std::env::split_paths(&list).collect(),
        None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
    };
    if paths.iter().any(|path| path.exists()) {
        paths.retain(|path| path.exists());
    }
    let files = paths.iter().map(Kubeconfig::read_from);
    let merged = files.reduce(|merged, next| merged?.merge(next?));
    Config::from_custom_kubeconfig(merged.ok_or(KubeconfigError::FindPath)??, options).await
}

/// Whether there is no kubeconfig, or it names no current context, as an empty one.
fn is_empty(error: &KubeconfigError) -> bool {
    let is_absent = matches!(error, KubeconfigError::ReadConfig(error, _) if error.kind() == ErrorKind::NotFound);
    is_absent || matches!(error, KubeconfigError::FindPath | KubeconfigError::CurrentContextNotSet)
}

/// The first line of an error: the parser's errors quote the file in further lines.
fn reason(error: &KubeconfigError) -> String {
    if let KubeconfigError::ReadConfig(error, _) = error {
        return error.to_string();
    }
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

async fn from_kubeconfig(path: &Path, options: &KubeConfigOptions) -> anyhow::Result<Config> {
    let failed = |error: KubeconfigError| {
        anyhow!("cannot use the kubeconfig {}: {}", path.display(), reason(&error))
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    Config::from_custom_kubeconfig(kubeconfig, options).await.map_err(failed)
}

/// Runs `work` on an event loop on the calling thread. Returns without waiting for threads that are
/// blocked in a name lookup or in reading a kernel file.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let event_loop = event_loop.context("cannot start the event loop")?;
    let outcome = event_loop.block_on(work);
    event_loop.shutdown_background();
    outcome
}
