//! Parsers of the files of one process or thread in `/proc`.

use super::text::{ParseError, lines, numbers, parse_u64, single_line, words};

/// `/proc/PID/task/TID/schedstat`: CPU times of one thread since its start, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskTimes {
    pub run_ns: u64,
    /// Run delay: time runnable and not running, throttling by a quota included.
    pub delay_ns: u64,
}

/// Parses a thread's `schedstat`: time run, time waited, number of times scheduled.
pub fn parse_task_schedstat(text: &[u8]) -> Result<TaskTimes, ParseError> {
    let mut words = words(single_line(text)?);
    match (numbers(&mut words), words.next()) {
        (Some([run_ns, delay_ns, _]), None) => Ok(TaskTimes { run_ns, delay_ns }),
        _ => Err(ParseError("three numbers")),
    }
}

/// What a thread does, by the name that QEMU sets with `debug-threads=on`, as libvirt does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ThreadKind {
    /// A vCPU under KVM or emulation, such as `CPU 3/KVM` or `CPU 3/TCG`.
    Vcpu,
    /// Serves disks, such as `IO iothread1`. Not QEMU's own `IO mon_iothread`.
    Iothread,
    #[default]
    Other,
}

/// Parses a thread's `comm`.
pub fn thread_kind(comm: &[u8]) -> ThreadKind {
    let comm = comm.strip_suffix(b"\n").unwrap_or(comm);
    let vcpu = comm.strip_prefix(b"CPU ").and_then(|rest| {
        let number = rest.strip_suffix(b"/KVM").or_else(|| rest.strip_suffix(b"/TCG"));
        parse_u64(number?)
    });
    match vcpu {
        Some(_) => ThreadKind::Vcpu,
        None if comm.starts_with(b"IO ") && comm != b"IO mon_iothread" => ThreadKind::Iothread,
        None => ThreadKind::Other,
    }
}

/// Whether a task runs or waits for a CPU, from its `stat`: state `R`. The name before it can hold any
/// character, parentheses too.
pub fn parse_is_runnable(text: &[u8]) -> Result<bool, ParseError> {
    match text.rsplit(|&byte| byte == b')').next() {
        Some([b' ', state, b' ', ..]) => Ok(*state == b'R'),
        _ => Err(ParseError("a state after the name")),
    }
}

/// Whether `NSpid` in `/proc/PID/status` has more than one PID, so that the mount belongs to an
/// outer PID namespace.
pub fn counts_two_pids(text: &[u8]) -> bool {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"));
    let pids =
        |line: &[u8]| line.split(u8::is_ascii_whitespace).filter(|pid| !pid.is_empty()).count();
    line.is_some_and(|line| pids(line) > 1)
}

/// The type in an SELinux context `user:role:type:level`, from `/proc/PID/attr/current`. `None` for the
/// profile of AppArmor.
pub fn selinux_type(text: &[u8]) -> Option<String> {
    let mut parts = str::from_utf8(text).ok()?.split(':');
    let of_context = parts.nth(2)?;
    parts.next().map(|_| of_context.to_owned())
}

/// Parses the cgroup v2 path in `/proc/PID/cgroup`; `None` where the file has none. In a cgroup
/// namespace, a path outside of it begins with `/..`.
pub fn parse_cgroup_path(text: &[u8]) -> Result<Option<&[u8]>, ParseError> {
    Ok(lines(text)?.find_map(|line| line.strip_prefix(b"0::")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_of_a_thread_is_three_numbers() {
        let times = parse_task_schedstat(b"70 30 5\n");
        assert_eq!(times, Ok(TaskTimes { run_ns: 70, delay_ns: 30 }));
        for wrong in
            [&b""[..], b"\n", b"70 30\n", b"70 30 5 1\n", b"70 -3 5\n", b"70 30 5", b"1 2 3\n4\n"]
        {
            assert!(parse_task_schedstat(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_mount_of_an_outer_namespace_counts_more_than_one_pid() {
        assert!(counts_two_pids(b"Name:\tx\nNSpid:\t4711\t7\nNSsid:\t1\n"));
        assert!(!counts_two_pids(b"Name:\tx\nNSpid:\t4711\n"));
        assert!(!counts_two_pids(b"Name:\tNSpid: 1 2\n") && !counts_two_pids(b""));
    }

    #[test]
    fn a_type_is_the_third_part_of_a_context() {
        let of = |text: &str| selinux_type(text.as_bytes());
        assert_eq!(of("system_u:system_r:container_t:s0:c1,c2\0").as_deref(), Some("container_t"));
        assert_eq!(of("system_u:system_r:spc_t:s0\n").as_deref(), Some("spc_t"));
        for other in ["", "unconfined\n", "cri-containerd.apparmor.d (enforce)\n", ":ns:profile\n"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn the_state_follows_the_last_parenthesis() {
        assert_eq!(parse_is_runnable(b"7 (CPU 0/KVM) R 1 7 7"), Ok(true));
        assert_eq!(parse_is_runnable(b"7 (a) S (b) R) S 1 7 7"), Ok(false));
        for wrong in [&b""[..], b"7", b"7 (a)", b"7 (a) ", b"7 (a) R"] {
            assert!(parse_is_runnable(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn qemu_names_its_threads() {
        use ThreadKind::{Iothread, Other, Vcpu};
        for (name, expected) in [
            (&b"CPU 0/KVM\n"[..], Vcpu),
            (b"CPU 127/KVM\n", Vcpu),
            (b"CPU 0/TCG\n", Vcpu),
            (b"ALL CPUs/TCG\n", Other),
            (b"CPU /KVM\n", Other),
            (b"CPU x/KVM\n", Other),
            (b"IO iothread1\n", Iothread),
            (b"IO mon_iothread\n", Other),
            (b"iothread\n", Other),
            (b"qemu-kvm\n", Other),
            (b"\n", Other),
        ] {
            assert_eq!(thread_kind(name), expected, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn the_cgroup_path_is_that_of_v2() {
        let both = b"12:cpu:/old\n0::/kubepods.slice/pod/c.scope\n";
        assert_eq!(parse_cgroup_path(both), Ok(Some(&b"/kubepods.slice/pod/c.scope"[..])));
        let outside = parse_cgroup_path(b"0::/../../pod/c.scope\n");
        assert_eq!(outside, Ok(Some(&b"/../../pod/c.scope"[..])));
        assert_eq!(parse_cgroup_path(b"1:name=systemd:/x\n"), Ok(None));
        assert!(parse_cgroup_path(b"0::/cut").is_err());
    }
}
