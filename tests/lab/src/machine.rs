//! A boot of a real kernel under QEMU's emulator, with the scenarios, the agent and this program in
//! its initramfs; out come records.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};

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
const DISKS: [Disk; 3] = [
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
/// Instructions of an agent's snapshot for each cgroup, and the longest time that one may take on an
/// emulated CPU, seconds.
const SNAPSHOT_COST: f64 = 1e6;
const SNAPSHOT_TIME: f64 = 3.0;
const REAL_TIME: &str = "-accel tcg,thread=multi";
/// Without cx16, which QEMU 7.2 emulates wrongly.
const MACHINE: &str = "-cpu max,-cx16 -M q35 -m 1G -nodefaults -no-user-config -display none \
                       -no-reboot";

/// What a boot is made of.
#[derive(Debug, Clone)]
pub struct Machine {
    pub kernel: PathBuf,
    pub agent: PathBuf,
    /// Whether a process brings up all CPUs but the first.
    pub late_cpus: bool,
}

impl Machine {
    /// Runs scenarios of the same number of CPUs and the same [`shift`] in one boot. Returns the records of
    /// those that ended, and why the guest failed if it did.
    pub fn run(
        &self,
        folder: &Path,
        scenarios: &[Scenario],
    ) -> anyhow::Result<(Vec<Record>, Option<String>)> {
        let first = scenarios.first().context("no scenarios")?;
        let name = format!("psi-lab-{}-{}", std::process::id(), first.name);
        let work = std::env::temp_dir().join(name);
        let outcome = self.boot(&work, folder, scenarios);
        fs::remove_dir_all(&work)?;
        outcome
    }

    #[allow(clippy::disallowed_methods, reason = "only to say how long a boot took")]
    fn boot(
        &self,
        work: &Path,
        folder: &Path,
        scenarios: &[Scenario],
    ) -> anyhow::Result<(Vec<Record>, Option<String>)> {
        let first = scenarios.first().context("no scenarios")?;
        let Scenario { vcpus, real_time: with_disks, .. } = first;
        let initramfs = self.make_initramfs(work, folder, scenarios)?;
        let mut disks = attach(work, &RECORDS)?;
        let mut boot = "console=ttyS0 psi=1 panic=-1 quiet".to_owned();
        if *with_disks {
            for disk in &DISKS {
                disks.extend(attach(work, disk)?);
            }
            boot += " delayacct";
        }
        // In real time CPUs are brought up when the kernel's code is no longer patched.
        if self.late_cpus || *with_disks {
            boot += " maxcpus=1";
        }
        // In virtual time disks would take no time.
        let clock = if *with_disks {
            REAL_TIME.to_owned()
        } else {
            format!("{VIRTUAL_TIME},shift={}", shift(first))
        };
        let started = Instant::now();
        let output = Command::new("qemu-system-x86_64")
            .args(clock.split_whitespace().chain(MACHINE.split_whitespace()))
            .args(["-smp", &vcpus.to_string(), "-serial", "stdio"])
            .args(disks)
            .args(["-append", &boot, "-kernel"])
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&initramfs)
            .stdin(Stdio::null())
            .output()
            .context("qemu-system-x86_64")?;
        let console = String::from_utf8_lossy(&output.stdout);
        eprintln!("{vcpus} CPUs, {} scenarios: {:.0?}", scenarios.len(), started.elapsed());
        let bytes = fs::read(work.join(RECORDS.serial))?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        // The last line may be cut off.
        let lines =
            text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let records: Vec<Record> =
            lines.map(serde_json::from_slice).collect::<Result<_, _>>().context("records")?;
        let whole = output.status.success() && console.contains("psi-lab: all done");
        let failure = (!whole || records.len() != scenarios.len()).then(|| {
            let error = String::from_utf8_lossy(&output.stderr);
            let (done, all) = (records.len(), scenarios.len());
            format!("the guest ended after {done} of {all} scenarios: {console}{error}")
        });
        Ok((records, failure))
    }

    fn make_initramfs(
        &self,
        work: &Path,
        folder: &Path,
        scenarios: &[Scenario],
    ) -> anyhow::Result<PathBuf> {
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
        for Scenario { name, .. } in scenarios {
            let file = format!("{name}.toml");
            copy(&folder.join(&file), &format!("scenarios/{file}"))?;
        }
        let packed = work.join("initramfs.gz");
        let pack = "find . | cpio -o -H newc -R 0:0 --quiet | gzip -1 >\"$0\"";
        let status = Command::new("bash")
            .args(["-o", "pipefail", "-c", pack])
            .arg(&packed)
            .current_dir(&root)
            .status()?;
        ensure!(status.success(), "cpio or gzip failed: {status}");
        Ok(packed)
    }
}

/// Nanoseconds of an instruction in virtual time, as a power of two. All CPUs of the guest share the
/// instructions, so that a CPU of many is slow. Nodes of many CPUs or pods need more instructions a second:
/// otherwise reading takes longer than a window.
pub fn shift(scenario: &Scenario) -> u32 {
    // Of each pod three cgroups and a share of the system's.
    let snapshot = f64::from(4 * scenario.pod_count() + 12) * SNAPSHOT_COST;
    let most = SNAPSHOT_TIME * 1e9 / (snapshot * f64::from(scenario.vcpus));
    [3, 2, 1].into_iter().find(|shift| f64::from(1 << shift) <= most).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_many_cpus_or_pods_get_more_instructions_a_second() {
        let shift_of = |vcpus, copies| {
            let text = format!(
                "about = \"\"\nvcpus = {vcpus}\n[[pod]]\nname = \"vm\"\ncopies = {copies}\nthreads = 1"
            );
            shift(&toml::from_str(&text).unwrap())
        };
        assert_eq!([shift_of(4, 4), shift_of(8, 6)], [3, 3]);
        assert_eq!([shift_of(4, 24), shift_of(8, 11), shift_of(16, 6)], [2, 2, 2]);
        assert_eq!([shift_of(4, 52), shift_of(16, 16)], [1, 1]);
    }
}
