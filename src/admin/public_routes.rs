//! Routes of the HTTP port: `/healthcheck`, `/healthz`, `/readyz`, `/metrics`, `/json`.
//!
//! The meaning of a JSON request is in `wire`; `app` hands in the function.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use futures_util::future::BoxFuture;

use super::text_response;
use crate::telemetry::{CONTENT_TYPE as OPENMETRICS, CONTENT_TYPE_PLAIN as PLAIN, Scrape};

/// Response of `/json`.
#[derive(Clone, Debug)]
pub struct JsonResponse {
    /// HTTP status, as in envoyproxy/ratelimit: 200 for OK, 429 for OVER_LIMIT, 400 for an invalid
    /// request or an unavailable store.
    pub status: u16,
    /// JSON for 200 and 429, otherwise a line of text.
    pub body: String,
}

/// Decides a JSON request.
pub type JsonHandler = Arc<dyn Fn(Bytes) -> BoxFuture<'static, JsonResponse> + Send + Sync>;

/// Functions behind the routes of the HTTP port.
#[derive(Clone)]
pub struct PublicHandlers {
    /// Whether the process accepts requests: a policy is loaded and it is not shutting down.
    pub is_ready: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Why requests are decided without Redis; `None` if they are not.
    pub degraded: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// Metrics.
    pub scrape: Arc<Scrape>,
    /// Decides JSON requests; `None` if `/json` is off.
    pub json: Option<JsonHandler>,
    /// Largest body of a JSON request, in bytes.
    pub body_bytes_max: usize,
}

impl std::fmt::Debug for PublicHandlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublicHandlers").field("json", &self.json.is_some()).finish_non_exhaustive()
    }
}

/// Routes of the HTTP port.
pub fn public_routes(handlers: PublicHandlers) -> Router {
    let is_ready = Arc::clone(&handlers.is_ready);
    let healthcheck = async move || match is_ready() {
        true => (StatusCode::OK, "OK"),
        false => (StatusCode::INTERNAL_SERVER_ERROR, ""),
    };
    let (is_ready, degraded) = (handlers.is_ready, handlers.degraded);
    let readyz = async move || match (is_ready(), degraded()) {
        (true, None) => (StatusCode::OK, "ready\n".to_owned()),
        // Still ready: an outage of Redis must not remove every replica at once.
        (true, Some(reason)) => (StatusCode::OK, format!("ready, {reason}\n")),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "not ready: stopping\n".to_owned()),
    };
    let routes = Router::new()
        .route("/healthcheck", get(healthcheck))
        // Liveness checks nothing else: a restart would not repair it.
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .merge(metrics_routes(handlers.scrape, "/metrics"));
    match handlers.json {
        None => routes.route("/json", any(json_is_off)),
        Some(handler) => routes.route("/json", any(move |body| json(handler, body))),
    }
    .layer(DefaultBodyLimit::max(handlers.body_bytes_max))
}

/// Route of the metrics: in the OpenMetrics format for clients that accept it, as Prometheus does,
/// otherwise in the older text format, which every tool reads.
pub fn metrics_routes(scrape: Arc<Scrape>, path: &str) -> Router {
    let metrics = move |headers: HeaderMap| {
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let (content_type, body) = match accept {
            Some(accept) if accept.contains("openmetrics") => (OPENMETRICS, scrape.text()),
            Some(_) | None => (PLAIN, scrape.plain_text()),
        };
        async move {
            match body {
                Ok(body) => ([(CONTENT_TYPE, content_type)], body).into_response(),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }
    };
    Router::new().route(path, get(metrics))
}

async fn json(handler: JsonHandler, body: Bytes) -> Response {
    let answer = handler(body).await;
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let decided = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    let kind = if decided { "application/json" } else { "text/plain; charset=utf-8" };
    (status, [(CONTENT_TYPE, kind)], answer.body).into_response()
}

async fn json_is_off() -> Response {
    let reason = "/json is off because gRPC callers must show a certificate; --json on opens it\n";
    (StatusCode::NOT_FOUND, text_response(reason.to_owned())).into_response()
}
