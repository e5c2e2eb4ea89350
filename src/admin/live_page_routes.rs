//! JSON routes of the live page on the debug port: `/policy`, `/top`, `/now`,
//! `/history` and `/try`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::backend::{Backend, PolicyQuery, Scope};
use super::query::{Query, parse_sample};
use super::respond;
use crate::telemetry::{HISTORY_RULES_MAX, TopBy};

/// Default and maximum value of the `most` parameter of `/policy`, which limits the number of rules
/// in the response. Larger than any policy, so that the default lists every rule: tools that
/// compare policies need the full list.
const RULES_MAX: u64 = 10_000_000;

/// Default of the `rules` parameter of `/history`: the rules that an operator looks at first.
const HISTORY_RULES: u64 = 20;

/// Builds the routes that serve the live page's data.
pub(super) fn live_page_routes<B: Backend>() -> Router<Arc<B>> {
    let policy = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        let query = parse_policy_query(query.as_deref());
        respond(query.map(|query| backend.policy(&query)), json_response)
    };
    let history = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        let result = match parse_history_query(query.as_deref()) {
            Ok((rules_max, scope)) => Ok(backend.history(rules_max, scope).await),
            Err(reason) => Err(reason),
        };
        respond(result, json_response)
    };
    let now = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        let usage = "usage: scope=all|replica, optional";
        let query = Query::parse(query.as_deref(), &["scope"], &[], usage);
        let result = match query.and_then(|query| query.parse_scope()) {
            Ok(scope) => Ok(backend.now(scope).await),
            Err(reason) => Err(reason),
        };
        respond(result, json_response)
    };
    let try_request = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        let usage = "usage: domain=D&descriptor=k=v,k2=v2 (repeatable), optionally &hits=N";
        let result = match parse_sample(query.as_deref(), &["domain", "hits"], usage) {
            Ok(query) => backend.try_request(query).await,
            Err(reason) => Err(reason),
        };
        respond(result, json_response)
    };
    let top = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        let result = match parse_top_query(query.as_deref()) {
            Ok((by, scope)) => Ok(backend.top(by, scope).await),
            Err(reason) => Err(reason),
        };
        respond(result, json_response)
    };
    Router::new()
        .route("/top", get(top))
        .route("/now", get(now))
        .route("/history", get(history))
        .route("/policy", get(policy))
        .route("/try", get(try_request))
}

fn parse_top_query(query: Option<&str>) -> Result<(TopBy, Scope), String> {
    let usage = "usage: by=used|rejected|near&scope=all|replica, both optional";
    let query = Query::parse(query, &["by", "scope"], &[], usage)?;
    let by = match query.value("by") {
        None => TopBy::default(),
        Some(word) => TopBy::ALL.into_iter().find(|by| by.as_str() == word).ok_or(usage)?,
    };
    Ok((by, query.parse_scope()?))
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

fn parse_history_query(query: Option<&str>) -> Result<(usize, Scope), String> {
    let usage = "usage: rules=NUMBER&scope=all|replica, both optional";
    let query = Query::parse(query, &["rules", "scope"], &[], usage)?;
    let rules_max = query.parse_number("rules", HISTORY_RULES, HISTORY_RULES_MAX as u64)?;
    Ok((usize::try_from(rules_max).unwrap_or(HISTORY_RULES_MAX), query.parse_scope()?))
}

pub(super) fn json_response(body: String) -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_keys_has_a_default_and_rejects_other_words() {
        assert_eq!(parse_top_query(None), Ok((TopBy::Rejected, Scope::All)));
        let query = parse_top_query(Some("by=near&scope=replica"));
        assert_eq!(query, Ok((TopBy::Near, Scope::Replica)));
        for bad in ["by=most", "scope=10.0.0.1:6070", "by=used&by=near", "peers=10.0.0.1"] {
            assert!(parse_top_query(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_policy_query_is_parsed_and_an_invalid_one_rejected() {
        let query = parse_policy_query(Some("search=Token&most=5")).unwrap();
        assert_eq!(query, PolicyQuery { search: Some("Token".into()), rules_max: 5 });
        assert_eq!(parse_history_query(None), Ok((20, Scope::All)));
        let query = parse_history_query(Some("rules=100&scope=replica"));
        assert_eq!(query, Ok((100, Scope::Replica)));
        for bad in ["rules=101", "rules=-1", "scope=x", "scope=all&scope=all", "rule=a"] {
            assert!(parse_history_query(Some(bad)).is_err(), "{bad}");
        }
        for bad in ["most=x", "serach=a", "most=1&most=2"] {
            assert!(parse_policy_query(Some(bad)).is_err(), "{bad}");
        }
    }
}
