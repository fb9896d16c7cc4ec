//! The node's files in a mounted `/proc`, and its processes.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::Path;

use super::io_stat::Device;
use super::mounts::hiding_options;
use super::node_text::{
    Cores, CpuTimes, DiskStat, NodeMemory, Reclaim, RunDelay, parse_cores, parse_diskstats,
    parse_meminfo, parse_proc_stat, parse_schedstat, parse_swaps, parse_vmstat,
};
use super::own_process::own_groups;
use super::pressure::{Pressure, parse_pressure};
use super::process_dir::{TaskDir, TaskId};
use super::read::{Directory, Parse, ReadError, files, if_present};
use super::task_text::{counts_two_pids, selinux_type};
use crate::client::resource::{PerResource, Resource};

/// A mounted `/proc`, or a directory with copies of its files. A value is `None`
/// where the file is absent; any other failure is an error.
#[derive(Debug)]
pub struct ProcRoot(Directory);

const NODE_PRESSURE: PerResource<&CStr> =
    PerResource { cpu: c"pressure/cpu", memory: c"pressure/memory", io: c"pressure/io" };

impl ProcRoot {
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Directory::open(path).map(Self)
    }

    /// The node's pressure. The error is `Vanished` where PSI is off, and `Refused` where a security
    /// module such as SELinux denies access.
    pub fn pressure(&self, resource: Resource) -> Result<Pressure, ReadError> {
        self.0.read(NODE_PRESSURE.of(resource), parse_pressure)
    }

    pub fn processes(&self) -> Result<Vec<TaskId>, ReadError> {
        self.0.list(c".", TaskId::of)
    }

    /// Whether this mount shows all processes of the host, or of the node if that is a container, and
    /// they are readable. Such a mount belongs to an outer PID namespace, in which this process has
    /// another PID, or to the initial one, which alone has kernel threads.
    pub fn shows_host_processes(&self) -> bool {
        let is_outer = self.0.read(c"self/status", |text| Ok(counts_two_pids(text)));
        let has_kernel_threads = |text: &[u8]| text == b"kthreadd\n";
        (is_outer == Ok(true) && self.shows_first_process())
            || self.0.read(c"2/comm", |text| Ok(has_kernel_threads(text))) == Ok(true)
    }

    /// Whether process 1 is readable. In the host's `/proc` it is not one of this user or container.
    pub fn shows_first_process(&self) -> bool {
        self.0.read(c"1/comm", |_| Ok(())).is_ok()
    }

    /// The options of this mount that hide processes of other users from this one.
    pub fn hiding_options(&self) -> Option<String> {
        let options = |text: &[u8]| Ok(hiding_options(text, &self.0.path, &own_groups()));
        self.0.read(c"self/mountinfo", options).ok()?
    }

    /// The SELinux type of this process. `None` without SELinux; AppArmor has its profile in the file.
    pub fn selinux_type(&self) -> Option<String> {
        let parsed = |text: &[u8]| Ok(selinux_type(text));
        self.0.read(c"self/attr/current", parsed).ok()?
    }

    /// Whether the kernel counts run delay (CONFIG_SCHED_INFO, or `kernel.task_delayacct`): if not, it
    /// writes zeros even for this process, which has run. `true` in a copy of files, which has no
    /// entry of this process.
    pub fn counts_run_delay(&self) -> bool {
        let is_live = self.0.read(c"self/status", |_| Ok(())).is_ok();
        // The time run can still be 0, the number of times scheduled cannot.
        let counts = self.0.read(c"self/schedstat", |text| Ok(text != b"0 0 0\n"));
        counts.unwrap_or(!is_live)
    }

    pub fn process(&self, id: u32) -> Result<TaskDir, ReadError> {
        self.0.open_below(&id.to_string()).map(TaskDir)
    }

    /// The kernel's release, such as `6.12.0`.
    pub fn kernel_release(&self) -> Option<String> {
        let trimmed = |text: &[u8]| Ok(String::from_utf8_lossy(text).trim().to_owned());
        self.0.read(c"sys/kernel/osrelease", trimmed).ok()
    }

    /// The boot parameter `psi=`, as the kernel's command line has it.
    pub fn psi_parameter(&self) -> Option<String> {
        let line = |text: &[u8]| Ok(String::from_utf8_lossy(text).into_owned());
        let line = self.0.read(c"cmdline", line).ok()?;
        let mut words = line.split_whitespace().rev();
        words.find(|word| word.starts_with("psi=")).map(str::to_owned)
    }

    fn read<T>(&self, name: &CStr, parse: impl Parse<T>) -> Result<Option<T>, ReadError> {
        if_present(self.0.read(name, parse))
    }
}

