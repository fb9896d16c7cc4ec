//! A boot of a real kernel under QEMU's emulator, with the scenarios, the agent and this program in
//! its initramfs; out come records.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};

use crate::host;
use crate::record::Record;
use crate::scenario::Scenario;

/// A disk, empty at first.
struct Disk {
    serial: &'static str,
    bytes: u64,
    /// For QEMU's `-drive`. A limited speed is the same on a busy host.
    speed: &'static str,
}

const RECORDS: Disk = Disk { serial: "records", bytes: 256 << 20, speed: "" };
const DISKS: [Disk; 5] = [
    Disk { serial: "hard-swap", bytes: 1 << 30, speed: ",throttling.iops-total=100" },
    Disk { serial: "slow-swap", bytes: 1 << 30, speed: ",throttling.iops-total=1000" },
    Disk { serial: "swap", bytes: 2 << 30, speed: ",throttling.iops-total=4000" },
    Disk { serial: "fast", bytes: 8 << 30, speed: ",throttling.iops-total=2000" },
    Disk {
        serial: "slow",
        bytes: 1 << 30,
        speed: ",throttling.iops-total=200,throttling.bps-total=20971520",
    },
];

/// The guest's clock follows its instructions: a busy host delays it, but does not change what it
/// measures, and its sleeps take no time. With this clock Linux 6.1 hangs while it brings up its CPUs one
/// after the other, and does not where a process brings them up.
const VIRTUAL_TIME: &str =
    "-accel tcg,thread=single -rtc base=2025-01-01,clock=vm -icount sleep=off";
/// Nanoseconds of an instruction, as a power of two. All CPUs of the guest share the instructions, so that
/// one of sixteen would be half as fast as one of eight.
const SHIFT: u32 = 3;
const SHIFT_OF_MANY_CPUS: u32 = 2;
const MANY_CPUS: u32 = 16;
/// Scenarios of CPU do without the controllers whose files an agent would read besides.
const WITHOUT_CONTROLLERS: &str = " cgroup_disable=memory,io";
const REAL_TIME: &str = "-accel tcg,thread=multi";
/// Reading the time from a device, as the kernel does where it mistrusts the CPU's counter, would make the CPUs
/// wait for each other in the emulator.
const FAST: &str = " tsc=reliable clocksource=tsc mitigations=off";
/// Without cx16, which QEMU 7.2 emulates wrongly.
const MACHINE: &str = "-cpu max,-cx16 -M q35 -nodefaults -no-user-config -display none \
                       -no-reboot";

/// What a boot is made of.
#[derive(Debug, Clone)]
pub struct Machine {
    pub kernel: PathBuf,
    pub agent: PathBuf,
    /// Whether a process brings up all CPUs but the first.
    pub late_cpus: bool,
    /// What `prepare-guests` collected; scenarios with KVM guests need it.
    pub guests: Option<PathBuf>,
}

impl Machine {
    /// Runs scenarios of the same number of CPUs and the same clock in one boot. Returns the records of
    /// those that ended, and why the guest failed if it did.
    pub fn run(&self, scenarios: &[Scenario]) -> anyhow::Result<(Vec<Record>, Option<String>)> {
        let first = scenarios.first().context("no scenarios")?;
        let name = format!("psi-lab-{}-{}", std::process::id(), first.name);
        let work = std::env::temp_dir().join(name);
        let outcome = self.boot(&work, scenarios);
        fs::remove_dir_all(&work)?;
        outcome
    }

