//! How long a node's emulated CPUs run on this machine. On a busy machine they are slower, now and then, which is
//! no contention in the node.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::Duration;

use crate::counters::{Point, text};
use crate::load::clock;
use crate::record::Record;

/// How often the CPUs are read.
const PERIOD: Duration = Duration::from_millis(250);

/// A node with KVM guests writes on its console more often than this, seconds.
const STANDS_STILL: f64 = 300.0;

/// The run time of each emulated CPU at one moment, seconds.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Seconds since 1970.
    pub clock: f64,
    pub ran: Vec<f64>,
}

/// Reads the CPUs of an emulator until it ends, and ends it if its guest writes nothing on this console any more.
pub fn watch(emulator: &mut Child, console: Option<&Path>) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let (mut length, mut wrote) = (None, clock());
    while emulator.try_wait()?.is_none() {
        let now = clock();
        samples.push(Sample { clock: now, ran: ran(emulator.id()) });
        let written = console.map(fs::metadata).transpose()?.map(|file| file.len());
        if written != length {
            (length, wrote) = (written, now);
        } else if written.is_some() && now > wrote + STANDS_STILL {
            emulator.kill()?;
        }
        thread::sleep(PERIOD);
    }
    Ok(samples)
}

#[allow(clippy::cast_precision_loss, reason = "nanoseconds of an hour")]
fn ran(process: u32) -> Vec<f64> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let cpus = threads.into_iter().flatten().flatten().filter_map(|thread| {
        // QEMU names them so: `CPU 0/TCG`.
        let name = text(&thread.path().join("comm"));
        let number: u32 = name.strip_prefix("CPU ")?.split('/').next()?.parse().ok()?;
        let schedstat = text(&thread.path().join("schedstat"));
        Some((number, schedstat.split(' ').next()?.parse::<u64>().ok()? as f64 / 1e9))
    });
    let cpus: BTreeMap<u32, f64> = cpus.collect();
    cpus.into_values().collect()
}

/// Adds it to all points of a record.
pub fn add_to(record: &mut Record, samples: &[Sample]) {
    let alone = record.guests.alone.iter_mut();
    let alone = alone.flat_map(|alone| [&mut alone.before, &mut alone.after]);
    let all: Vec<&mut Point> = record.points.iter_mut().chain(alone).collect();
    for point in all {
        point.emulated = at(samples, point.clock).unwrap_or_default();
    }
}

/// The run time at a moment between two samples.
fn at(samples: &[Sample], clock: f64) -> Option<Vec<f64>> {
    let number = samples.iter().position(|sample| sample.clock >= clock)?;
    let (before, after) = (samples.get(number.checked_sub(1)?)?, samples.get(number)?);
    let part = (clock - before.clock) / (after.clock - before.clock);
    let cpus = before.ran.iter().zip(&after.ran);
    Some(cpus.map(|(before, after)| before + part * (after - before)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_time_grows_evenly_between_two_samples() {
        let samples = [(1.0, 0.5), (2.0, 1.5), (3.0, 1.5)];
        let samples = samples.map(|(clock, ran)| Sample { clock, ran: vec![ran, 1.0] });
        assert_eq!(at(&samples, 1.5), Some(vec![1.0, 1.0]));
        assert_eq!(at(&samples, 2.5), Some(vec![1.5, 1.0]));
        assert_eq!(at(&samples, 0.5), None);
        assert_eq!(at(&samples, 3.5), None);
    }
}
