//! TLS with a certificate that is read again when its files change. If a new certificate and key do
//! not match, the old ones stay in use.

use std::io::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ring::digest;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// Interval at which the files are read, which takes microseconds. Modification times do not show
/// every change, since the kubelet replaces a symbolic link above the files.
const INTERVAL: Duration = Duration::from_secs(10);

/// Both files are read until two readings are equal, this many times at most.
const ATTEMPTS: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Why TLS can't be served with these files. No message contains the content of a file.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read {}: {source}; is the Secret mounted, and may this user read it?", .path.display())]
    Unreadable { path: PathBuf, source: Error },
    #[error("there is no certificate in PEM (BEGIN CERTIFICATE) in {}", .0.display())]
    NoCertificate(PathBuf),
    #[error("there is no private key in PEM (BEGIN PRIVATE KEY) in {}", .0.display())]
    NoKey(PathBuf),
    #[error("cannot serve TLS with {} and {}: {source}", .files.certificate.display(), .files.key.display())]
    Unusable { files: CertificateFiles, source: rustls::Error },
    /// Every reading differed from the one before.
    #[error("{} and {} change while they are read", .0.certificate.display(), .0.key.display())]
    Unsteady(CertificateFiles),
}

#[derive(Debug, Clone)]
pub struct Tls(watch::Receiver<Arc<ServerConfig>>);

impl Tls {
    /// Reads the files, and again every 10 s from now on; `None` without files. `report` is called
    /// with each later outcome: whether the certificate is new, or why it can't be served.
    pub fn follow(
        files: Option<&CertificateFiles>,
        report: impl Fn(Result<bool, CertificateError>) + Send + 'static,
    ) -> Result<Option<Self>, CertificateError> {
        let Some(files) = files else { return Ok(None) };
        let (mut certificate, tls) = Certificate::open(files.clone())?;
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                report(certificate.reload());
            }
        });
        Ok(Some(tls))
    }

    pub async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.0.borrow());
        TlsAcceptor::from(config).accept(stream).await
    }
}

/// The files and what was read from them last.
#[derive(Debug)]
pub struct Certificate {
    files: CertificateFiles,
    /// A hash of both files, so that no second copy of the key is in memory.
    hash: digest::Digest,
    current: watch::Sender<Arc<ServerConfig>>,
}

impl Certificate {
    pub fn open(files: CertificateFiles) -> Result<(Self, Tls), CertificateError> {
        let pair = Pair::read(&files)?;
        let (current, tls) = watch::channel(Arc::new(pair.config(&files)?));
        Ok((Self { files, hash: pair.hash(), current }, Tls(tls)))
    }

    /// Reads the files again. Returns whether the certificate is new.
    fn reload(&mut self) -> Result<bool, CertificateError> {
        let pair = Pair::read(&self.files)?;
        let hash = pair.hash();
        if hash.as_ref() == self.hash.as_ref() {
            return Ok(false);
        }
        self.current.send_replace(Arc::new(pair.config(&self.files)?));
        self.hash = hash;
        Ok(true)
    }
}

#[derive(PartialEq)]
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Pair {
    fn read(files: &CertificateFiles) -> Result<Self, CertificateError> {
        let file = |path: &Path| {
            let unreadable = |source| CertificateError::Unreadable { path: path.into(), source };
            std::fs::read(path).map_err(unreadable)
        };
        let both = || Ok(Self { certificate: file(&files.certificate)?, key: file(&files.key)? });
        let mut before = both()?;
        for _ in 0..ATTEMPTS {
            let now = both()?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
        Err(CertificateError::Unsteady(files.clone()))
    }

    fn hash(&self) -> digest::Digest {
        let mut hash = digest::Context::new(&digest::SHA256);
        // The length separates the two.
        hash.update(&self.certificate.len().to_le_bytes());
        hash.update(&self.certificate);
        hash.update(&self.key);
        hash.finish()
    }

    fn config(&self, files: &CertificateFiles) -> Result<ServerConfig, CertificateError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let chain =
            chain.ok_or_else(|| CertificateError::NoCertificate(files.certificate.clone()))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| CertificateError::NoKey(files.key.clone()))?;
        let unusable = |source| CertificateError::Unusable { files: files.clone(), source };
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
        Ok(config)
    }
}
