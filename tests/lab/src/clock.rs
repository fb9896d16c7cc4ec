//! Keeps the turns of emulated CPUs short.
//!
//! In virtual time QEMU runs one CPU until the next timer of the machine is due, and then the next CPU. A CPU
//! that executes `pause`, as the kernel does once for each CPU when it flushes a cgroup's statistics, gives up
//! its turn: on sixteen busy CPUs it waits 50 ms, and one read of `cpu.stat` takes 0.8 s. With a timer that is
//! always due soon the turns are short. With two CPUs that timer made single turns last for up to 10 s, so
//! that guests with two do without it.

use std::arch::asm;

use nix::errno::Errno;

/// Registers of the real-time clock, and their values: 8192 Hz, and periodic interrupts in 24-hour mode.
const RATE: (u8, u8) = (0x0a, 0x23);
const PERIODIC: (u8, u8) = (0x0b, 0x42);
const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;

/// Starts the periodic timer of the emulated real-time clock. Its interrupt is raised only once, since it is
/// never acknowledged, so that the guest has no work with it.
pub fn shorten_turns() -> anyhow::Result<()> {
    // SAFETY: the two ports of the clock, for this process; an emulated one, in a guest of the lab's own.
    Errno::result(unsafe { libc::ioperm(INDEX.into(), 2, 1) })?;
    for (register, value) in [RATE, PERIODIC] {
        // SAFETY: as above.
        unsafe {
            asm!("out dx, al", in("dx") INDEX, in("al") register);
            asm!("out dx, al", in("dx") DATA, in("al") value);
        }
    }
    Ok(())
}
