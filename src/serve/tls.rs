//! TLS with a certificate that is read again every 10 s. If a new certificate and key do not match,
//! the old ones stay in use. So a reading between the replacements of both files changes nothing.

use std::io::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::server::TlsStream;

/// Interval at which the files are read. Modification times do not show every change, since the
/// kubelet replaces a symbolic link above the files.
const INTERVAL: Duration = Duration::from_secs(10);

/// The flags of TLS, of which one requires the other.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
#[group(multiple = true, requires_all = ["tls_cert_file", "tls_private_key_file"])]
pub struct CertificateFiles {
    /// TLS certificate chain (PEM), reloaded when it changes
    ///
    /// Plain HTTP from loopback still works for all but the metrics, so `kubectl port-forward` and top
    /// need no certificate.
    #[arg(long, env, value_name = "FILE", required = false)]
    pub tls_cert_file: PathBuf,

    /// Private key of the TLS certificate (PEM), reloaded when it changes
    #[arg(long, env, value_name = "FILE", required = false)]
    pub tls_private_key_file: PathBuf,
}

#[derive(Debug, Clone)]
pub struct Tls(watch::Receiver<Arc<ServerConfig>>);

impl Tls {
    /// Reads the files, and again every 10 s from now on; `None` without files. `report` is called
    /// with each outcome: whether the certificate is new, or why it can't be served.
    pub fn follow(
        files: Option<&CertificateFiles>,
        report: impl Fn(anyhow::Result<bool>) + Send + 'static,
    ) -> anyhow::Result<Option<Self>> {
        let Some(files) = files.cloned() else { return Ok(None) };
        let (mut pem, config) = files.read()?;
        // Counters of outcomes have series from the start.
        report(Ok(false));
        let (served, tls) = watch::channel(Arc::new(config));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                report(files.read().map(|(read, config)| {
                    let is_new = read != pem;
                    if is_new {
                        pem = read;
                        served.send_replace(Arc::new(config));
                    }
                    is_new
                }));
            }
        });
        Ok(Some(Self(tls)))
    }

    pub async fn accept(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, Error> {
        let config = Arc::clone(&self.0.borrow());
        TlsAcceptor::from(config).accept(stream).await
    }
}

impl CertificateFiles {
    /// The certificate in PEM, and how it is served with the key. No error contains the content of a
    /// file.
    pub fn read(&self) -> anyhow::Result<(Vec<u8>, ServerConfig)> {
        let Self { tls_cert_file, tls_private_key_file } = self;
        let (pem, key) = (read(tls_cert_file)?, read(tls_private_key_file)?);
        let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
        let chain = chain.ok().filter(|chain| !chain.is_empty()).with_context(|| {
            let path = tls_cert_file.display();
            format!("there is no certificate in PEM (BEGIN CERTIFICATE) in {path}")
        })?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| {
            let path = tls_private_key_file.display();
            anyhow!("there is no private key in PEM (BEGIN PRIVATE KEY) in {path}")
        })?;
        let unusable = |error| {
            let (certificate, key) = (tls_cert_file.display(), tls_private_key_file.display());
            anyhow!("cannot serve TLS with {certificate} and {key}: {error}")
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A resumed session would present no certificate, so a client would not get a new one.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok((pem, config))
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        let path = path.display();
        anyhow!("cannot read {path}: {error}; is the Secret mounted, and may this user read it?")
    })
}
