//! Parses a cgroup's path: pod or host, pod UID, container ID. All kubelet drivers, runtimes and layouts
//! are recognized at once, since trees of two drivers can exist side by side after the driver was
//! changed.

mod unit;

pub use unit::Unit;

use strum::IntoStaticStr;

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
    /// The pod's UID. For a static pod it is the hash of its manifest, 32 hex digits, and not the
    /// UID of its mirror pod in the API.
    pub uid: Box<str>,
    pub level: PodLevel,
}

#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum PodLevel {
    Pod,
    /// A container, by its ID: 64 hex digits; other characters only in the colon form. The path of a
    /// pause container has the same form.
    Container(Box<str>),
    /// A sandbox, or CRI-O's monitor of a container (conmon). Or a cgroup below a container, which the
    /// container's pressure includes, such as crun's `container` or KubeVirt's `housekeeping`.
    Other,
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
        let (uid, leaf) = match by_systemd {
            Some((uid, leaf)) => (uid.replace('_', "-"), leaf),
            None => (cgroupfs_pod(ancestors, part)?.to_owned(), None),
        };
        let level = match (leaf, below) {
            (None, []) => PodLevel::Pod,
            (None, [leaf]) => PodLevel::of_leaf(is_systemd, leaf),
            // The colon form has pod and container in one component.
            (Some(id), []) => PodLevel::Container(id.into()),
            (None, [_, _, ..]) | (Some(_), [_, ..]) => PodLevel::Other,
        };
        Some(PodPlace { uid: uid.into(), level })
    }
}

/// Parses `[…-]kubepods[-burstable|-besteffort]-pod<uid>.slice[:<runtime>:<id>]`, to the pod's UID and
/// the container's ID.
fn systemd_pod(part: &str) -> Option<(&str, Option<&str>)> {
    let (unit, leaf) = match part.split_once(':') {
        Some((unit, leaf)) => (unit, Some(colon_container(leaf)?)),
        None => (part, None),
    };
    let (slices, uid) = unit.strip_suffix(".slice")?.rsplit_once("-pod")?;
    if uid.is_empty() || uid.contains('-') {
        return None;
    }
    let mut classes = ["-burstable", "-besteffort"].into_iter();
    let parents = classes.find_map(|class| slices.strip_suffix(class)).unwrap_or(slices);
    let top = parents.rsplit('-').next();
    (top == Some("kubepods")).then_some((uid, leaf))
}

/// Parses `cri-containerd:<id>`, which containerd with the cgroupfs driver creates from a systemd
/// path.
fn colon_container(leaf: &str) -> Option<&str> {
    let (runtime, id) = leaf.split_once(':')?;
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let is_container = ["cri-containerd", "crio", "docker"].contains(&runtime)
        && !id.is_empty()
        && id.bytes().all(is_id);
    is_container.then_some(id)
}

/// Parses `kubepods/pod<uid>` or `kubepods/<class>/pod<uid>`, at any depth.
fn cgroupfs_pod<'a>(ancestors: &[&str], part: &'a str) -> Option<&'a str> {
    let uid = part.strip_prefix("pod").filter(|uid| !uid.is_empty());
    match ancestors {
        [.., "kubepods"] | [.., "kubepods", "burstable" | "besteffort"] => uid,
        _ => None,
    }
}

impl PodLevel {
    /// Parses the name of a cgroup directly below a pod. With the kubelet's driver for systemd,
    /// `crio-<id>` without `.scope` is a sandbox; with that for cgroupfs, it is a container.
    fn of_leaf(is_systemd: bool, name: &str) -> Self {
        let scope = name.strip_suffix(".scope");
        let unit = scope.unwrap_or(name);
        let prefixes: &[&str] = match scope {
            Some(_) => &["crio-", "cri-containerd-", "docker-"],
            None if is_systemd => &[""],
            None => &["crio-", ""],
        };
        let mut ids = prefixes.iter().filter_map(|prefix| unit.strip_prefix(prefix));
        let id = ids.find(|id| is_container_id(id));
        id.map_or(PodLevel::Other, |id| PodLevel::Container(id.into()))
    }
}

fn is_container_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
