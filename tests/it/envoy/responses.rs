//! Responses as the client and the access log see them.

use super::admission_bounds::{RequestSeries, StatedLimit, assert_limited};
use super::bootstrap::Bootstrap;
use super::http_client::{Request, get};
use super::stack::{Stack, written};
use crate::support::wait;

/// By the client's address.
const BY_ADDRESS: &str = "[{actions: [{remote_address: {}}]}]";

/// Three a year: no run of the tests sees two such windows, so that three is exact.
const THREE_A_YEAR: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {name: per-client, unit: year, requests_per_unit: 3}
";
const A_YEAR_SECONDS: u64 = 365 * 86_400;

fn four(request: &Request, stack: &Stack) -> RequestSeries {
    RequestSeries::of(stack, (0..4).map(|_| request.clone()))
}

fn statuses(row: &RequestSeries) -> Vec<u16> {
    row.replies.iter().map(|reply| reply.status).collect()
}

#[test]
fn the_refusal_comes_at_exactly_the_limit_and_says_which_and_how_long() {
    let stack = Stack::of(THREE_A_YEAR, BY_ADDRESS);
    let row = four(&get("/"), &stack);
    assert_eq!(statuses(&row), [200, 200, 200, 429]);
    assert_eq!(stack.backend.served(), 3);
    for (reply, remaining) in row.replies.iter().zip([2, 1, 0, 0]) {
        let limit = format!("3, 3;w={A_YEAR_SECONDS};name=\"per-client\"");
        assert_eq!(reply.header("x-ratelimit-limit"), Some(limit.as_str()));
        assert_eq!(reply.number("x-ratelimit-remaining"), remaining);
        assert!((1..=A_YEAR_SECONDS).contains(&reply.number("x-ratelimit-reset")), "{reply:?}");
    }
    let refusal = row.refusal();
    assert_eq!(refusal.header("x-envoy-ratelimited"), Some("true"));
    let wait = refusal.number("retry-after");
    assert!(wait.abs_diff(refusal.number("x-ratelimit-reset")) <= 1, "{refusal:?}");
    assert_eq!(row.replies[0].header("retry-after"), None);
}

#[test]
fn the_body_of_a_refusal_names_the_limit_and_the_wait() {
    let settings = [("TIDEGATE_REJECTION_BODY", "true")];
    let stack = Stack::of_with_settings(THREE_A_YEAR, BY_ADDRESS, &settings);
    let row = four(&get("/"), &stack);
    let refusal = row.refusal();
    assert_eq!(refusal.header("content-type"), Some("application/json"));
    let body: serde_json::Value = serde_json::from_str(&refusal.body).expect("JSON");
    assert_eq!(body["error"], "too_many_requests");
    assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    assert_eq!(body["limit"], "per-client");
    assert_eq!(body["retry_after_seconds"], refusal.number("retry-after"));
}

#[test]
fn a_rule_and_a_domain_have_bodies_of_their_own() {
    let policy = "
domain: edge
body: {content_type: text/html, text: '<p>{name}</p>'}
descriptors:
  - key: path
    value: /plain
    body: {content_type: text/plain, text: 'Slow down: {retry_after_seconds}'}
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: path
    rate_limit: {name: all, unit: year, requests_per_unit: 3}
";
    let by_path = "[{actions: [{request_headers: {header_name: ':path', descriptor_key: path}}]}]";
    let stack = Stack::of(policy, by_path);
    let row = four(&get("/"), &stack);
    assert_eq!(row.refusal().header("content-type"), Some("text/html"));
    assert_eq!(row.refusal().body, "<p>all</p>");
    let denied = stack.ask(&get("/plain"));
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("text/plain")));
    // A limit of nothing gives no time to wait.
    assert_eq!(denied.body, "Slow down: ");
}

#[test]
fn retry_after_stands_there_once_as_seconds_or_as_a_date() {
    let date = [("TIDEGATE_RETRY_AFTER", "date")];
    let stack = Stack::of_with_settings(THREE_A_YEAR, BY_ADDRESS, &date);
    let row = four(&get("/"), &stack);
    let at = row.refusal().header("retry-after").expect("a date");
    assert!(at.ends_with(" GMT"), "{at}");
    let off = [("TIDEGATE_RETRY_AFTER", "off")];
    let stack = Stack::of_with_settings(THREE_A_YEAR, BY_ADDRESS, &off);
    assert_eq!(four(&get("/"), &stack).refusal().header("retry-after"), None);
    // Envoy can write its own then.
    let policy = written(THREE_A_YEAR);
    let bootstrap = Bootstrap::shipped().with_rate_limits(BY_ADDRESS);
    let bootstrap = bootstrap.with_filter("enable_retry_after_header", true);
    let stack = Stack::with_settings(bootstrap, policy.path(), &off);
    let row = four(&get("/"), &stack);
    assert!((1..=A_YEAR_SECONDS).contains(&row.refusal().number("retry-after")));
}

#[test]
fn limit_headers_of_our_own_stand_on_every_answer_once() {
    let settings =
        [("TIDEGATE_HEADERS", "ratelimit"), ("TIDEGATE_LIMIT_NAME_HEADER", "x-limited-by")];
    let stack = Stack::of_with_settings(THREE_A_YEAR, BY_ADDRESS, &settings);
    let row = four(&get("/"), &stack);
    for (reply, remaining) in row.replies.iter().zip([2, 1, 0, 0]) {
        assert_eq!(reply.number("ratelimit-remaining"), remaining);
        assert!(reply.header("ratelimit-limit").is_some_and(|limit| limit.starts_with('3')));
        assert!((1..=A_YEAR_SECONDS).contains(&reply.number("ratelimit-reset")));
    }
    assert_eq!(row.refusal().header("x-limited-by"), Some("per-client"));
    assert_eq!(row.replies[0].header("x-limited-by"), None);
}

