//! The HTTP side: probes, metrics and `/json` for everybody who may reach the service; listings and
//! explanations for operators on a port of their own.
//!
//! It never decides: what it shows and what operators may change is handed in as functions. Not here: gRPC (`wire`),
//! what the listings say (`policy`), which ports are open (`app`).

mod action_routes;
mod browser_guard;
mod debug_routes;
mod http_server;
mod live_page;
mod page_routes;
mod public_routes;
mod query_string;

pub use action_routes::{Counters, Done, Operate, Order, Orders, Profiled, Profiles, Token};
pub use browser_guard::Hosts;
pub use debug_routes::{Debug, Explained, Explains, debug_routes};
pub use http_server::{Limits, serve};
pub use page_routes::{Attempt, Live, Search, Told, Tries};
pub use public_routes::{Asks, JsonAnswer, Public, metrics_routes, public_routes};

use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// A function that writes a page.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// Whether the process wants calls: a policy is loaded and it is not on its way out.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

fn plain(text: String) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}
