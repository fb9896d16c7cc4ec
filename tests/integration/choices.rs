//! Why the agent has parsers of its own where procfs has some: inputs that it panics on. When one
//! of these fails, procfs was mended, and the choice in README.md may be thought over.

use std::panic::{AssertUnwindSafe, catch_unwind};

use procfs::{CpuPressure, FromBufRead, Meminfo};
use psi_agent::kernel::node_text::parse_meminfo;
use psi_agent::kernel::pressure::parse_pressure;

fn panics<T: FromBufRead>(text: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| T::from_buf_read(text).is_ok())).is_err()
}

#[test]
fn procfs_panics_on_a_pressure_line_that_is_cut_off_and_we_do_not() {
    assert!(panics::<CpuPressure>(b"some"));
    assert!(parse_pressure(b"some").is_err());
}

#[test]
fn procfs_refuses_a_pressure_file_of_one_line_and_we_do_not() {
    let irq = b"full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
    assert!(CpuPressure::from_buf_read(&irq[..]).is_err());
    assert_eq!(parse_pressure(irq).unwrap().full_us, Some(5));
}

#[test]
fn procfs_panics_on_a_meminfo_with_a_foreign_letter_and_we_do_not() {
    let text = "é 5\n".as_bytes();
    assert!(panics::<Meminfo>(text));
    assert!(parse_meminfo(text).is_err());
}
