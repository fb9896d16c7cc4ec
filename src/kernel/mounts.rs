//! Where cgroup2 is mounted: alone, beside the old hierarchies, or from the host inside a pod.

use std::path::{Path, PathBuf};

use procfs::process::MountInfo;

use super::ReadError;
use nix::errno::Errno;

/// A cgroup2 mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup2Mount {
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Which cgroup is its top, as this process sees it: `/` for its own cgroup namespace, a climb
    /// like `/../../../..` for the host's mount seen from within a pod, else a part of the tree.
    pub top: String,
    /// Whether the old hierarchies stand beside it.
    pub hybrid: bool,
}

impl Cgroup2Mount {
    /// How far above this process's own namespace the top lies; `None` for a part of the tree.
    fn climb(&self) -> Option<usize> {
        let mut parts = self.top.split('/').filter(|part| !part.is_empty());
        parts.try_fold(0, |climb, part| (part == "..").then_some(climb + 1))
    }
}

/// Finds the cgroup2 mounts, the one that shows most first: the host's before a namespace's own.
/// A mount that is listed may still be hidden by another over it.
///
/// # Errors
/// Where mountinfo itself cannot be read.
pub fn find_cgroup2(proc_root: &Path) -> Result<Vec<Cgroup2Mount>, ReadError> {
    let path = proc_root.join("self/mountinfo");
    let failed = |error: std::io::Error| ReadError {
        path: path.display().to_string(),
        kind: Errno::from_raw(error.raw_os_error().unwrap_or_default()).into(),
    };
    Ok(cgroup2_of(&std::fs::read(&path).map_err(failed)?))
}

/// The same, from the text of a mountinfo file. A line that does not read, or is no UTF-8, is
/// passed over: only those of cgroups matter.
#[must_use]
pub fn cgroup2_of(mountinfo: &[u8]) -> Vec<Cgroup2Mount> {
    let lines = mountinfo.split(|&byte| byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
    in_order(lines.filter_map(|line| MountInfo::from_line(line).ok()))
}

fn in_order(mounts: impl Iterator<Item = MountInfo>) -> Vec<Cgroup2Mount> {
    let mut hybrid = false;
    let mut found: Vec<Cgroup2Mount> = Vec::new();
    for mount in mounts {
        hybrid |= mount.fs_type == "cgroup";
        if mount.fs_type == "cgroup2" {
            let mount_point = unescape(&mount.mount_point.to_string_lossy()).into();
            found.push(Cgroup2Mount { mount_point, top: mount.root, hybrid: false });
        }
    }
    // The sort is stable: of equals, the first stays so.
    found.sort_by_key(|mount| std::cmp::Reverse(mount.climb()));
    found.iter_mut().for_each(|mount| mount.hybrid = hybrid);
    found
}

/// mountinfo writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mountinfo: &str, expected: Option<(&str, bool)>) {
        let found = cgroup2_of(mountinfo.as_bytes());
        let found = found.first();
        let found = found.map(|found| (found.mount_point.to_str().unwrap(), found.hybrid));
        assert_eq!(found, expected, "{mountinfo}");
    }

    #[test]
    fn without_cgroup2_there_is_nothing() {
        check("25 1 0:22 / /proc rw - proc proc rw", None);
        check("31 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", None);
    }

    #[test]
    fn pure_and_hybrid_are_told_apart() {
        check(
            "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
            Some(("/sys/fs/cgroup", false)),
        );
        check(
            "31 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
            Some(("/sys/fs/cgroup/unified", true)),
        );
    }

    #[test]
    fn in_a_pod_the_hosts_mount_is_taken_and_not_the_pods_own_view() {
        check(
            "50 40 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup2 ro\n\
             51 40 0:26 /../../../.. /host\\040cgroup ro - cgroup2 cgroup ro",
            Some(("/host cgroup", false)),
        );
        check(
            "50 40 0:26 /kubepods/pod1 /mnt/part ro - cgroup2 cgroup2 ro\n\
             51 40 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup ro",
            Some(("/sys/fs/cgroup", false)),
        );
    }

    #[test]
    fn a_mount_whose_name_is_no_utf_8_hides_no_other() {
        let mountinfo = b"40 25 8:1 / /mnt/\xff rw - ext4 /dev/sda1 rw\n\
              30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = cgroup2_of(mountinfo);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].mount_point.to_str(), Some("/sys/fs/cgroup"));
    }
}
