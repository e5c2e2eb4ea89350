//! Routes of the debug port: settings, limits, metrics, matching rules, the live page, and operator
//! actions.

use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::HeaderMap;
use axum::middleware::from_fn;
use axum::routing::get;

use super::action_routes::{AdminHandlers, action_routes};
use super::browser_guard::{AllowedHosts, protect};
use super::live_page::page_or_text;
use super::live_page_routes::{LivePageHandlers, live_page_routes};
use super::metrics_page::{MetricsEndpoint, metrics_routes};
use super::query::Query;
use super::{PageHandler, TextResult, page_route, text_or_bad_request, text_response};

/// Query parameters of `/explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainQuery {
    /// Domain of the request to explain.
    pub domain: String,
    /// Descriptors of the request, each as `k=v,k2=v2`.
    pub descriptors: Vec<String>,
}

/// Handlers of the debug port's routes.
#[derive(Clone)]
pub struct DebugHandlers {
    /// Lists all limits, one per line, in the format that envoyproxy/ratelimit uses.
    pub rlconfig: PageHandler,
    /// Lists statistics per limit, under the statsd names of envoyproxy/ratelimit.
    pub stats: PageHandler,
    /// Handler of `/stats/prometheus`: all metrics, including those with envoyproxy/ratelimit
    /// names.
    pub ratelimit_metrics: Arc<MetricsEndpoint>,
    /// Lists all settings with their values and sources. Secrets are hidden.
    pub config: PageHandler,
    /// Explains which rules a request matches, and lists the Redis keys of the counters.
    pub explain: Arc<dyn Fn(&ExplainQuery) -> TextResult + Send + Sync>,
    /// Handlers that return the live page's data as JSON.
    pub live_page: LivePageHandlers,
    /// Handlers for the routes that operators use to inspect and change the service.
    pub actions: AdminHandlers,
}

impl std::fmt::Debug for DebugHandlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DebugHandlers { .. }")
    }
}

/// Plain-text list of endpoints, returned for `/` to clients other than browsers.
const ENDPOINTS: &str = "\
/            this list; browsers get the live page
/rlconfig    every limit, one per line
/stats       hits per limit, one `name: value` per line
/stats/prometheus  all metrics, also under the names of envoyproxy/ratelimit
/config      settings in effect and where each one comes from
/policy      the policy in force, as JSON: ?search=TEXT&most=NUMBER
/top         keys with most refusals: now, in the last hour, in the last day
/now         decisions per second, latency, state of the store
/explain     ?domain=D&descriptor=k=v,k2=v2 (repeatable): which rules match, and why
/try         the same and &hits=N: predicts the answer to this request; charges nothing
/counter     ?domain=D&descriptor=k=v,k2=v2: the state of its counters
/switches    overrides in force
/log-level   the log level and how long it holds

POST, with `Authorization: Bearer TOKEN` (the token of --debug-token-file), in this replica only:
/reset             ?domain=D&descriptor=k=v,k2=v2: resets its counters
/switch            ?target=DOMAIN_OR_PATH&to=shadow|allow|deny|20%25&for=SECONDS
/undo              ?target=DOMAIN_OR_PATH, or without it every override
/leave-store       ?for=SECONDS: acts as if Redis were unavailable
/return-to-store   uses Redis again
/log-level         ?to=off|error|warn|info|debug&for=SECONDS
";

/// Builds the routes of the debug port, protected against requests from hostile web pages.
pub fn debug_routes(handlers: DebugHandlers, hosts: AllowedHosts) -> Router {
    let explain = handlers.explain;
    Router::new()
        .route("/", get(|headers: HeaderMap| async move { page_or_text(&headers, ENDPOINTS) }))
        .route("/rlconfig", page_route(handlers.rlconfig, text_response))
        .route("/stats", page_route(handlers.stats, text_response))
        .merge(metrics_routes(handlers.ratelimit_metrics, "/stats/prometheus"))
        .route("/config", page_route(handlers.config, text_response))
        .route(
            "/explain",
            get(move |RawQuery(query): RawQuery| async move {
                let query = parse_explain_query(query.as_deref());
                text_or_bad_request(query.and_then(|query| explain(&query)))
            }),
        )
        .merge(live_page_routes(handlers.live_page))
        .merge(action_routes(handlers.actions))
        .layer(from_fn(move |request, next| protect(hosts, request, next)))
}

fn parse_explain_query(query: Option<&str>) -> Result<ExplainQuery, String> {
    let usage = "usage: domain=D&descriptor=k=v,k2=v2 (repeatable)";
    let query = Query::parse(query, &["domain"], &["descriptor"], usage)?;
    let descriptors: Vec<String> = query.values("descriptor").map(str::to_owned).collect();
    match query.value("domain") {
        Some(domain) if !descriptors.is_empty() => {
            Ok(ExplainQuery { domain: domain.to_owned(), descriptors })
        }
        _ => Err(usage.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_explain_query_gets_the_usage() {
        for bad in ["", "domain=d", "descriptor=k=v", "x=1", "domain=d&domain=d"] {
            assert!(parse_explain_query(Some(bad)).is_err(), "{bad}");
        }
        let query = parse_explain_query(Some("domain=d&descriptor=a=b&descriptor=c=d")).unwrap();
        assert_eq!(query.descriptors, ["a=b", "c=d"]);
    }
}
