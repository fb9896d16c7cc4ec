//! Finds the mount of cgroup v2: alone, beside cgroup v1, or the host's mount inside a pod. Reads which
//! processes a mount of `/proc` hides.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use procfs::process::MountInfo;

use super::read::{Directory, ReadError};

/// Lists the cgroup2 mounts, with the one that shows the largest part of the tree first. A listed
/// mount can be hidden by another one over it.
pub fn find_cgroup2(proc_root: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let mounts = |text: &[u8]| Ok(cgroup2_of(text));
    Directory::open(proc_root)?.read(c"self/mountinfo", mounts)
}

/// Lists the cgroup2 mounts in the text of a mountinfo file. Lines that do not parse are skipped.
pub fn cgroup2_of(mountinfo: &[u8]) -> Vec<PathBuf> {
    let mut mounts = mounts_of(mountinfo, "cgroup2");
    mounts.sort_by_key(|mount| Reverse(levels_above(&mount.root)));
    mounts.iter().map(path_of).collect()
}

/// The mounts of a file system, in the order of the file.
fn mounts_of(mountinfo: &[u8], file_system: &str) -> Vec<MountInfo> {
    let lines = mountinfo.split(|&byte| byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
    let mounts = lines.filter_map(|line| MountInfo::from_line(line).ok());
    mounts.filter(|mount| mount.fs_type == file_system).collect()
}

/// mountinfo escapes space, tab, newline and backslash as a backslash and three octal digits.
fn path_of(mount: &MountInfo) -> PathBuf {
    let escaped = mount.mount_point.to_string_lossy().into_owned();
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.into_iter().fold(escaped, |text, (code, plain)| text.replace(code, plain)).into()
}

/// The options of the mounted `/proc` at this path, such as `hidepid=invisible,gid=7`, if they hide
/// processes of other users from a process in these groups.
pub fn hiding_options(mountinfo: &[u8], proc_root: &Path, groups: &[u32]) -> Option<String> {
    let mounts = mounts_of(mountinfo, "proc");
    // A later mount at the same path hides the earlier one.
    let mount = mounts.iter().rfind(|mount| path_of(mount) == proc_root)?;
    let option = |name| mount.super_options.get(name)?.as_deref();
    let hidepid = option("hidepid")?;
    // The group sees all processes, but not with `ptraceable`. It is 0 without the option.
    let gid = option("gid").unwrap_or("0");
    let in_group = groups.iter().any(|group| group.to_string() == gid);
    (hidepid == "ptraceable" || !in_group).then(|| format!("hidepid={hidepid},gid={gid}"))
}

/// Levels of a mount's top above the root of this process's cgroup namespace: `/` is that root itself,
/// `/../../../..` is the host's mount as a pod sees it. `None` for a part of the tree.
fn levels_above(top: &str) -> Option<usize> {
    let mut parts = top.split('/').filter(|part| !part.is_empty());
    parts.try_fold(0, |levels, part| (part == "..").then_some(levels + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mountinfo: &str, expected: Option<&str>) {
        let mounts = cgroup2_of(mountinfo.as_bytes());
        assert_eq!(mounts.first().map(|mount| mount.to_str().unwrap()), expected, "{mountinfo}");
    }

    #[test]
    fn without_cgroup2_nothing_is_found() {
        check("25 1 0:22 / /proc rw - proc proc rw", None);
        check("31 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", None);
    }

    #[test]
    fn cgroup_v1_beside_it_is_skipped() {
        check(
            "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
            Some("/sys/fs/cgroup"),
        );
        check(
            "31 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
            Some("/sys/fs/cgroup/unified"),
        );
    }

    #[test]
    fn in_a_pod_the_hosts_mount_comes_first() {
        check(
            "50 40 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup2 ro\n\
             51 40 0:26 /../../../.. /host\\040cgroup ro - cgroup2 cgroup ro",
            Some("/host cgroup"),
        );
        check(
            "50 40 0:26 /kubepods/pod1 /mnt/part ro - cgroup2 cgroup2 ro\n\
             51 40 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup ro",
            Some("/sys/fs/cgroup"),
        );
    }

    #[test]
    fn the_topmost_proc_at_the_path_hides_processes_from_groups_other_than_its_own() {
        let of = |options: &str, groups: &[u32]| {
            let text = format!(
                "25 1 0:22 / /proc rw - proc proc rw\n\
                 50 40 0:22 / /host\\040proc ro,nosuid - proc proc rw,hidepid=noaccess\n\
                 51 50 0:23 / /host\\040proc ro,nosuid - proc proc {options}\n\
                 52 40 0:24 / /host\\040proc/sys/fs/binfmt_misc rw - binfmt_misc none rw"
            );
            hiding_options(text.as_bytes(), Path::new("/host proc/"), groups).unwrap_or_default()
        };
        let invisible = "rw,gid=4711,hidepid=invisible";
        assert_eq!(of(invisible, &[9942]), "hidepid=invisible,gid=4711");
        assert_eq!(of(invisible, &[9942, 4711]), "");
        assert_eq!(of("rw,gid=4711,hidepid=ptraceable", &[4711]), "hidepid=ptraceable,gid=4711");
        assert_eq!(of("rw,hidepid=2", &[9942]), "hidepid=2,gid=0");
        assert_eq!(of("rw,hidepid=2", &[0]), "");
        assert_eq!(of("rw", &[9942]), "");
        let elsewhere = b"25 1 0:22 / /proc rw - proc proc rw,hidepid=2";
        assert_eq!(hiding_options(elsewhere, Path::new("/host/proc"), &[]), None);
    }

    #[test]
    fn a_mount_point_that_is_not_utf_8_is_skipped() {
        let mountinfo = b"40 25 8:1 / /mnt/\xff rw - ext4 /dev/sda1 rw\n\
              30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let mounts = cgroup2_of(mountinfo);
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].to_str(), Some("/sys/fs/cgroup"));
    }
}
