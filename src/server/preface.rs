//! Waits for the HTTP/2 preface before a connection is served, so that a caller who says nothing
//! holds a socket for a bounded time and no more; tonic and hyper wait for ever.
//!
//! Not here: TLS, the protocol itself.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// What every HTTP/2 client sends first (RFC 9113, 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream whose preface was read already and is read once more.
#[derive(Debug)]
pub(crate) struct Begun<I> {
    /// Bytes of [`PREFACE`] that were handed on.
    replayed: usize,
    io: I,
}

/// Reads the preface.
///
/// # Errors
///
/// `InvalidData` if it is something else (HTTP/1.1, a port scan), `UnexpectedEof` if there is none.
pub(crate) async fn begin<I: AsyncRead + Unpin>(mut io: I) -> io::Result<Begun<I>> {
    let mut read = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() {
        let more = io.read(&mut read[length..]).await?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length += more;
        if read[..length] != PREFACE[..length] {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(Begun { replayed: 0, io })
}

impl<I: AsyncRead + Unpin> AsyncRead for Begun<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.replayed..];
        if rest.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let length = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..length]);
        self.replayed += length;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Begun<I> {
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
    async fn a_preface_is_read_once_more_by_whoever_comes_next() {
        let bytes = [PREFACE.as_slice(), b"rest"].concat();
        let mut begun = begin(bytes.as_slice()).await.unwrap();
        let mut again = Vec::new();
        begun.read_to_end(&mut again).await.unwrap();
        assert_eq!(again, bytes);
    }

    #[tokio::test]
    async fn anything_else_is_refused_at_its_first_wrong_byte() {
        let kind = |bytes: &'static [u8]| async move { begin(bytes).await.unwrap_err().kind() };
        assert_eq!(kind(b"GET / HTTP/1.1\r\n").await, io::ErrorKind::InvalidData);
        assert_eq!(kind(b"PRI * HTTP/1").await, io::ErrorKind::InvalidData);
        assert_eq!(kind(b"PRI * HTTP/2.0\r\n").await, io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"").await, io::ErrorKind::UnexpectedEof);
    }
}
