//! Reads the HTTP/2 preface before a connection is served. A timeout can then close the connection
//! of a client that sends nothing; tonic and hyper would wait for the preface forever.
//!
//! Not here: the timeout (`connection`), TLS (`tls`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// Connection preface, the first bytes that every HTTP/2 client sends (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Stream whose HTTP/2 preface has already been read. A read from this stream returns the preface
/// again, because hyper expects the preface too.
#[derive(Debug)]
pub(crate) struct PrefaceReplayStream<I> {
    /// Number of bytes of [`PREFACE`] that have been replayed.
    replayed_bytes: usize,
    io: I,
}

/// Reads the HTTP/2 preface from a new connection and checks it.
///
/// # Errors
///
/// Returns `InvalidData` if the client sends anything other than the preface, such as an HTTP/1.1
/// request, and `UnexpectedEof` if the stream ends first.
pub(crate) async fn read<I: AsyncRead + Unpin>(mut io: I) -> io::Result<PrefaceReplayStream<I>> {
    let mut bytes = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() {
        let more = io.read(&mut bytes[length..]).await?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length += more;
        if bytes[..length] != PREFACE[..length] {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(PrefaceReplayStream { replayed_bytes: 0, io })
}

impl<I: AsyncRead + Unpin> AsyncRead for PrefaceReplayStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.replayed_bytes..];
        if rest.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let length = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..length]);
        self.replayed_bytes += length;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PrefaceReplayStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_preface_is_replayed_to_the_next_reader() {
        let bytes = [PREFACE.as_slice(), b"rest"].concat();
        let mut replay = read(bytes.as_slice()).await.unwrap();
        let mut again = Vec::new();
        replay.read_to_end(&mut again).await.unwrap();
        assert_eq!(again, bytes);
    }

    #[tokio::test]
    async fn other_bytes_fail_at_the_first_mismatch() {
        let kind = |bytes: &'static [u8]| async move { read(bytes).await.unwrap_err().kind() };
        assert_eq!(kind(b"GET / HTTP/1.1\r\n").await, io::ErrorKind::InvalidData);
        assert_eq!(kind(b"PRI * HTTP/1").await, io::ErrorKind::InvalidData);
        assert_eq!(kind(b"PRI * HTTP/2.0\r\n").await, io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"").await, io::ErrorKind::UnexpectedEof);
    }
}
