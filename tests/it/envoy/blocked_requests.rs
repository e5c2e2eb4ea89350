//! Rejections that waiting does not end, because the limit is 0 or the hits exceed the limit: Envoy
//! and other callers are told the end of the window, and never to retry soon.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use prost::Message as _;
use serde_json::{Value, json};

use super::bootstrap::Bootstrap;
use super::http_client::get;
use super::stack::{Stack, written};
use crate::limits_service::messages::{CheckRequest, check_result, client, request};
use crate::support::http::post;
use crate::support::redis_server::Server;

const MINUTE: u64 = 60;
const HOUR: u64 = 3_600;
const MONTH: u64 = 31 * 24 * HOUR;
const YEAR: u64 = 365 * 24 * HOUR;

/// The value of `case`, or an entry of another key for classes; its limit, the hits that it rejects, and the seconds until its window ends. Fixed windows are so
/// long that a test hardly sees their last second.
type Case = (&'static str, &'static str, u32, RangeInclusive<u64>);

const CASES: [Case; 14] = [
    ("fixed-0", "rate_limit: {unit: year, requests_per_unit: 0}", 1, 2..=YEAR),
    ("fixed", "rate_limit: {unit: year, requests_per_unit: 5}", 6, 2..=YEAR),
    ("calendar", "rate_limit: {unit: month, align: calendar, requests_per_unit: 0}", 1, 2..=MONTH),
    (
        "window-0",
        "rate_limit: {algorithm: sliding_window, unit: hour, requests_per_unit: 0}",
        1,
        HOUR..=HOUR,
    ),
    (
        "window",
        "rate_limit: {algorithm: sliding_window, unit: hour, requests_per_unit: 5}",
        6,
        HOUR..=HOUR,
    ),
    (
        "log-0",
        "rate_limit: {algorithm: sliding_log, unit: hour, requests_per_unit: 0}",
        1,
        HOUR..=HOUR,
    ),
    (
        "log",
        "rate_limit: {algorithm: sliding_log, unit: hour, requests_per_unit: 5}",
        6,
        HOUR..=HOUR,
    ),
    (
        "bucket-0",
        "rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 0}",
        1,
        MINUTE..=MINUTE,
    ),
    (
        "bucket",
        "rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 6, burst: 12}",
        13,
        2 * MINUTE..=2 * MINUTE,
    ),
    (
        "credits",
        "rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 7000, burst: 70000}",
        70_001,
        10..=10,
    ),
    (
        "leaky",
        "rate_limit: {algorithm: leaky_bucket, unit: hour, requests_per_unit: 4}",
        5,
        HOUR / 4..=HOUR / 4,
    ),
    (
        "shared=gold",
        "rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 6, \
         tiers: {method: shared, classes: {gold: {floor: 0%}, free: {floor: 50%}}}}",
        7,
        MINUTE..=MINUTE,
    ),
    (
        "hybrid=free",
        "rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 60, \
         tiers: {method: hybrid, classes: {free: {share: 50%, floor: 0%}}}}",
        61,
        HOUR..=HOUR,
    ),
    (
        "list",
        "rate_limits: [{name: a, unit: second, requests_per_unit: 100}, \
         {name: b, algorithm: sliding_log, unit: hour, requests_per_unit: 5}]",
        6,
        HOUR..=HOUR,
    ),
];

/// The header, key and value of a case.
fn entry_of(case: &'static str) -> (&'static str, &'static str, &'static str) {
    match case.split_once('=') {
        Some(("shared", class)) => ("x-shared", "shared", class),
        Some((_, class)) => ("x-hybrid", "hybrid", class),
        None => ("x-case", "case", case),
    }
}

fn policy() -> String {
    let rules = CASES.iter().map(|(name, limit, ..)| match entry_of(name) {
        (_, "case", value) => format!("  - key: case\n    value: {value}\n    {limit}\n"),
        (_, key, _) => format!("  - key: {key}\n    {limit}\n"),
    });
    let slots = "  - key: case\n    value: slots\n    \
                 rate_limit: {algorithm: concurrency, requests_per_unit: 0}\n";
    format!("domain: edge\ndescriptors:\n{}{slots}", rules.collect::<String>())
}

/// Envoy with its own `retry-after`, which sends the hits that a header names.
fn stack(settings: &[(&str, &str)]) -> Stack {
    let limits = ["case", "shared", "hybrid"].map(|key| {
        format!(
            "- actions: [{{request_headers: {{header_name: x-{key}, descriptor_key: {key}}}}}]\n  \
             hits_addend: {{format: '%REQ(x-hits)%'}}\n"
        )
    });
    let limits: serde_yaml::Value = serde_yaml::from_str(&limits.concat()).expect("YAML");
    let bootstrap = Bootstrap::shipped().with_rate_limits("[]");
    let bootstrap = bootstrap.with_filter("enable_retry_after_header", true);
    let bootstrap = bootstrap.with_filter("rate_limits", limits);
    let policy = written(&policy());
    Stack::with_settings(bootstrap, policy.path(), settings)
}

