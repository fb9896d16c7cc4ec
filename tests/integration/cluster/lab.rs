//! The shipped binary: that it needs nothing but a kernel, and what it does on one with PSI on and off.

use crate::host::lab::{check_exposition, limited, names};
use crate::support::cache_dir;
use crate::support::exposition::{ids, parse};
use crate::support::virtual_machine::{boot, boot_with, static_binary};

#[test]
#[ignore = "needs the static binary: tests/run builds it"]
fn shipped_binary_is_static_and_at_most_10_mib() {
    let path = static_binary();
    let binary = std::fs::read(&path).unwrap();
    assert!(binary.len() <= 10 << 20, "{} has {} bytes", path.display(), binary.len());
    // The ELF header's e_phoff, e_phentsize, e_phnum; p_type 3 is PT_INTERP, the dynamic loader.
    let number = |at: usize, length: usize| {
        let bytes = binary[at..at + length].iter().rev();
        bytes.fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    assert_eq!(&binary[..5], b"\x7fELF\x02");
    let (table, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    assert!(count > 0);
    for header in 0..count {
        assert_ne!(number(table + header * size, 4), 3, "{} is not static", path.display());
    }
}

#[test]
#[ignore = "needs QEMU, a Debian kernel and the static binary: tests/run prepares them"]
fn kernel_with_psi_off_costs_the_pressure_series_and_is_explained() {
    let guest = boot(&static_binary(), "psi-off", 0);
    let check = guest.text("check", 1);
    assert!(check.contains("psi=0") && check.contains("boot with psi=1"), "{check}");
    let failed = check.lines().filter(|line| line.starts_with("FAIL ")).count();
    assert_eq!(failed, 1, "{check}");

    let series = parse(guest.text("once", 0));
    assert!(!guest.has("once.stderr"), "{guest:?}");
    for name in names(&series) {
        assert!(!name.starts_with("container_pressure_"), "{name}");
        assert!(!name.starts_with("node_pressure_"), "{name}");
    }
    let with_usage = ids(&series, "container_cpu_usage_seconds_total");
    assert!(with_usage.contains(&&*format!("/{}", limited())), "{with_usage:?}");
    let supported = series.iter().filter(|series| series.name == "psi_agent_pressure_supported");
    let supported: Vec<f64> = supported.map(|series| series.value).collect();
    assert_eq!(supported, [0.0; 3]);
}

#[test]
#[ignore = "needs QEMU, a Debian kernel and the static binary: tests/run prepares them"]
fn the_shipped_binary_exports_what_the_files_of_limited_containers_hold() {
    check_exposition(&static_binary());
}

/// The lines about this in the output of `check`.
fn lines_about<'a>(about: &str, check: &'a str) -> Vec<&'a str> {
    check.lines().filter(|line| line.get(6..).is_some_and(|line| line.starts_with(about))).collect()
}

#[test]
#[ignore = "needs QEMU, a Debian kernel, the static binary and what tests/selinux/build makes"]
fn with_selinux_enforcing_the_type_spc_t_may_read_run_delay_and_container_t_is_named_as_the_cause()
{
    let policy = cache_dir().join("selinux/policy");
    let guest = boot_with(&static_binary(), "selinux", "psi=1 lsm=selinux", Some(&policy));
    assert_eq!(guest.text("enforce", 0), "1\n");
    let denied = "SELinux denies the agent's type container_t access to the host's processes";
    for (name, expected) in [
        (
            "container_t",
            [
                format!("warn  cpu source PSI, chosen by auto: {denied}"),
                format!("FAIL  cpu source run delay: {denied}"),
            ],
        ),
        (
            "spc_t",
            ["run delay, chosen by auto", "run delay"].map(|source| {
                format!("ok    cpu source {source}: the host's processes are visible in /proc")
            }),
        ),
    ] {
        let text = guest.text(name, 0);
        assert!(text.starts_with("CapEff:\t0000000000000000\n9942\n"), "{text}");
        assert_eq!(lines_about("cpu source", text), expected, "{text}");
    }
    let spc = guest.text("spc_t", 0);
    let scored = lines_about("scored", spc);
    let is_scored = |line: &&str| line.starts_with("ok    scored     2 containers, score ");
    assert!(scored.len() == 2 && scored.iter().all(is_scored), "{spc}");
}