files! { ProcRoot:
    cores: Cores = c"cpuinfo", |text| Ok(parse_cores(text));
    cpu_times: CpuTimes = c"stat", parse_proc_stat;
    disks: BTreeMap<Device, DiskStat> = c"diskstats", |text| Ok(parse_diskstats(text));
    /// Interrupt pressure; it needs CONFIG_IRQ_TIME_ACCOUNTING and Linux 6.1.
    irq_pressure: Pressure = c"pressure/irq", parse_pressure;
    memory: NodeMemory = c"meminfo", parse_meminfo;
    reclaim: Reclaim = c"vmstat", parse_vmstat;
    swaps: Vec<String> = c"swaps", parse_swaps;
    /// Run delay of all tasks, nanoseconds; it needs CONFIG_SCHEDSTATS.
    run_delay: RunDelay = c"schedstat", parse_schedstat;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn a_kernel_without_run_delay_writes_zeros_for_a_process_that_runs() {
        let path = std::env::temp_dir().join(format!("psi-agent-counts-{}", std::process::id()));
        std::fs::create_dir_all(path.join("self")).unwrap();
        let counts = || ProcRoot::open(&path).unwrap().counts_run_delay();
        assert!(counts(), "a copy");
        std::fs::write(path.join("self/status"), "NSpid:\t7\n").unwrap();
        assert!(!counts());
        for (text, expected) in [("0 0 0\n", false), ("0 0 1\n", true), ("9 8 7\n", true)] {
            std::fs::write(path.join("self/schedstat"), text).unwrap();
            assert_eq!(counts(), expected, "{text}");
        }
        std::fs::remove_dir_all(&path).unwrap();
        let own = ProcRoot::open(Path::new("/proc")).unwrap();
        let written = std::fs::read_to_string("/proc/self/schedstat");
        assert_eq!(own.counts_run_delay(), written.is_ok_and(|text| text != "0 0 0\n"));
    }

    #[test]
    fn schedstat_of_1024_cpus_with_domains_reads_whole() {
        let mask = vec!["ffffffff"; 32].join(",");
        let mut text = "version 17\ntimestamp 4294898432\n".to_owned();
        for cpu in 0..1024 {
            let times = "0 0 81344213 9187652 7865432 6543210 270012345678 1000 3123456";
            writeln!(text, "cpu{cpu} {times}").unwrap();
            for (domain, name) in ["SMT", "MC", "PKG", "NUMA", "NUMA"].iter().enumerate() {
                let numbers = " 123456789".repeat(45);
                writeln!(text, "domain{domain} {name} {mask}{numbers}").unwrap();
            }
        }
        assert!(text.len() > 3 << 20, "{}", text.len());
        let path = std::env::temp_dir().join(format!("psi-agent-cpus-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("schedstat"), text).unwrap();
        let delay = ProcRoot::open(&path).unwrap().run_delay();
        std::fs::remove_dir_all(&path).unwrap();
        let delay = delay.unwrap().unwrap();
        assert_eq!((delay.total_ns, delay.online.count()), (1_024_000, 1024));
    }
}
