//! Parses a cgroup's path: pod or host, QoS class, pod UID, runtime, container ID. All kubelet drivers,
//! runtimes and layouts are recognized at once, since trees of two drivers can exist side by side
//! after the driver was changed.

mod unit;

pub use unit::Unit;

use serde::Serialize;

/// The QoS class, as in the names of the kubelet's cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Qos {
    /// Requests equal limits. Cgroups of these pods are directly below kubepods.
    Guaranteed,
    /// Has a request or limit.
    Burstable,
    /// Has neither request nor limit.
    BestEffort,
}

impl Qos {
    fn of_cgroup(name: &str) -> Option<Self> {
        match name {
            "burstable" => Some(Qos::Burstable),
            "besteffort" => Some(Qos::BestEffort),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    #[serde(rename = "cri-o")]
    CriO,
    Containerd,
    Docker,
    /// The path is a bare ID, which both use.
    #[serde(rename = "containerd or docker")]
    ContainerdOrDocker,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The root cgroup, which is the node.
    Root,
    /// Outside pods: services, slices, kubepods and the QoS classes.
    Host,
    Pod(PodPlace),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlace {
    pub qos: Qos,
    /// The pod's UID. For a static pod it is the hash of its manifest, 32 hex digits, and not the
    /// UID of its mirror pod in the API.
    pub uid: Box<str>,
    pub level: PodLevel,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodLevel {
    Pod,
    /// A container. The path of a pause container has the same form.
    Container(ContainerRef),
    Sandbox(ContainerRef),
    /// CRI-O's monitor process of a container (conmon).
    Monitor,
    /// Below a container, such as crun's `container` or KubeVirt's `housekeeping`. The container's
    /// pressure includes it.
    Nested(ContainerRef),
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRef {
    pub runtime: Runtime,
    /// 64 hex digits; other characters only in the colon form.
    pub id: Box<str>,
}

impl Place {
    /// Parses a path relative to the root of the hierarchy, which is `/`.
    pub fn of_path(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Place::Root;
        }
        let pod = (0..parts.len()).find_map(|at| {
            let (ancestors, rest) = parts.split_at_checked(at)?;
            let (part, below) = rest.split_first()?;
            PodPlace::of(ancestors, part, below)
        });
        pod.map_or(Place::Host, Place::Pod)
    }
}

impl PodPlace {
    fn of(ancestors: &[&str], part: &str, below: &[&str]) -> Option<Self> {
        let by_systemd = systemd_pod(part);
        let is_systemd = by_systemd.is_some();
        let (qos, uid, leaf) = match by_systemd {
            Some((qos, uid, leaf)) => (qos, uid.replace('_', "-"), leaf),
            None => cgroupfs_pod(ancestors, part).map(|(qos, uid)| (qos, uid.to_owned(), None))?,
        };
        let level = match (leaf, below) {
            (None, []) => PodLevel::Pod,
            (None, [leaf]) => PodLevel::of_leaf(is_systemd, leaf),
            (None, [leaf, ..]) => PodLevel::of_leaf(is_systemd, leaf).nested(),
            // The colon form has pod and container in one component.
            (Some(container), []) => PodLevel::Container(container),
            (Some(container), _) => PodLevel::Nested(container),
        };
        Some(PodPlace { qos, uid: uid.into(), level })
    }
}

/// Parses `[…-]kubepods[-burstable|-besteffort]-pod<uid>.slice[:<runtime>:<id>]`.
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

/// Parses `cri-containerd:<id>`, which containerd with the cgroupfs driver creates from a systemd
/// path.
fn colon_container(leaf: &str) -> Option<ContainerRef> {
    let (runtime, id) = leaf.split_once(':')?;
    let runtime = match runtime {
        "cri-containerd" => Runtime::Containerd,
        "crio" => Runtime::CriO,
        "docker" => Runtime::Docker,
        _ => return None,
    };
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (!id.is_empty() && id.bytes().all(is_id)).then(|| ContainerRef { runtime, id: id.into() })
}

/// Parses `kubepods/pod<uid>` or `kubepods/<class>/pod<uid>`, at any depth.
fn cgroupfs_pod<'a>(ancestors: &[&str], part: &'a str) -> Option<(Qos, &'a str)> {
    let uid = part.strip_prefix("pod").filter(|uid| !uid.is_empty())?;
    match ancestors {
        [.., "kubepods"] => Some((Qos::Guaranteed, uid)),
        [.., "kubepods", class] => Some((Qos::of_cgroup(class)?, uid)),
        _ => None,
    }
}

impl PodLevel {
    /// Parses the name of a cgroup directly below a pod. `crio-conmon-` is checked before its
    /// prefix `crio-`. With the kubelet's driver for systemd, `crio-<id>` without `.scope` is a
    /// sandbox; with that for cgroupfs, it is a container.
    fn of_leaf(is_systemd: bool, name: &str) -> Self {
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
            let is_sandbox = is_systemd && scope.is_none();
            let level = if is_sandbox { PodLevel::Sandbox } else { PodLevel::Container };
            return level(container);
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

fn container_id(id: &str) -> Option<Box<str>> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (id.len() == 64 && id.bytes().all(is_hex)).then(|| id.into())
}

#[cfg(test)]
mod tests;