/// The same call over `/json`: its descriptor's limit, and hits above what it has left.
fn json_call(case: &'static str, hits: u32) -> String {
    let (_, key, value) = entry_of(case);
    let entry = json!({"key": key, "value": value});
    json!({"domain": "edge", "hitsAddend": hits, "descriptors": [{"entries": [entry]}]}).to_string()
}

/// The duration that a batch of `tidegate.v1` is told; 0 for none.
fn seconds_in_batch(grpc: SocketAddr, case: &'static str, hits: u32) -> u64 {
    let (_, key, value) = entry_of(case);
    let mut call = request("edge", key, value);
    call.hits_addend = hits;
    let requests = vec![call.encode_to_vec().into()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one");
    let answer = runtime.block_on(async {
        client(grpc).await.check(CheckRequest { requests }).await.expect("an answer")
    });
    let results = answer.into_inner().results;
    let Some(check_result::Result::Response(response)) = &results[0].result else {
        panic!("{results:?}");
    };
    let duration = response.statuses[0].duration_until_reset.as_ref();
    duration.map_or(0, |duration| duration.seconds.unsigned_abs())
}

fn durations_are_those_of_the_window(stack: &Stack) {
    let (http, grpc) = (stack.tidegate.http, stack.tidegate.grpc);
    for (case, limit, hits, expected) in &CASES {
        let (header, _, value) = entry_of(case);
        let request = get("/").with(header, value).with("x-hits", hits.to_string());
        let reply = stack.ask(&request);
        let told = format!("{case}: {limit}: {reply:?}");
        assert_eq!(reply.status, 429, "{told}");
        for header in ["retry-after", "x-ratelimit-reset"] {
            // Envoy reads the clock anew, so that a second may have passed.
            let range = expected.start() - 1..=*expected.end();
            assert!(range.contains(&reply.number(header)), "{header}: {told}");
            assert!(reply.number(header) > 1, "{header}: {told}");
        }

        let reply = post(http, "/json", &json_call(case, *hits));
        assert_eq!(reply.status, 429, "{case}: {}", reply.body);
        let body: Value = serde_json::from_str(&reply.body).expect("JSON");
        let duration = body["statuses"][0]["durationUntilReset"].as_str().unwrap_or_default();
        let seconds = duration.trim_end_matches('s').parse().unwrap_or(0);
        assert!(expected.contains(&seconds), "{case}: {}", reply.body);
        let reset = reply.head.lines().find_map(|line| line.strip_prefix("ratelimit-reset: "));
        let seconds = reset.and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
        assert!(expected.contains(&seconds), "{case}: {}", reply.head);
        assert!(!reply.head.contains("retry-after"), "{case}: {}", reply.head);

        let seconds = seconds_in_batch(grpc, case, *hits);
        assert!(expected.contains(&seconds), "{case} in a batch: {seconds}");
    }
    // Slots have no window, and Envoy turns no duration into one second.
    let reply = stack.ask(&get("/").with("x-case", "slots").with("x-hits", "1"));
    assert_eq!((reply.status, reply.number("retry-after")), (429, 1), "{reply:?}");
    let reply = post(http, "/json", &json_call("slots", 1));
    assert!(!reply.head.contains("retry-after") && !reply.body.contains("durationUntilReset"));
    // The counters are as they were: hits up to the limit pass.
    let reply = stack.ask(&get("/").with("x-case", "window").with("x-hits", "5"));
    assert_eq!(reply.status, 200, "{reply:?}");
    // Within the limit, the duration is the wait, in our header too.
    let reply = post(http, "/json", &json_call("log", 5));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = post(http, "/json", &json_call("log", 1));
    assert!(reply.head.contains("retry-after: "), "{}", reply.head);
}

#[test]
fn a_rejection_that_no_wait_ends_tells_envoy_the_end_of_the_window() {
    durations_are_those_of_the_window(&stack(&[("TIDEGATE_HEADERS", "ratelimit")]));
}

#[test]
fn a_rejection_that_no_wait_ends_tells_the_same_from_redis() {
    let redis = Server::start(&[]);
    let url = format!("127.0.0.1:{}", redis.port);
    // Redis' answer is waited for, however busy the machine is.
    let settings =
        [("TIDEGATE_HEADERS", "ratelimit"), ("REDIS_URL", &*url), ("TIDEGATE_REDIS_BUDGET", "20s")];
    durations_are_those_of_the_window(&stack(&settings));
}
