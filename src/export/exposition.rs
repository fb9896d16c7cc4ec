//! A sample in Prometheus' text format 0.0.4, in chunks, so that a body of many MB is never in
//! memory as a whole. Writing a series allocates no memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::families::{FAMILIES, Family, FamilyGroup, Number, Source};
use super::series::{SeriesLabels, push_label};
use crate::kernel::io_stat::Device;
use crate::sample::{CgroupSample, ScrapeSample};

/// Size from which a chunk is complete.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;

/// Capacity beyond [`CHUNK_BYTES`] for the line that completes a chunk. Few lines are longer.
pub(super) const LINE_BYTES: usize = 1024;

#[derive(Debug)]
pub struct Exposition {
    sample: Arc<ScrapeSample>,
    labels: Vec<Arc<SeriesLabels>>,
    device_labels: BTreeMap<Device, String>,
    groups: Vec<FamilyGroup>,
    position: Position,
}

/// The next series to render.
#[derive(Debug, Default)]
struct Position {
    family: usize,
    cgroup: usize,
}

impl Exposition {
    /// The families of `groups` for `sample`; `labels` are those of its cgroups, in the same order.
    pub fn new(
        sample: Arc<ScrapeSample>,
        labels: Vec<Arc<SeriesLabels>>,
        groups: Vec<FamilyGroup>,
    ) -> Self {
        let device_labels = device_labels(&sample);
        Self { sample, labels, device_labels, groups, position: Position::default() }
    }

    /// Appends the next chunk to `text`; `false` when nothing is left.
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

    /// Writes a family's series from the position to the end of the family or of the chunk. Returns
    /// the position of the next cgroup.
    fn write_family(&self, family: &Family, text: &mut Vec<u8>, full: usize) -> usize {
        let mut at = self.position.cgroup;
        let mut lines = Lines { text, family, needs_header: at == 0 };
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

/// Writer of a family's lines. A family without series has no header.
struct Lines<'a> {
    text: &'a mut Vec<u8>,
    family: &'a Family,
    needs_header: bool,
}

impl Lines<'_> {
    fn write(&mut self, labels: [&str; 3], number: Number) {
        let Family { name, help, kind, .. } = self.family;
        let mut push = |part: &str| self.text.extend_from_slice(part.as_bytes());
        if std::mem::take(&mut self.needs_header) {
            let header = ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind.word(), "\n"];
            header.into_iter().for_each(&mut push);
        }
        push(name);
        labels.into_iter().for_each(push);
        write_number(self.text, number);
    }
}

/// `device="/dev/vda",` for each device of the sample. The label of a device without a name is its
/// numbers, so that no two devices share a series.
fn device_labels(sample: &ScrapeSample) -> BTreeMap<Device, String> {
    let stats = sample.cgroups.iter().filter_map(|cgroup| cgroup.stats.as_ref()?.io.as_ref());
    let mut labels = BTreeMap::new();
    for counters in stats.flatten() {
        labels.entry(counters.device).or_insert_with_key(|device| {
            let name = match sample.node.devices.get(device) {
                Some(name) => format!("/dev/{name}"),
                None => format!("{}:{}", device.major, device.minor),
            };
            let mut label = String::new();
            push_label(&mut label, "device", &name);
            label
        });
    }
    labels
}

/// The number and the end of its line. Seconds are written in fixed point, which is exact: they
/// parse as the `f64` that dividing the microseconds by 1e6 gives.
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
