//! Pods from a file instead of the API server, in the format of `kubectl get pods -o json`. For tests
//! and labs.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use futures_util::{Stream, stream};
use serde::Deserialize;

use crate::client::cluster::WatchEvent;
use crate::client::json::decode;
use crate::client::pod::Pod;

/// Interval of the checks whether the file has changed.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Pod>> {
    let shown = path.display();
    let text = std::fs::read(path).with_context(|| format!("cannot read the pods in {shown}"))?;
    let list: PodList = decode(&text)
        .with_context(|| format!("{shown} is not in the format of `kubectl get pods -o json`"))?;
    Ok(list.items)
}

/// When the file was last written; `None` where that is unknown.
pub(super) fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// Lists the pods again when the file was written after `read`, and each second while that fails.
pub(super) fn watch(
    path: PathBuf,
    read: Option<SystemTime>,
) -> impl Stream<Item = WatchEvent<Pod>> {
    stream::unfold((path, read), async |(path, read)| {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let written = modified(&path);
            if written.is_none() || written != read {
                return Some(match self::read(&path) {
                    Ok(pods) => (WatchEvent::Listed(pods), (path, written)),
                    Err(error) => (WatchEvent::Failed(format!("{error:#}")), (path, None)),
                });
            }
        }
    })
}
