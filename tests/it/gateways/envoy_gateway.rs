//! A real Envoy with a rate limit filter and a route as Envoy Gateway writes them.

use crate::envoy::bootstrap::Bootstrap;
use crate::envoy::http_client::get;
use crate::envoy::stack::{Stack, written};

const ROUTE: &str = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example";

fn policy(limit: &str) -> String {
    format!(
        "domain: default/eg/http\ndescriptors:\n  - key: {ROUTE}\n    value: {ROUTE}\n    \
         descriptors:\n      - key: rule-0-match-0\n        rate_limit: {limit}\n"
    )
}

/// The filter: limit headers by the draft, no x-envoy-ratelimited, one domain.
fn bootstrap() -> Bootstrap {
    let actions = format!(
        "[{{actions: [{{generic_key: {{descriptor_key: {ROUTE}, descriptor_value: {ROUTE}}}}}, \
         {{request_headers: {{header_name: x-user-id, descriptor_key: rule-0-match-0}}}}]}}]"
    );
    Bootstrap::shipped()
        .with_rate_limits(&actions)
        .with_filter("domain", "default/eg/http")
        .with_filter("disable_x_envoy_ratelimited_header", true)
}

#[test]
fn the_limit_header_has_no_name_since_its_limit_has_none() {
    let policy = written(&policy("{unit: hour, requests_per_unit: 21}"));
    let stack = Stack::new(bootstrap(), policy.path());
    let reply = stack.ask(&get("/").with("x-user-id", "one"));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-ratelimit-limit"), Some("21, 21;w=3600"));
    assert_eq!(reply.number("x-ratelimit-remaining"), 20);
    assert!((1..=3600).contains(&reply.number("x-ratelimit-reset")), "{reply:?}");
    let other = stack.ask(&get("/"));
    assert_eq!((other.status, other.header("x-ratelimit-limit")), (200, None), "no such header");
}

#[test]
fn each_value_of_a_distinct_header_is_rejected_at_its_own_limit() {
    // A year, so that no window ends during the test.
    let policy = written(&policy("{unit: year, requests_per_unit: 3}"));
    let stack = Stack::new(bootstrap(), policy.path());
    let ask = |user: &str| stack.ask(&get("/").with("x-user-id", user));
    let statuses: Vec<u16> = (0..4).map(|_| ask("one").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let rejected = ask("one");
    assert_eq!(rejected.header("x-ratelimit-limit"), Some("3, 3;w=31536000"));
    assert_eq!(rejected.header("x-envoy-ratelimited"), None);
    assert_eq!(ask("two").status, 200);
    assert_eq!(stack.backend.served(), 4);
}

/// Number of rules on the route.
const RULES: usize = 256;

/// The rule with the lowest limit.
const TIGHTEST: usize = 137;

/// The rules of a route: 2 requests a year for one of them, far more for the others.
fn policy_of_256_rules() -> String {
    let rule = |at: usize| {
        let requests = if at == TIGHTEST { 2 } else { 1_000 + at };
        format!(
            "      - key: rule-{at}-match--1\n        value: rule-{at}-match--1\n        \
             rate_limit: {{unit: year, requests_per_unit: {requests}}}\n"
        )
    };
    let rules: String = (0..RULES).map(rule).collect();
    format!(
        "domain: default/eg/http\ndescriptors:\n  - key: {ROUTE}\n    value: {ROUTE}\n    \
         descriptors:\n{rules}"
    )
}

#[test]
fn the_tightest_of_256_rules_on_a_route_rejects_the_request() {
    let actions = |at: usize| {
        format!(
            "{{actions: [{{generic_key: {{descriptor_key: {ROUTE}, descriptor_value: {ROUTE}}}}}, \
             {{generic_key: {{descriptor_key: rule-{at}-match--1, \
             descriptor_value: rule-{at}-match--1}}}}]}}"
        )
    };
    let all: Vec<String> = (0..RULES).map(actions).collect();
    let bootstrap = bootstrap().with_rate_limits(&format!("[{}]", all.join(", ")));
    let policy = written(&policy_of_256_rules());
    let stack = Stack::new(bootstrap, policy.path());
    let replies: Vec<_> = (0..3).map(|_| stack.ask(&get("/"))).collect();
    let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    for (reply, remaining) in replies.iter().zip([1, 0, 0]) {
        // The tightest limit first, then all of them in the order of the rules.
        let limits = reply.header("x-ratelimit-limit").unwrap_or_default();
        assert!(limits.starts_with("2, 1000;w=31536000, 1001;w=31536000, "), "{limits}");
        assert_eq!(limits.split(", ").count(), 1 + RULES);
        assert_eq!(reply.number("x-ratelimit-remaining"), remaining);
    }
    assert_eq!(stack.backend.served(), 2);
}
