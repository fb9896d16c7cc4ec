//! Families of series in Prometheus' text format 0.0.4, in chunks, so that a long text neither grows
//! as a whole nor leaves its size as free memory in the heap.

use std::io::Write;

/// Size from which a chunk is complete.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// Capacity beyond [`CHUNK_BYTES`] for the line that completes a chunk. Few lines are longer.
pub const LINE_BYTES: usize = 1024;

/// A metric, and where its series come from. The names of counters, and no others, end with
/// `_total`.
#[derive(Debug, Clone, Copy)]
pub struct Family<S> {
    pub name: &'static str,
    pub help: &'static str,
    pub source: S,
}

impl<S> Family<S> {
    /// The value of `# TYPE`.
    pub fn kind(&self) -> &'static str {
        if self.name.ends_with("_total") { "counter" } else { "gauge" }
    }
}

/// Families whose series are those that a function writes for a member, such as a VM.
pub type FamiliesOf<M> = [Family<fn(&M, &mut Lines<'_>)>];

/// A table row for each family: name, source and HELP.
macro_rules! families {
    ($($name:literal = $source:expr, $help:literal;)+) => {
        &[$($crate::text_format::Family { name: $name, help: $help, source: $source }),+]
    };
}
pub(crate) use families;

/// A value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// An integer, written as is.
    Whole(u64),
    /// Microseconds, written as seconds.
    Micros(u64),
    /// Written with at most six decimal places. Only finite numbers are written.
    Float(f64),
}

/// Appends all series of the families, in the order of the members.
pub fn write_families<'a, M: 'a>(
    chunks: &mut Vec<Vec<u8>>,
    families: &FamiliesOf<M>,
    members: impl Iterator<Item = &'a M> + Clone,
) {
    for family in families {
        let mut needs_header = true;
        for member in members.clone() {
            if chunks.last().is_none_or(|chunk| chunk.len() >= CHUNK_BYTES) {
                chunks.push(Vec::with_capacity(CHUNK_BYTES + LINE_BYTES));
            }
            let Some(text) = chunks.last_mut() else { return };
            let mut lines = Lines::of(family, text, needs_header);
            (family.source)(member, &mut lines);
            needs_header = lines.needs_header;
        }
    }
}

/// Writer of a family's lines. A family without series has no header.
pub struct Lines<'a> {
    pub text: &'a mut Vec<u8>,
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    needs_header: bool,
}

impl<'a> Lines<'a> {
    pub fn of<S>(family: &Family<S>, text: &'a mut Vec<u8>, needs_header: bool) -> Self {
        let (name, help, kind) = (family.name, family.help, family.kind());
        Self { text, name, help, kind, needs_header }
    }

    /// Writes a series with these names and values of labels. An unknown value has no series.
    pub fn write(&mut self, labels: &[(&str, &str)], number: impl Into<Option<Number>>) {
        let Some(number) = number.into() else { return };
        if matches!(number, Number::Float(value) if !value.is_finite()) {
            return;
        }
        self.write_name();
        if !labels.is_empty() {
            self.text.push(b'{');
            labels.iter().for_each(|(name, value)| push_label(self.text, name, value));
            self.text.pop();
            self.text.push(b'}');
        }
        self.text.push(b' ');
        write_number(self.text, number);
    }

    /// Writes a series whose labels are rendered, with the space that follows them.
    #[inline]
    pub fn write_rendered(&mut self, labels: [&[u8]; 3], number: Number) {
        self.write_name();
        labels.into_iter().for_each(|part| self.text.extend_from_slice(part));
        write_number(self.text, number);
    }

    #[inline]
    fn write_name(&mut self) {
        let Self { name, help, kind, .. } = *self;
        let mut push = |part: &str| self.text.extend_from_slice(part.as_bytes());
        if std::mem::take(&mut self.needs_header) {
            let header = ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"];
            header.into_iter().for_each(&mut push);
        }
        push(name);
    }
}

/// Appends `name="value",` with backslash, quote and newline of the value escaped.
pub fn push_label(text: &mut Vec<u8>, name: &str, value: &str) {
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"=\"");
    for byte in value.bytes() {
        match byte {
            b'\\' => text.extend_from_slice(b"\\\\"),
            b'"' => text.extend_from_slice(b"\\\""),
            b'\n' => text.extend_from_slice(b"\\n"),
            other => text.push(other),
        }
    }
    text.extend_from_slice(b"\",");
}

/// The number and the end of its line. Seconds are written in fixed point, which is exact: they
/// parse as the `f64` that dividing the microseconds by 1e6 gives.
#[inline]
fn write_number(text: &mut Vec<u8>, number: Number) {
    let mut digits = itoa::Buffer::new();
    match number {
        Number::Whole(whole) => text.extend_from_slice(digits.format(whole).as_bytes()),
        Number::Micros(micros) => {
            text.extend_from_slice(digits.format(micros / 1_000_000).as_bytes());
            let fraction = micros % 1_000_000;
            if fraction != 0 {
                // The added 1 keeps leading zeros; it is cut off below.
                let padded = digits.format(1_000_000 + fraction).as_bytes();
                let end =
                    padded.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
                text.push(b'.');
                text.extend_from_slice(padded.get(1..end).unwrap_or_default());
            }
        }
        Number::Float(value) => {
            // Writing to a Vec cannot fail.
            let _ = write!(text, "{}", (value * 1e6).round() / 1e6);
        }
    }
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(number: Number) -> String {
        let mut text = Vec::new();
        write_number(&mut text, number);
        String::from_utf8(text).unwrap().trim_end().to_owned()
    }

    #[test]
    fn seconds_have_no_trailing_zeros() {
        assert_eq!(written(Number::Micros(0)), "0");
        assert_eq!(written(Number::Micros(1)), "0.000001");
        assert_eq!(written(Number::Micros(2_354_910)), "2.35491");
        assert_eq!(written(Number::Micros(3_000_000)), "3");
        assert_eq!(written(Number::Whole(18_446_744_073_709_551_615)), "18446744073709551615");
    }

    proptest! {
        #[test]
        fn seconds_parse_as_microseconds_divided_by_a_million(micros in 0u64..(1 << 53)) {
            let read: f64 = written(Number::Micros(micros)).parse().unwrap();
            prop_assert_eq!(read.to_bits(), (micros as f64 / 1e6).to_bits());
        }
    }
}
