//! What a cgroup's path says: pod or host, QoS class, pod uid, runtime, container id. Pure text;
//! all kubelet drivers, runtimes and layouts at once, since trees of two drivers may stand side
//! by side after a driver was changed. What only the API server knows comes later.

use std::fmt;

/// A pod's quality of service class, as the kubelet names its cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Qos {
    /// Requests equal limits; such pods sit directly below kubepods.
    Guaranteed,
    /// Some request or limit.
    Burstable,
    /// No request and no limit.
    BestEffort,
}

impl Qos {
    /// The kubelet's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Qos::Guaranteed => "guaranteed",
            Qos::Burstable => "burstable",
            Qos::BestEffort => "besteffort",
        }
    }

    fn of_cgroup(name: &str) -> Option<Self> {
        [Qos::Burstable, Qos::BestEffort].into_iter().find(|qos| qos.word() == name)
    }
}

/// Who made a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// CRI-O.
    CriO,
    /// containerd.
    Containerd,
    /// cri-dockerd.
    Docker,
    /// The path is a bare id, which containerd and docker both write.
    ContainerdOrDocker,
}

impl Runtime {
    /// The name that people know.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Runtime::CriO => "cri-o",
            Runtime::Containerd => "containerd",
            Runtime::Docker => "docker",
            Runtime::ContainerdOrDocker => "containerd or docker",
        }
    }
}

/// A pod's uid as the path has it: for a static pod this is the hash of its manifest, 32 hex
/// digits, which is not the uid of its mirror pod in the API.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid(Box<str>);

/// A container's id, without the runtime's prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(Box<str>);

impl PodUid {
    /// The uid with dashes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ContainerId {
    /// The id, 64 hex digits (the colon form allows others).
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where in the tree a cgroup stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The root cgroup: the node.
    Root,
    /// Outside pods: services, slices, kubepods and its QoS classes.
    Host,
    /// A systemd mount unit: no process ever runs in it.
    MountUnit,
    /// A pod, or something within one.
    Pod(PodPlace),
}

/// A cgroup of a pod's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlace {
    /// The pod's class.
    pub qos: Qos,
    /// The pod.
    pub uid: PodUid,
    /// What in the pod.
    pub level: PodLevel,
}

/// What in a pod a cgroup is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodLevel {
    /// The pod itself.
    Pod,
    /// A container; a pause container looks the same in the path.
    Container(ContainerRef),
    /// CRI-O's sandbox beside its containers.
    Sandbox(ContainerRef),
    /// CRI-O's monitor of a container: none itself, but counted in the pod.
    Monitor,
    /// Below a container: crun's `container`, KubeVirt's `housekeeping`. The container's own
    /// pressure includes it.
    Nested(ContainerRef),
    /// In the pod, but of no form that is known.
    Unknown,
}

/// A container as its path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRef {
    /// Who made it.
    pub runtime: Runtime,
    /// Its id.
    pub id: ContainerId,
}

impl Place {
    /// Reads a cgroup's path, counted from the root of the hierarchy (`/` for the root itself).
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let Some(last) = parts.last() else {
            return Place::Root;
        };
        let pod = (0..parts.len()).find_map(|at| {
            let (ancestors, rest) = parts.split_at_checked(at)?;
            let (part, below) = rest.split_first()?;
            PodPlace::of(ancestors, part, below)
        });
        match pod {
            Some(pod) => Place::Pod(pod),
            None if last.ends_with(".mount") => Place::MountUnit,
            None => Place::Host,
        }
    }
}

/// How the kubelet named the pod's cgroup, which decides what a bare `crio-<id>` below it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    Systemd,
    Cgroupfs,
}

impl PodPlace {
    fn of(ancestors: &[&str], part: &str, below: &[&str]) -> Option<Self> {
        let (driver, qos, uid, leaf) = if let Some((qos, uid, leaf)) = systemd_pod(part) {
            (Driver::Systemd, qos, uid.replace('_', "-"), leaf)
        } else {
            let (qos, uid) = cgroupfs_pod(ancestors, part)?;
            (Driver::Cgroupfs, qos, uid.to_owned(), None)
        };
        let level = match (leaf, below) {
            (None, []) => PodLevel::Pod,
            (None, [leaf]) => PodLevel::of_leaf(driver, leaf),
            (None, [leaf, ..]) => PodLevel::of_leaf(driver, leaf).nested(),
            // The colon form is pod and container in one component.
            (Some(container), []) => PodLevel::Container(container),
            (Some(container), _) => PodLevel::Nested(container),
        };
        Some(PodPlace { qos, uid: PodUid(uid.into()), level })
    }
}

