//! HTTP/1.1 server with limits on the number of connections, the size of request headers, and the
//! time to receive and process a request.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use crate::domain::{PREFACE_BYTES, PortProtocol, UnreadableCallers, UnreadableKind};

/// Maximum number of open connections of a port. When it is reached, each new connection closes the
/// oldest one. Probes and scrapers need a dozen connections, and each `/json` client needs a connection
/// pool; 4,096 idle connections use 50 MB. Without closing the oldest one, a client could use up all
/// connections and block probes, and failed probes make an orchestrator restart the process.
pub const HTTP_CONNECTIONS_MAX: usize = 4_096;

/// Timeout for receiving the headers of a request, and for idle connections, 30 s. Longer than the
/// usual scrape interval, so scrapers keep their connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for handling a request, including receiving its body, 10 s. Longer than any response takes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Phase of an HTTP port, from start to shutdown. The variants are in chronological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpPhase {
    /// Requests are served.
    Serving,
    /// Requests are served, and each response closes its connection. Otherwise a client could send
    /// its next request on a connection that closes because it is idle.
    Leaving,
    /// No connections are accepted, idle ones are closed, and requests in progress finish.
    Draining,
}

/// Maximum size of a connection's read buffer, 16 KiB. It also limits the size of request headers:
/// hyper rejects larger ones with status 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Pause after a failed accept, 50 ms. Accepting usually fails because no file descriptor is free.
/// The pause is long enough for some connections to close, and short enough that a probe does not
/// time out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `routes` until the phase is [`HttpPhase::Draining`], then closes idle connections and
/// finishes the requests in progress.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    connections_max: usize,
    unreadable: Arc<UnreadableCallers>,
    mut phase: watch::Receiver<HttpPhase>,
) {
    let routes = routes.layer(from_fn(with_timeout));
    let current = phase.clone();
    let routes = routes.layer(map_response(move |mut response: Response| {
        if *current.borrow() > HttpPhase::Serving {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        std::future::ready(response)
    }));
    let slots = Arc::new(Semaphore::new(connections_max));
    let mut open = OpenConnections::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = wait_for_drain(&mut phase) => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if slots.available_permits() == 0 {
            open.close_oldest();
        }
        // The semaphore is never closed, so acquiring always succeeds.
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        let evicted = open.add(connections_max);
        let closer = ConnectionCloser::default();
        let routes = routes.clone().layer(Extension(closer.clone()));
        let (phase, unreadable) = (phase.clone(), Arc::clone(&unreadable));
        tokio::spawn(async move {
            tokio::select! {
                () = serve_connection(stream, routes, &unreadable, phase) => {}
                _ = evicted => {}
                () = closer.notified() => {}
            }
            drop(slot);
        });
    }
    // New connections are refused now. Otherwise they would wait in the backlog, and nobody would
    // serve them.
    drop(listener);
    // Wait for all connections to close: only then are all slots free.
    let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
    let _ = slots.acquire_many(all).await;
}

/// Handle that closes the connection on which a request arrived. Route handlers get it from the
/// request's extensions.
pub(super) type ConnectionCloser = Arc<Notify>;

/// Queue of connections, oldest first. May include connections that have already closed.
#[derive(Default)]
struct OpenConnections(VecDeque<oneshot::Sender<()>>);

impl OpenConnections {
    /// Adds a connection. Returns a receiver that resolves when the connection must be closed to
    /// make room for a newer one. If the queue has at least twice as many entries as `connections`,
    /// the connection limit, closed connections are removed first.
    fn add(&mut self, connections: usize) -> oneshot::Receiver<()> {
        if self.0.len() >= connections.saturating_mul(2) {
            self.0.retain(|connection| !connection.is_closed());
        }
        let (evict, evicted) = oneshot::channel();
        self.0.push_back(evict);
        evicted
    }

    fn close_oldest(&mut self) {
        while self.0.pop_front().is_some_and(|connection| connection.send(()).is_err()) {}
    }
}

async fn serve_connection(
    stream: TcpStream,
    routes: Router,
    unreadable: &UnreadableCallers,
    mut phase: watch::Receiver<HttpPhase>,
) {
    let mut first = [0; PREFACE_BYTES];
    let peeked = tokio::select! {
        peeked = tokio::time::timeout(HEAD_TIMEOUT, stream.peek(&mut first)) => peeked,
        () = wait_for_drain(&mut phase) => return,
    };
    let Ok(Ok(length)) = peeked else { return };
    if let Some(kind) = UnreadableKind::of_first_bytes(&first[..length], PortProtocol::Http1) {
        record_unreadable(unreadable, kind, &stream);
    }
    // Without Nagle's algorithm, small responses do not wait for an acknowledgement. If the system
    // refuses, responses are only slower.
    let _ = stream.set_nodelay(true);
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
    );
    // Ignore connection errors: a client that disconnects needs no log line.
    let _ = tokio::select! {
        ended = connection.as_mut() => ended,
        () = wait_for_drain(&mut phase) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
}

/// Counts a caller of another protocol. Logs at most one line a minute for each kind.
fn record_unreadable(unreadable: &UnreadableCallers, kind: UnreadableKind, stream: &TcpStream) {
    let Some(callers) = unreadable.record(kind) else { return };
    let (kind, meaning, advice) = kind.describe();
    let peer = stream.peer_addr().map_or_else(|_| "unknown".to_owned(), |peer| peer.to_string());
    tracing::warn!(kind, meaning, peer, callers, advice, "callers cannot be understood");
}

/// Waits until the phase is [`HttpPhase::Draining`] or its sender is dropped.
async fn wait_for_drain(phase: &mut watch::Receiver<HttpPhase>) {
    let _ = phase.wait_for(|phase| *phase == HttpPhase::Draining).await;
}

async fn with_timeout(request: Request<Body>, next: Next) -> Response {
    let response = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
    response.unwrap_or_else(|_| StatusCode::REQUEST_TIMEOUT.into_response())
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::domain::LogLimiter;

    #[tokio::test]
    async fn connections_with_half_a_head_do_not_lock_out_a_probe() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/healthz", get(|| async { "alive" }));
        let (phase, phases) = watch::channel(HttpPhase::Serving);
        let unreadable = Arc::new(UnreadableCallers::new(LogLimiter::unlimited()));
        let serving = tokio::spawn(serve(listener, routes, 3, unreadable, phases));
        let mut silent = Vec::new();
        for _ in 0..10 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHos").await.unwrap();
            silent.push(stream);
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        probe.write_all(request).await.unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("alive"), "{answer}");
        drop(silent);
        phase.send_replace(HttpPhase::Draining);
        serving.await.unwrap();
    }

    #[test]
    fn closed_connections_are_dropped() {
        let mut open = OpenConnections::default();
        for _ in 0..1_000 {
            drop(open.add(4));
        }
        assert!(open.0.len() <= 8, "{}", open.0.len());
    }
}
