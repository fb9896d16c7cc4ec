//! Native asynchronous I/O, which no crate at hand offers: reads that a thread submits, and waits
//! for in `io_getevents`. The only unsafe code of the lab.

#![allow(unsafe_code, reason = "system calls that take addresses")]

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::ptr;

const ALIGNMENT: usize = 4096;
/// `IOCB_CMD_PREAD` of linux/aio_abi.h.
const READ: u16 = 0;

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Debug, Default)]
struct Event {
    slot: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// A queue of reads, each with a block of its own.
pub struct Aio {
    context: libc::c_ulong,
    memory: Vec<u8>,
    block: u32,
}

impl Aio {
    /// For so many at once, of so many bytes each.
    pub fn new(depth: u32, block: u32) -> Result<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word, which outlives the call.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        check(made)?;
        let memory = vec![0; (depth * block) as usize + ALIGNMENT];
        Ok(Self { context, memory, block })
    }

    /// Submits a read to the block number `slot`, which no other read uses now.
    pub fn read(&mut self, file: &File, at: u64, slot: u32) -> Result<()> {
        let start = self.memory.as_ptr().align_offset(ALIGNMENT);
        let first = start + (slot * self.block) as usize;
        let block = self.memory.get_mut(first..first + self.block as usize);
        let block = block.ok_or_else(|| Error::other("no such slot"))?;
        // SAFETY: all zeros is an empty request.
        let mut request: libc::iocb = unsafe { std::mem::zeroed() };
        request.aio_data = u64::from(slot);
        request.aio_lio_opcode = READ;
        request.aio_fildes = file.as_raw_fd().cast_unsigned();
        request.aio_buf = block.as_mut_ptr() as u64;
        request.aio_nbytes = u64::from(self.block);
        request.aio_offset = at.cast_signed();
        let mut requests = [&raw mut request];
        // SAFETY: the kernel copies the request; the block lives as long as this queue, whose
        // memory never moves, and is written to by one read at a time.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, requests.as_mut_ptr()) };
        check(submitted)
    }

    /// Waits for one to end: its slot.
    pub fn wait(&mut self) -> Result<u32> {
        let mut event = Event::default();
        let no_timeout = ptr::null_mut::<libc::timespec>();
        // SAFETY: the kernel writes one event, which outlives the call.
        let ended = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, 1, 1, &raw mut event, no_timeout)
        };
        check(ended)?;
        if event.result != i64::from(self.block) {
            return Err(Error::other(format!("a read gave {}", event.result)));
        }
        u32::try_from(event.slot).map_err(Error::other)
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: waits for all reads, so that none writes to the memory that goes away now.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn check(answer: libc::c_long) -> Result<()> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
