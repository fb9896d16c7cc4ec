//! A thread that touches its working set again and again: memory of its own, or page cache.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use anyhow::Context;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::disks;
use crate::load::{Meter, spin};
use crate::scenario::{Disk, Memory};

const PAGE: usize = 4096;
/// Pages between two readings of the clock.
const AT_ONCE: u32 = 32;
/// Without a divisor in common with any number of pages in MiB: a walk with it meets every page
/// once, in an order that neither read-ahead nor the kernel's lists of old pages can guess.
const STRIDE: usize = 15_485_863;
/// Part of the fast disk for each thread.
const REGION: u64 = 512 << 20;

/// Works for ever. `place` tells it from other threads of the node.
pub fn touch(memory: Memory, place: u32, work: &mut impl Meter) -> anyhow::Result<()> {
    let pages = pages(memory);
    if memory.file {
        let path = disks::device(disks::name(Disk::Fast))?;
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        let region = REGION * u64::from(place);
        // Page by page the first time would last longer than a scenario.
        let mut mib = vec![0; 1 << 20];
        for number in 0..u64::from(memory.mib) {
            file.read_exact_at(&mut mib, region + (number << 20))
                .with_context(|| path.display().to_string())?;
        }
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM)?;
        let mut page = [0; PAGE];
        again_and_again(memory, work, |number| {
            let at = region + (number * PAGE) as u64;
            file.read_exact_at(&mut page, at).with_context(|| format!("{}", path.display()))
        })
    } else {
        let mut all = vec![0_u8; pages * PAGE];
        // A page of zeros would be dropped where others are swapped out.
        let mut write = |number: usize| {
            if let Some(byte) = black_box(&mut all).get_mut(number * PAGE) {
                *byte = byte.wrapping_add(1).max(1);
            }
            Ok(())
        };
        // It takes its memory as fast as it can.
        (0..pages).try_for_each(&mut write)?;
        again_and_again(memory, work, write)
    }
}

fn pages(memory: Memory) -> usize {
    (memory.mib as usize) << 20 >> 12
}

fn again_and_again(
    memory: Memory,
    work: &mut impl Meter,
    mut touch: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let pages = pages(memory);
    let mut number = 0;
    loop {
        for _ in 0..AT_ONCE {
            work.step(|| touch(number))?;
            number = (number + STRIDE) % pages;
            for _ in 0..memory.spins {
                spin();
            }
        }
        work.add(AT_ONCE);
        work.pace(AT_ONCE, memory.mib_per_second * 256.0);
    }
}
