//! The tree of cgroups that a kubelet and containerd make, with systemd's names, and what an API
//! server lists of its pods.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cgroups_rs::fs::blkio::BlkIoController;
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::cpuset::CpuSetController;
use cgroups_rs::fs::hierarchies::V2;
use cgroups_rs::fs::memory::{MemController, SetMemory};
use cgroups_rs::fs::{Cgroup, MaxValue};
use serde_json::{Value, json};

use crate::counters::text;
use crate::disks;
use crate::scenario::{IoLimit, MemoryLimit, Pod};

const MOUNT: &str = "/sys/fs/cgroup";
const KUBEPODS: &str = "kubepods.slice/kubepods-burstable.slice";
/// What a console log may use, as KubeVirt has it.
const CONSOLE_CPUS: f64 = 0.015;
/// The kubelet's.
const PERIOD_US: u64 = 100_000;

/// A pod's cgroups.
pub struct PodTree {
    pub name: String,
    pub pod: PathBuf,
    pub container: PathBuf,
    pub console: Option<PathBuf>,
    number: usize,
    vm: bool,
    cpu_request: Option<f64>,
    arriving: bool,
}

/// The cgroup of all pods.
pub fn kubepods() -> PathBuf {
    Path::new(MOUNT).join("kubepods.slice")
}

/// What all pods together may use, MiB; without it whatever there is.
pub fn limit_kubepods(mib: Option<u32>) -> anyhow::Result<()> {
    let (cgroup, _) = make("kubepods.slice")?;
    limit_memory(&cgroup, Some(MemoryLimit { max: mib, high: None }))
}

/// Sets `memory.max` of a cgroup to so many MiB less than it has in use. The pages are reclaimed first, some
/// at a time: the kernel would kill a process if it found none quickly enough.
pub fn limit_to_less(cgroup: &Path, less_mib: u32) -> anyhow::Result<()> {
    let in_use = || text(&cgroup.join("memory.current")).trim().parse::<u64>().unwrap_or_default();
    let limit = in_use().saturating_sub(u64::from(less_mib) << 20);
    for _ in 0..1000 {
        if in_use() <= limit {
            break;
        }
        // It fails if less than that was reclaimed.
        let _ = fs::write(cgroup.join("memory.reclaim"), "2M");
    }
    let file = cgroup.join("memory.max");
    fs::write(&file, limit.to_string()).with_context(|| file.display().to_string())
}

/// One for what belongs to the system.
pub fn system(name: &str) -> anyhow::Result<PathBuf> {
    make(&format!("system.slice/{name}.service")).map(|(_, path)| path)
}

impl PodTree {
    /// Makes them, with their limits. `number` makes names that no other pod has.
    pub fn make(pod: &Pod, name: &str, number: usize) -> anyhow::Result<Self> {
        let slice =
            format!("{KUBEPODS}/kubepods-burstable-pod{}.slice", uid(number).replace('-', "_"));
        let (cgroup, path) = make(&slice)?;
        limit(&cgroup, pod.pod_cpus)?;
        limit_memory(&cgroup, pod.pod_memory)?;
        if let Some(weight) = pod.weight {
            fs::write(path.join("cpu.weight"), weight.to_string()).context("cpu.weight")?;
        }
        if let Some(cpus) = &pod.cpus {
            let cpuset: &CpuSetController =
                cgroup.controller_of().context("no cpuset controller")?;
            cpuset.set_cpus(cpus)?;
        }
        let of =
            |container: usize| format!("{slice}/cri-containerd-{}.scope", id(number, container));
        let (container, container_path) = make(&of(0))?;
        limit(&container, pod.container_cpus)?;
        limit_memory(&container, pod.container_memory)?;
        limit_io(&container, pod.io_max)?;
        let console = if pod.vm && pod.busy_console {
            let (console, path) = make(&of(1))?;
            limit(&console, Some(CONSOLE_CPUS))?;
            Some(path)
        } else {
            None
        };
        Ok(Self {
            name: name.to_owned(),
            pod: path,
            container: container_path,
            console,
            number,
            vm: pod.vm,
            cpu_request: pod.cpu_request,
            arriving: pod.arriving,
        })
    }

    /// Ends all that is in it and takes it away.
    pub fn remove(&self) -> anyhow::Result<()> {
        let leaves = [Some(&self.container), self.console.as_ref()];
        for cgroup in leaves.into_iter().flatten().chain([&self.pod]) {
            remove(cgroup)?;
        }
        Ok(())
    }

    /// Moves it to other CPUs.
    pub fn move_to(&self, cpus: &str) -> anyhow::Result<()> {
        fs::write(self.pod.join("cpuset.cpus"), cpus).context("cpuset.cpus")
    }

