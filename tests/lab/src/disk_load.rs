//! A thread that reads or writes blocks at random places of a disk.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context;

use crate::aio::Aio;
use crate::load::Meter;
use crate::scenario::{How, Io};

/// Of every disk, a part that is larger than the node's memory.
const BYTES: u64 = 1 << 30;
/// What a disk wants past the page cache.
const ALIGNMENT: usize = 4096;

/// Works for ever on a disk. `place` makes it go to other places than other threads.
pub fn run(io: Io, path: &Path, place: u32, work: &mut impl Meter) -> anyhow::Result<()> {
    let direct = if matches!(io.how, How::BufferedWrite) { 0 } else { libc::O_DIRECT };
    let writes = matches!(io.how, How::Write | How::BufferedWrite);
    let file = OpenOptions::new()
        .read(true)
        .write(writes)
        .custom_flags(direct)
        .open(path)
        .with_context(|| path.display().to_string())?;
    let mut places = Places::new(io, place);
    if matches!(io.how, How::NativeAio) {
        return native(io, &file, &mut places, work).with_context(|| path.display().to_string());
    }
    let block = (io.block_kib as usize) << 10;
    let mut memory = vec![1_u8; block + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let block = memory.get_mut(start..start + block).context("no room for a block")?;
    loop {
        let at = places.next();
        let done = work.step(|| {
            if writes { file.write_all_at(block, at) } else { file.read_exact_at(block, at) }
        });
        done.with_context(|| path.display().to_string())?;
        work.add(1);
        if let Some(per_second) = io.per_second {
            work.pace(1, per_second);
        }
    }
}

fn native(io: Io, file: &File, places: &mut Places, work: &mut impl Meter) -> anyhow::Result<()> {
    let mut aio = Aio::new(io.depth, io.block_kib << 10)?;
    for slot in 0..io.depth {
        aio.read(file, places.next(), slot)?;
    }
    loop {
        let slot = aio.wait()?;
        work.add(1);
        aio.read(file, places.next(), slot)?;
    }
}

/// Random places (Knuth's MMIX generator), the same in every run.
struct Places {
    state: u64,
    block: u64,
}

impl Places {
    fn new(io: Io, place: u32) -> Self {
        Self { state: u64::from(place) + 1, block: u64::from(io.block_kib) << 10 }
    }

    fn next(&mut self) -> u64 {
        let (factor, more) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.state = self.state.wrapping_mul(factor).wrapping_add(more);
        (self.state >> 33) % (BYTES / self.block) * self.block
    }
}
