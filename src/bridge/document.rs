//! A JSON document with one entry for each Node. It is produced in chunks as the client reads, since
//! it has several MB with 15,000 Nodes. Pure.

/// Minimum size of a chunk, in bytes. The last chunk can be smaller.
const CHUNK: usize = 32 * 1024;

pub struct Document {
    /// Everything before the entries; written first.
    head: Option<String>,
    /// The entry with this number; `None` after the last.
    entry: Box<dyn Fn(usize) -> Option<String> + Send>,
    written: usize,
    /// Everything after the entries; `None` when it is written.
    tail: Option<&'static str>,
    /// Dropped when the document is written, or its connection has failed.
    _held: Option<Box<dyn Send>>,
}

impl Document {
    pub fn new(
        head: String,
        entry: impl Fn(usize) -> Option<String> + Send + 'static,
        tail: &'static str,
    ) -> Self {
        Self { head: Some(head), entry: Box::new(entry), written: 0, tail: Some(tail), _held: None }
    }

    /// Keeps a value until the document is written.
    pub fn holding(self, value: impl Send + 'static) -> Self {
        Self { _held: Some(Box::new(value)), ..self }
    }
}

impl Iterator for Document {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let tail = self.tail?;
        let mut text = self.head.take().unwrap_or_default().into_bytes();
        while text.len() < CHUNK {
            let Some(entry) = (self.entry)(self.written) else {
                text.extend_from_slice(tail.as_bytes());
                self.tail = None;
                break;
            };
            if self.written > 0 {
                text.push(b',');
            }
            text.extend_from_slice(entry.as_bytes());
            self.written += 1;
        }
        Some(text)
    }
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
            let entry = move |at: usize| (at < count).then(|| format!("{{\"at\":{at}}}"));
            let document = parsed(Document::new("{\"list\":[".to_owned(), entry, "]}"));
            let expected: Vec<Value> = (0..count).map(|at| json!({ "at": at })).collect();
            assert_eq!(document, json!({ "list": expected }));
        }
    }
}
