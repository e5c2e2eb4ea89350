//! The routes of the HTTP port: `/healthcheck`, `/healthz`, `/readyz`, `/metrics`, `/json`.
//!
//! Not here: what a JSON call means (`wire`; the function is handed in).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};

use super::{Ready, plain};
use crate::telemetry::{CONTENT_TYPE as OPENMETRICS, CONTENT_TYPE_PLAIN as PLAIN, Scrape};

/// The answer to a JSON call.
#[derive(Clone, Debug)]
pub struct JsonAnswer {
    /// The HTTP status: 200 OK, 429 OVER_LIMIT, 400 a bad request or a store without an answer,
    /// as envoyproxy/ratelimit has them.
    pub status: u16,
    /// Its body: JSON where it was decided, else a line of text.
    pub body: String,
}

/// Decides a JSON call.
pub type Asks =
    Arc<dyn Fn(Bytes) -> Pin<Box<dyn Future<Output = JsonAnswer> + Send>> + Send + Sync>;

/// What the HTTP port shows.
#[derive(Clone)]
pub struct Public {
    /// Whether the process wants calls.
    pub ready: Ready,
    /// What is not as it should be though calls are answered; `None`: nothing.
    pub degraded: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// The metrics.
    pub scrape: Arc<Scrape>,
    /// Decides JSON calls; `None` where `/json` is off.
    pub json: Option<Asks>,
    /// The largest body of a JSON call, in bytes.
    pub body_bytes_max: usize,
}

impl std::fmt::Debug for Public {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Public").field("json", &self.json.is_some()).finish_non_exhaustive()
    }
}

/// The routes of the HTTP port.
pub fn public_routes(public: Public) -> Router {
    let ready = Arc::clone(&public.ready);
    let healthcheck = move || {
        let ready = ready();
        async move {
            if ready { (StatusCode::OK, "OK") } else { (StatusCode::INTERNAL_SERVER_ERROR, "") }
        }
    };
    let (ready, degraded) = (public.ready, public.degraded);
    let readyz = move || {
        let (ready, degraded) = (ready(), degraded());
        async move {
            match (ready, degraded) {
                (true, None) => (StatusCode::OK, "ready\n".to_owned()),
                // Ready all the same: a store that is away must not take every replica out at once.
                (true, Some(why)) => (StatusCode::OK, format!("ready, {why}\n")),
                (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "not ready: stopping\n".to_owned()),
            }
        }
    };
    let routes = Router::new()
        .route("/healthcheck", get(healthcheck))
        // Alive is: this answered. Nothing that a restart does not mend belongs here.
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .merge(metrics_routes(public.scrape, "/metrics"));
    match public.json {
        None => routes.route("/json", any(json_is_off)),
        Some(asks) => routes.route("/json", any(move |body| json(asks.clone(), body))),
    }
    .layer(DefaultBodyLimit::max(public.body_bytes_max))
}

/// A route with the metrics: in OpenMetrics for those that ask for it, as Prometheus does, else in
/// the older format, which every tool reads.
pub fn metrics_routes(scrape: Arc<Scrape>, path: &str) -> Router {
    let metrics = move |headers: HeaderMap| {
        let wanted = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let (kind, text) = match wanted {
            Some(wanted) if wanted.contains("openmetrics") => (OPENMETRICS, scrape.text()),
            Some(_) | None => (PLAIN, scrape.plain_text()),
        };
        async move {
            match text {
                Ok(text) => ([(CONTENT_TYPE, kind)], text).into_response(),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }
    };
    Router::new().route(path, get(metrics))
}

async fn json(asks: Asks, body: Bytes) -> Response {
    let answer = asks(body).await;
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let decided = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    let kind = if decided { "application/json" } else { "text/plain; charset=utf-8" };
    (status, [(CONTENT_TYPE, kind)], answer.body).into_response()
}

async fn json_is_off() -> Response {
    let why = "/json is off because gRPC callers must show a certificate; --json on opens it\n";
    (StatusCode::NOT_FOUND, plain(why.to_owned())).into_response()
}
