//! The disks of the guest, by the serial numbers that QEMU gave them: the kernel numbers them as it
//! finds them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::counters::text;
use crate::scenario::Disk;

/// Its serial number.
pub fn name(disk: Disk) -> &'static str {
    match disk {
        Disk::Fast => "fast",
        Disk::Slow => "slow",
    }
}

/// The device of a serial number.
pub fn device(serial: &str) -> anyhow::Result<PathBuf> {
    Ok(Path::new("/dev").join(block(serial)?))
}

/// Its major and minor number, as cgroups name it.
pub fn numbers(serial: &str) -> anyhow::Result<(u64, u64)> {
    let numbers = text(&Path::new("/sys/block").join(block(serial)?).join("dev"));
    let numbers = numbers
        .trim()
        .split_once(':')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.with_context(|| format!("disk {serial}: no numbers"))
}

fn block(serial: &str) -> anyhow::Result<std::ffi::OsString> {
    for entry in fs::read_dir("/sys/block").context("/sys/block")? {
        let entry = entry?;
        let read = |file| text(&entry.path().join(file));
        // Newer versions of QEMU give an NVMe disk several paths, of which each is a hidden device.
        if read("device/serial").trim() == serial && read("hidden").trim() != "1" {
            return Ok(entry.file_name());
        }
    }
    anyhow::bail!("no disk has the serial number {serial}")
}
