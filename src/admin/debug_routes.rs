//! Routes of the debug port: settings, limits, metrics, matching rules, the live page, and operator
//! actions.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{from_fn, map_response};
use axum::response::Response;
use axum::routing::get;

use super::action_routes::action_routes;
use super::backend::Backend;
use super::browser_guard::{AllowedHosts, protect};
use super::live_page::page_or_text;
use super::live_page_routes::live_page_routes;
use super::metrics_page::{MetricsEndpoint, metrics_routes};
use super::query::parse_sample;
use super::{page_route, respond, text_response};

/// Plain-text list of endpoints, returned for `/` to clients other than browsers.
const ENDPOINTS: &str = "\
/            this list; browsers get the live page
/rlconfig    every limit, one per line
/stats       hits per limit, one `name: value` per line
/stats/prometheus  all metrics, also under the names of envoyproxy/ratelimit
/config      settings in effect and where each one comes from
/policy      the policy in force, as JSON: ?search=TEXT&most=NUMBER
/top         ?by=used|rejected|near: keys of each limit, now, in the last hour, in the last day
/now         decisions per second, latency, modes that are on, state of Redis or of the memory
/history     the last hour in steps of 10 s: rates, latency, rules: ?rules=NUMBER
/explain     ?domain=D&descriptor=k=v,k2=v2 (repeatable): which rules match, and why
/try         the same and &hits=N: predicts the answer to this request; charges nothing
/counter     ?domain=D&descriptor=k=v,k2=v2: the state of its counters
/overrides   overrides in force, as JSON: ?after=ID
/log-level   the log level and how long it holds

POST, with `Authorization: Bearer TOKEN` (the token of --debug-token-file), on all replicas that share
Redis:
/override          ?target=DOMAIN_OR_RULE&descriptor=k=v&limit=N, or mode=, or scale=; and for=, until=,
                   or permanent=true; reason=, by=
/override/delete   ?target=DOMAIN_OR_RULE&descriptor=k=v

The same, in this replica only:
/reset             ?domain=D&descriptor=k=v,k2=v2: resets its counters
/leave-redis       ?for=SECONDS: acts as if Redis were unavailable
/return-to-redis   uses Redis again
/log-level         ?to=off|error|warn|info|debug&for=SECONDS
";

/// Header with a random number of the process, by which other replicas tell their peers apart.
pub const INSTANCE_HEADER: &str = "tidegate-instance";

/// Builds the routes of the debug port, protected against requests from hostile web pages.
/// `/stats/prometheus` shows `metrics`.
pub fn debug_routes<B: Backend>(
    backend: Arc<B>,
    metrics: Arc<MetricsEndpoint>,
    hosts: AllowedHosts,
) -> Router {
    let explain = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        let usage = "usage: domain=D&descriptor=k=v,k2=v2 (repeatable)";
        let query = parse_sample(query.as_deref(), &["domain"], usage);
        respond(query.and_then(|query| backend.explain(&query)), text_response)
    };
    let instance = HeaderValue::from(backend.instance());
    Router::new()
        .route("/", get(async |headers: HeaderMap| page_or_text(&headers, ENDPOINTS)))
        .route("/rlconfig", page_route(B::rlconfig, text_response))
        .route("/stats", page_route(B::stats, text_response))
        .route("/config", page_route(B::config, text_response))
        .route("/explain", get(explain))
        .merge(live_page_routes())
        .merge(action_routes())
        .with_state(backend)
        .merge(metrics_routes(metrics, "/stats/prometheus"))
        .layer(from_fn(move |request, next| protect(hosts, request, next)))
        .layer(map_response(move |mut response: Response| {
            response.headers_mut().insert(INSTANCE_HEADER, instance.clone());
            std::future::ready(response)
        }))
}
