//! JSON routes of the live page on the debug port: `/policy`, `/top`, `/now` and `/try`.
//!
//! `app` supplies the handlers that produce the data.

use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::BoxFuture;

use super::query::Query;
use super::{PageHandler, TextResult, bad_request, page_route};

/// Default and maximum value of the `most` parameter of `/policy`, which limits the number of rules
/// in the response. Larger than any policy, so that the default lists every rule: tools that
/// compare policies need the full list.
const RULES_MAX: u64 = 10_000_000;

/// Maximum value of the `hits` parameter of `/try`, because `hits_addend` is a 32-bit field in
/// Envoy's protocol.
const HITS_MAX: u64 = u32::MAX as u64;

/// Query parameters of `/policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyQuery {
    /// Text to search for in the paths, file names and limit names of rules, ignoring case.
    pub search: Option<String>,
    /// Maximum number of rules to list.
    pub rules_max: usize,
}

/// Query parameters of `/try`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TryQuery {
    /// Domain of the request whose decision is predicted.
    pub domain: String,
    /// Descriptors of the request, each as `k=v,k2=v2`.
    pub descriptors: Vec<String>,
    /// Hits that each descriptor would charge; 0 only checks the limits.
    pub hits: u64,
}

/// Function that predicts the decision on a request without charging any counter.
pub type TryHandler = Arc<dyn Fn(TryQuery) -> BoxFuture<'static, TextResult> + Send + Sync>;

/// Handlers of the live page's routes. Each returns JSON.
#[derive(Clone)]
pub struct LivePageHandlers {
    /// Lists the rules of the active policy that match a search.
    pub policy: Arc<dyn Fn(&PolicyQuery) -> String + Send + Sync>,
    /// Lists the keys with the most rejections.
    pub top: PageHandler,
    /// Reports the current rates, the latency percentiles and the state of the store.
    pub now: PageHandler,
    /// Predicts the decision on the request in a `/try` query.
    pub try_request: TryHandler,
}

/// Builds the routes that serve the live page's data.
pub(super) fn live_page_routes(handlers: LivePageHandlers) -> Router {
    let LivePageHandlers { policy, top, now, try_request } = handlers;
    Router::new()
        .route("/top", page_route(top, json_response))
        .route("/now", page_route(now, json_response))
        .route(
            "/policy",
            get(move |RawQuery(query): RawQuery| async move {
                json_or_bad_request(
                    parse_policy_query(query.as_deref()).map(|query| policy(&query)),
                )
            }),
        )
        .route(
            "/try",
            get(move |RawQuery(query): RawQuery| async move {
                match parse_try_query(query.as_deref()) {
                    Ok(query) => json_or_bad_request(try_request(query).await),
                    Err(reason) => bad_request(&reason),
                }
            }),
        )
}

fn parse_policy_query(query: Option<&str>) -> Result<PolicyQuery, String> {
    let usage = "usage: search=TEXT&most=NUMBER, both optional";
    let query = Query::parse(query, &["search", "most"], &[], usage)?;
    let rules_max = query.parse_number("most", RULES_MAX, RULES_MAX)?;
    Ok(PolicyQuery {
        search: query.value("search").map(str::to_owned),
        rules_max: usize::try_from(rules_max).unwrap_or(usize::MAX),
    })
}

fn parse_try_query(query: Option<&str>) -> Result<TryQuery, String> {
    let usage = "usage: domain=D&descriptor=k=v,k2=v2 (repeatable), optionally &hits=N";
    let query = Query::parse(query, &["domain", "hits"], &["descriptor"], usage)?;
    let hits = query.parse_number("hits", 1, HITS_MAX)?;
    let descriptors: Vec<String> = query.values("descriptor").map(str::to_owned).collect();
    match query.value("domain") {
        Some(domain) if !descriptors.is_empty() => {
            Ok(TryQuery { domain: domain.to_owned(), descriptors, hits })
        }
        _ => Err(usage.to_owned()),
    }
}

fn json_or_bad_request(result: TextResult) -> Response {
    result.map_or_else(|reason| bad_request(&reason), json_response)
}

fn json_response(body: String) -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_parsed_and_invalid_ones_rejected() {
        let query = parse_policy_query(Some("search=Token&most=5")).unwrap();
        assert_eq!(query, PolicyQuery { search: Some("Token".into()), rules_max: 5 });
        for bad in ["most=x", "serach=a", "most=1&most=2"] {
            assert!(parse_policy_query(Some(bad)).is_err(), "{bad}");
        }
        let query = parse_try_query(Some("domain=d&descriptor=a=b&descriptor=c=d&hits=3")).unwrap();
        assert_eq!((query.descriptors.len(), query.hits), (2, 3));
        for bad in ["domain=d", "descriptor=a", "domain=d&descriptor=a&hits=4294967296"] {
            assert!(parse_try_query(Some(bad)).is_err(), "{bad}");
        }
    }
}
