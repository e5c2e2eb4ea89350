//! Connection to a control plane: its settings, and TLS with certificates that can change.
//!
//! Uses its own TLS connector instead of tonic's, to report why the server rejected a client
//! certificate. In TLS 1.3, the server rejects a client certificate after the handshake, with an
//! alert that the client receives only when it reads from the socket. tonic would report a closed
//! connection instead.
//!
//! Not here: the messages on the stream (`client`), reading files (`app`).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::domain::with_causes;
use crate::tls::{CertificateReader, ClientCertificates};

/// Number of unanswered TCP keepalive probes after which a connection counts as lost.
const KEEPALIVE_RETRIES: u32 = 3;

/// Configuration of the connection to a control plane.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Host name or IP address of the control plane.
    pub host: String,
    /// Port of the control plane.
    pub port: u16,
    /// TLS configuration; `None` means plaintext.
    pub tls: Option<TlsConfig>,
    /// Timeout for connecting, including the TLS handshake.
    pub connect_timeout: Duration,
    /// Interval of TCP keepalive probes on an idle connection; `None` disables them. HTTP/2 pings
    /// cannot replace them, because gRPC servers written in Go close connections that send more
    /// than one ping in five minutes.
    pub keepalive_interval: Option<Duration>,
}

/// TLS configuration of the connection to a control plane.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Name that the control plane's certificate must contain; `None` means the host name.
    pub server_name: Option<String>,
    /// Reader of the current certificates.
    pub read: CertificateReader,
}

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

impl ConnectionConfig {
    /// Connects to the control plane with these certificates. Returns the channel and a handle to the first error of its socket.
    ///
    /// # Errors
    ///
    /// Returns a message with the chain of causes.
    pub(crate) async fn connect(
        &self,
        certificates: Option<&ClientCertificates>,
    ) -> Result<(Channel, SocketError), String> {
        let host = &self.host;
        let authority = match host.contains(':') {
            true => format!("[{host}]:{}", self.port),
            false => format!("{host}:{}", self.port),
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let origin: Uri = format!("{scheme}://{authority}")
            .parse()
            .map_err(|error| format!("{authority:?} is not an address: {error}"))?;
        // The connector does TLS itself, so tonic must not.
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|error| with_causes(&error))?
            .origin(origin);
        let tls = match &self.tls {
            Some(tls) => {
                let name = tls.server_name.clone().unwrap_or_else(|| host.clone());
                let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
                let certificates = certificates.cloned().unwrap_or_default();
                let config = certificates.build_config("h2").map_err(|error| error.to_string())?;
                Some((TlsConnector::from(config), name))
            }
            None => None,
        };
        let error = SocketError::default();
        let connector = Connector {
            address: (host.clone(), self.port),
            tls,
            keepalive_interval: self.keepalive_interval,
            error: error.clone(),
        };
        let connecting = endpoint.connect_with_connector(connector);
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(Ok(channel)) => Ok((channel, error)),
            Ok(Err(failed)) => Err(with_causes(&failed)),
            Err(_) => Err(format!("no connection within {:?}", self.connect_timeout)),
        }
    }
}

/// Connector that opens the socket of a channel, with TLS if configured.
#[derive(Clone)]
struct Connector {
    address: (String, u16),
    tls: Option<(TlsConnector, ServerName<'static>)>,
    keepalive_interval: Option<Duration>,
    error: SocketError,
}

impl Connector {
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
struct ObservedSocket {
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