    #[allow(clippy::disallowed_methods, reason = "only to say how long a boot took")]
    fn boot(
        &self,
        work: &Path,
        scenarios: &[Scenario],
    ) -> anyhow::Result<(Vec<Record>, Option<String>)> {
        let first = scenarios.first().context("no scenarios")?;
        let Scenario { vcpus, real_time: with_disks, .. } = first;
        let memory = if first.has_guests() { "2G" } else { "1G" };
        let initramfs = self.make_initramfs(work, scenarios)?;
        let mut disks = attach(work, &RECORDS)?;
        let mut boot = "console=ttyS0 psi=1 panic=-1 quiet".to_owned();
        if *with_disks {
            for disk in &DISKS {
                disks.extend(attach(work, disk)?);
            }
            boot += " delayacct";
        } else {
            boot += if first.answers { "" } else { WITHOUT_CONTROLLERS };
        }
        if first.has_guests() {
            boot += FAST;
        }
        // In real time CPUs are brought up when the kernel's code is no longer patched.
        if self.late_cpus || *with_disks {
            boot += " maxcpus=1";
        }
        // In virtual time disks would take no time.
        let shift = if *vcpus >= MANY_CPUS { SHIFT_OF_MANY_CPUS } else { SHIFT };
        let clock = if *with_disks {
            REAL_TIME.to_owned()
        } else {
            format!("{VIRTUAL_TIME},shift={shift}")
        };
        let started = Instant::now();
        let mut emulator = Command::new("qemu-system-x86_64")
            .args(["-name", "lab,debug-threads=on"])
            .args(clock.split_whitespace().chain(MACHINE.split_whitespace()))
            .args(["-m", memory, "-smp", &vcpus.to_string(), "-serial", "stdio"])
            .args(disks)
            .args(["-append", &boot, "-kernel"])
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&initramfs)
            .stdin(Stdio::null())
            .stdout(File::create(work.join("console"))?)
            .stderr(File::create(work.join("errors"))?)
            .spawn()
            .context("qemu-system-x86_64")?;
        // Nested guests stand still now and then.
        let console = first.has_guests().then(|| work.join("console"));
        let host = host::watch(&mut emulator, console.as_deref())?;
        let status = emulator.wait()?;
        // A file can be read while the guest runs.
        let console = fs::read(work.join("console"))?;
        let console = String::from_utf8_lossy(&console);
        eprintln!("{vcpus} CPUs, {} scenarios: {:.0?}", scenarios.len(), started.elapsed());
        let bytes = fs::read(work.join(RECORDS.serial))?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        // The last line may be cut off.
        let lines =
            text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let mut records: Vec<Record> =
            lines.map(serde_json::from_slice).collect::<Result<_, _>>().context("records")?;
        for record in &mut records {
            host::add_to(record, &host);
        }
        let whole = status.success() && console.contains("psi-lab: all done");
        let failure = (!whole || records.len() != scenarios.len()).then(|| {
            let error = fs::read_to_string(work.join("errors")).unwrap_or_default();
            let (done, all) = (records.len(), scenarios.len());
            format!("the guest ended after {done} of {all} scenarios: {console}{error}")
        });
        Ok((records, failure))
    }

    fn make_initramfs(&self, work: &Path, scenarios: &[Scenario]) -> anyhow::Result<PathBuf> {
        let root = work.join("root");
        // With less than 0755 on its root the guest's users could open nothing.
        for directory in ["", "bin", "scenarios"] {
            fs::create_dir_all(root.join(directory))?;
            fs::set_permissions(root.join(directory), Permissions::from_mode(0o755))?;
        }
        let copy = |from: &Path, to: &str| {
            fs::copy(from, root.join(to)).with_context(|| from.display().to_string())
        };
        copy(Path::new("/bin/busybox"), "bin/busybox")?;
        copy(&self.agent, "bin/psi-agent")?;
        copy(&std::env::current_exe()?, "bin/psi-lab")?;
        symlink("busybox", root.join("bin/sh"))?;
        fs::write(root.join("init"), include_str!("../init-scenarios"))?;
        fs::set_permissions(root.join("init"), Permissions::from_mode(0o755))?;
        for scenario in scenarios {
            let file = root.join("scenarios").join(format!("{}.toml", scenario.name));
            fs::write(file, toml::to_string(scenario)?)?;
        }
        if scenarios.iter().any(Scenario::has_guests) {
            let guests = self.guests.as_ref().context("KVM guests need --guests")?;
            self.add_guests(guests, work, &root)?;
        }
        let packed = work.join("initramfs.gz");
        pack(&root, "gzip -1", &packed)?;
        Ok(packed)
    }

    /// What runs KVM guests, and their own initramfs. Both kernels unpack them while they boot.
    fn add_guests(&self, guests: &Path, work: &Path, root: &Path) -> anyhow::Result<()> {
        let own = work.join("vm");
        fs::create_dir_all(&own)?;
        fs::copy(std::env::current_exe()?, own.join("init"))?;
        copy_all(&guests.join("node/."), root)?;
        copy_all(&root.join("vm/modules"), &own)?;
        pack(&own, "cat", &root.join("vm/initrd"))
    }
}

fn copy_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    let status = Command::new("cp").arg("-r").args([from, to]).status()?;
    ensure!(status.success(), "cp -r {}: {status}", from.display());
    Ok(())
}

/// Packs a folder, through a compressor.
fn pack(folder: &Path, compress: &str, to: &Path) -> anyhow::Result<()> {
    let pack = format!("find . | cpio -o -H newc -R 0:0 --quiet | {compress} >\"$0\"");
    let status = Command::new("bash")
        .args(["-o", "pipefail", "-c", &pack])
        .arg(to)
        .current_dir(folder)
        .status()?;
    ensure!(status.success(), "cpio or {compress} failed: {status}");
    Ok(())
}

/// QEMU's arguments for a disk.
fn attach(work: &Path, disk: &Disk) -> anyhow::Result<Vec<String>> {
    let Disk { serial, bytes, speed } = disk;
    let file = work.join(serial);
    File::create(&file).and_then(|file| file.set_len(*bytes))?;
    let file = file.display();
    Ok(vec![
        "-drive".to_owned(),
        format!("if=none,id={serial},format=raw,cache=unsafe,file={file}{speed}"),
        "-device".to_owned(),
        format!("nvme,drive={serial},serial={serial}"),
    ])
}
