//! Certificates by openssl, put where the agent reads them as the kubelet puts them, and a client
//! that trusts their authority alone.

use std::fs;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::agent::Answer;
use super::folder::Folder;

/// What the manifests have the certificate name.
pub(crate) const SERVER_NAME: &str = "psi-agent.psi-agent.svc";

/// A folder like that of a mounted Secret: its files are links through `..data`, which is swapped.
pub(crate) struct Secret {
    folder: Folder,
    version: u32,
}

impl Secret {
    /// With a certificate of an authority of its own in it.
    pub(crate) fn new(name: &str) -> Self {
        let mut secret = Self { folder: Folder::new(&format!("tls-{name}")), version: 0 };
        let (key, authority) = (secret.file("ca.key"), secret.authority());
        openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &key]);
        let make = ["req", "-x509", "-new", "-days", "2", "-subj", "/CN=the test", "-key", &key];
        openssl(&[&make[..], &["-out", authority.to_str().unwrap()]].concat());
        for file in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{file}"), secret.file(file)).unwrap();
        }
        secret.renew();
        secret
    }

    fn file(&self, name: &str) -> String {
        self.folder.path(name)
    }

    /// The authority's certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.0.join("ca.crt")
    }

    /// The flags that name the files.
    pub(crate) fn flags(&self) -> [String; 4] {
        let key = "--tls-private-key-file".to_owned();
        ["--tls-cert-file".to_owned(), self.file("tls.crt"), key, self.file("tls.key")]
    }

    /// A new certificate with a new key takes the place of the old, as the kubelet does it.
    pub(crate) fn renew(&mut self) {
        let next = self.next_version();
        let path = |name: &str| next.join(name).to_str().unwrap().to_owned();
        let (key, request, certificate) = (path("tls.key"), path("request"), path("tls.crt"));
        openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &key]);
        openssl(&["req", "-new", "-subj", "/CN=psi-agent", "-key", &key, "-out", &request]);
        let names = path("names");
        fs::write(&names, format!("subjectAltName=DNS:{SERVER_NAME}\n")).unwrap();
        let (authority, its_key) = (self.file("ca.crt"), self.file("ca.key"));
        let sign = ["x509", "-req", "-days", "1", "-CA", &authority, "-CAkey", &its_key];
        let serial = self.version.to_string();
        let rest = ["-set_serial", &serial, "-extfile", &names, "-in", &request];
        openssl(&[&sign[..], &rest, &["-out", &certificate]].concat());
        self.swap(&next);
    }

    /// A new certificate comes with the key of the old one.
    pub(crate) fn break_it(&mut self) {
        let old_key = fs::read(self.folder.0.join("tls.key")).unwrap();
        self.renew();
        let certificate = fs::read(self.folder.0.join("tls.crt")).unwrap();
        let next = self.next_version();
        fs::write(next.join("tls.key"), old_key).unwrap();
        fs::write(next.join("tls.crt"), certificate).unwrap();
        self.swap(&next);
    }

    fn next_version(&mut self) -> PathBuf {
        self.version += 1;
        let next = self.folder.0.join(format!("..version-{}", self.version));
        fs::create_dir_all(&next).unwrap();
        next
    }

    fn swap(&self, next: &Path) {
        let link = self.folder.0.join("..data_tmp");
        symlink(next.file_name().unwrap(), &link).unwrap();
        fs::rename(link, self.folder.0.join("..data")).unwrap();
    }

    /// The certificate that stands in the file now.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        CertificateDer::from_pem_file(self.folder.0.join("tls.crt")).unwrap().to_vec()
    }

    /// Who trusts this authority and nobody else.
    pub(crate) fn client(&self) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.authority()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Client(Arc::new(config))
    }
}

fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output();
    let output = output.expect("this test needs openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A client by TLS.
#[derive(Clone)]
pub(crate) struct Client(Arc<ClientConfig>);

impl Client {
    /// Sends request lines and headers as they are; answers what comes, and whose certificate it
    /// came with.
    pub(crate) fn get(&self, address: &str, head: &str) -> std::io::Result<(Answer, Vec<u8>)> {
        let name = ServerName::try_from(SERVER_NAME).unwrap();
        let connection = ClientConnection::new(Arc::clone(&self.0), name).map_err(Error::other)?;
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut stream = StreamOwned::new(connection, stream);
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let certificates = stream.conn.peer_certificates().expect("a certificate");
        Ok((Answer::parse(&bytes), certificates[0].to_vec()))
    }

    /// The same for a path, with a token or without.
    pub(crate) fn ask(&self, address: &str, path: &str, token: Option<&str>) -> Answer {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{}", token.unwrap_or_default());
        self.get(address, &head).expect("the agent answers").0
    }
}
