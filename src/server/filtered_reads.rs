//! Reads a connection, and refuses calls while its worker is overloaded and callers give up.
//!
//! A connection is filtered only if a caller on it resets a call during the overload, and if only rate
//! limit calls were made on it: health checks are not refused.
//!
//! Not here: which calls are refused (`frame_filter`), how many pass (`overload`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, ReadBuf};

use super::connection_stats::ConnectionStats;
use super::frame_filter::FrameFilter;
use super::overload::Overload;
use crate::clock::Clock;

/// Number of bytes that are filtered together: about 800 calls.
const READ_BYTES: usize = 64 * 1024;

/// Reads of one connection. Without overload, the frames are only followed.
#[derive(Debug)]
pub(crate) struct FilteredReads {
    pub(crate) filter: FrameFilter,
    overload: Arc<Overload>,
    stats: Arc<ConnectionStats>,
    /// Whether a method other than those of rate limits was called on the connection.
    pub(crate) has_other_calls: Arc<AtomicBool>,
    is_filtering: bool,
    /// Bytes that have passed the filter and have not been read by h2.
    passed: Bytes,
    /// The last read returned calls that h2 has not passed on yet.
    must_accept: bool,
    /// Beginning of a frame.
    incomplete: Vec<u8>,
}

impl FilteredReads {
    pub(crate) fn new(overload: Arc<Overload>, stats: Arc<ConnectionStats>) -> Self {
        FilteredReads {
            filter: FrameFilter::default(),
            overload,
            stats,
            has_other_calls: Arc::default(),
            is_filtering: false,
            passed: Bytes::new(),
            must_accept: false,
            incomplete: Vec::new(),
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_filtering {
            let before = buf.filled().len();
            ready!(Pin::new(io).poll_read(cx, buf))?;
            self.filter.follow(&buf.filled()[before..]);
            if self.filter.resets > 0 {
                self.record(Clock::System.monotonic_now());
                self.is_filtering = self.may_refuse();
            }
            return Poll::Ready(Ok(()));
        }
        if self.passed.is_empty() {
            ready!(self.poll_filter(io, cx))?;
        }
        let length = self.passed.len().min(buf.remaining());
        buf.put_slice(&self.passed[..length]);
        self.passed.advance(length);
        if self.passed.is_empty() {
            self.must_accept = true;
            self.is_filtering =
                self.may_refuse() || !self.filter.may_stop() || !self.incomplete.is_empty();
        }
        Poll::Ready(Ok(()))
    }

    /// Filters all that has arrived, as far as it fits. `passed` is empty afterwards only at the end of
    /// the stream.
    fn poll_filter(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.must_accept) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Allocated only under overload, and freed before another connection is read.
        let mut buffer = Vec::with_capacity(READ_BYTES);
        let mut read = ReadBuf::uninit(buffer.spare_capacity_mut());
        read.put_slice(&self.incomplete);
        let mut has_ended = false;
        // TLS returns one record at a time.
        while !has_ended && read.remaining() > 0 {
            let before = read.remaining();
            match Pin::new(&mut *io).poll_read(cx, &mut read)? {
                Poll::Ready(()) => has_ended = read.remaining() == before,
                Poll::Pending => break,
            }
        }
        if read.remaining() == 0 {
            cx.waker().wake_by_ref();
        }
        let now = Clock::System.monotonic_now();
        self.record(now);
        let quota = if self.may_refuse() { self.overload.quota() } else { usize::MAX };
        let mut passed = Vec::new();
        let done = self.filter.filter(read.filled(), quota, &mut passed);
        self.incomplete = read.filled()[done..].to_vec();
        self.passed = passed.into();
        self.record(now);
        if self.passed.is_empty() && !has_ended { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn may_refuse(&self) -> bool {
        self.overload.is_limited() && !self.has_other_calls.load(Ordering::Relaxed)
    }

    /// Passes the counts of the filter on.
    fn record(&mut self, now: Instant) {
        let FrameFilter { resets, refused, .. } = &mut self.filter;
        let (resets, refused) = (std::mem::take(resets), std::mem::take(refused));
        self.overload.record(resets, refused, now);
        self.stats.overload_rejections.fetch_add(refused as u64, Ordering::Relaxed);
    }
}
