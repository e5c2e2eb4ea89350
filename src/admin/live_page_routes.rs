//! JSON routes of the live page on the debug port: `/policy`, `/top`, `/now` and `/try`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::backend::{Backend, PolicyQuery, Scope};
use super::query::{Query, parse_sample};
use super::{page_route, respond};
use crate::telemetry::TopBy;

/// Default and maximum value of the `most` parameter of `/policy`, which limits the number of rules
/// in the response. Larger than any policy, so that the default lists every rule: tools that
/// compare policies need the full list.
const RULES_MAX: u64 = 10_000_000;

/// Builds the routes that serve the live page's data.
pub(super) fn live_page_routes<B: Backend>() -> Router<Arc<B>> {
    let policy = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        let query = parse_policy_query(query.as_deref());
        respond(query.map(|query| backend.policy(&query)), json_response)
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
        .route("/now", page_route(B::now, json_response))
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

fn json_response(body: String) -> Response {
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
        for bad in ["most=x", "serach=a", "most=1&most=2"] {
            assert!(parse_policy_query(Some(bad)).is_err(), "{bad}");
        }
    }
}