    /// Stops all that is in it, or lets it go on.
    pub fn freeze(&self, frozen: bool) -> anyhow::Result<()> {
        freeze(&self.pod, frozen)
    }

    /// As the API server has it.
    pub fn described(&self) -> Value {
        let status = |name: &str, container| {
            json!({
                "name": name, "image": "image:v1", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": format!("containerd://{}", id(self.number, container)),
                "state": {"running": {}},
            })
        };
        let mut metadata = json!({
            "name": self.name, "namespace": "lab", "uid": uid(self.number),
            "labels": {}, "annotations": {},
        });
        let mut containers = vec![status("app", 0)];
        if self.vm {
            metadata["name"] = json!(format!("virt-launcher-{}", self.name));
            metadata["labels"] =
                json!({"kubevirt.io": "virt-launcher", "kubevirt.io/nodeName": "lab"});
            metadata["annotations"] = json!({"kubevirt.io/domain": self.name});
            containers = vec![status("compute", 0)];
            containers.extend(self.console.is_some().then(|| status("guest-console-log", 1)));
            if self.arriving {
                metadata["labels"]["kubevirt.io/migrationJobUID"] = json!("a-migration");
                metadata["labels"]["kubevirt.io/nodeName"] = json!("elsewhere");
            }
        }
        let names = containers.iter().map(|status| json!({"name": status["name"]}));
        let mut names: Vec<_> = names.collect();
        if let Some(cpus) = self.cpu_request {
            names[0]["resources"] = json!({"requests": {"cpu": cpus.to_string()}});
        }
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"nodeName": "lab", "containers": names},
            "status": {"phase": "Running", "containerStatuses": containers},
        })
    }
}

/// One beside those of pods and of the system.
pub fn filler() -> anyhow::Result<PathBuf> {
    make("filler").map(|(_, path)| path)
}

/// Stops all that is in a cgroup, or lets it go on.
pub fn freeze(cgroup: &Path, frozen: bool) -> anyhow::Result<()> {
    let file = cgroup.join("cgroup.freeze");
    fs::write(&file, if frozen { "1" } else { "0" }).with_context(|| file.display().to_string())
}

/// Kills what is in a cgroup and removes it.
pub fn remove(cgroup: &Path) -> anyhow::Result<()> {
    fs::write(cgroup.join("cgroup.kill"), "1")
        .with_context(|| cgroup.join("cgroup.kill").display().to_string())?;
    // Those that were killed need a moment to go, and within a limit's few milliseconds a second.
    for _ in 0..1500 {
        match fs::remove_dir(cgroup) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            removed => return removed.with_context(|| cgroup.display().to_string()),
        }
    }
    anyhow::bail!("{}: still busy", cgroup.display())
}

fn make(path: &str) -> anyhow::Result<(Cgroup, PathBuf)> {
    let cgroup = Cgroup::new(Box::new(V2::new()), path).with_context(|| path.to_owned())?;
    Ok((cgroup, Path::new(MOUNT).join(path)))
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a handful of CPUs in microseconds"
)]
fn limit(cgroup: &Cgroup, cpus: Option<f64>) -> anyhow::Result<()> {
    let Some(cpus) = cpus else {
        return Ok(());
    };
    let quota = (cpus * PERIOD_US as f64).round() as i64;
    let cpu: &CpuController = cgroup.controller_of().context("no cpu controller")?;
    cpu.set_cfs_quota_and_period(Some(quota), Some(PERIOD_US))?;
    Ok(())
}

fn limit_memory(cgroup: &Cgroup, limit: Option<MemoryLimit>) -> anyhow::Result<()> {
    let Some(limit) = limit else {
        return Ok(());
    };
    let bytes = |mib: Option<u32>| {
        Some(mib.map_or(MaxValue::Max, |mib| MaxValue::Value(i64::from(mib) << 20)))
    };
    let memory: &MemController = cgroup.controller_of().context("no memory controller")?;
    let (max, high) = (bytes(limit.max), bytes(limit.high));
    memory.set_mem(SetMemory { low: None, high, min: None, max })?;
    Ok(())
}

fn limit_io(cgroup: &Cgroup, limit: Option<IoLimit>) -> anyhow::Result<()> {
    let Some(IoLimit { disk, per_second }) = limit else {
        return Ok(());
    };
    let (major, minor) = disks::numbers(disks::name(disk))?;
    let io: &BlkIoController = cgroup.controller_of().context("no io controller")?;
    io.throttle_read_iops_for_device(major, minor, per_second.into())?;
    io.throttle_write_iops_for_device(major, minor, per_second.into())?;
    Ok(())
}

fn uid(number: usize) -> String {
    format!("0f9d7b6e-1c55-4b0e-9a57-{number:012x}")
}

fn id(number: usize, container: usize) -> String {
    format!("{number:032x}{container:032x}")
}
