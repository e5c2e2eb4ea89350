//! HTTP ports: the public port for probes, metrics and `/json`, and the debug port for operators.
//!
//! `app` implements [`Backend`] and lists the [`DebugRoutes`], through which these ports show and
//! change the service. The gRPC port is in `server`.

mod backend;
mod browser_guard;
mod debug_routes;
mod http_server;
mod live_page;
mod metrics_page;
mod operator_token;
mod public_routes;
mod query;

pub use backend::{Backend, OperatorToken, Scope, TextResult};
pub use browser_guard::AllowedHosts;
pub use debug_routes::{DebugRoutes, INSTANCE_HEADER};
pub use http_server::{HTTP_CONNECTIONS_MAX, HttpPhase, serve};
pub use metrics_page::{MetricsEndpoint, metrics_routes};
pub use public_routes::{JsonBodies, public_routes};
pub use query::{Parameters, Query};

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

fn text_response(body: String) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

fn error_response(status: StatusCode, reason: &str) -> Response {
    (status, text_response(format!("{reason}\n"))).into_response()
}
