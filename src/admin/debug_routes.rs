//! The routes of the debug port, for operators: what is configured, which limits there are, and
//! why a request would be answered as it would. What changes something is in `operate`.
//!
//! Not here: what the pages say (`policy`, `settings`; functions are handed in).

use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::action_routes::{Operate, operate_routes};
use super::browser_guard::{Hosts, guarded};
use super::live_page::page_or;
use super::page_routes::{Live, live_routes};
use super::query_string::Query;
use super::{Page, plain};

/// What `/explain` is asked: a domain and its descriptors, as on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explains {
    /// The domain.
    pub domain: String,
    /// Descriptors, each as `k=v,k2=v2`.
    pub descriptors: Vec<String>,
}

/// An explanation, or what is wrong with the question.
pub type Explained = Result<String, String>;

/// What the debug port shows.
#[derive(Clone)]
pub struct Debug {
    /// Every limit on a line, as envoyproxy/ratelimit prints them.
    pub rlconfig: Page,
    /// The settings in effect and where each is from; secrets hidden.
    pub config: Page,
    /// Explains a request.
    pub explain: Arc<dyn Fn(&Explains) -> Explained + Send + Sync>,
    /// What the page reads.
    pub live: Live,
    /// What operators can do.
    pub operate: Operate,
}

impl std::fmt::Debug for Debug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Debug { .. }")
    }
}

/// What `/` lists, to whoever is no browser.
const ENDPOINTS: &str = "\
/            this list; for browsers the live page
/rlconfig    every limit, a line each
/config      settings in effect and where each one is from
/policy      the policy in force, as JSON: ?search=TEXT&most=NUMBER
/top         the keys that are refused most: now, in the last hour, in the last day
/now         decisions per second, and how the store does
/explain     ?domain=D&descriptor=k=v,k2=v2 (several): which rules match, and why
/try         the same, and &hits=N: what it would be answered now; charges nothing
/counter     ?domain=D&descriptor=k=v,k2=v2: how its counters stand
/switches    the switches that are set
/log-level   from which level on logs are written

/pprof       ?seconds=N: a CPU profile, for who shows the token below

POST, with `Authorization: Bearer TOKEN` (the token of --debug-token-file), in this replica only:
/reset             ?domain=D&descriptor=k=v,k2=v2: its counters are as good as new
/switch            ?target=DOMAIN_OR_PATH&to=shadow|allow|deny|20%25&for=SECONDS
/undo              ?target=DOMAIN_OR_PATH, or nothing for every switch
/leave-store       ?for=SECONDS: act as if Redis were away
/return-to-store   ask Redis again
/log-level         ?to=off|error|warn|info|debug&for=SECONDS
";

/// The routes of the debug port.
pub fn debug_routes(debug: Debug, hosts: Hosts) -> Router {
    let page = |page: Page| {
        get(move || {
            let text = page();
            async move { plain(text) }
        })
    };
    let (explain, operate) = (debug.explain, debug.operate);
    Router::new()
        .route("/", get(|headers: HeaderMap| async move { page_or(&headers, ENDPOINTS) }))
        .route("/rlconfig", page(debug.rlconfig))
        .route("/config", page(debug.config))
        .route(
            "/explain",
            get(move |RawQuery(query): RawQuery| {
                let answer = explained(explain.as_ref(), query.as_deref());
                async move { answer }
            }),
        )
        .merge(live_routes(debug.live))
        .merge(operate_routes(operate))
        .layer(from_fn(move |request, next| guarded(hosts, request, next)))
}

fn explained(explain: &dyn Fn(&Explains) -> Explained, query: Option<&str>) -> Response {
    match question(query).and_then(|question| explain(&question)) {
        Ok(text) => plain(text),
        Err(wrong) => (StatusCode::BAD_REQUEST, plain(format!("{wrong}\n"))).into_response(),
    }
}

/// Reads `domain=D&descriptor=k=v,k2=v2&descriptor=…`.
fn question(query: Option<&str>) -> Result<Explains, String> {
    let query = Query::read(query)?;
    let how = "ask with domain=D and descriptor=k=v,k2=v2";
    query.only(&["domain"], &["descriptor"], how)?;
    let descriptors: Vec<String> = query.all("descriptor").map(str::to_owned).collect();
    match query.value("domain") {
        Some(domain) if !descriptors.is_empty() => Ok(Explains { domain, descriptors }),
        _ => Err(how.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_lacks_something_is_told_how_to_ask() {
        for bad in ["", "domain=d", "descriptor=k=v", "domain=%f", "x=1", "domain=d&domain=d"] {
            assert!(question(Some(bad)).is_err(), "{bad}");
        }
        let asked = question(Some("domain=d&descriptor=a=b&descriptor=c=d")).unwrap();
        assert_eq!(asked.descriptors, ["a=b", "c=d"]);
    }
}
