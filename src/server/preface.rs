//! Reads the client's HTTP/2 preface before a connection is served, and changes the server's
//! preface before it is sent.
//!
//! The client's preface is read here so that a timeout can close the connection of a client that
//! sends nothing; tonic and hyper would wait for the preface forever.
//!
//! The server's preface is a SETTINGS frame, which advertises the maximum number of concurrent
//! streams. h2 refuses every stream beyond the maximum that it writes into this frame. A client that
//! has not received the frame yet may already have started more streams. h2 is therefore given a
//! higher maximum, and a lower one is advertised.
//!
//! Reads are counted against a budget, which `connection` refills. The replies of the filter of the
//! reads are written between the frames of h2.
//!
//! Not here: the timeout (`connection`), TLS (`tls`), both maximums (`server_limits`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::filtered_reads::FilteredReads;
use crate::domain::{PREFACE_BYTES, PortProtocol, UnreadableKind};

/// Client's connection preface, the first bytes that every HTTP/2 client sends (RFC 9113, section
/// 3.4).
const PREFACE: [u8; PREFACE_BYTES] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of an HTTP/2 frame header (RFC 9113, section 4.1).
const FRAME_HEADER_BYTES: usize = 9;
/// Type of a SETTINGS frame (RFC 9113, section 6.5).
const SETTINGS_TYPE: u8 = 4;
/// Length of one setting in a SETTINGS frame: an identifier of two bytes and a value of four.
const SETTING_BYTES: usize = 6;
/// Identifier of `SETTINGS_MAX_CONCURRENT_STREAMS` (RFC 9113, section 6.5.2).
const MAX_CONCURRENT_STREAMS_ID: [u8; 2] = [0, 3];

/// Stream whose client preface has already been read. A read from this stream returns the preface
/// again, because hyper expects it too. The first write is the server's preface.
#[derive(Debug)]
pub(crate) struct PrefaceStream<I> {
    /// Number of bytes of [`PREFACE`] that have been replayed.
    replayed_bytes: usize,
    /// Maximum number of concurrent streams to advertise. `None` after the first write.
    streams_advertised: Option<u32>,
    /// Bytes of the first write, or replies, that have not been sent yet.
    unsent: Vec<u8>,
    /// Reads after the preface.
    pub(crate) reads: FilteredReads,
    /// Number of bytes that may be read before the budget is refilled; shared with `connection`.
    pub(crate) read_budget: Arc<AtomicUsize>,
    io: I,
}

/// Reads the HTTP/2 preface from a new connection and checks it. The server's preface will advertise
/// `streams_advertised` as the maximum number of concurrent streams.
///
/// # Errors
///
/// Returns what the client sent if it is not the preface, such as an HTTP/1.1 request, and `None` if
/// the stream ends or breaks first.
pub(crate) async fn read<I: AsyncRead + Unpin>(
    mut io: I,
    streams_advertised: u32,
    reads: FilteredReads,
) -> Result<PrefaceStream<I>, Option<UnreadableKind>> {
    let mut bytes = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() {
        let more = io.read(&mut bytes[length..]).await.unwrap_or(0);
        if more == 0 {
            return Err(None);
        }
        length += more;
        if bytes[..length] != PREFACE[..length] {
            return Err(UnreadableKind::of_first_bytes(&bytes[..length], PortProtocol::Http2));
        }
    }
    let streams_advertised = Some(streams_advertised);
    let read_budget = Arc::new(AtomicUsize::new(usize::MAX));
    let unsent = Vec::new();
    Ok(PrefaceStream { replayed_bytes: 0, streams_advertised, unsent, reads, read_budget, io })
}

