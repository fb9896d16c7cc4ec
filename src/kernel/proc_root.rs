//! The node's `/proc`: pressure, CPU time, reclaim, memory, device names. Where `/proc/pressure`
//! is refused (SELinux), the root cgroup's files say the same.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::cgroup_dir::Resource;
use super::io_stat::Device;
use super::node_text::{
    CpuTimes, DiskCounters, NodeMemory, Reclaim, parse_device_names, parse_disk_counters,
    parse_meminfo, parse_proc_stat, parse_schedstat, parse_vmstat,
};
use super::pressure::{Pressure, parse_pressure};
use super::process_dir::{ProcessDir, numbers};
use super::text::ParseError;
use super::{ReadBuffer, ReadError, ReadErrorKind};

/// A mounted `/proc`, or a replay of one.
#[derive(Debug)]
pub struct ProcRoot {
    handle: OwnedFd,
    path: PathBuf,
}

impl ProcRoot {
    /// Opens `path`.
    ///
    /// # Errors
    /// The errno of opening it as a directory.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let handle = open(path, flags, Mode::empty()).map_err(|errno: Errno| ReadError {
            path: path.display().to_string(),
            kind: errno.into(),
        })?;
        Ok(Self { handle, path: path.to_owned() })
    }

    /// The node's pressure of one resource.
    ///
    /// # Errors
    /// [`ReadErrorKind::Vanished`] where PSI is off, [`ReadErrorKind::Refused`] where a security module
    /// hides it.
    pub fn pressure(
        &self,
        resource: Resource,
        buffer: &mut ReadBuffer,
    ) -> Result<Pressure, ReadError> {
        self.read(
            match resource {
                Resource::Cpu => c"pressure/cpu",
                Resource::Memory => c"pressure/memory",
                Resource::Io => c"pressure/io",
            },
            buffer,
            parse_pressure,
        )
    }

    /// Interrupt pressure; `None` without CONFIG_IRQ_TIME_ACCOUNTING or before Linux 6.1.
    ///
    /// # Errors
    /// Anything but absence.
    pub fn irq_pressure(&self, buffer: &mut ReadBuffer) -> Result<Option<Pressure>, ReadError> {
        absent_is_none(self.read(c"pressure/irq", buffer, parse_pressure))
    }

    /// `/proc/stat`; `None` where there is none (a replay).
    ///
    /// # Errors
    /// Anything but absence.
    pub fn cpu_times(&self, buffer: &mut ReadBuffer) -> Result<Option<CpuTimes>, ReadError> {
        absent_is_none(self.read(c"stat", buffer, parse_proc_stat))
    }

    /// `/proc/schedstat`: for how long tasks waited for a CPU, nanoseconds; `None` without
    /// CONFIG_SCHEDSTATS.
    ///
    /// # Errors
    /// Anything but absence.
    pub fn run_delay(&self, buffer: &mut ReadBuffer) -> Result<Option<u64>, ReadError> {
        absent_is_none(self.read(c"schedstat", buffer, parse_schedstat))
    }

    /// `/proc/vmstat`; `None` where there is none (a replay).
    ///
    /// # Errors
    /// Anything but absence.
    pub fn reclaim(&self, buffer: &mut ReadBuffer) -> Result<Option<Reclaim>, ReadError> {
        absent_is_none(self.read(c"vmstat", buffer, parse_vmstat))
    }

    /// `/proc/meminfo`; `None` where there is none (a replay).
    ///
    /// # Errors
    /// Anything but absence.
    pub fn memory(&self, buffer: &mut ReadBuffer) -> Result<Option<NodeMemory>, ReadError> {
        absent_is_none(self.read(c"meminfo", buffer, parse_meminfo))
    }

    /// `/proc/diskstats`: names of block devices; empty where there is no such file.
    ///
    /// # Errors
    /// Anything but absence.
    pub fn device_names(
        &self,
        buffer: &mut ReadBuffer,
    ) -> Result<BTreeMap<Device, String>, ReadError> {
        let names = self.read(c"diskstats", buffer, |text| Ok(parse_device_names(text)));
        Ok(absent_is_none(names)?.unwrap_or_default())
    }

    /// `/proc/diskstats`: what block devices did since boot; empty where there is no such file.
    ///
    /// # Errors
    /// Anything but absence.
    pub fn disks(
        &self,
        buffer: &mut ReadBuffer,
    ) -> Result<BTreeMap<Device, DiskCounters>, ReadError> {
        let disks = self.read(c"diskstats", buffer, |text| Ok(parse_disk_counters(text)));
        Ok(absent_is_none(disks)?.unwrap_or_default())
    }

    /// The numbers of all processes that this mount shows.
    ///
    /// # Errors
    /// The errno that stopped the listing.
    pub fn processes(&self) -> Result<Vec<u32>, ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Dir::openat(&self.handle, ".", flags, Mode::empty())
            .and_then(|mut dir| numbers(&mut dir))
            .map_err(|errno| ReadError {
                path: self.path.display().to_string(),
                kind: errno.into(),
            })
    }

    /// Opens the directory of a process.
    ///
    /// # Errors
    /// [`ReadErrorKind::Vanished`] where it has ended.
    pub fn process(&self, id: u32) -> Result<ProcessDir, ReadError> {
        ProcessDir::open(&self.handle, &self.path, id)
    }

    /// The kernel's release, such as `6.12.0`.
    #[must_use]
    pub fn kernel_release(&self, buffer: &mut ReadBuffer) -> Option<String> {
        let release = buffer.read_all(&self.handle, c"sys/kernel/osrelease").ok()?;
        Some(String::from_utf8_lossy(release).trim().to_owned())
    }

    /// The value of a parameter on the kernel's command line.
    #[must_use]
    pub fn boot_parameter(&self, name: &str, buffer: &mut ReadBuffer) -> Option<String> {
        let line = buffer.read_all(&self.handle, c"cmdline").ok()?;
        let line = String::from_utf8_lossy(line);
        let value = |word: &str| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        line.split_whitespace().rev().find_map(value)
    }

    fn read<T>(
        &self,
        name: &CStr,
        buffer: &mut ReadBuffer,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        let value = buffer.read_all(&self.handle, name).and_then(|text| Ok(parse(text)?));
        value.map_err(|kind| ReadError {
            path: self.path.join(name.to_string_lossy().as_ref()).display().to_string(),
            kind,
        })
    }
}

fn absent_is_none<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(ReadError {
            kind: ReadErrorKind::Vanished(_) | ReadErrorKind::Unsupported(_), ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}
