//! HTTP ports: the public port for probes, metrics and `/json`, and the debug port for operators.
//!
//! `app` supplies a handler for everything that these ports show or change. The gRPC port is in
//! `server`.

mod action_routes;
mod browser_guard;
mod debug_routes;
mod http_server;
mod live_page;
mod live_page_routes;
mod metrics_page;
mod public_routes;
mod query;

pub use action_routes::{
    ActionHandler, AdminAction, AdminHandlers, CounterHandler, OperatorToken, TokenSource,
};
pub use browser_guard::AllowedHosts;
pub use debug_routes::{DebugHandlers, ExplainQuery, debug_routes};
pub use http_server::{HttpLimits, HttpPhase, serve};
pub use live_page_routes::{LivePageHandlers, PolicyQuery, TryHandler, TryQuery};
pub use metrics_page::{MetricsEndpoint, metrics_routes};
pub use public_routes::{
    AuthzHandler, AuthzQuery, DecisionResponse, JsonHandler, JsonHandlers, PublicHandlers,
    public_routes,
};

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};

/// Function that returns the body of a page that has no query parameters.
pub type PageHandler = Arc<dyn Fn() -> String + Send + Sync>;

/// Response body, or an error message that is sent with status 400.
pub type TextResult = Result<String, String>;

fn text_response(body: String) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

fn bad_request(reason: &str) -> Response {
    (StatusCode::BAD_REQUEST, text_response(format!("{reason}\n"))).into_response()
}

fn text_or_bad_request(result: TextResult) -> Response {
    result.map_or_else(|reason| bad_request(&reason), text_response)
}

/// Builds a GET route. `page` returns the body, and `respond` turns it into a response.
fn page_route(page: PageHandler, respond: fn(String) -> Response) -> MethodRouter {
    get(move || {
        let body = page();
        async move { respond(body) }
    })
}
