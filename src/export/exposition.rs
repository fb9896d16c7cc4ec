//! A sample as Prometheus' text format 0.0.4, chunk by chunk: family after family, so that a body
//! of many MB never stands in memory at once. No allocation per series.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::families::{FAMILIES, Family, FamilyGroup, Number, Source};
use super::series::{SeriesLabels, escape_into};
use crate::kernel::io_stat::Device;
use crate::sample::{CgroupSample, ScrapeSample};

/// A chunk is handed on when it has grown to this size.
const CHUNK_BYTES: usize = 64 * 1024;

/// What a line takes, with few exceptions: a chunk has that much room beyond its size.
const LINE_BYTES: usize = 1024;

/// Renders one sample, once.
#[derive(Debug)]
pub struct Exposition {
    sample: Arc<ScrapeSample>,
    labels: Vec<Arc<SeriesLabels>>,
    device_labels: BTreeMap<Device, String>,
    groups: Vec<FamilyGroup>,
    position: Position,
}

/// How far the rendering has come.
#[derive(Debug, Default)]
struct Position {
    family: usize,
    cgroup: usize,
}

impl Exposition {
    /// The sample, the labels of its cgroups in the same order, and what to write of it.
    #[must_use]
    pub fn new(
        sample: Arc<ScrapeSample>,
        labels: Vec<Arc<SeriesLabels>>,
        groups: Vec<FamilyGroup>,
    ) -> Self {
        let device_labels = device_labels(&sample);
        Self { sample, labels, device_labels, groups, position: Position::default() }
    }

    /// Appends the next part to `text`; `false` when nothing is left.
    pub fn next_chunk(&mut self, text: &mut Vec<u8>) -> bool {
        let full = text.len() + CHUNK_BYTES;
        text.reserve(CHUNK_BYTES + LINE_BYTES);
        while let Some(family) = FAMILIES.get(self.position.family) {
            if self.groups.contains(&family.group) {
                self.position.cgroup = self.write_family(family, text, full);
                if text.len() >= full {
                    return true;
                }
            }
            self.position = Position { family: self.position.family + 1, cgroup: 0 };
        }
        false
    }

    /// Writes a family's series from where it stopped, until its end or a full chunk; answers
    /// where it stopped now.
    fn write_family(&self, family: &Family, text: &mut Vec<u8>, full: usize) -> usize {
        let mut at = self.position.cgroup;
        // A chunk never begins full: what stopped in the middle has written its header.
        let mut lines = Lines { text, family, header_due: at == 0 };
        if let Source::Node(value) = family.source {
            if let (0, Some(number)) = (at, value(&self.sample.node)) {
                lines.write([" ", "", ""], number);
            }
            return 1;
        }
        let members = self.sample.cgroups.iter().zip(&self.labels).skip(at);
        for (cgroup, labels) in members {
            if lines.text.len() >= full {
                return at;
            }
            self.write_cgroup(cgroup, labels, &mut lines);
            at += 1;
        }
        at
    }

    fn write_cgroup(&self, cgroup: &CgroupSample, labels: &SeriesLabels, lines: &mut Lines<'_>) {
        match lines.family.source {
            Source::Cgroup { extra, value } => {
                if let Some(number) = value(cgroup, &self.sample.node) {
                    lines.write(labels.with_extra(extra), number);
                }
            }
            Source::Device(value) => {
                let devices = cgroup.stats.as_ref().and_then(|stats| stats.io.as_ref());
                for counters in devices.into_iter().flatten() {
                    let label = self.device_labels.get(&counters.device);
                    let extra = label.map_or("", String::as_str);
                    lines.write(labels.with_extra(extra), Number::Whole(value(counters)));
                }
            }
            Source::Node(_) => {}
        }
    }
}

/// Where a family's lines go. A family without series has no header either.
struct Lines<'a> {
    text: &'a mut Vec<u8>,
    family: &'a Family,
    header_due: bool,
}

impl Lines<'_> {
    fn write(&mut self, labels: [&str; 3], number: Number) {
        let Family { name, help, kind, .. } = self.family;
        if std::mem::replace(&mut self.header_due, false) {
            let kind = kind.word();
            for part in ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n", name] {
                self.text.extend_from_slice(part.as_bytes());
            }
        } else {
            self.text.extend_from_slice(name.as_bytes());
        }
        for part in labels {
            self.text.extend_from_slice(part.as_bytes());
        }
        write_number(self.text, number);
    }
}

/// `device="/dev/vda",` for each device of the sample. A device without a name keeps its numbers,
/// so that two never share a series.
fn device_labels(sample: &ScrapeSample) -> BTreeMap<Device, String> {
    let stats = sample.cgroups.iter().filter_map(|cgroup| cgroup.stats.as_ref()?.io.as_ref());
    let mut labels = BTreeMap::new();
    for counters in stats.flatten() {
        labels.entry(counters.device).or_insert_with_key(|device| {
            let mut label = String::from("device=\"");
            match sample.node.devices.get(device) {
                Some(name) => {
                    label.push_str("/dev/");
                    escape_into(&mut label, name);
                }
                None => label.push_str(&format!("{}:{}", device.major, device.minor)),
            }
            label.push_str("\",");
            label
        });
    }
    labels
}

/// The number and the end of its line. Microseconds become seconds in fixed point: as decimal text
/// they are exact, and read back as the same `f64` that dividing by 1e6 gives.
fn write_number(text: &mut Vec<u8>, number: Number) {
    let mut digits = itoa::Buffer::new();
    match number {
        Number::Whole(whole) => text.extend_from_slice(digits.format(whole).as_bytes()),
        Number::Micros(micros) => {
            text.extend_from_slice(digits.format(micros / 1_000_000).as_bytes());
            let fraction = micros % 1_000_000;
            if fraction != 0 {
                // A leading 1 keeps the zeros in front; it gives way to the point.
                let padded = digits.format(1_000_000 + fraction).as_bytes();
                let end =
                    padded.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
                text.push(b'.');
                text.extend_from_slice(padded.get(1..end).unwrap_or_default());
            }
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
    fn seconds_have_no_idle_zeros() {
        assert_eq!(written(Number::Micros(0)), "0");
        assert_eq!(written(Number::Micros(1)), "0.000001");
        assert_eq!(written(Number::Micros(2_354_910)), "2.35491");
        assert_eq!(written(Number::Micros(3_000_000)), "3");
        assert_eq!(written(Number::Whole(18_446_744_073_709_551_615)), "18446744073709551615");
    }

    proptest! {
        #[test]
        #[allow(clippy::cast_precision_loss)]
        fn seconds_read_back_as_micros_divided_by_a_million(micros in 0u64..(1 << 53)) {
            let read: f64 = written(Number::Micros(micros)).parse().unwrap();
            prop_assert_eq!(read.to_bits(), (micros as f64 / 1e6).to_bits());
        }
    }
}
