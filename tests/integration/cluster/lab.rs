//! The shipped binary: that it needs nothing but a kernel, and what it does on one with PSI on and off.

use crate::host::lab::{check_exposition, limited, names};
use crate::support::exposition::{ids, parse};
use crate::support::virtual_machine::{boot, static_binary};

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
