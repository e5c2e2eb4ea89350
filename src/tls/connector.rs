//! Connector for clients over HTTP: opens a TCP socket, with TLS if it is configured, and remembers
//! why the socket broke.
//!
//! tonic's and hyper's own connectors cannot report why the server rejected a client certificate. In
//! TLS 1.3, the server rejects it after the handshake, with an alert that the client receives only
//! when it reads from the socket. They would report a closed connection instead.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::{ClientCertificates, TlsError};

/// Number of unanswered TCP keepalive probes after which a connection counts as lost.
const KEEPALIVE_RETRIES: u32 = 3;

/// First I/O error on a connection's socket, or `None`. Shared by the socket and the client.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketError(Arc<Mutex<Option<String>>>);

impl SocketError {
    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stores the first error. Ignores later errors, because they only report that the connection
    /// is closed.
    fn set(&self, error: &io::Error) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert_with(|| error.to_string());
    }
}

/// Connector that opens sockets to one address, whatever the URI of the request.
#[derive(Clone)]
pub(crate) struct Connector {
    address: (String, u16),
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Interval of TCP keepalive probes on an idle connection; `None` disables them.
    pub(crate) keepalive_interval: Option<Duration>,
    /// First I/O error on a socket.
    pub(crate) error: SocketError,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Connector {
    /// Creates a connector without keepalive probes. `tls` consists of the certificates, the
    /// protocol that ALPN offers, and the name that the server's certificate must contain; `None`
    /// means plaintext.
    ///
    /// # Errors
    ///
    /// Returns an error if a certificate, the private key, or the name cannot be used.
    pub(crate) fn new(
        host: &str,
        port: u16,
        tls: Option<(&ClientCertificates, &str, &str)>,
    ) -> Result<Connector, TlsError> {
        let tls = match tls {
            Some((certificates, protocol, name)) => {
                let invalid = |_| TlsError::ServerName(name.to_owned());
                let server = ServerName::try_from(name.to_owned()).map_err(invalid)?;
                Some((TlsConnector::from(certificates.build_config(protocol)?), server))
            }
            None => None,
        };
        let (keepalive_interval, error) = Default::default();
        Ok(Connector { address: (host.to_owned(), port), tls, keepalive_interval, error })
    }

    async fn open(self) -> io::Result<TokioIo<ObservedSocket>> {
        let (host, port) = &self.address;
        let socket = TcpStream::connect((host.as_str(), *port)).await?;
        socket.set_nodelay(true)?;
        if let Some(interval) = self.keepalive_interval {
            let keepalive = TcpKeepalive::new()
                .with_time(interval)
                .with_interval(interval)
                .with_retries(KEEPALIVE_RETRIES);
            SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
        }
        let socket: Box<dyn Socket> = match self.tls {
            Some((tls, name)) => Box::new(tls.connect(name, socket).await?),
            None => Box::new(socket),
        };
        Ok(TokioIo::new(ObservedSocket { socket, error: self.error }))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ObservedSocket>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().open())
    }
}

/// Plaintext or TLS socket.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// Socket that records its first I/O error in a [`SocketError`].
pub(crate) struct ObservedSocket {
    socket: Box<dyn Socket>,
    error: SocketError,
}

impl ObservedSocket {
    /// Records a write error. If the server sent a TLS alert before it closed the connection,
    /// records the alert instead, because it states the reason. To receive the alert, waits until
    /// the socket is readable; a broken connection always becomes readable.
    fn record_write_error<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Poll::Ready(Err(error)) = &result else { return result };
        let mut byte = [0];
        match Pin::new(&mut self.socket).poll_read(context, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Err(alert)) => self.error.set(&alert),
            Poll::Ready(Ok(())) => self.error.set(error),
            Poll::Pending => return Poll::Pending,
        }
        result
    }
}

impl Connection for ObservedSocket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for ObservedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &result {
            self.error.set(error);
        }
        result
    }
}

impl AsyncWrite for ObservedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.record_write_error(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_flush(context);
        self.record_write_error(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
