//! Fuzz targets for what other programs send: HTTP requests, objects and reviews of the API server,
//! and snapshots. Each target also checks what must hold for every input.

use std::collections::BTreeMap;

pub(super) mod requests;
pub(super) mod responses;

type Annotations = BTreeMap<String, String>;

thread_local! {
    static EVENT_LOOP: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("an event loop");
}

/// An error becomes part of a response and of log messages: one line, without control characters.
fn check_message(message: &str) {
    assert!(!message.chars().any(char::is_control), "{message:?}");
}
