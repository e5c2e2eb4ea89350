//! Debug-port routes that the live page reads, as JSON: `/policy`, `/top`, `/now`, `/try`.
//!
//! The data comes from functions that `app` hands in.

use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::BoxFuture;

use super::query::Query;
use super::{PageHandler, TextResult, bad_request, page};

/// Rules that `/policy` lists by default: all of them, for tools that compare two policies.
const RULES_MAX: u64 = 10_000_000;

/// Largest `hits` of `/try`, as in the gRPC request.
const HITS_MAX: u64 = u32::MAX as u64;

/// Parameters of `/policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyQuery {
    /// Keeps rules with this text in their path, file name or limit names, ignoring case.
    pub search: Option<String>,
    /// Most rules to list.
    pub rules_max: usize,
}

/// Parameters of `/try`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TryQuery {
    /// The domain.
    pub domain: String,
    /// Descriptors, each as `k=v,k2=v2`.
    pub descriptors: Vec<String>,
    /// Hits of each descriptor.
    pub hits: u64,
}

/// Predicts the answer to a request without charging it.
pub type TryHandler = Arc<dyn Fn(TryQuery) -> BoxFuture<'static, TextResult> + Send + Sync>;

/// Functions behind the routes. Each returns JSON.
#[derive(Clone)]
pub struct LivePageHandlers {
    /// Lists the rules in force.
    pub policy: Arc<dyn Fn(&PolicyQuery) -> String + Send + Sync>,
    /// Lists the keys with most refusals.
    pub top: PageHandler,
    /// Shows current rates, latency and store state.
    pub now: PageHandler,
    /// Handles `/try`.
    pub try_request: TryHandler,
}

/// Routes of [`LivePageHandlers`].
pub(super) fn live_page_routes(handlers: LivePageHandlers) -> Router {
    let LivePageHandlers { policy, top, now, try_request } = handlers;
    Router::new()
        .route("/top", page(top, json))
        .route("/now", page(now, json))
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
    let rules_max = query.number("most", RULES_MAX, RULES_MAX)?;
    Ok(PolicyQuery {
        search: query.value("search").map(str::to_owned),
        rules_max: usize::try_from(rules_max).unwrap_or(usize::MAX),
    })
}

fn parse_try_query(query: Option<&str>) -> Result<TryQuery, String> {
    let usage = "usage: domain=D&descriptor=k=v,k2=v2 (repeatable), optionally &hits=N";
    let query = Query::parse(query, &["domain", "hits"], &["descriptor"], usage)?;
    let hits = query.number("hits", 1, HITS_MAX)?;
    let descriptors: Vec<String> = query.all("descriptor").map(str::to_owned).collect();
    match query.value("domain") {
        Some(domain) if !descriptors.is_empty() => {
            Ok(TryQuery { domain: domain.to_owned(), descriptors, hits })
        }
        _ => Err(usage.to_owned()),
    }
}

fn json_or_bad_request(result: TextResult) -> Response {
    result.map_or_else(|reason| bad_request(&reason), json)
}

fn json(body: String) -> Response {
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
