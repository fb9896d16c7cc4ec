//! How much this machine holds up the emulated CPUs of a node in real time: on a busy machine they are slower,
//! now and then, which is no contention in the node.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::Duration;

use crate::load::clock;
use crate::record::{Record, text};

/// How often the CPUs are read.
const PERIOD: Duration = Duration::from_millis(500);

/// The emulated CPUs at one moment: run time and run delay of their threads on this machine, nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Seconds since 1970.
    pub clock: f64,
    pub ran: u64,
    pub delayed: u64,
}

/// Reads the CPUs of an emulator until it ends.
pub fn watch(emulator: &mut Child) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    while emulator.try_wait()?.is_none() {
        samples.push(sample(emulator.id()));
        thread::sleep(PERIOD);
    }
    Ok(samples)
}

fn sample(process: u32) -> Sample {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let (mut ran, mut delayed) = (0, 0);
    for thread in threads.into_iter().flatten().flatten() {
        // QEMU names them so: `CPU 0/TCG`.
        if text(&thread.path().join("comm")).starts_with("CPU ") {
            let schedstat = text(&Path::new(&thread.path()).join("schedstat"));
            let mut numbers = schedstat.split(' ').map_while(|number| number.parse::<u64>().ok());
            ran += numbers.next().unwrap_or_default();
            delayed += numbers.next().unwrap_or_default();
        }
    }
    Sample { clock: clock(), ran, delayed }
}

/// Adds to each window of a record's guests how much of their time the emulated CPUs waited.
pub fn add_to(record: &mut Record, samples: &[Sample]) {
    let beside = record.guests.beside.values_mut().flatten();
    let alone = record.guests.alone.iter_mut().map(|alone| &mut alone.progress);
    for progress in alone.chain(beside) {
        progress.host_delay = delay(samples, progress.clock - progress.seconds, progress.clock);
    }
}

/// The share of time for which emulated CPUs that had something to do waited for one of this machine.
#[allow(clippy::cast_precision_loss, reason = "nanoseconds of an hour")]
fn delay(samples: &[Sample], from: f64, until: f64) -> f64 {
    let within = || samples.iter().filter(|sample| sample.clock >= from && sample.clock <= until);
    let (Some(first), Some(last)) = (within().next(), within().last()) else { return 0.0 };
    let (ran, delayed) = (last.ran - first.ran, last.delayed - first.delayed);
    delayed as f64 / (ran + delayed).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_that_of_the_samples_within_a_window() {
        let sample = |clock, ran, delayed| Sample { clock, ran, delayed };
        let samples = [sample(1.0, 0, 0), sample(2.0, 5, 5), sample(3.0, 8, 6), sample(4.0, 9, 99)];
        assert_eq!(delay(&samples, 1.5, 3.5), 0.25);
        assert_eq!(delay(&samples, 5.0, 6.0), 0.0);
    }
}
