//! Routes of the HTTP port: `/healthcheck`, `/healthz`, `/readyz`, `/metrics`, `/json`, `/authz`.
//!
//! Not here: the decisions ([`Backend`]); `wire` decodes JSON requests.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::time;

use super::backend::Backend;
use super::error_response;
use super::metrics_page::{MetricsEndpoint, metrics_routes};
use super::query::{Parameters, Query};
use crate::domain::{CallPlace, CallerMemory, HeldBuffer, Hold, HttpReply};

/// Bounds of the request bodies of `/json`.
#[derive(Clone, Debug)]
pub struct JsonBodies {
    /// Maximum size of a request body, in bytes.
    pub bytes_max: usize,
    /// Memory held for request bodies that are still being received.
    pub memory: Arc<CallerMemory>,
}

/// Builds the routes of the HTTP port. `/json` and `/authz` are disabled if `json` is `None`.
pub fn public_routes<B: Backend>(
    backend: Arc<B>,
    metrics: Arc<MetricsEndpoint>,
    json: Option<JsonBodies>,
) -> Router {
    let healthcheck = async |State(backend): State<Arc<B>>| match backend.is_ready() {
        true => (StatusCode::OK, "OK"),
        false => (StatusCode::INTERNAL_SERVER_ERROR, ""),
    };
    let readyz = async |State(backend): State<Arc<B>>| {
        match (backend.is_ready(), backend.outage()) {
            (true, None) => (StatusCode::OK, "ready\n".to_owned()),
            // Ready despite a Redis outage, which would otherwise remove all replicas at once.
            (true, Some(reason)) => (StatusCode::OK, format!("ready, {reason}\n")),
            (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "not ready: stopping\n".to_owned()),
        }
    };
    let routes = Router::new()
        .route("/healthcheck", get(healthcheck))
        // Liveness checks only that the process responds. A restart would not fix anything else.
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(readyz));
    let routes = match json {
        None => routes
            .route("/json", any(reject_disabled_json))
            .route("/authz", any(reject_disabled_json)),
        Some(bodies) => {
            let json = async move |State(backend): State<Arc<B>>, request| {
                handle_json(&*backend, &bodies, request).await
            };
            routes.route("/json", any(json)).route("/authz", any(handle_authz::<B>))
        }
    };
    routes.with_state(backend).merge(metrics_routes(metrics, "/metrics"))
}

/// Timeout for receiving the body of a `/json` request.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Statuses with which `/authz` can deny a request. 429 is the default; 403 is for NGINX, whose
/// `auth_request` treats only 401 and 403 as denials. 401 is not offered, because browsers respond
/// to it by asking for a password.
const DENIED_STATUSES: [u16; 2] = [429, 403];

const AUTHZ: Parameters = Parameters {
    once: &["domain", "denied_status"],
    repeated: &[],
    usage: "usage: domain=D, optionally &denied_status=403",
};

/// Parses the query string of `/authz`: the domain, and the status of a denial. The request body is
/// ignored.
fn parse_authz(query: Option<&str>) -> Result<(String, u16), String> {
    let query = Query::parse(query, AUTHZ)?;
    let domain = query.required("domain")?.to_owned();
    let [default, _] = DENIED_STATUSES;
    let denied_status = match query.value("denied_status") {
        None => default,
        Some(text) => {
            let status = text.parse().ok().filter(|status| DENIED_STATUSES.contains(status));
            status.ok_or("denied_status= must be 429 or 403")?
        }
    };
    Ok((domain, denied_status))
}

async fn handle_authz<B: Backend>(
    State(backend): State<Arc<B>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    match parse_authz(query.as_deref()) {
        Ok((domain, denied_status)) => {
            decision_response(backend.authorize(&domain, &headers, denied_status).await)
        }
        Err(usage) => error_response(StatusCode::BAD_REQUEST, &usage),
    }
}

