//! The routes of the debug port that the page reads, as JSON: the policy, refused keys, what goes
//! on now, and what a request would be answered.
//!
//! Not here: what they hold (functions are handed in), the page itself (`page`).

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::query_string::Query;
use super::{Page, plain};

/// Rules that `/policy` lists where nobody says how many: all of them, for whoever compares two.
const RULES_MAX: u64 = 10_000_000;

/// Hits that a request can be tried with: what a call can say.
const HITS_MAX: u64 = u32::MAX as u64;

/// Which rules of the policy to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Only those that have this text in their path, in a limit's name or in their file's name,
    /// whatever its case; `None`: every one.
    pub text: Option<String>,
    /// At most so many.
    pub most: usize,
}

/// A request to try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// The domain.
    pub domain: String,
    /// Descriptors, each as `k=v,k2=v2`.
    pub descriptors: Vec<String>,
    /// Hits of each.
    pub hits: u64,
}

/// JSON, or what is wrong with the question.
pub type Told = Result<String, String>;

/// Tries a request, charging nothing.
pub type Tries = Arc<dyn Fn(Attempt) -> Pin<Box<dyn Future<Output = Told> + Send>> + Send + Sync>;

/// What the page reads.
#[derive(Clone)]
pub struct Live {
    /// The policy in force.
    pub policy: Arc<dyn Fn(&Search) -> String + Send + Sync>,
    /// The keys that were refused most.
    pub top: Page,
    /// What goes on now.
    pub now: Page,
    /// What a request would be answered.
    pub tries: Tries,
}

/// The routes.
pub(super) fn live_routes(live: Live) -> Router {
    let Live { policy, top, now, tries } = live;
    let page = |page: Page| {
        get(move || {
            let text = page();
            async move { json(text) }
        })
    };
    Router::new()
        .route("/top", page(top))
        .route("/now", page(now))
        .route(
            "/policy",
            get(move |RawQuery(query): RawQuery| {
                let told = search(query.as_deref()).map(|search| policy(&search));
                async move { answered(told) }
            }),
        )
        .route(
            "/try",
            get(move |RawQuery(query): RawQuery| async move {
                match attempt(query.as_deref()) {
                    Ok(attempt) => answered(tries(attempt).await),
                    Err(wrong) => answered(Err(wrong)),
                }
            }),
        )
}

fn search(query: Option<&str>) -> Result<Search, String> {
    let query = Query::read(query)?;
    query.only(&["search", "most"], &[], "ask with search=TEXT and most=NUMBER, or nothing")?;
    let most = query.number("most", RULES_MAX, RULES_MAX)?;
    Ok(Search { text: query.value("search"), most: usize::try_from(most).unwrap_or(usize::MAX) })
}

fn attempt(query: Option<&str>) -> Result<Attempt, String> {
    let query = Query::read(query)?;
    let how = "ask with domain=D, descriptor=k=v,k2=v2 (several) and, if you like, hits=N";
    query.only(&["domain", "hits"], &["descriptor"], how)?;
    let hits = query.number("hits", 1, HITS_MAX)?;
    let descriptors: Vec<String> = query.all("descriptor").map(str::to_owned).collect();
    match query.value("domain") {
        Some(domain) if !descriptors.is_empty() => Ok(Attempt { domain, descriptors, hits }),
        _ => Err(how.to_owned()),
    }
}

fn answered(told: Told) -> Response {
    match told {
        Ok(text) => json(text),
        Err(wrong) => (StatusCode::BAD_REQUEST, plain(format!("{wrong}\n"))).into_response(),
    }
}

fn json(text: String) -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_and_an_attempt_say_how_they_are_asked() {
        let found = search(Some("search=Token&most=5")).unwrap();
        assert_eq!(found, Search { text: Some("Token".into()), most: 5 });
        for bad in ["most=x", "serach=a", "most=1&most=2"] {
            assert!(search(Some(bad)).is_err(), "{bad}");
        }
        let tried = attempt(Some("domain=d&descriptor=a=b&descriptor=c=d&hits=3")).unwrap();
        assert_eq!((tried.descriptors.len(), tried.hits), (2, 3));
        for bad in ["domain=d", "descriptor=a", "domain=d&descriptor=a&hits=4294967296"] {
            assert!(attempt(Some(bad)).is_err(), "{bad}");
        }
    }
}
