//! Serves routes on a listener, within bounds: connections, the time a request's head may take,
//! the time a whole request may take, the memory of one connection.
//!
//! Not here: the routes.

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
use tokio::sync::{Semaphore, watch};

/// Bounds of one port.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections; above it new ones wait to be accepted.
    pub connections: usize,
    /// How long a client may take to send a request's head, and how long it may stay idle.
    pub head_timeout: Duration,
    /// How long a whole request may take, its body included.
    pub request_timeout: Duration,
}

impl Default for Limits {
    /// 4,096 connections: probes and scrapers need a dozen, `/json` callers a pool each; so many idle
    /// ones cost 50 MB, and whoever wants to keep probes out has to hold them all. 30 s: longer than
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
    loop {
        let accepted = async {
            // The semaphore is never closed, so a place always comes.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = stopped(&mut stop) => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (routes, stop) = (routes.clone(), stop.clone());
        tokio::spawn(async move {
            connection(stream, routes, limits.head_timeout, stop).await;
            drop(place);
        });
    }
    // Every place is free once every connection is done.
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _ = places.acquire_many(all).await;
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
