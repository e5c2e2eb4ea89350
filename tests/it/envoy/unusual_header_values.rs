//! Any header value can be limited: none makes the call fail, because a failed call lets the
//! request pass.

use super::admission_bounds::RequestSeries;
use super::bootstrap::Bootstrap;
use super::http_client::{Request, get};
use super::stack::{Stack, written};

const POLICY: &str = "
domain: edge
descriptors:
  - key: api_token
    rate_limit: {name: per-token, unit: year, requests_per_unit: 3}
";
const BY_TOKEN: &str =
    "[{actions: [{request_headers: {header_name: x-api-token, descriptor_key: api_token}}]}]";

/// Envoy takes heads of at most 60 KiB.
const LONG_BYTES: usize = 40_000;
const LONGEST_BYTES: usize = 60_000;

fn with_token(token: impl AsRef<[u8]>) -> Request {
    get("/").with("x-api-token", token)
}

fn assert_three_pass(stack: &Stack, token: &[u8]) {
    let row = RequestSeries::of(stack, (0..5).map(|_| with_token(token)));
    let statuses: Vec<u16> = row.replies.iter().map(|reply| reply.status).collect();
    let shown = String::from_utf8_lossy(&token[..token.len().min(40)]);
    assert_eq!(statuses, [200, 200, 200, 429, 429], "{shown:?}");
}

#[test]
fn a_value_with_an_invalid_byte_is_limited_like_any_other() {
    let stack = Stack::of(POLICY, BY_TOKEN);
    assert_three_pass(&stack, b"a\xffb");
    assert_three_pass(&stack, b"a\xfeb");
    assert_three_pass(&stack, b"\xc3");
}

#[test]
fn a_value_of_forty_kilobytes_is_limited_like_any_other() {
    let stack = Stack::of(POLICY, BY_TOKEN);
    assert_three_pass(&stack, &[b'x'; LONG_BYTES]);
    // No client escapes by a longer tail, and none is limited for another's.
    let mut another = vec![b'x'; LONG_BYTES - 1];
    another.push(b'y');
    assert_three_pass(&stack, &another);
}

/// A message may have 1 MiB: sixteen times the longest value.
#[test]
fn the_longest_value_in_sixteen_descriptors_is_limited_like_any_other() {
    let item = BY_TOKEN.trim_matches(['[', ']']);
    let rate_limits = format!("[{}]", [item; 16].join(","));
    let stack = Stack::of(&POLICY.replace(": 3}", ": 48}"), &rate_limits);
    assert_three_pass(&stack, &[b'x'; LONGEST_BYTES]);
}

#[test]
fn odd_but_legal_values_are_limited_each_by_itself() {
    let stack = Stack::of(POLICY, BY_TOKEN);
    let values: [&[u8]; 8] =
        [b"", b"*", b"a_b", b"a\tb", b"\"quoted\"", b"{tag}", b"p\xc3\xa4rchen", b"${env}:%n"];
    for value in values {
        assert_three_pass(&stack, value);
    }
}

#[test]
fn a_trace_state_of_fifty_kilobytes_fails_no_call() {
    let file = written(POLICY);
    let bootstrap = Bootstrap::shipped().with_rate_limits(BY_TOKEN).traced("backend");
    let stack = Stack::new(bootstrap, file.path());
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let state = format!("a={}", "x".repeat(50_000));
    let traced = with_token("t").with("traceparent", parent).with("tracestate", state);
    let row = RequestSeries::of(&stack, (0..5).map(|_| traced.clone()));
    let statuses: Vec<u16> = row.replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}
