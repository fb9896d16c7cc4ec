//! What loads know of what they missed: those that want to run, window by window, in memory that they
//! share with whoever asks. To write it down would be work that the scenario does not have, and that its
//! limits would hold back.

use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Context;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use serde::{Deserialize, Serialize};

use crate::scenario::WINDOW;

/// What all threads of a process say of the judged time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Missed {
    /// Pages that they touched, or operations on a disk that they did.
    #[serde(default)]
    pub work: f64,
    /// Of those that want to run.
    #[serde(default)]
    pub windows: Vec<Ran>,
}

/// CPU time that was had in a window, and how long that took from when it was due, seconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Ran {
    pub had: f64,
    pub took: f64,
    /// A part of what it took: the timer had not fired yet, so that no CPU was waited for.
    #[serde(default)]
    pub late: f64,
}

/// The windows, as the threads of a process fill them: of each some numbers of nanoseconds.
pub struct Windows {
    from: f64,
    all: &'static [AtomicU64],
}

/// Those of [`Ran`].
const NUMBERS: usize = 3;

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a few minutes"
)]
impl Windows {
    /// As a file that is mapped; without one nobody will ask.
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
        // SAFETY: a new mapping that is never unmapped, as long as the file, which nobody shortens.
        let all = unsafe {
            let start = mmap(None, bytes, rights, MapFlags::MAP_SHARED, &file, 0)?;
            std::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), count)
        };
        Ok(Self { from, all })
    }

    /// So much CPU time was had between two moments, rather at their end.
    pub fn add(&self, since: f64, now: f64, had: f64) {
        self.each(since, now, |[ran, took, _], within, ends_here| {
            count(took, within);
            if ends_here {
                count(ran, had);
            }
        });
    }

    /// It was due at a moment, and the timer fired so much later.
    pub fn add_late(&self, due: f64, late: f64) {
        self.each(due, due + late, |[_, _, counted], within, _| count(counted, within));
    }

    /// The windows between two moments: how much of that is in each, and whether it ends there.
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

    /// What such a file holds by now.
    pub fn read(file: &[u8]) -> Vec<Ran> {
        let number = |bytes: &[u8]| {
            bytes.try_into().map_or(0.0, |bytes| u64::from_ne_bytes(bytes) as f64 / 1e9)
        };
        let ran = |window: &[u8]| {
            let mut numbers = window.chunks(8).map(number);
            let mut next = || numbers.next().unwrap_or_default();
            Ran { had: next(), took: next(), late: next() }
        };
        file.chunks_exact(NUMBERS * 8).map(ran).collect()
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
    fn what_was_due_and_had_falls_to_the_windows_in_which_it_was() {
        let report = std::env::temp_dir().join(format!("psi-lab-missed-{}", std::process::id()));
        let windows = Windows::open((10.0, 20.0), Some(&report)).unwrap();
        // Due before anybody counts, had at 11; then due at 13, and had after the window's end.
        windows.add(9.0, 11.0, 0.5);
        windows.add(13.0, 17.0, 1.0);
        // After the end.
        windows.add(21.0, 22.0, 1.0);
        // Woken late, across the first window's end.
        windows.add_late(14.5, 0.75);
        let all = Windows::read(&std::fs::read(&report).unwrap());
        std::fs::remove_file(&report).unwrap();
        let shown: Vec<_> = all.iter().map(|ran| (ran.had, ran.took, ran.late)).collect();
        assert_eq!(shown, [(0.5, 1.0 + 2.0, 0.5), (1.0, 2.0, 0.25)]);
    }
}
