//! Routes of the HTTP port: `/healthcheck`, `/healthz`, `/readyz`, `/metrics`, `/json`, `/authz`.
//!
//! `app` supplies the handlers; `wire` decodes JSON requests.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::RawQuery;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::time;

use super::metrics_page::{MetricsEndpoint, metrics_routes};
use super::query::Query;
use super::{bad_request, text_response};
use crate::domain::{CallPlace, CallerMemory, HeldBuffer, Hold};

/// Response to a `/json` or `/authz` request.
#[derive(Clone, Debug)]
pub struct DecisionResponse {
    /// HTTP status: 200 for OK, 429 for OVER_LIMIT (or 403 for `/authz` with `denied_status=403`),
    /// 400 for an invalid request, 503 for an unavailable store.
    pub status: u16,
    /// Names and values of the response headers. Without a `content-type` header, the body is sent
    /// as plain text.
    pub headers: Vec<(String, String)>,
    /// Response body; with status 400 or 503, one line of text.
    pub body: String,
}

/// Function that decides the rate limit request in the body of a `/json` request.
pub type JsonHandler = Arc<dyn Fn(Bytes) -> BoxFuture<'static, DecisionResponse> + Send + Sync>;

/// Forward-auth request, in which a proxy asks whether to admit an HTTP request.
#[derive(Clone, Debug)]
pub struct AuthzQuery {
    /// Domain whose limits apply.
    pub domain: String,
    /// HTTP status of the response if the HTTP request is denied: 429 or 403.
    pub denied_status: u16,
    /// Headers that the proxy sent: those of the HTTP request, and `x-forwarded-*` headers that
    /// describe it.
    pub headers: HeaderMap,
}

/// Function that decides a forward-auth request.
pub type AuthzHandler =
    Arc<dyn Fn(AuthzQuery) -> BoxFuture<'static, DecisionResponse> + Send + Sync>;

/// Handlers of `/json` and `/authz`, with the limits on request bodies of `/json`.
#[derive(Clone)]
pub struct JsonHandlers {
    /// Decides the rate limit request in the body of a `/json` request.
    pub decide: JsonHandler,
    /// Decides a forward-auth request to `/authz`.
    pub authorize: AuthzHandler,
    /// Maximum size of a request body, in bytes.
    pub body_bytes_max: usize,
    /// Memory held for request bodies that are still being received.
    pub memory: Arc<CallerMemory>,
}

/// Handlers of the HTTP port's routes.
#[derive(Clone)]
pub struct PublicHandlers {
    /// Returns whether the process accepts requests: a policy is loaded and no shutdown has begun.
    pub is_ready: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Returns why requests are currently decided without Redis, or `None` if Redis decides them.
    pub outage: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// Handler of `/metrics`.
    pub metrics: Arc<MetricsEndpoint>,
    /// Handlers of `/json` and `/authz`; `None` if they are disabled.
    pub json: Option<JsonHandlers>,
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
    let (is_ready, outage) = (handlers.is_ready, handlers.outage);
    let readyz = async move || match (is_ready(), outage()) {
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
        .merge(metrics_routes(handlers.metrics, "/metrics"));
    match handlers.json {
        None => routes
            .route("/json", any(reject_disabled_json))
            .route("/authz", any(reject_disabled_json)),
        Some(handlers) => {
            let authorize = Arc::clone(&handlers.authorize);
            let authz = any(async move |RawQuery(query): RawQuery, headers: HeaderMap| {
                match parse_authz(query.as_deref(), headers) {
                    Ok(query) => decision_response(authorize(query).await),
                    Err(usage) => bad_request(&usage),
                }
            });
            let json = any(async move |request| handle_json(&handlers, request).await);
            routes.route("/json", json).route("/authz", authz)
        }
    }
}

/// Timeout for receiving the body of a `/json` request.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Statuses with which `/authz` can deny a request. 429 is the default; 403 is for NGINX, whose
/// `auth_request` treats only 401 and 403 as denials. 401 is not offered, because browsers respond
/// to it by asking for a password.
const DENIED_STATUSES: [u16; 2] = [429, 403];

/// Parses the query string of `/authz`. The request body is ignored.
fn parse_authz(query: Option<&str>, headers: HeaderMap) -> Result<AuthzQuery, String> {
    let usage = "usage: domain=D, optionally &denied_status=403";
    let query = Query::parse(query, &["domain", "denied_status"], &[], usage)?;
    let domain = query.value("domain").ok_or(usage)?.to_owned();
    let [default, _] = DENIED_STATUSES;
    let denied_status = match query.value("denied_status") {
        None => default,
        Some(text) => {
            let status = text.parse().ok().filter(|status| DENIED_STATUSES.contains(status));
            status.ok_or("denied_status= must be 429 or 403")?
        }
    };
    Ok(AuthzQuery { domain, denied_status, headers })
}

async fn handle_json(handlers: &JsonHandlers, request: Request<Body>) -> Response {
    // Browsers let any page send a body of another type to any address, without asking the server.
    if !is_json(request.headers()) {
        let reason = "the content type must be application/json";
        return error_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason);
    }
    let late = (StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time");
    let body = receive_body(handlers, request.into_body());
    let body = match time::timeout(BODY_TIMEOUT, body).await.unwrap_or(Err(late)) {
        Ok(body) => body,
        Err((status, reason)) => return error_response(status, reason),
    };
    decision_response((handlers.decide)(body.into()).await)
}

fn decision_response(answer: DecisionResponse) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // Without headers, `into_response` sets the content type to plain text.
    let mut response = (status, answer.body).into_response();
    for (name, value) in answer.headers {
        // The settings and the policy have validated the names and values.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

fn error_response(status: StatusCode, reason: &str) -> Response {
    (status, text_response(format!("{reason}\n"))).into_response()
}

/// Receives a request body, subject to the size limit per body. Fails if it has to make room for
/// other bodies before it is complete.
async fn receive_body(
    handlers: &JsonHandlers,
    body: Body,
) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let mut place = CallPlace::new(&handlers.memory);
    let mut received = pin!(receive_whole_body(handlers, body));
    let received = poll_fn(|cx| place.poll(cx, |cx| received.as_mut().poll(cx))).await;
    received.unwrap_or(Err((StatusCode::SERVICE_UNAVAILABLE, "too many incomplete requests")))
}

async fn receive_whole_body(
    handlers: &JsonHandlers,
    mut body: Body,
) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let too_long = (StatusCode::PAYLOAD_TOO_LARGE, "the body is too long");
    let length_max = handlers.body_bytes_max;
    if body.size_hint().lower() > length_max as u64 {
        return Err(too_long);
    }
    let mut hold = Hold::new(&handlers.memory, 0);
    let mut received = HeldBuffer::new(&mut hold);
    while let Some(frame) = body.frame().await {
        let failed = (StatusCode::BAD_REQUEST, "the body ended early");
        let Ok(chunk) = frame.map_err(|_| failed)?.into_data() else { continue };
        if received.len() + chunk.len() > length_max {
            return Err(too_long);
        }
        received.push(&chunk, length_max);
    }
    Ok(received.into_bytes())
}

