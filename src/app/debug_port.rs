//! Routes of the debug port: which query parameters each accepts, and what it answers.
//!
//! `live_page_data` has the data of the live page, `admin_actions` the changes. `admin` has the HTTP
//! side: parsing, the operator token, and responses.

use std::sync::Arc;

use super::admin_actions::{
    delete_overrides, disable_store, read_counters, reset_counters, return_to_redis, set_log_level,
    set_override,
};
use super::admin_wiring::AdminWiring;
use super::explain_offline::{SampleRequest, explain_request};
use super::live_page_data::{changes_of, history, list_rules, list_top_keys, now};
use super::try_request::dry_run_request;
use crate::admin::{DebugRoutes, Parameters, Query, TextResult};
use crate::clock::Clock;

/// Maximum value of the `hits` parameter, because `hits_addend` is a 32-bit field in Envoy's
/// protocol.
const HITS_MAX: u64 = u32::MAX as u64;

/// Plain-text list of routes, returned for `/` to clients other than browsers.
const LIST: &str = "\
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

const fn once(names: &'static [&'static str], usage: &'static str) -> Parameters {
    Parameters { once: names, repeated: &[], usage }
}

const POLICY: Parameters =
    once(&["search", "most"], "usage: search=TEXT&most=NUMBER, both optional");
const TOP: Parameters =
    once(&["by", "scope"], "usage: by=used|rejected|near&scope=all|replica, both optional");
const NOW: Parameters = once(&["scope"], "usage: scope=all|replica, optional");
const HISTORY: Parameters =
    once(&["rules", "scope"], "usage: rules=NUMBER&scope=all|replica, both optional");
const EXPLAIN: Parameters = Parameters {
    once: &["domain"],
    repeated: &["descriptor"],
    usage: "usage: domain=D&descriptor=k=v,k2=v2 (repeatable)",
};
const TRY: Parameters = Parameters {
    once: &["domain", "hits"],
    repeated: &["descriptor"],
    usage: "usage: domain=D&descriptor=k=v,k2=v2 (repeatable), optionally &hits=N",
};
const COUNTER: Parameters = once(&["domain", "descriptor"], "usage: domain=D&descriptor=k=v,k2=v2");
const OVERRIDES: Parameters = once(&["after"], "usage: optionally after=ID");
const SET_OVERRIDE: Parameters = once(
    &[
        "target",
        "for",
        "permanent",
        "descriptor",
        "limit",
        "burst",
        "anchor",
        "limit_name",
        "mode",
        "scale",
        "until",
        "reason",
        "by",
    ],
    "usage: target=DOMAIN_OR_RULE, optionally &descriptor=k=v,k2=v2; one of \
     &limit=N&burst=N&anchor=DAY&limit_name=NAME, &mode=unlimited|deny|shadow, &scale=20%25; one of \
     &for=SECONDS, &until=TIME, &permanent=true; optionally &reason=TEXT&by=NAME",
);
const DELETE_OVERRIDES: Parameters = once(
    &["target", "descriptor", "limit_name", "kind"],
    "usage: target=DOMAIN_OR_RULE, optionally \
     &descriptor=k=v,k2=v2&limit_name=NAME&kind=numbers|scale|mode; without target, kind= deletes \
     all of that kind on domains and rules",
);
const LEAVE_REDIS: Parameters =
    once(&["for"], "usage: for=SECONDS, or no parameter to stay until /return-to-redis");
const LOG_LEVEL: Parameters =
    once(&["to", "for"], "usage: to=off|error|warn|info|debug, optionally &for=SECONDS");
const NOTHING: Parameters = once(&[], "usage: no parameter");

/// Returns the routes.
pub(super) fn debug_routes() -> DebugRoutes<AdminWiring> {
    DebugRoutes::new(LIST)
        .page("/rlconfig", rlconfig)
        .page("/stats", |wiring| wiring.telemetry.statsd_lines())
        .page("/config", |wiring| wiring.configuration.report())
        .page("/log-level", |wiring| wiring.log_level.describe(Clock::System.monotonic_now()))
        .text("/explain", EXPLAIN, explain)
        .json("/try", TRY, try_request)
        .json("/policy", POLICY, list_rules)
        .json("/top", TOP, list_top_keys)
        .json("/now", NOW, now)
        .json("/history", HISTORY, history)
        .json("/overrides", OVERRIDES, overrides)
        .text("/counter", COUNTER, read_counters)
        .action("/reset", COUNTER, reset_counters)
        .action("/override", SET_OVERRIDE, set_override)
        .action("/override/delete", DELETE_OVERRIDES, delete_overrides)
        .action("/leave-redis", LEAVE_REDIS, disable_store)
        .action("/return-to-redis", NOTHING, return_to_redis)
        .action("/log-level", LOG_LEVEL, set_log_level)
}

/// Lists all limits, one per line, in the format that envoyproxy/ratelimit uses.
fn rlconfig(wiring: &AdminWiring) -> String {
    let active = wiring.decider.policy();
    let mut text = String::new();
    for rule in wiring.overrides.loaded().rules() {
        let changes: String =
            changes_of(&active, rule.id).map(|change| format!(", override: {change}")).collect();
        rule.listing().for_each(|line| text.extend([&*line, &changes, "\n"]));
    }
    text
}

async fn explain(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    Ok(explain_request(&wiring.decider.policy(), &wiring.key_prefix(), &parse_sample(&query)?))
}

async fn try_request(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    dry_run_request(&wiring.decider, &wiring.key_prefix(), &parse_sample(&query)?).await
}

async fn overrides(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    Ok(wiring.overrides.page_as_json(query.value("after").unwrap_or_default()))
}

/// Parses the request of `/explain` or `/try`. Without `hits`, it has one hit.
fn parse_sample(query: &Query) -> Result<SampleRequest, String> {
    let hits = query.parse_number("hits", 1, HITS_MAX)?;
    let descriptors: Vec<String> = query.values("descriptor").map(str::to_owned).collect();
    let domain = query.required("domain")?.to_owned();
    if descriptors.is_empty() {
        return Err(query.usage.to_owned());
    }
    SampleRequest::parse(domain, &descriptors, hits).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_sample_gets_the_usage() {
        let parse = |text| parse_sample(&Query::parse(Some(text), TRY)?);
        let query = parse("domain=d&descriptor=a=b&descriptor=c=d").unwrap();
        assert_eq!((query.descriptors.len(), query.hits), (2, 1));
        assert_eq!(parse("domain=d&descriptor=a=b&hits=3").unwrap().hits, 3);
        for bad in ["", "domain=d", "descriptor=k=v", "x=1", "domain=d&domain=d"] {
            assert_eq!(parse(bad), Err(TRY.usage.to_owned()), "{bad}");
        }
        assert!(parse("domain=d&descriptor=a&hits=4294967296").is_err());
    }
}