#[test]
fn the_access_log_says_which_limit_refused() {
    let stack = Stack::of(THREE_A_YEAR, BY_ADDRESS);
    four(&get("/logged?q=1"), &stack);
    let line = stack.logged("the refusal in the access log", |line| line["status"] == 429);
    assert_eq!(line["path"], "/logged");
    assert_eq!(line["client"], "127.0.0.1");
    assert_eq!(line["flags"], "RL");
    assert_eq!(line["limited"]["limited_by"], "per-client");
    assert!(line["limited"]["retry_after_ms"].as_f64().is_some_and(|wait| wait > 0.0), "{line}");
    assert_eq!(line["limited"]["source"], "memory");
    let passed = stack.logged("a pass in the access log", |line| line["status"] == 200);
    assert!(passed["limited"].is_null(), "{passed}");
}

#[test]
fn shadow_mode_of_a_rule_lets_pass_what_it_would_refuse() {
    let policy = format!("{THREE_A_YEAR}    shadow_mode: true\n");
    let stack = Stack::of(&policy, BY_ADDRESS);
    let row = four(&get("/"), &stack);
    assert_eq!(statuses(&row), [200; 4]);
    assert_eq!(row.replies[3].number("x-ratelimit-remaining"), 0);
    assert_eq!(row.replies[3].header("retry-after"), None);
}

#[test]
fn shadow_mode_of_the_whole_process_lets_everything_pass() {
    let stack = Stack::of_with_settings(THREE_A_YEAR, BY_ADDRESS, &[("SHADOW_MODE", "true")]);
    let row = four(&get("/"), &stack);
    assert_eq!(statuses(&row), [200; 4]);
    assert_eq!(row.replies[3].number("x-ratelimit-remaining"), 0);
}

#[test]
fn a_token_bucket_refills() {
    let policy = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1, burst: 3}
";
    let stack = Stack::of(policy, BY_ADDRESS);
    let limit = StatedLimit::Bucket { burst: 3, per_second: 1.0 };
    let refusal = assert_limited(&stack, &get("/"), limit);
    assert_eq!(refusal.number("retry-after"), 1);
    wait::until("the bucket to refill", || (stack.ask(&get("/")).status == 200).then_some(()));
}

#[test]
fn several_descriptors_get_one_status_each_in_their_order() {
    let policy = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {name: per-client, unit: year, requests_per_unit: 7}
  - key: plan
    descriptors:
      - key: remote_address
        rate_limit: {name: per-plan, unit: year, requests_per_unit: 3}
";
    let rate_limits = "
- actions: [{remote_address: {}}]
- actions: [{generic_key: {descriptor_key: nobody_limits_this, descriptor_value: x}}]
- actions: [{generic_key: {descriptor_key: plan, descriptor_value: free}}, {remote_address: {}}]
";
    let stack = Stack::of(policy, rate_limits);
    let row = four(&get("/"), &stack);
    assert_eq!(statuses(&row), [200, 200, 200, 429]);
    // The tightest first, then all in the order of their descriptors.
    let shown = format!(
        "3, 7;w={A_YEAR_SECONDS};name=\"per-client\", 3;w={A_YEAR_SECONDS};name=\"per-plan\""
    );
    for reply in &row.replies {
        assert_eq!(reply.header("x-ratelimit-limit"), Some(shown.as_str()));
    }
}

#[test]
fn a_direct_call_gets_a_status_for_each_descriptor_also_for_those_without_a_limit() {
    let stack = Stack::of(THREE_A_YEAR, BY_ADDRESS);
    let answer = stack.tidegate.ask(&["edge", "remote_address=a", "nobody=x", "remote_address=b"]);
    let statuses = answer["statuses"].as_array().expect("statuses");
    let names: Vec<_> = statuses.iter().map(|s| s["currentLimit"]["name"].as_str()).collect();
    assert_eq!(names, [Some("per-client"), None, Some("per-client")]);
    assert!(statuses.iter().all(|status| status["code"] == "OK"), "{answer}");
}

#[test]
fn a_refused_request_is_charged_to_none_of_its_limits() {
    let policy = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {name: per-client, unit: year, requests_per_unit: 5}
  - key: api_token
    rate_limit: {name: per-token, unit: year, requests_per_unit: 3}
";
    let rate_limits = "
- actions: [{remote_address: {}}]
- actions: [{request_headers: {header_name: x-api-token, descriptor_key: api_token}}]
";
    let stack = Stack::of(policy, rate_limits);
    let row = four(&get("/").with("x-api-token", "demo"), &stack);
    assert_eq!(statuses(&row), [200, 200, 200, 429]);
    // 3 of 5 are used, although 4 came.
    assert_eq!(statuses(&four(&get("/"), &stack)), [200, 200, 429, 429]);
}

#[test]
fn requests_that_no_rule_knows_pass_without_headers() {
    let stack = Stack::of("domain: another\ndescriptors: []\n", BY_ADDRESS);
    let row = four(&get("/"), &stack);
    assert_eq!(statuses(&row), [200; 4]);
    assert_eq!(row.replies[0].header("x-ratelimit-limit"), None);
}
