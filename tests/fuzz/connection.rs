//! A connection without a network, for hyper's server.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};

/// The two ends of a connection: all of a client's bytes, and what the server writes.
pub(super) struct Connection<'a> {
    pub(super) received: &'a [u8],
    pub(super) sent: &'a RefCell<Vec<u8>>,
}

impl Read for Connection<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let length = buffer.remaining().min(self.received.len());
        let (now, later) = self.received.split_at(length);
        buffer.put_slice(now);
        self.received = later;
        Poll::Ready(Ok(()))
    }
}

impl Write for Connection<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.sent.borrow_mut().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
