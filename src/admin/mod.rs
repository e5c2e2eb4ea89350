//! HTTP ports: the public port for probes, metrics and `/json`, and the debug port for operators.
//!
//! `app` implements [`Backend`], through which these ports show and change the service. The gRPC
//! port is in `server`.

mod action_routes;
mod backend;
mod browser_guard;
mod debug_routes;
mod http_server;
mod live_page;
mod live_page_routes;
mod metrics_page;
mod public_routes;
mod query;

pub use backend::{
    AdminAction, Backend, OperatorToken, OverrideParameters, OverrideSelector, PolicyQuery,
    SampleQuery, Scope, TextResult,
};
pub use browser_guard::AllowedHosts;
pub use debug_routes::{INSTANCE_HEADER, debug_routes};
pub use http_server::{HttpLimits, HttpPhase, serve};
pub use metrics_page::{MetricsEndpoint, metrics_routes};
pub use public_routes::{JsonBodies, public_routes};

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};

fn text_response(body: String) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

fn error_response(status: StatusCode, reason: &str) -> Response {
    (status, text_response(format!("{reason}\n"))).into_response()
}

/// Turns a result into a response: `ok` for a body, status 400 for an error.
fn respond(result: TextResult, ok: fn(String) -> Response) -> Response {
    result.map_or_else(|reason| error_response(StatusCode::BAD_REQUEST, &reason), ok)
}

/// Builds a GET route for a page without query parameters. `page` returns the body, and `respond`
/// turns it into a response.
fn page_route<B: Backend>(
    page: fn(&B) -> String,
    respond: fn(String) -> Response,
) -> MethodRouter<Arc<B>> {
    get(async move |State(backend): State<Arc<B>>| respond(page(&backend)))
}
