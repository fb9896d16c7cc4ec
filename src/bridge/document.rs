//! A JSON document with one entry for each Node. It is produced in chunks as the client reads, since
//! it has several MB with 15,000 Nodes. Pure.

use std::iter::{from_fn, once, repeat};

/// Minimum size of a chunk, in bytes. The last chunk can be smaller.
const CHUNK: usize = 32 * 1024;

pub(super) type Document = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// The document with these entries, between everything before and after them.
pub(super) fn document(
    head: String,
    entries: impl Iterator<Item = String> + Send + 'static,
    tail: &'static str,
) -> Document {
    let separators = once("").chain(repeat(","));
    let entries = separators.zip(entries).flat_map(|(comma, entry)| [comma.to_owned(), entry]);
    let mut parts = once(head).chain(entries).chain(once(tail.to_owned()));
    Box::new(from_fn(move || {
        let mut text = String::new();
        while text.len() < CHUNK
            && let Some(part) = parts.next()
        {
            text.push_str(&part);
        }
        (!text.is_empty()).then(|| text.into_bytes())
    }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The whole document.
    pub(in crate::bridge) fn parsed(document: Document) -> Value {
        let chunks: Vec<Vec<u8>> = document.collect();
        assert!(chunks.iter().all(|chunk| chunk.len() < 2 * CHUNK));
        serde_json::from_slice(&chunks.concat()).unwrap()
    }

    #[test]
    fn a_document_of_any_number_of_entries_is_json() {
        for count in [0, 1, 2, 20_000] {
            let entries = (0..count).map(|at| format!("{{\"at\":{at}}}"));
            let document = parsed(document("{\"list\":[".to_owned(), entries, "]}"));
            let expected: Vec<Value> = (0..count).map(|at| json!({ "at": at })).collect();
            assert_eq!(document, json!({ "list": expected }));
        }
    }
}
