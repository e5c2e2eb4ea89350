//! One connection, from its first byte to its last: TLS, preface, HTTP/2, and leaving in time.
//!
//! Not here: where connections come from (`listen`), what is answered (`front`).

use std::future::Future as _;
use std::net;
use std::os::unix;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time;

use super::authz::Caller;
use super::connection_stats::ConnectionStats;
use super::preface;
use super::rls_service::Decide;
use super::router::Router;
use super::server_limits::ServerLimits;
use super::tls::Tls;

/// Where the server stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Connections are asked to leave (GOAWAY), and their calls finish.
    Draining,
    /// Whatever is left is cut off.
    Stopped,
}

/// A socket between two runtimes.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(net::TcpStream),
    Unix(unix::net::UnixStream),
}

/// A place among the connections; giving it up is dropping it.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    load: Arc<AtomicUsize>,
    traffic: Arc<ConnectionStats>,
}

impl ConnectionSlot {
    pub(crate) fn take(load: Arc<AtomicUsize>, traffic: Arc<ConnectionStats>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        traffic.open.fetch_add(1, Ordering::Relaxed);
        ConnectionSlot { load, traffic }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.traffic.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct AcceptedSocket {
    pub(crate) socket: Socket,
    pub(crate) seat: ConnectionSlot,
    /// After how long it is asked to leave.
    pub(crate) age_max: Option<Duration>,
}

/// What all connections of one core share.
#[derive(Debug)]
pub(crate) struct Host<J> {
    pub(crate) front: Arc<Router<J>>,
    pub(crate) limits: ServerLimits,
    pub(crate) tls: Option<Tls>,
    pub(crate) traffic: Arc<ConnectionStats>,
    pub(crate) phase: watch::Receiver<Phase>,
}

impl<J: Decide> Host<J> {
    /// Serves a connection until it ends or, once the server drains, has answered its last call.
    pub(crate) async fn serve(self: Arc<Self>, arrival: AcceptedSocket) {
        let AcceptedSocket { socket, seat: _seat, age_max } = arrival;
        match socket {
            Socket::Tcp(socket) => {
                let Ok(socket) = TcpStream::from_std(socket) else { return };
                match &self.tls {
                    None => self.begin(socket, Caller::Unrestricted, age_max).await,
                    Some(tls) => self.begin_secured(tls, socket, age_max).await,
                }
            }
            // Who may open a Unix socket is the file system's business.
            Socket::Unix(socket) => {
                let Ok(socket) = UnixStream::from_std(socket) else { return };
                self.begin(socket, Caller::Unrestricted, age_max).await;
            }
        }
    }

    async fn begin_secured(&self, tls: &Tls, socket: TcpStream, age_max: Option<Duration>) {
        let handshake = time::timeout(self.limits.handshake_timeout, tls.accept(socket));
        let secured = tokio::select! {
            secured = handshake => secured,
            () = self.reached(Phase::Draining) => return,
        };
        match secured {
            Ok(Ok((socket, caller))) => self.begin(socket, caller, age_max).await,
            Ok(Err(_)) | Err(_) => {
                self.traffic.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn begin<I>(&self, io: I, caller: Caller, age_max: Option<Duration>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let preface = time::timeout(self.limits.preface_timeout, preface::begin(io));
        let begun = tokio::select! {
            begun = preface => begun,
            () = self.reached(Phase::Draining) => return,
        };
        match begun {
            Ok(Ok(io)) => self.speak(io, caller, age_max).await,
            Ok(Err(_)) | Err(_) => {
                self.traffic.prefaces_failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn speak<I>(&self, io: I, caller: Caller, age_max: Option<Duration>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(|request| {
            // The core's own count: no other thread touches it.
            let (front, caller) = (Arc::clone(&self.front), caller.clone());
            // Boxed: the stream's task would be moved with all the room that a call needs, at its
            // start and at its end. Measured: 15 % of the CPU of a call with one descriptor.
            Box::pin(async move {
                Ok::<_, std::convert::Infallible>(front.call(request, &caller).await)
            })
        });
        let mut connection = pin!(self.protocol().serve_connection(TokioIo::new(io), service));
        let mut leave = pin!(async {
            tokio::select! {
                () = self.reached(Phase::Draining) => {}
                () = sleep_or_never(age_max) => {}
            }
        });
        let mut leaving = false;
        std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return std::task::Poll::Ready(ended);
            }
            if !leaving && leave.as_mut().poll(cx).is_ready() {
                leaving = true;
                connection.as_mut().graceful_shutdown();
                return connection.as_mut().poll(cx);
            }
            std::task::Poll::Pending
        })
        .await
        .unwrap_or_else(|_| {
            self.traffic.connections_broken.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn protocol(&self) -> http2::Builder<TokioExecutor> {
        let limits = &self.limits;
        let mut protocol = http2::Builder::new(TokioExecutor::new());
        protocol
            .timer(TokioTimer::new())
            .auto_date_header(false)
            .max_concurrent_streams(limits.streams_max)
            .initial_connection_window_size(limits.connection_window_bytes)
            .max_pending_accept_reset_streams(limits.pending_resets_max)
            .max_local_error_reset_streams(limits.local_error_resets_max)
            .max_header_list_size(limits.header_list_bytes_max)
            .keep_alive_interval(limits.keepalive_interval)
            .keep_alive_timeout(limits.keepalive_timeout);
        protocol
    }

    /// Waits until the server is in `phase` or beyond; a server that is gone is.
    pub(crate) async fn reached(&self, phase: Phase) {
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }
}

async fn sleep_or_never(after: Option<Duration>) {
    match after {
        Some(after) => time::sleep(after).await,
        None => std::future::pending().await,
    }
}
