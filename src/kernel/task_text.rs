//! What `/proc` says of one process or thread: its times, its name, its cgroup. Pure.

use super::text::{ParseError, lines, malformed_file, parse_u64};

/// `/proc/PID/task/TID/schedstat`: of one thread, since it was made. Nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskTimes {
    /// For how long it ran.
    pub run_ns: u64,
    /// For how long it wanted to run and waited for a CPU: its own quota's throttling included.
    pub delay_ns: u64,
}

/// Reads a thread's `schedstat`: time run, time waited, times it was given a CPU.
///
/// # Errors
/// [`ParseError`] when it is not three numbers.
pub fn parse_task_schedstat(text: &[u8]) -> Result<TaskTimes, ParseError> {
    let malformed = malformed_file("three numbers");
    let mut all = lines(text)?;
    let (Some((_, line)), None) = (all.next(), all.next()) else { return Err(malformed) };
    let mut numbers = line.split(|&byte| byte == b' ').map(parse_u64);
    match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
        (Some(Some(run_ns)), Some(Some(delay_ns)), Some(Some(_)), None) => {
            Ok(TaskTimes { run_ns, delay_ns })
        }
        _ => Err(malformed),
    }
}

/// Whether a thread's name (`comm`) is what QEMU gives those that run a virtual CPU: `CPU 3/KVM`.
#[must_use]
pub fn is_vcpu(comm: &[u8]) -> bool {
    let comm = comm.strip_suffix(b"\n").unwrap_or(comm);
    let number = comm.strip_prefix(b"CPU ").and_then(|rest| rest.strip_suffix(b"/KVM"));
    number.is_some_and(|number| parse_u64(number).is_some())
}

/// The path of a process in the hierarchy of cgroup v2, from `/proc/PID/cgroup`: `None` where the
/// file tells none. In a cgroup namespace it begins with `/..` where it leads out of it.
///
/// # Errors
/// [`ParseError`] when the file does not end with a line.
pub fn parse_cgroup_path(text: &[u8]) -> Result<Option<&[u8]>, ParseError> {
    Ok(lines(text)?.find_map(|(_, line)| line.strip_prefix(b"0::")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_threads_times_are_the_first_two_of_three_numbers() {
        let times = parse_task_schedstat(b"70 30 5\n");
        assert_eq!(times, Ok(TaskTimes { run_ns: 70, delay_ns: 30 }));
        for wrong in
            [&b""[..], b"\n", b"70 30\n", b"70 30 5 1\n", b"70 -3 5\n", b"70 30 5", b"1 2 3\n4\n"]
        {
            assert!(parse_task_schedstat(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn vcpus_are_told_by_their_name() {
        for (name, is) in [
            (&b"CPU 0/KVM\n"[..], true),
            (b"CPU 127/KVM\n", true),
            (b"CPU 0/TCG\n", false),
            (b"CPU /KVM\n", false),
            (b"CPU x/KVM\n", false),
            (b"qemu-kvm\n", false),
            (b"\n", false),
        ] {
            assert_eq!(is_vcpu(name), is, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn the_path_is_that_of_the_second_version() {
        let both = b"12:cpu:/old\n0::/kubepods.slice/pod/c.scope\n";
        assert_eq!(parse_cgroup_path(both), Ok(Some(&b"/kubepods.slice/pod/c.scope"[..])));
        assert_eq!(
            parse_cgroup_path(b"0::/../../pod/c.scope\n"),
            Ok(Some(&b"/../../pod/c.scope"[..]))
        );
        assert_eq!(parse_cgroup_path(b"1:name=systemd:/x\n"), Ok(None));
        assert!(parse_cgroup_path(b"0::/cut").is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_them_panic(text: Vec<u8>) {
            _ = parse_task_schedstat(&text);
            _ = is_vcpu(&text);
            _ = parse_cgroup_path(&text);
        }
    }
}
