//! A KVM guest in a container, started with the options that virt-launcher uses, and what it reports.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::disks;
use crate::kvm_load::REPORT;
use crate::load::now;
use crate::scenario::{AsyncIo, Guest, Load, Pod};

/// Kernel parameters. A guest that was paused must not take that for a lockup. Linux 7.2 crashes where the sizes
/// of registers are not those that it expects, as in a guest of an emulated CPU.
const BOOT: &str = "console=ttyS0 quiet panic=-1 mitigations=off clearcpuid=xsave nowatchdog \
                    rcupdate.rcu_cpu_stall_suppress=1";
/// Its machine: the smallest that QEMU has, since each device costs time to boot.
const MACHINE: &str = "-M microvm,accel=kvm,auto-kernel-cmdline=off -bios /usr/share/qemu/qboot.rom \
    -L /usr/share/qemu -cpu host -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel /vm/vmlinux -initrd /vm/initrd";

/// A running guest.
pub struct Vm {
    child: Child,
    /// When it was started, seconds of the node's clock.
    pub started: f64,
    threads: f64,
    reports: Arc<Mutex<Vec<Report>>>,
}

/// A line of the guest's load.
#[derive(Debug, Clone, Copy)]
struct Report {
    /// When it came, by the node's monotonic clock, and when it was written, by the guest's.
    came: f64,
    at: f64,
    work: f64,
    wanted: f64,
    waited: f64,
}

/// What a guest's load did between two moments; seconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct GuestProgress {
    /// Between the two reports.
    pub seconds: f64,
    /// Rounds of computing, pages or disk operations.
    pub work: f64,
    /// The time in which its threads wanted to work, added up.
    pub wanted: f64,
    /// The part of `wanted` in slow accesses to memory, or in disk operations.
    pub waited: f64,
}

impl Vm {
    /// Starts it in a container.
    pub fn start(pod: &Pod, guest: Guest, name: &str, container: &Path) -> anyhow::Result<Self> {
        let load = serde_json::to_string(&pod.load)?.replace('"', "'");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(container.join("cgroup.procs"));
        command.arg("qemu").args(MACHINE.split_whitespace());
        command.args(["-name", &format!("guest={name},debug-threads=on")]);
        command.args(["-smp", &pod.load.threads.to_string(), "-m", &guest.mib.to_string()]);
        command.args(["-append", &format!("{BOOT} -- kvm-load {load}")]);
        command.args(disk(guest, pod.load)?);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("qemu")?;
        let reports = Arc::new(Mutex::new(Vec::new()));
        let output = child.stdout.take().context("no serial line")?;
        let (to, name) = (reports.clone(), name.to_owned());
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match (report(&line), to.lock()) {
                    (Some(report), Ok(mut all)) => all.push(report),
                    _ => println!("{name}: {line}"),
                }
            }
        });
        Ok(Self { child, started: now(), threads: pod.load.threads.into(), reports })
    }

    /// How many reports of work there are.
    pub fn reports(&self) -> usize {
        let worked =
            |reports: &Vec<Report>| reports.iter().filter(|report| report.work > 0.0).count();
        self.reports.lock().map_or(0, |reports| worked(&reports))
    }

    /// Fails if it ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the guest ended: {status}");
        }
        Ok(())
    }

    /// What it did between two moments of the node's monotonic clock.
    pub fn progress(&self, from: f64, until: f64) -> Option<GuestProgress> {
        let reports = self.reports.lock().ok()?;
        let ahead =
            reports.iter().map(|report| report.came - report.at).fold(f64::INFINITY, f64::min);
        let last = |before: f64| reports.iter().rev().find(|report| report.at + ahead <= before);
        let (first, last) = (last(from)?, last(until)?);
        Some(GuestProgress {
            seconds: last.at - first.at,
            work: last.work - first.work,
            // A guest that was frozen counts that time with its next step.
            wanted: (last.wanted - first.wanted).min((last.at - first.at) * self.threads),
            waited: last.waited - first.waited,
        })
    }

    /// Ends it before it has begun to work.
    pub fn kill(mut self) -> anyhow::Result<()> {
        println!("a guest does not report");
        self.child.kill()?;
        self.wait()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> anyhow::Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

fn report(line: &str) -> Option<Report> {
    let numbers = line.trim().strip_prefix(REPORT)?.split_whitespace();
    let numbers: Vec<f64> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [at, work, wanted, waited] = numbers.as_slice() else { return None };
    let (wanted, waited) = (wanted / 1e9, waited / 1e9);
    Some(Report { came: now(), at: *at, work: *work, wanted, waited })
}

/// QEMU's options for the disk that a load uses.
fn disk(guest: Guest, load: Load) -> anyhow::Result<Vec<String>> {
    let Some(io) = load.io else { return Ok(Vec::new()) };
    let aio = match guest.aio.unwrap_or(AsyncIo::Native) {
        AsyncIo::Native => "native",
        AsyncIo::IoUring => "io_uring",
        AsyncIo::Threads => "threads",
    };
    let device = disks::device(disks::name(io.disk))?;
    // Several guests share the disk, each with its own blocks.
    let file = format!(
        "driver=host_device,node-name=file,filename={},aio={aio},cache.direct=on,locking=off",
        device.display()
    );
    let mut options = vec!["-blockdev".to_owned(), file, "-blockdev".to_owned()];
    options.push("driver=raw,node-name=disk,file=file,cache.direct=on".to_owned());
    let mut device = "virtio-blk-device,drive=disk,share-rw=on".to_owned();
    if guest.iothread {
        options.extend(["-object".to_owned(), "iothread,id=iothread1".to_owned()]);
        device += ",iothread=iothread1";
    }
    options.extend(["-device".to_owned(), device]);
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_told_from_other_lines() {
        let read = report("psi-lab: 12.500 300 4000000000 1000000000\r").unwrap();
        assert_eq!((read.at, read.work, read.wanted, read.waited), (12.5, 300.0, 4.0, 1.0));
        assert!(report("[    0.5] a line of the kernel").is_none());
        assert!(report("psi-lab: 12.5 300").is_none());
    }
}