async fn reject_disabled_json() -> Response {
    let reason = "/json and /authz are off because gRPC callers must show a certificate; --json on \
                  opens them\n";
    (StatusCode::NOT_FOUND, text_response(reason.to_owned())).into_response()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;
    use std::task::Poll;

    use futures_util::{StreamExt as _, stream};

    use super::*;
    use crate::domain::{CALLER_FLOOR_BYTES, HeldMemory};

    /// Returns handlers that accept bodies of `bytes_max` bytes.
    fn handlers(bytes_max: usize, memory: Arc<CallerMemory>) -> JsonHandlers {
        let response =
            || DecisionResponse { status: 200, headers: Vec::new(), body: String::new() };
        JsonHandlers {
            decide: Arc::new(move |_| Box::pin(ready(response()))),
            authorize: Arc::new(move |_| Box::pin(ready(response()))),
            body_bytes_max: bytes_max,
            memory,
        }
    }

    async fn receive(handlers: &JsonHandlers, body: Body) -> Result<Vec<u8>, StatusCode> {
        receive_body(handlers, body).await.map_err(|(status, _)| status)
    }

    /// Returns a body whose length is not declared.
    fn chunked(chunks: [&'static str; 2]) -> Body {
        Body::from_stream(stream::iter(chunks.map(Ok::<_, Infallible>)))
    }

    #[tokio::test]
    async fn a_body_is_bounded_by_its_size() {
        let handlers = handlers(8, HeldMemory::new(1_024, 1_024).add_caller());
        let whole = Ok(b"12345678".to_vec());
        assert_eq!(receive(&handlers, Body::from("12345678")).await, whole);
        assert_eq!(receive(&handlers, chunked(["1234", "5678"])).await, whole);
        let too_large = Err(StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(receive(&handlers, Body::from("123456789")).await, too_large);
        assert_eq!(receive(&handlers, chunked(["1234", "56789"])).await, too_large);
        assert_eq!(handlers.memory.held_bytes(), 0);
    }

    #[tokio::test]
    async fn the_oldest_incomplete_body_makes_room_for_a_new_one() {
        let length = 2 * CALLER_FLOOR_BYTES;
        let handlers = handlers(length, HeldMemory::new(0, 1 << 20).add_caller());
        let half = stream::iter([Ok::<_, Infallible>(vec![b' '; length / 2])]);
        let mut oldest = pin!(receive(&handlers, Body::from_stream(half.chain(stream::pending()))));
        assert!(poll_fn(|cx| Poll::Ready(oldest.as_mut().poll(cx).is_pending())).await);
        let whole = vec![b' '; length];
        assert_eq!(receive(&handlers, Body::from(whole.clone())).await, Ok(whole));
        assert_eq!(oldest.await, Err(StatusCode::SERVICE_UNAVAILABLE));
    }
}
