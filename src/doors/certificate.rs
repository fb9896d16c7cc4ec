//! The certificate that the agent serves TLS with, read again when it changes: files in, what new
//! connections are encrypted with out. A pair that does not fit together changes nothing.

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

/// How soon a new certificate is served. Reading both files takes some microseconds, and sees what
/// no date tells: the kubelet swaps a link above them.
const INTERVAL: Duration = Duration::from_secs(10);

/// Between one file and the other they may change; who writes that often never ends.
const ATTEMPTS: usize = 3;

/// Where certificate and key are, both as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, and after it those that it was signed with.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why there is no TLS with these files. None of it quotes them: one is secret.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// One cannot be read.
    #[error("cannot read {}: {source}; is the Secret mounted, and may this user read it?", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: Error,
    },
    /// There is no certificate in it.
    #[error("there is no certificate in PEM (BEGIN CERTIFICATE) in {}", .0.display())]
    NoCertificate(PathBuf),
    /// There is no key in it.
    #[error("there is no private key in PEM (BEGIN PRIVATE KEY) in {}", .0.display())]
    NoKey(PathBuf),
    /// Both are there, and cannot be used.
    #[error("cannot serve TLS with {} and {}: {source}", .files.certificate.display(), .files.key.display())]
    Unusable {
        /// The files.
        files: CertificateFiles,
        /// Why.
        source: rustls::Error,
    },
    /// They were written all the time.
    #[error("{} and {} change while they are read", .0.certificate.display(), .0.key.display())]
    Unsteady(CertificateFiles),
}

/// What new connections are encrypted with: always the newest certificate.
#[derive(Debug, Clone)]
pub struct Tls(watch::Receiver<Arc<ServerConfig>>);

impl Tls {
    /// The server's part of a handshake.
    ///
    /// # Errors
    /// When the client has other ideas, or goes away.
    pub async fn shake_hands<S>(&self, stream: S) -> Result<TlsStream<S>, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.0.borrow());
        TlsAcceptor::from(config).accept(stream).await
    }
}

/// The files, with what they said last.
#[derive(Debug)]
pub struct Certificate {
    files: CertificateFiles,
    /// A hash of both as they were read: the key itself is kept once, by TLS.
    read: digest::Digest,
    current: watch::Sender<Arc<ServerConfig>>,
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// [`CertificateError`], a sentence for people.
    pub fn open(files: CertificateFiles) -> Result<(Self, Tls), CertificateError> {
        let pair = Pair::read(&files)?;
        let (current, tls) = watch::channel(Arc::new(pair.config(&files)?));
        Ok((Self { files, read: pair.hash(), current }, Tls(tls)))
    }

    /// Looks at the files for ever, and says each time what came of it: whether there was a new
    /// certificate, or why it cannot be served. Then the one before stays.
    pub async fn follow(mut self, hear: impl Fn(Result<bool, &CertificateError>)) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let looked = self.look();
            hear(looked.as_ref().copied());
        }
    }

    fn look(&mut self) -> Result<bool, CertificateError> {
        let pair = Pair::read(&self.files)?;
        if pair.hash().as_ref() == self.read.as_ref() {
            return Ok(false);
        }
        let config = pair.config(&self.files)?;
        self.current.send_replace(Arc::new(config));
        self.read = pair.hash();
        Ok(true)
    }
}

/// What stood in both files at one moment.
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
        // The length tells where the one ends.
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
        // A session that is taken up again would show no certificate at all. Prometheus keeps its
        // connections, so that there is little to save.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}
