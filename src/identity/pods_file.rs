//! Pods from a file in place of the API server: what `kubectl get pods -o json` prints. For tests
//! and labs; it is read again when it changes.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use super::pod::Pod;

/// Why a file of pods does not read.
#[derive(Debug, thiserror::Error)]
pub enum PodsFileError {
    /// It cannot be opened or read.
    #[error("cannot read the pods in {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: std::io::Error,
    },
    /// It is no list of pods.
    #[error("{} is no list of pods as `kubectl get pods -o json` prints it: {source}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where, and what was expected.
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

/// A file of pods.
#[derive(Debug)]
pub struct PodsFile {
    path: PathBuf,
    read_at_version: Option<SystemTime>,
}

impl PodsFile {
    /// A file that was not read yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), read_at_version: None }
    }

    /// The pods, if the file has changed since it was read last.
    ///
    /// # Errors
    /// [`PodsFileError`]; what was read before stays true.
    pub fn read_if_changed(&mut self) -> Result<Option<Vec<Pod>>, PodsFileError> {
        let unreadable = |source| PodsFileError::Unreadable { path: self.path.clone(), source };
        let version = std::fs::metadata(&self.path)
            .and_then(|metadata| metadata.modified())
            .map_err(unreadable)?;
        if self.read_at_version == Some(version) {
            return Ok(None);
        }
        let text = std::fs::read(&self.path).map_err(unreadable)?;
        let list: PodList = serde_json::from_slice(&text)
            .map_err(|source| PodsFileError::Malformed { path: self.path.clone(), source })?;
        self.read_at_version = Some(version);
        Ok(Some(list.items))
    }
}
