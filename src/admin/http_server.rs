//! Serves routes on a listener, within bounds: connections, the time a request's head may take,
//! the time a whole request may take, the memory of one connection.
//!
//! Not here: the routes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};

use super::action_routes::DEBUG_REQUEST_MAX;

/// Bounds of one port.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections; one more closes the one that has been open longest.
    pub connections: usize,
    /// How long a client may take to send a request's head, and how long it may stay idle.
    pub head_timeout: Duration,
    /// How long a whole request may take, its body included.
    pub request_timeout: Duration,
}

impl Default for Limits {
    /// 4,096 connections: probes and scrapers need a dozen, `/json` callers a pool each; so many idle
    /// ones cost 50 MB. Above it the longest open makes room, so that whoever holds them all, half
    /// a head each, keeps no probe out: a probe that fails would have the process restarted. 30 s: longer than
    /// a scraper's interval mostly is, so that its connection is still there. 10 s: longer than any
    /// answer takes, shorter than a slow attack wants.
    fn default() -> Self {
        Limits {
            connections: 4_096,
            head_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Those of the debug port: a profile is waited for.
    pub fn of_debug() -> Self {
        Limits { request_timeout: DEBUG_REQUEST_MAX, ..Limits::default() }
    }
}

/// Largest buffer of a connection: holds any sane head; hyper refuses longer ones with 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// How long to wait when a connection cannot be accepted (no more file descriptors): long enough
/// for some to be closed, short enough that a probe does not notice.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is true; requests under way are then finished, idle connections closed.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let timeout = limits.request_timeout;
    let routes = routes.layer(from_fn(move |request, next| within(timeout, request, next)));
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut open = Open::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if places.available_permits() == 0 {
            open.close_longest();
        }
        // The semaphore is never closed, so a place always comes.
        let place = Arc::clone(&places).acquire_owned().await.ok();
        let told_to_leave = open.add(limits.connections);
        let (routes, stop) = (routes.clone(), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = connection(stream, routes, limits.head_timeout, stop) => {}
                _ = told_to_leave => {}
            }
            drop(place);
        });
    }
    // Every place is free once every connection is done.
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _ = places.acquire_many(all).await;
}

/// The open connections, the longest open first, and some that have closed since.
#[derive(Default)]
struct Open(VecDeque<oneshot::Sender<()>>);

impl Open {
    /// A new connection; what is returned resolves when it has to make room.
    fn add(&mut self, connections: usize) -> oneshot::Receiver<()> {
        if self.0.len() >= connections.saturating_mul(2) {
            self.0.retain(|connection| !connection.is_closed());
        }
        let (leave, told_to_leave) = oneshot::channel();
        self.0.push_back(leave);
        told_to_leave
    }

    fn close_longest(&mut self) {
        while self.0.pop_front().is_some_and(|connection| connection.send(()).is_err()) {}
    }
}

async fn connection(
    stream: TcpStream,
    routes: Router,
    head_timeout: Duration,
    mut stop: watch::Receiver<bool>,
) {
    // Small answers should not wait for an acknowledgement; a socket that refuses the option is
    // served all the same.
    let _ = stream.set_nodelay(true);
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
    );
    // How a client's connection ends is the client's affair: nothing to do, nothing to log.
    let _ = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
}

/// Returns once the process is to stop (or nobody is left who could say so).
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn within(
    timeout: Duration,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Infallible> {
    Ok(match tokio::time::timeout(timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    })
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn connections_that_say_half_a_head_keep_no_probe_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { connections: 3, ..Limits::default() };
        let routes = Router::new().route("/healthz", get(|| async { "alive" }));
        let (stop, stops) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, routes, limits, stops));
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
        stop.send_replace(true);
        serving.await.unwrap();
    }

    #[test]
    fn the_closed_are_forgotten() {
        let mut open = Open::default();
        for _ in 0..1_000 {
            drop(open.add(4));
        }
        assert!(open.0.len() <= 8, "{}", open.0.len());
    }
}
