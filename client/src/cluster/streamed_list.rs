//! A list whose items are reduced one by one while it arrives.

use std::io::ErrorKind;
use std::pin::pin;
use std::time::Duration;

use futures_util::io::{AsyncBufRead, AsyncBufReadExt};
use kube::Client;
use kube::core::request;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::timeout;

use super::call::LONGEST_OBJECT;
use super::list_items::ListItems;
use crate::json::decode;

/// Time until an answer begins. The API server may collect tens of thousands of objects first.
const FIRST_BYTE: Duration = Duration::from_secs(30);

/// What each list has, also an empty one: an answer without it is not the API server's, or not all of it.
#[derive(Deserialize)]
struct List {
    #[serde(rename = "items")]
    _items: IgnoredAny,
}

/// Sends a request, and returns its answer once that begins.
pub(super) async fn begin(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> kube::Result<impl AsyncBufRead + use<>> {
    let request = request.map_err(kube::Error::BuildRequest)?;
    let silent = |_| Err(kube::Error::ReadEvents(ErrorKind::TimedOut.into()));
    timeout(FIRST_BYTE, client.request_stream(request)).await.unwrap_or_else(silent)
}

/// Reads each item of a list. Returns the objects and why others cannot be read, and the list without its items.
pub(super) async fn streamed_list<T, E>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
    read: impl Fn(&[u8]) -> Result<T, E>,
) -> kube::Result<((Vec<T>, Vec<E>), Vec<u8>)> {
    let mut body = pin!(begin(client, request).await?);
    let (mut items, mut objects, mut errors) = (ListItems::default(), Vec::new(), Vec::new());
    loop {
        let bytes = body.fill_buf().await.map_err(kube::Error::ReadEvents)?;
        if bytes.is_empty() {
            let rest = items.rest().to_vec();
            let list: Result<List, _> = decode(&rest);
            return list.map(|_| ((objects, errors), rest)).map_err(kube::Error::SerdeError);
        }
        items.push(bytes, |item| match read(item) {
            Ok(object) => objects.push(object),
            Err(error) => errors.push(error),
        });
        let length = bytes.len();
        body.as_mut().consume(length);
        if items.rest().len() > LONGEST_OBJECT {
            return Err(kube::Error::ReadEvents(ErrorKind::FileTooLarge.into()));
        }
    }
}
