//! Set-up of the whole node: swap, and the memory limit of kubepods.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, ensure};
use nix::mount::{MsFlags, mount};

use crate::counters::text;
use crate::disks;
use crate::kvm_truth::{Needs, needs};
use crate::scenario::{Scenario, Swap};
use crate::tree;

/// The base slice where KVM guests compete for CPUs. When an emulated CPU changes from one guest to another it
/// forgets how it translated both, and with the kernel's few milliseconds it would do little else.
const SLICE_NS: u64 = 40_000_000;
static USUAL_SLICE: OnceLock<u64> = OnceLock::new();

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
    if scenario.has_guests() {
        set_slice(if needs(scenario) == Needs::Cpu { SLICE_NS } else { 0 })?;
    }
    if scenario.swap {
        let swap = swap_device(scenario)?;
        run("mkswap", &swap)?;
        run("swapon", &swap)?;
    }
    Ok(())
}

/// Sets the scheduler's base slice; 0 for that of the kernel.
fn set_slice(nanoseconds: u64) -> anyhow::Result<()> {
    let file = Path::new("/sys/kernel/debug/sched/base_slice_ns");
    if !file.exists() {
        let nothing = None::<&str>;
        mount(nothing, "/sys/kernel/debug", Some("debugfs"), MsFlags::empty(), nothing)
            .context("debugfs")?;
    }
    let usual = *USUAL_SLICE.get_or_init(|| text(file).trim().parse().unwrap_or(SLICE_NS));
    let wanted = if nanoseconds > 0 { nanoseconds } else { usual };
    fs::write(file, wanted.to_string()).with_context(|| file.display().to_string())
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
        Some(Swap::HardDisk) => disks::device("hard-swap"),
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
