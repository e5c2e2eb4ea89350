//! One connection from its first byte to its last: TLS handshake, HTTP/2 preface, HTTP/2, graceful
//! shutdown.
//!
//! Not here: accepting sockets (`listener`), answering calls (`router`).

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

/// Lifecycle phase of the server, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Accepts connections and calls.
    Serving,
    /// Sends GOAWAY on every connection and lets its calls in flight finish.
    Draining,
    /// Drops every connection that is still open.
    Stopped,
}

/// Accepted socket that is not registered with any runtime yet: the acceptor and the worker that
/// serves it run on different ones.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(net::TcpStream),
    Unix(unix::net::UnixStream),
}

/// Guard that counts one open connection, for its worker and for the whole server, until dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    load: Arc<AtomicUsize>,
    stats: Arc<ConnectionStats>,
}

impl ConnectionSlot {
    pub(crate) fn acquire(load: Arc<AtomicUsize>, stats: Arc<ConnectionStats>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        stats.open.fetch_add(1, Ordering::Relaxed);
        ConnectionSlot { load, stats }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.stats.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepted connection that the acceptor sends to a worker.
#[derive(Debug)]
pub(crate) struct AcceptedSocket {
    pub(crate) socket: Socket,
    pub(crate) slot: ConnectionSlot,
    /// Age at which the connection gets a GOAWAY; `None` means never.
    pub(crate) age_max: Option<Duration>,
}

/// State that all connections of one worker thread share.
#[derive(Debug)]
pub(crate) struct Worker<D> {
    pub(crate) router: Arc<Router<D>>,
    pub(crate) limits: ServerLimits,
    pub(crate) tls: Option<Tls>,
    pub(crate) stats: Arc<ConnectionStats>,
    pub(crate) phase: watch::Receiver<Phase>,
}

impl<D: Decide> Worker<D> {
    /// Serves a connection until it closes. While the server drains, it closes after the last call
    /// in flight is answered.
    pub(crate) async fn serve(self: Arc<Self>, accepted: AcceptedSocket) {
        let AcceptedSocket { socket, slot: _slot, age_max } = accepted;
        match socket {
            Socket::Tcp(socket) => {
                let Ok(socket) = TcpStream::from_std(socket) else { return };
                match &self.tls {
                    None => self.serve_plain(socket, Caller::Unrestricted, age_max).await,
                    Some(tls) => self.serve_tls(tls, socket, age_max).await,
                }
            }
            // No TLS on a Unix socket: its file permissions control who may connect.
            Socket::Unix(socket) => {
                let Ok(socket) = UnixStream::from_std(socket) else { return };
                self.serve_plain(socket, Caller::Unrestricted, age_max).await;
            }
        }
    }

    async fn serve_tls(&self, tls: &Tls, socket: TcpStream, age_max: Option<Duration>) {
        let handshake = time::timeout(self.limits.handshake_timeout, tls.accept(socket));
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = self.wait_for_phase(Phase::Draining) => return,
        };
        match accepted {
            Ok(Ok((socket, caller))) => self.serve_plain(socket, caller, age_max).await,
            Ok(Err(_)) | Err(_) => {
                self.stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn serve_plain<I>(&self, io: I, caller: Caller, age_max: Option<Duration>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let preface = time::timeout(self.limits.preface_timeout, preface::read(io));
        let read = tokio::select! {
            read = preface => read,
            () = self.wait_for_phase(Phase::Draining) => return,
        };
        match read {
            Ok(Ok(io)) => self.serve_http2(io, caller, age_max).await,
            Ok(Err(_)) | Err(_) => {
                self.stats.prefaces_failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn serve_http2<I>(&self, io: I, caller: Caller, age_max: Option<Duration>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(|request| {
            // Each worker has its own router, so no other thread contends for this reference count.
            let (router, caller) = (Arc::clone(&self.router), caller.clone());
            // Boxed, because otherwise the call's future (12 KB) is copied when the stream starts
            // and when it ends, which costs 15 % of the CPU of a call with one descriptor.
            Box::pin(async move {
                Ok::<_, std::convert::Infallible>(router.call(request, &caller).await)
            })
        });
        let mut connection = pin!(self.http2_builder().serve_connection(TokioIo::new(io), service));
        let mut shutdown_due = pin!(async {
            tokio::select! {
                () = self.wait_for_phase(Phase::Draining) => {}
                () = sleep_or_never(age_max) => {}
            }
        });
        let mut shutting_down = false;
        std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return std::task::Poll::Ready(ended);
            }
            if !shutting_down && shutdown_due.as_mut().poll(cx).is_ready() {
                shutting_down = true;
                connection.as_mut().graceful_shutdown();
                return connection.as_mut().poll(cx);
            }
            std::task::Poll::Pending
        })
        .await
        .unwrap_or_else(|_| {
            self.stats.connections_broken.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn http2_builder(&self) -> http2::Builder<TokioExecutor> {
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

    /// Waits until the server is in `phase` or a later one. Returns immediately if the server has
    /// been dropped.
    pub(crate) async fn wait_for_phase(&self, phase: Phase) {
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }
}

async fn sleep_or_never(after: Option<Duration>) {
    match after {
        Some(after) => time::sleep(after).await,
        None => std::future::pending().await,
    }
}
