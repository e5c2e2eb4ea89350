//! docs/API-USERS.md names exactly the headers that real responses carry.

use std::fs;

use crate::envoy::bootstrap::repository;
use crate::envoy::http_client::{Reply, get};
use crate::envoy::stack::Stack;

const POLICY: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {name: per-client, unit: year, requests_per_unit: 1}
  - key: remote_address
    value: 127.0.0.2
    rate_limit: {name: never, unit: year, requests_per_unit: 0}
  - key: remote_address
    value: 127.0.0.3
    rate_limit: {unlimited: true}
";

/// The headers of the page's table, each with whether it stands on a 200, too.
fn table() -> Vec<(String, bool)> {
    let page = fs::read_to_string(repository("docs/API-USERS.md")).expect("the page");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once("` | ").expect("a header and where it stands");
        (name.to_owned(), rest.starts_with("200, 429 |"))
    })
    .collect()
}

fn assert_has(reply: &Reply, expected: impl Fn(bool) -> bool) {
    for (name, on_both) in table() {
        let has = reply.header(&name).is_some();
        assert_eq!(has, expected(on_both), "{name} on {reply:?}");
    }
}

#[test]
fn the_headers_of_the_page_are_those_of_the_answers() {
    assert_eq!(table().len(), 5);
    let stack = Stack::of(POLICY, "[{actions: [{remote_address: {}}]}]");
    let passed = stack.ask(&get("/"));
    assert_eq!(passed.status, 200);
    assert_has(&passed, |on_both| on_both);
    let refused = stack.ask(&get("/"));
    assert_eq!(refused.status, 429);
    assert_has(&refused, |_| true);
    assert!(refused.number("retry-after").abs_diff(refused.number("x-ratelimit-reset")) <= 1);
    let unlimited = stack.ask(&get("/").from(3));
    assert_eq!(unlimited.status, 200);
    assert_has(&unlimited, |_| false);
}

#[test]
fn a_refusal_that_no_wait_ends_says_so_by_the_header_that_is_missing() {
    let stack = Stack::of(POLICY, "[{actions: [{remote_address: {}}]}]");
    let refused = stack.ask(&get("/").from(2));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), None, "{refused:?}");
}
