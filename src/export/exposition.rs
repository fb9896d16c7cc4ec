//! A sample in Prometheus' text format 0.0.4, in chunks, so that a body of many MB is never in
//! memory as a whole. Writing a series allocates no memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec::IntoIter;

use super::families::{FAMILIES, FamilyGroup, Source};
use super::series::with_extra;
use crate::kernel::io_stat::Device;
use crate::sample::{CgroupSample, ScrapeSample};
use crate::text_format::{CHUNK_BYTES, Family, LINE_BYTES, Lines, Number, push_label};

#[derive(Debug)]
pub struct Exposition {
    sample: Arc<ScrapeSample>,
    device_labels: BTreeMap<Device, Vec<u8>>,
    /// The families that are not complete yet.
    families: IntoIter<&'static Family<(FamilyGroup, Source)>>,
    /// Index of the first family's next cgroup.
    cgroup: usize,
}

impl Exposition {
    /// The families of `groups` for `sample`.
    pub fn new(sample: Arc<ScrapeSample>, groups: &[FamilyGroup]) -> Self {
        let device_labels = device_labels(&sample);
        let is_selected = |family: &&Family<(FamilyGroup, _)>| groups.contains(&family.source.0);
        let families: Vec<_> = FAMILIES.iter().filter(is_selected).collect();
        Self { sample, device_labels, families: families.into_iter(), cgroup: 0 }
    }

    /// Writes a family's series from the position to the end of the family or of the chunk. Returns
    /// the position of the next cgroup.
    fn write_family(&self, family: &Family<(FamilyGroup, Source)>, text: &mut Vec<u8>) -> usize {
        let (mut at, (_, source)) = (self.cgroup, family.source);
        let mut lines = Lines::of(family, text, at == 0);
        if let Source::Node(value) = source {
            if at == 0 {
                lines.write(&[], value(&self.sample.node));
            }
            return 1;
        }
        for cgroup in self.sample.cgroups.iter().skip(at) {
            if lines.text.len() >= CHUNK_BYTES {
                return at;
            }
            self.write_cgroup(source, cgroup, &mut lines);
            at += 1;
        }
        at
    }

    fn write_cgroup(&self, source: Source, cgroup: &CgroupSample, lines: &mut Lines<'_>) {
        match source {
            Source::Cgroup { extra, value } => {
                if let Some(number) = value(cgroup, &self.sample.node) {
                    lines.write_rendered(with_extra(cgroup, extra.as_bytes()), number);
                }
            }
            Source::Device(value) => {
                let devices = cgroup.stats.as_ref().and_then(|stats| stats.io.as_ref());
                for counters in devices.into_iter().flatten() {
                    let extra =
                        self.device_labels.get(&counters.device).map_or(&[][..], Vec::as_slice);
                    let number = Number::Whole(value(counters));
                    lines.write_rendered(with_extra(cgroup, extra), number);
                }
            }
            Source::Node(_) => {}
        }
    }
}

impl Iterator for Exposition {
    type Item = Vec<u8>;

    /// The next chunk.
    fn next(&mut self) -> Option<Vec<u8>> {
        let mut text = Vec::with_capacity(CHUNK_BYTES + LINE_BYTES);
        while let Some(&family) = self.families.as_slice().first() {
            self.cgroup = self.write_family(family, &mut text);
            if text.len() >= CHUNK_BYTES {
                break;
            }
            self.cgroup = 0;
            self.families.next();
        }
        (!text.is_empty()).then_some(text)
    }
}

/// `device="/dev/vda",` for each device of the sample. The label of a device without a name is its
/// numbers, so that no two devices share a series.
fn device_labels(sample: &ScrapeSample) -> BTreeMap<Device, Vec<u8>> {
    let stats = sample.cgroups.iter().filter_map(|cgroup| cgroup.stats.as_ref()?.io.as_ref());
    let (disks, mut labels) = (sample.node.disks.value(), BTreeMap::new());
    for counters in stats.flatten() {
        labels.entry(counters.device).or_insert_with_key(|device| {
            let name = match disks.and_then(|disks| disks.get(device)) {
                Some(disk) => format!("/dev/{}", disk.name),
                None => format!("{}:{}", device.major, device.minor),
            };
            let mut label = Vec::new();
            push_label(&mut label, "device", &name);
            label
        });
    }
    labels
}
