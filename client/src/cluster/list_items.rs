//! Cuts the items out of a list in JSON while its bytes arrive. The whole list of a node can have
//! 165 MB, and one item usually 1.5 MB. In JSON some characters take six bytes, so a tenant can make a longer one.

use super::call::LONGEST_OBJECT;

/// Depth within an item: the list is an object, with an array of objects.
const ITEM: usize = 3;

#[derive(Debug, Default)]
pub struct ListItems {
    /// Open objects and arrays.
    depth: usize,
    /// Whether the value at the second level is an array.
    in_items: bool,
    in_string: bool,
    is_escaped: bool,
    item: Vec<u8>,
    rest: Vec<u8>,
}

impl ListItems {
    /// Adds the next bytes of the list, and passes each item that ends in them to `on_item`.
    pub fn push(&mut self, bytes: &[u8], mut on_item: impl FnMut(&[u8])) {
        for &byte in bytes {
            let before = self.depth;
            self.advance(byte);
            let is_separator = self.in_items && before == ITEM - 1 && self.depth == before;
            if self.in_items && before.max(self.depth) >= ITEM {
                // What is left of a longer one does not parse.
                if self.item.len() < LONGEST_OBJECT {
                    self.item.push(byte);
                }
            } else if !is_separator {
                self.rest.push(byte);
            }
            if self.in_items && before == ITEM && self.depth < ITEM {
                on_item(&self.item);
                self.item.clear();
            }
        }
    }

    /// The list without its items.
    pub fn rest(&self) -> &[u8] {
        &self.rest
    }

    fn advance(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.in_string => self.is_escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => {
                self.depth += 1;
                if self.depth == ITEM - 1 {
                    self.in_items = byte == b'[';
                }
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// The items, and the rest, of a list that arrives in pieces of this length.
    fn cut(list: &[u8], length: usize) -> (Vec<Value>, Vec<u8>) {
        let (mut reader, mut items) = (ListItems::default(), Vec::new());
        for piece in list.chunks(length) {
            reader.push(piece, |item| items.push(serde_json::from_slice(item).unwrap()));
        }
        (items, reader.rest)
    }

    #[test]
    fn items_are_cut_out_wherever_the_bytes_are_split() {
        let items = [
            json!({"metadata": {"name": "a"}, "spec": {"args": ["]", "}", "\"{[", "\\"]}}),
            json!({}),
            json!({"items": [{"items": []}]}),
        ];
        let metadata = json!({"resourceVersion": "7", "shard": {"of": [{"one": 1}]}});
        let list = json!({"kind": "PodList", "metadata": metadata, "items": items});
        let rest = json!({"kind": "PodList", "metadata": metadata, "items": []});
        for text in [list.to_string(), format!("{list:#}\n")] {
            for length in 1..20 {
                let (found, left) = cut(text.as_bytes(), length);
                assert_eq!(found, items);
                assert_eq!(serde_json::from_slice::<Value>(&left).unwrap(), rest);
            }
        }
    }

    #[test]
    fn an_item_that_is_too_long_costs_no_other() {
        let long = format!("\"{}\"", "v".repeat(2 * LONGEST_OBJECT));
        let list = format!("{{\"items\": [{{\"a\": {long}}}, {{\"b\": 1}}]}}");
        let (mut reader, mut items) = (ListItems::default(), Vec::new());
        reader.push(list.as_bytes(), |item| items.push(serde_json::from_slice::<Value>(item).ok()));
        assert_eq!(items, [None, Some(json!({"b": 1}))]);
        assert!(reader.item.capacity() < 2 * LONGEST_OBJECT + 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_cut_without_a_panic(bytes: Vec<u8>) {
            let mut reader = ListItems::default();
            reader.push(&bytes, |_| {});
            prop_assert!(reader.rest().len() <= bytes.len());
        }
    }
}