/// `[…-]kubepods[-burstable|-besteffort]-pod<uid>.slice[:<runtime>:<id>]`
fn systemd_pod(part: &str) -> Option<(Qos, &str, Option<ContainerRef>)> {
    let (unit, leaf) = match part.split_once(':') {
        Some((unit, leaf)) => (unit, Some(colon_container(leaf)?)),
        None => (part, None),
    };
    let (slices, uid) = unit.strip_suffix(".slice")?.rsplit_once("-pod")?;
    if uid.is_empty() || uid.contains('-') {
        return None;
    }
    let (parents, qos) = match slices.rsplit_once('-') {
        Some((parents, qos)) if Qos::of_cgroup(qos).is_some() => (parents, Qos::of_cgroup(qos)?),
        _ => (slices, Qos::Guaranteed),
    };
    let top = parents.rsplit_once('-').map_or(parents, |(_, top)| top);
    (top == "kubepods").then_some((qos, uid, leaf))
}

/// `cri-containerd:<id>`: what containerd makes of a systemd path when it is set to cgroupfs.
fn colon_container(leaf: &str) -> Option<ContainerRef> {
    let (runtime, id) = leaf.split_once(':')?;
    let runtime = match runtime {
        "cri-containerd" => Runtime::Containerd,
        "crio" => Runtime::CriO,
        "docker" => Runtime::Docker,
        _ => return None,
    };
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (!id.is_empty() && id.bytes().all(is_id))
        .then(|| ContainerRef { runtime, id: ContainerId(id.into()) })
}

/// `kubepods/pod<uid>` or `kubepods/<class>/pod<uid>`, at any depth.
fn cgroupfs_pod<'a>(ancestors: &[&str], part: &'a str) -> Option<(Qos, &'a str)> {
    let uid = part.strip_prefix("pod").filter(|uid| !uid.is_empty())?;
    match ancestors {
        [.., "kubepods"] => Some((Qos::Guaranteed, uid)),
        [.., "kubepods", class] => Some((Qos::of_cgroup(class)?, uid)),
        _ => None,
    }
}

impl PodLevel {
    /// What stands directly below a pod. Conmon is asked for first: its name begins like CRI-O's.
    fn of_leaf(driver: Driver, name: &str) -> Self {
        let scope = name.strip_suffix(".scope");
        let unit = scope.unwrap_or(name);
        if unit.strip_prefix("crio-conmon-").and_then(container_id).is_some() {
            return PodLevel::Monitor;
        }
        let container = |runtime, prefix: &str| {
            let id = unit.strip_prefix(prefix).and_then(container_id)?;
            Some(ContainerRef { runtime, id })
        };
        if let Some(container) = container(Runtime::CriO, "crio-") {
            return match (driver, scope) {
                (Driver::Systemd, None) => PodLevel::Sandbox(container),
                _ => PodLevel::Container(container),
            };
        }
        let found = match scope {
            Some(_) => container(Runtime::Containerd, "cri-containerd-")
                .or_else(|| container(Runtime::Docker, "docker-")),
            None => container(Runtime::ContainerdOrDocker, ""),
        };
        found.map_or(PodLevel::Unknown, PodLevel::Container)
    }

    fn nested(self) -> Self {
        match self {
            PodLevel::Container(container)
            | PodLevel::Sandbox(container)
            | PodLevel::Nested(container) => PodLevel::Nested(container),
            PodLevel::Pod | PodLevel::Monitor | PodLevel::Unknown => PodLevel::Unknown,
        }
    }
}

/// 64 lower-case hex digits.
fn container_id(id: &str) -> Option<ContainerId> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (id.len() == 64 && id.bytes().all(is_hex)).then(|| ContainerId(id.into()))
}

#[cfg(test)]
mod tests;
