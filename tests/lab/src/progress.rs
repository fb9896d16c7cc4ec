//! What loads measure themselves. Those that want CPU time count, window by window, in memory that they
//! share with the reader: writing a file would be work that the scenario does not have, and that its limits
//! would slow down.

use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Context;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use serde::{Deserialize, Serialize};

use crate::scenario::WINDOW;

/// What all threads of a process did in the judged time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Pages touched, or disk operations.
    #[serde(default)]
    pub work: f64,
    /// CPU time, window by window.
    #[serde(default)]
    pub windows: Vec<CpuProgress>,
}

/// CPU time of all threads in a window, seconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct CpuProgress {
    /// CPU time used.
    pub used: f64,
    /// How long that took from the moment when each burst was due.
    pub elapsed: f64,
    /// The part of `elapsed` in which the timer had not fired yet, so that no thread waited for a CPU.
    #[serde(default)]
    pub late: f64,
}

/// The windows, as the threads of a process fill them: three numbers of nanoseconds each.
pub struct Windows {
    from: f64,
    all: &'static [AtomicU64],
}

/// The fields of [`CpuProgress`].
const NUMBERS: usize = 3;

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a few minutes"
)]
impl Windows {
    /// In a file that is mapped; without one nothing is kept.
    pub fn open((from, until): (f64, f64), report: Option<&Path>) -> anyhow::Result<Self> {
        let count = NUMBERS * ((until - from) / WINDOW).round().max(0.0) as usize;
        let (Some(report), Some(bytes)) = (report, NonZeroUsize::new(count * 8)) else {
            return Ok(Self { from, all: &[] });
        };
        let name = || report.display().to_string();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(report);
        let file = file.with_context(name)?;
        file.set_len(bytes.get() as u64).with_context(name)?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping that is never unmapped, as long as the file, which is never shortened.
        let all = unsafe {
            let start = mmap(None, bytes, rights, MapFlags::MAP_SHARED, &file, 0)?;
            std::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), count)
        };
        Ok(Self { from, all })
    }

    /// Adds CPU time used between two moments; all of it counts in the window of the second.
    pub fn add(&self, since: f64, now: f64, cpu_time: f64) {
        self.each(since, now, |[used, elapsed, _], within, ends_here| {
            count(elapsed, within);
            if ends_here {
                count(used, cpu_time);
            }
        });
    }

    /// Adds the time by which a timer fired too late.
    pub fn add_late(&self, due: f64, late: f64) {
        self.each(due, due + late, |[_, _, counted], within, _| count(counted, within));
    }

    /// Calls `add` for each window between two moments, with the time in it and whether it ends there.
    fn each(&self, since: f64, now: f64, add: impl Fn(&[AtomicU64; NUMBERS], f64, bool)) {
        let mut begin = self.from;
        for window in self.all.as_chunks().0 {
            let end = begin + WINDOW;
            if since < end && begin <= now {
                add(window, now.min(end) - since.max(begin), now < end);
            }
            begin = end;
        }
    }

    /// The contents of such a file.
    pub fn read(file: &[u8]) -> Vec<CpuProgress> {
        let number = |bytes: &[u8]| {
            bytes.try_into().map_or(0.0, |bytes| u64::from_ne_bytes(bytes) as f64 / 1e9)
        };
        let progress = |window: &[u8]| {
            let mut numbers = window.chunks(8).map(number);
            let mut next = || numbers.next().unwrap_or_default();
            CpuProgress { used: next(), elapsed: next(), late: next() }
        };
        file.chunks_exact(NUMBERS * 8).map(progress).collect()
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few minutes")]
fn count(to: &AtomicU64, seconds: f64) {
    to.fetch_add((seconds * 1e9) as u64, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_and_delay_count_in_the_windows_in_which_they_were() {
        let report = std::env::temp_dir().join(format!("psi-lab-progress-{}", std::process::id()));
        let windows = Windows::open((10.0, 20.0), Some(&report)).unwrap();
        // Due before the first window, done at 11; then due at 13, and done after the window's end.
        windows.add(9.0, 11.0, 0.5);
        windows.add(13.0, 17.0, 1.0);
        // After the end.
        windows.add(21.0, 22.0, 1.0);
        // Woken late, across the first window's end.
        windows.add_late(14.5, 0.75);
        let all = Windows::read(&std::fs::read(&report).unwrap());
        std::fs::remove_file(&report).unwrap();
        let shown: Vec<_> =
            all.iter().map(|progress| (progress.used, progress.elapsed, progress.late)).collect();
        assert_eq!(shown, [(0.5, 1.0 + 2.0, 0.5), (1.0, 2.0, 0.25)]);
    }
}