/// Sets the maximum number of concurrent streams in a SETTINGS frame. Leaves other bytes unchanged.
fn set_max_concurrent_streams(frame: &mut [u8], streams: u32) {
    let Some((header, rest)) = frame.split_at_mut_checked(FRAME_HEADER_BYTES) else { return };
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
    let (SETTINGS_TYPE, Some(settings)) = (header[3], rest.get_mut(..length)) else { return };
    for setting in settings.chunks_exact_mut(SETTING_BYTES) {
        let (id, value) = setting.split_at_mut(MAX_CONCURRENT_STREAMS_ID.len());
        if id == MAX_CONCURRENT_STREAMS_ID {
            value.copy_from_slice(&streams.to_be_bytes());
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for PrefaceStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.replayed_bytes..];
        if rest.is_empty() {
            let left = self.read_budget.load(Ordering::Relaxed);
            if left == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let before = buf.filled().len();
            let PrefaceStream { reads, io, .. } = &mut *self;
            ready!(reads.poll_read(io, cx, buf))?;
            let read = buf.filled().len() - before;
            self.read_budget.store(left.saturating_sub(read), Ordering::Relaxed);
            return Poll::Ready(Ok(()));
        }
        let length = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..length]);
        self.replayed_bytes += length;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> PrefaceStream<I> {
    /// Sends what is left of the first write, or of replies.
    fn poll_send_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let sent = ready!(Pin::new(&mut self.io).poll_write(cx, &self.unsent))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PrefaceStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(streams) = self.streams_advertised.take() {
            // The only copy of outgoing bytes: once per connection, less than 100 bytes.
            self.unsent = buf.to_vec();
            set_max_concurrent_streams(&mut self.unsent, streams);
            return Poll::Ready(Ok(buf.len()));
        }
        ready!(self.poll_send_unsent(cx))?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.streams_advertised.is_some() {
            let first = bufs.iter().find(|buf| !buf.is_empty());
            return self.poll_write(cx, first.map_or(&[], |buf| buf));
        }
        ready!(self.poll_send_unsent(cx))?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_unsent(cx))?;
        // h2 flushes only when it has written whole frames.
        self.unsent = std::mem::take(&mut self.reads.filter.replies);
        ready!(self.poll_send_unsent(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_unsent(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::super::overload::Overload;
    use super::*;
    use crate::clock::Clock;

    fn reads() -> FilteredReads {
        let overload = Overload::new(Clock::System.monotonic_now());
        FilteredReads::new(Arc::new(overload), Arc::default())
    }

    /// SETTINGS frame with a maximum header list size of 1,024 bytes and a maximum number of
    /// concurrent streams.
    fn settings(streams: u8) -> Vec<u8> {
        let header = [0, 0, 12, SETTINGS_TYPE, 0, 0, 0, 0, 0];
        [&header[..], &[0, 6, 0, 0, 4, 0], &[0, 3, 0, 0, 0, streams]].concat()
    }

    /// Returns what the client receives if the server writes each of `writes` and flushes it.
    /// `pipe_bytes` is the number of bytes that fit into the connection before a write must wait.
    async fn received(writes: &[&[u8]], pipe_bytes: usize) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(pipe_bytes);
        let receive = async {
            client.write_all(&PREFACE).await.unwrap();
            let mut bytes = Vec::new();
            client.read_to_end(&mut bytes).await.unwrap();
            bytes
        };
        let serve = async {
            let mut stream = read(server, 7, reads()).await.unwrap();
            for write in writes {
                stream.write_all(write).await.unwrap();
                stream.flush().await.unwrap();
            }
            stream.shutdown().await.unwrap();
        };
        tokio::join!(receive, serve).0
    }

    #[tokio::test]
    async fn the_first_settings_advertise_fewer_streams_and_the_rest_is_unchanged() {
        let later = settings(200);
        for pipe_bytes in [1, 3, 64] {
            let bytes = received(&[&settings(100), &later], pipe_bytes).await;
            assert_eq!(bytes, [settings(7), later.clone()].concat());
        }
    }

    #[tokio::test]
    async fn a_first_write_without_settings_is_sent_unchanged() {
        let incomplete = &settings(100)[..10];
        // A PING with the bytes of a setting.
        let ping = b"\0\0\x06\x06\0\0\0\0\0\0\x03\0\0\0\x05";
        for other in [incomplete, ping, b"x"] {
            assert_eq!(received(&[other, b"rest"], 64).await, [other, b"rest"].concat());
        }
    }

    #[tokio::test]
    async fn the_preface_is_replayed_to_the_next_reader() {
        let bytes = [PREFACE.as_slice(), b"rest"].concat();
        let mut replay = read(bytes.as_slice(), 250, reads()).await.unwrap();
        let mut again = Vec::new();
        replay.read_to_end(&mut again).await.unwrap();
        assert_eq!(again, bytes);
    }

    #[tokio::test]
    async fn other_bytes_fail_at_the_first_mismatch() {
        let kind =
            |bytes: &'static [u8]| async move { read(bytes, 250, reads()).await.unwrap_err() };
        assert_eq!(kind(b"GET / HTTP/1.1\r\n").await, Some(UnreadableKind::Http1));
        assert_eq!(kind(b"PRI * HTTP/1").await, Some(UnreadableKind::Http1));
        assert_eq!(kind(b"PRI * HTTP/2.0\r\n").await, None);
        assert_eq!(kind(b"").await, None);
    }
}
