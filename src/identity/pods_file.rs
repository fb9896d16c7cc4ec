//! Pods from a file instead of the API server, in the format of `kubectl get pods -o json`. For tests
//! and labs; the file is read again when it changes.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use crate::client::pod::Pod;

#[derive(Debug, thiserror::Error)]
pub enum PodsFileError {
    #[error("cannot read the pods in {}: {source}", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is not in the format of `kubectl get pods -o json`: {source}", .path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
}

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

#[derive(Debug)]
pub struct PodsFile {
    path: PathBuf,
    modified: Option<SystemTime>,
}

impl PodsFile {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), modified: None }
    }

    /// The pods, if the file has changed since the last call.
    pub fn read_if_changed(&mut self) -> Result<Option<Vec<Pod>>, PodsFileError> {
        let unreadable = |source| PodsFileError::Unreadable { path: self.path.clone(), source };
        let modified = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        let modified = Some(modified.map_err(unreadable)?);
        if self.modified == modified {
            return Ok(None);
        }
        let text = std::fs::read(&self.path).map_err(unreadable)?;
        let list: PodList = serde_json::from_slice(&text)
            .map_err(|source| PodsFileError::Malformed { path: self.path.clone(), source })?;
        self.modified = modified;
        Ok(Some(list.items))
    }
}
