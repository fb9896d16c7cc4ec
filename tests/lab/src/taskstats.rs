//! Delay accounting: how long a thread slept for memory and in I/O, by netlink (`taskstats`). It needs the
//! boot parameter `delayacct`, and is independent of pressure files.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, bail};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use serde::{Deserialize, Serialize};

/// What a thread has waited since it began, or between two moments, nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Delays {
    /// Reclaim, and compaction.
    pub freepages: u64,
    pub compact: u64,
    /// Reading reclaimed pages again that were in use.
    pub thrashing: u64,
    /// Reading pages from swap, those of `thrashing` among them.
    pub swapin: u64,
    /// Block I/O, that of reclaimed pages included.
    pub blkio: u64,
}

impl Delays {
    /// Reclaim and compaction.
    pub fn reclaiming(self) -> u64 {
        self.freepages + self.compact
    }

    /// Each of them from two.
    pub fn by(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            freepages: of(self.freepages, other.freepages),
            compact: of(self.compact, other.compact),
            thrashing: of(self.thrashing, other.thrashing),
            swapin: of(self.swapin, other.swapin),
            blkio: of(self.blkio, other.blkio),
        }
    }
}

/// The generic netlink family that names others (`GENL_ID_CTRL`).
const CONTROLLER: u16 = 16;
/// `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME` of linux/genetlink.h.
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `TASKSTATS_CMD_GET`, `_CMD_ATTR_PID`, `_TYPE_STATS`, `_TYPE_AGGR_PID` of linux/taskstats.h.
const GET: u8 = 1;
const OF_THREAD: u16 = 1;
const STATS: u16 = 3;
const WITH_THREAD: u16 = 4;
/// Where `struct taskstats` has `*_delay_total`. Fields are only ever added behind.
const BLKIO: usize = 40;
const SWAPIN: usize = 56;
const FREEPAGES: usize = 320;
const THRASHING: usize = 336;
const COMPACT: usize = 360;
/// Of a netlink message, of a generic netlink message, of an attribute.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
/// `NLMSG_ERROR` and `NLM_F_REQUEST` of linux/netlink.h.
const ERROR: u16 = 2;
const REQUEST: u16 = 1;

/// A connection to the kernel.
pub struct Taskstats {
    socket: OwnedFd,
    family: u16,
}

impl Taskstats {
    pub fn open() -> anyhow::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkGeneric,
        )
        .context("a generic netlink socket")?;
        let answer = ask(&socket, CONTROLLER, GET_FAMILY, FAMILY_NAME, b"TASKSTATS\0")?
            .context("the kernel has no taskstats")?;
        let family = attribute(&answer, FAMILY_ID).context("taskstats has no number")?;
        let family = u16::from_ne_bytes(family.try_into().context("taskstats' number")?);
        Ok(Self { socket, family })
    }

    /// Of one thread; none that has ended.
    pub fn of(&self, thread: u32) -> anyhow::Result<Option<Delays>> {
        let answer = ask(&self.socket, self.family, GET, OF_THREAD, &thread.to_ne_bytes())?;
        let Some(answer) = answer else {
            return Ok(None);
        };
        let stats = attribute(&answer, WITH_THREAD).and_then(|both| attribute(both, STATS));
        let stats = stats.context("an answer without taskstats")?;
        let at = |offset: usize| {
            let bytes = stats.get(offset..offset + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_ne_bytes).context("taskstats are too old")
        };
        Ok(Some(Delays {
            freepages: at(FREEPAGES)?,
            compact: at(COMPACT)?,
            thrashing: at(THRASHING)?,
            swapin: at(SWAPIN)?,
            blkio: at(BLKIO)?,
        }))
    }
}

/// Sends a request with one attribute; answers the attributes, or none where there is no such thing.
fn ask(
    socket: &OwnedFd,
    family: u16,
    command: u8,
    kind: u16,
    value: &[u8],
) -> anyhow::Result<Option<Vec<u8>>> {
    let attribute = u16::try_from(ATTRIBUTE_HEADER + value.len())?;
    let length = HEADER + GENERIC_HEADER + usize::from(attribute).next_multiple_of(4);
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length)?.to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(attribute.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(length, 0);
    sendto(socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = vec![0; 4096];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    answer.truncate(length);
    if number(&answer, 4) == Some(ERROR) {
        let error = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok());
        let error = nix::errno::Errno::from_raw(-error.map_or(0, i32::from_ne_bytes));
        if matches!(error, nix::errno::Errno::ESRCH | nix::errno::Errno::ENOENT) {
            return Ok(None);
        }
        bail!("taskstats: {error}");
    }
    Ok(Some(answer.split_off((HEADER + GENERIC_HEADER).min(length))))
}

/// The first attribute of a kind.
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(number(attributes, 0)?);
        if number(attributes, 2)? == kind {
            return attributes.get(ATTRIBUTE_HEADER..length);
        }
        attributes = attributes.get(length.next_multiple_of(4).max(ATTRIBUTE_HEADER)..)?;
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
