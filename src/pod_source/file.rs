//! Pods from a file instead of the API server, in the format of `kubectl get pods -o json`. For tests
//! and labs.

use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use serde::Deserialize;

use crate::client::pod::Pod;

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Pod>> {
    let shown = path.display();
    let text = std::fs::read(path).with_context(|| format!("cannot read the pods in {shown}"))?;
    let list: PodList = serde_json::from_slice(&text)
        .with_context(|| format!("{shown} is not in the format of `kubectl get pods -o json`"))?;
    Ok(list.items)
}

/// When the file was last written; `None` where that is unknown.
pub(super) fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}
