//! Set-up of the whole node: swap, and the memory limit of kubepods.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::disks;
use crate::record::text;
use crate::scenario::{Scenario, Swap};
use crate::tree;

/// What zram can hold.
const ZRAM: &str = "512M";

/// Before anything runs.
pub fn set_up(scenario: &Scenario) -> anyhow::Result<()> {
    if !scenario.real_time {
        return Ok(());
    }
    // Huge pages come, go and are split in their own time.
    set("/sys/kernel/mm/transparent_hugepage/enabled", "never")?;
    // By default written pages are written back long after their scenario.
    set("/proc/sys/vm/dirty_background_bytes", "8388608")?;
    set("/proc/sys/vm/dirty_bytes", "16777216")?;
    tree::limit_kubepods(scenario.kubepods_mib)?;
    if scenario.swap {
        let swap = swap_device(scenario)?;
        run("mkswap", &swap)?;
        run("swapon", &swap)?;
    }
    Ok(())
}

/// Reads all pages from swap.
pub fn empty_swap(scenario: &Scenario) -> anyhow::Result<()> {
    let swap = swap_device(scenario)?;
    run("swapoff", &swap)?;
    run("swapon", &swap)
}

fn swap_device(scenario: &Scenario) -> anyhow::Result<PathBuf> {
    match scenario.swap_on {
        None => disks::device("swap"),
        Some(Swap::SlowDisk) => disks::device("slow-swap"),
        Some(Swap::Zram) => {
            if text(Path::new("/sys/block/zram0/disksize")).trim() == "0" {
                set("/sys/block/zram0/disksize", ZRAM)?;
            }
            Ok(PathBuf::from("/dev/zram0"))
        }
    }
}

/// After a scenario, so that the next one starts on a clean node.
pub fn clean_up(scenario: &Scenario) -> anyhow::Result<()> {
    if !scenario.real_time {
        return Ok(());
    }
    if scenario.swap {
        run("swapoff", &swap_device(scenario)?)?;
    }
    forget_files()
}

/// Drops the page cache.
pub fn forget_files() -> anyhow::Result<()> {
    nix::unistd::sync();
    set("/proc/sys/vm/drop_caches", "3")
}

fn set(path: &str, value: &str) -> anyhow::Result<()> {
    fs::write(path, value).with_context(|| path.to_owned())
}

fn run(program: &str, device: &Path) -> anyhow::Result<()> {
    let output = Command::new(program).arg(device).output().with_context(|| program.to_owned())?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {complaint}", device.display());
    Ok(())
}