async fn handle_json(
    backend: &impl Backend,
    bodies: &JsonBodies,
    request: Request<Body>,
) -> Response {
    // Browsers let any page send a body of another type to any address, without asking the server.
    if !is_json(request.headers()) {
        let reason = "the content type must be application/json";
        return error_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason);
    }
    let late = (StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time");
    let body = receive_body(bodies, request.into_body());
    let body = match time::timeout(BODY_TIMEOUT, body).await.unwrap_or(Err(late)) {
        Ok(body) => body,
        Err((status, reason)) => return error_response(status, reason),
    };
    decision_response(backend.decide_json(body).await)
}

fn decision_response(answer: HttpReply) -> Response {
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

/// Receives a request body, subject to the size limit per body. Fails if it has to make room for
/// other bodies before it is complete.
async fn receive_body(
    bodies: &JsonBodies,
    body: Body,
) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let mut place = CallPlace::new(&bodies.memory);
    let mut received = pin!(receive_whole_body(bodies, body));
    let received = poll_fn(|cx| place.poll(cx, |cx| received.as_mut().poll(cx))).await;
    received.unwrap_or(Err((StatusCode::SERVICE_UNAVAILABLE, "too many incomplete requests")))
}

async fn receive_whole_body(
    bodies: &JsonBodies,
    mut body: Body,
) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let too_long = (StatusCode::PAYLOAD_TOO_LARGE, "the body is too long");
    let length_max = bodies.bytes_max;
    if body.size_hint().lower() > length_max as u64 {
        return Err(too_long);
    }
    let mut hold = Hold::new(&bodies.memory, 0);
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
    let reason = "/json and /authz are off, because gRPC callers must present a certificate; set \
                  --json on to turn them on";
    error_response(StatusCode::NOT_FOUND, reason)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::Poll;

    use futures_util::{StreamExt as _, stream};

    use super::*;
    use crate::domain::{CALLER_FLOOR_BYTES, HeldMemory};

    async fn receive(bodies: &JsonBodies, body: Body) -> Result<Vec<u8>, StatusCode> {
        receive_body(bodies, body).await.map_err(|(status, _)| status)
    }

    /// Returns a body whose length is not declared.
    fn chunked(chunks: [&'static str; 2]) -> Body {
        Body::from_stream(stream::iter(chunks.map(Ok::<_, Infallible>)))
    }

    #[tokio::test]
    async fn a_body_is_bounded_by_its_size() {
        let memory = HeldMemory::new(1_024, 1_024).add_caller();
        let bodies = JsonBodies { bytes_max: 8, memory };
        let whole = Ok(b"12345678".to_vec());
        assert_eq!(receive(&bodies, Body::from("12345678")).await, whole);
        assert_eq!(receive(&bodies, chunked(["1234", "5678"])).await, whole);
        let too_large = Err(StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(receive(&bodies, Body::from("123456789")).await, too_large);
        assert_eq!(receive(&bodies, chunked(["1234", "56789"])).await, too_large);
        assert_eq!(bodies.memory.held_bytes(), 0);
    }

    #[tokio::test]
    async fn the_oldest_incomplete_body_makes_room_for_a_new_one() {
        let length = 2 * CALLER_FLOOR_BYTES;
        let memory = HeldMemory::new(0, 1 << 20).add_caller();
        let bodies = JsonBodies { bytes_max: length, memory };
        let half = stream::iter([Ok::<_, Infallible>(vec![b' '; length / 2])]);
        let mut oldest = pin!(receive(&bodies, Body::from_stream(half.chain(stream::pending()))));
        assert!(poll_fn(|cx| Poll::Ready(oldest.as_mut().poll(cx).is_pending())).await);
        let whole = vec![b' '; length];
        assert_eq!(receive(&bodies, Body::from(whole.clone())).await, Ok(whole));
        assert_eq!(oldest.await, Err(StatusCode::SERVICE_UNAVAILABLE));
    }
}
