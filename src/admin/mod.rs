//! The HTTP side: probes, metrics and `/json` for everybody who may reach the service; listings and
//! explanations for operators on a port of their own.
//!
//! It never decides: what it shows and what operators may change is handed in as functions. Not here: gRPC (`wire`),
//! what the listings say (`policy`), which ports are open (`app`).

mod debug;
mod guard;
mod live;
mod operate;
mod page;
mod public;
mod query;
mod serve;

pub use debug::{Debug, Explained, Explains, debug_routes};
pub use guard::Hosts;
pub use live::{Attempt, Live, Search, Told, Tries};
pub use operate::{Counters, Done, Operate, Order, Orders, Profiled, Profiles, Token};
pub use public::{Asks, JsonAnswer, Public, metrics_routes, public_routes};
pub use serve::{Limits, serve};

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
