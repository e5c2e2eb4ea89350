//! What a client, and the access log, see of a decision.

use crate::client::{Request, get};
use crate::oracle::{Row, Stated, assert_limited};
use crate::stand::Stand;
use crate::wait;

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

fn four(request: &Request, stand: &Stand) -> Row {
    Row::of(stand, (0..4).map(|_| request.clone()))
}

fn statuses(row: &Row) -> Vec<u16> {
    row.replies.iter().map(|reply| reply.status).collect()
}

#[test]
fn the_refusal_comes_at_exactly_the_limit_and_says_which_and_how_long() {
    let stand = Stand::of(THREE_A_YEAR, BY_ADDRESS);
    let row = four(&get("/"), &stand);
    assert_eq!(statuses(&row), [200, 200, 200, 429]);
    assert_eq!(stand.backend.served(), 3);
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
    let stand = Stand::of(THREE_A_YEAR, BY_ADDRESS);
    let row = four(&get("/"), &stand);
    let refusal = row.refusal();
    assert_eq!(refusal.header("content-type"), Some("application/json"));
    let body: serde_json::Value = serde_json::from_str(&refusal.body).expect("JSON");
    assert_eq!(body["error"], "too_many_requests");
    assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    assert_eq!(body["limit"], "per-client");
    assert_eq!(body["retry_after_seconds"], refusal.number("retry-after"));
}

#[test]
fn the_access_log_says_which_limit_refused() {
    let stand = Stand::of(THREE_A_YEAR, BY_ADDRESS);
    four(&get("/logged?q=1"), &stand);
    let line = stand.logged("the refusal in the access log", |line| line["status"] == 429);
    assert_eq!(line["path"], "/logged");
    assert_eq!(line["client"], "127.0.0.1");
    assert_eq!(line["flags"], "RL");
    assert_eq!(line["limited"]["limited_by"], "per-client");
    assert!(line["limited"]["retry_after_ms"].as_f64().is_some_and(|wait| wait > 0.0), "{line}");
    assert_eq!(line["limited"]["source"], "memory");
    let passed = stand.logged("a pass in the access log", |line| line["status"] == 200);
    assert!(passed["limited"].is_null(), "{passed}");
}

#[test]
fn shadow_mode_of_a_rule_lets_pass_what_it_would_refuse() {
    let policy = format!("{THREE_A_YEAR}    shadow_mode: true\n");
    let stand = Stand::of(&policy, BY_ADDRESS);
    let row = four(&get("/"), &stand);
    assert_eq!(statuses(&row), [200; 4]);
    assert_eq!(row.replies[3].number("x-ratelimit-remaining"), 0);
    assert_eq!(row.replies[3].header("retry-after"), None);
}

#[test]
fn shadow_mode_of_the_whole_process_lets_everything_pass() {
    let stand = Stand::of_with_settings(THREE_A_YEAR, BY_ADDRESS, &[("SHADOW_MODE", "true")]);
    let row = four(&get("/"), &stand);
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
    let stand = Stand::of(policy, BY_ADDRESS);
    let limit = Stated::Bucket { burst: 3, per_second: 1.0 };
    let refusal = assert_limited(&stand, &get("/"), limit);
    assert_eq!(refusal.number("retry-after"), 1);
    wait::until("the bucket to refill", || (stand.ask(&get("/")).status == 200).then_some(()));
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
    let stand = Stand::of(policy, rate_limits);
    let row = four(&get("/"), &stand);
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
    let stand = Stand::of(policy, rate_limits);
    let row = four(&get("/").with("x-api-token", "demo"), &stand);
    assert_eq!(statuses(&row), [200, 200, 200, 429]);
    // 3 of 5 are used, although 4 came.
    assert_eq!(statuses(&four(&get("/"), &stand)), [200, 200, 429, 429]);
}

#[test]
fn requests_that_no_rule_knows_pass_without_headers() {
    let stand = Stand::of("domain: another\ndescriptors: []\n", BY_ADDRESS);
    let row = four(&get("/"), &stand);
    assert_eq!(statuses(&row), [200; 4]);
    assert_eq!(row.replies[0].header("x-ratelimit-limit"), None);
}
