//! Routes of the HTTP port: `/healthcheck`, `/healthz`, `/readyz`, `/metrics`, `/json`.
//!
//! `app` supplies the handlers; `wire` decodes JSON requests.

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

/// Response to a `/json` request.
#[derive(Clone, Debug)]
pub struct JsonResponse {
    /// HTTP status, as in envoyproxy/ratelimit: 200 for OK, 429 for OVER_LIMIT, 400 for an invalid
    /// request or an unavailable store.
    pub status: u16,
    /// Response body: JSON for 200 and 429, otherwise one line of text.
    pub body: String,
}

/// Function that decides the JSON request in a `/json` body.
pub type JsonHandler = Arc<dyn Fn(Bytes) -> BoxFuture<'static, JsonResponse> + Send + Sync>;

/// Handlers of the HTTP port's routes.
#[derive(Clone)]
pub struct PublicHandlers {
    /// Reports whether the process accepts requests: a policy is loaded and no shutdown has begun.
    pub is_ready: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Returns the reason why requests are decided without Redis; `None` while Redis decides.
    pub degraded: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// Metrics page.
    pub scrape: Arc<Scrape>,
    /// Decides `/json` requests; `None` if `/json` is disabled.
    pub json: Option<JsonHandler>,
    /// Maximum size of a `/json` request body, in bytes.
    pub body_bytes_max: usize,
}

impl std::fmt::Debug for PublicHandlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublicHandlers").field("json", &self.json.is_some()).finish_non_exhaustive()
    }
}

/// Builds the routes of the HTTP port.
pub fn public_routes(handlers: PublicHandlers) -> Router {
    let is_ready = Arc::clone(&handlers.is_ready);
    let healthcheck = async move || match is_ready() {
        true => (StatusCode::OK, "OK"),
        false => (StatusCode::INTERNAL_SERVER_ERROR, ""),
    };
    let (is_ready, degraded) = (handlers.is_ready, handlers.degraded);
    let readyz = async move || match (is_ready(), degraded()) {
        (true, None) => (StatusCode::OK, "ready\n".to_owned()),
        // Ready despite a Redis outage, which would otherwise remove all replicas at once.
        (true, Some(reason)) => (StatusCode::OK, format!("ready, {reason}\n")),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "not ready: stopping\n".to_owned()),
    };
    let routes = Router::new()
        .route("/healthcheck", get(healthcheck))
        // Liveness checks only that the process responds. A restart would not fix anything else.
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .merge(metrics_routes(handlers.scrape, "/metrics"));
    match handlers.json {
        None => routes.route("/json", any(json_is_off)),
        Some(handler) => routes.route("/json", any(move |body| json(handler, body))),
    }
    .layer(DefaultBodyLimit::max(handlers.body_bytes_max))
}

/// Builds the metrics route. It uses the OpenMetrics format for clients that accept it, such as
/// Prometheus, and otherwise the older text format, which every tool can read.
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
