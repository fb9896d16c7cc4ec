//! Parsers of the files of one process or thread in `/proc`.

use std::time::Duration;

use super::text::{ParseError, lines, parse_u64, single_line};

/// `/proc/PID/task/TID/schedstat`: CPU times of one thread since its start, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskTimes {
    /// Time running on a CPU.
    pub run_ns: u64,
    /// Run delay: time runnable and not running, throttling by a quota included.
    pub delay_ns: u64,
}

impl TaskTimes {
    /// Whether these times and earlier ones, read under the same TID, are of one thread. `None`
    /// where the times do not decide it: then compare start times.
    ///
    /// A thread that reuses the TID started after the earlier reading, so it has run and waited for
    /// at most the time since then. A vCPU thread that is older than that and not idle is decided
    /// without reading a second file. Equal times count as one thread: later differences are right
    /// in either case.
    pub fn is_same_thread(self, earlier: TaskTimes, elapsed: Duration) -> Option<bool> {
        if self.run_ns < earlier.run_ns || self.delay_ns < earlier.delay_ns {
            return Some(false);
        }
        let before = earlier.run_ns.saturating_add(earlier.delay_ns);
        (self == earlier || u128::from(before) > elapsed.as_nanos()).then_some(true)
    }
}

/// Parses a thread's `schedstat`: time run, time waited, number of times scheduled.
pub fn parse_task_schedstat(text: &[u8]) -> Result<TaskTimes, ParseError> {
    let mut numbers = single_line(text)?.split(|&byte| byte == b' ').map(parse_u64);
    match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
        (Some(Some(run_ns)), Some(Some(delay_ns)), Some(Some(_)), None) => {
            Ok(TaskTimes { run_ns, delay_ns })
        }
        _ => Err(ParseError { line: 1, expected: "three numbers" }),
    }
}

/// Parses the start time in `/proc/PID/stat` or `task/TID/stat`: clock ticks since boot.
pub fn parse_start_time(text: &[u8]) -> Result<u64, ParseError> {
    // Field 2 is the name in parentheses, which may itself contain spaces and parentheses. Field 3
    // follows the last parenthesis and a space.
    let start = text.rsplit(|&byte| byte == b')').next().and_then(|rest| {
        let mut fields = rest.strip_suffix(b"\n")?.strip_prefix(b" ")?.split(|&byte| byte == b' ');
        parse_u64(fields.nth(22 - 3)?)
    });
    start.ok_or(ParseError { line: 1, expected: "a start time in field 22" })
}

/// Whether a thread name (`comm`) is that of a vCPU under KVM, such as `CPU 3/KVM`. QEMU sets it
/// with `debug-threads=on`, as libvirt does. Threads of an emulated guest, `CPU 3/TCG`, are none.
pub fn is_vcpu(comm: &[u8]) -> bool {
    let comm = comm.strip_suffix(b"\n").unwrap_or(comm);
    let number = comm.strip_prefix(b"CPU ").and_then(|rest| rest.strip_suffix(b"/KVM"));
    number.is_some_and(|number| parse_u64(number).is_some())
}

/// Parses the cgroup v2 path in `/proc/PID/cgroup`; `None` where the file has none. In a cgroup
/// namespace, a path outside of it begins with `/..`.
pub fn parse_cgroup_path(text: &[u8]) -> Result<Option<&[u8]>, ParseError> {
    Ok(lines(text)?.find_map(|(_, line)| line.strip_prefix(b"0::")))
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
    fn the_start_time_is_field_22_whatever_the_name_contains() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["sh", "CPU 0/KVM", "a) R 1 (b", ")", "(sd-pam)", ""] {
            let text = format!("42 ({name}) {fields}\n");
            assert_eq!(parse_start_time(text.as_bytes()), Ok(4711), "{name}");
        }
        for wrong in ["", "42 (sh)\n", "42 (sh) S 1 2 3\n", "42 sh S\n"] {
            assert!(parse_start_time(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_reused_tid_shows_in_times_that_go_back_or_is_left_to_start_times() {
        let times = |run_ns, delay_ns| TaskTimes { run_ns, delay_ns };
        let tick = Duration::from_nanos(50);
        for (earlier, now, expected) in [
            (times(70, 30), times(110, 40), Some(true)),
            (times(70, 30), times(50, 0), Some(false)),
            (times(70, 30), times(90, 0), Some(false)),
            (times(0, 0), times(0, 0), Some(true)),
            // A thread of the last tick alone can have as much.
            (times(10, 0), times(30, 20), None),
            (times(30, 20), times(40, 20), None),
        ] {
            assert_eq!(now.is_same_thread(earlier, tick), expected, "{earlier:?} {now:?}");
        }
    }

    #[test]
    fn a_vcpu_under_kvm_is_recognized_by_its_name() {
        for (name, expected) in [
            (&b"CPU 0/KVM\n"[..], true),
            (b"CPU 127/KVM\n", true),
            (b"CPU 0/TCG\n", false),
            (b"ALL CPUs/TCG\n", false),
            (b"CPU /KVM\n", false),
            (b"CPU x/KVM\n", false),
            (b"IO 0/KVM\n", false),
            (b"qemu-kvm\n", false),
            (b"\n", false),
        ] {
            assert_eq!(is_vcpu(name), expected, "{}", String::from_utf8_lossy(name));
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
