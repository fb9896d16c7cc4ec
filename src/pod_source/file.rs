//! Pods from a file instead of the API server, in the format of `kubectl get pods -o json`. For tests
//! and labs; the file is read again when it changes.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use serde::Deserialize;

use crate::client::pod::Pod;

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

#[derive(Debug)]
pub(super) struct PodsFile {
    path: PathBuf,
    modified: Option<SystemTime>,
}

impl PodsFile {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), modified: None }
    }

    /// The pods, if the file has changed since the last call.
    pub(super) fn read_if_changed(&mut self) -> anyhow::Result<Option<Vec<Pod>>> {
        let path = self.path.display();
        let unreadable = || format!("cannot read the pods in {path}");
        let metadata = std::fs::metadata(&self.path).with_context(unreadable)?;
        let modified = Some(metadata.modified().with_context(unreadable)?);
        if self.modified == modified {
            return Ok(None);
        }
        let text = std::fs::read(&self.path).with_context(unreadable)?;
        let list: PodList = serde_json::from_slice(&text).with_context(|| {
            format!("{path} is not in the format of `kubectl get pods -o json`")
        })?;
        self.modified = modified;
        Ok(Some(list.items))
    }
}
