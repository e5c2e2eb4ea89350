//! Charges when the response is known: a peek before, a charge after.

use super::bootstrap::Bootstrap;
use super::http_client::{Reply, get, post};
use super::stack::{Stack, written};
use crate::support::wait;

/// Failed payments in 15 minutes, as the example states it.
const LIMIT: u64 = 10;

fn pay(stack: &Stack, answer: &str) -> Reply {
    stack.ask(&post("/payment").with("x-backend-status", answer))
}

/// Envoy does not wait for the charge, so the test does: payments that succeed are not counted and
/// show what is left.
fn wait_for_remaining(stack: &Stack, remaining: u64) {
    wait::until(&format!("the charge that leaves {remaining}"), || {
        (pay(stack, "200").number("x-ratelimit-remaining") == remaining).then_some(())
    });
}

#[test]
fn only_failed_payments_count_and_the_one_after_the_last_is_refused() {
    let stack = Stack::of_example("public-api");
    for (left, answer) in (1..LIMIT).rev().zip(["402", "503", "400"].into_iter().cycle()) {
        assert_eq!(pay(&stack, answer).status.to_string(), answer);
        wait_for_remaining(&stack, left);
    }
    assert_eq!(pay(&stack, "402").status, 402);
    let refusal = wait::until("the refusal", || {
        let reply = pay(&stack, "200");
        (reply.status == 429).then_some(reply)
    });
    assert!((1..=15 * 60).contains(&refusal.number("retry-after")), "{refusal:?}");
    let served = stack.backend.served();
    assert_eq!(pay(&stack, "402").status, 429);
    assert_eq!(stack.backend.served(), served, "a refused payment reached the backend");
}

/// A usage limit as Envoy Gateway writes it: each request asks with 0 hits, and each response bills
/// 10.
const USAGE_ROUTES: &str = r#"
name: edge
virtual_hosts:
- name: all
  domains: ["*"]
  routes:
  - match: { prefix: / }
    route: { cluster: backend }
    typed_per_filter_config:
      envoy.filters.http.ratelimit:
        "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
        rate_limits:
        - actions: [ { generic_key: { descriptor_key: route, descriptor_value: llm } } ]
          hits_addend: { number: 0 }
        - actions: [ { generic_key: { descriptor_key: route, descriptor_value: llm } } ]
          apply_on_stream_done: true
          hits_addend: { number: 10 }
"#;

const USAGE_POLICY: &str = "
domain: edge
descriptors:
  - key: route
    rate_limit: {name: usage, unit: year, requests_per_unit: 21}
";

/// The statuses of four requests, one after another. Each waits for the bill of the one before.
fn usage_of_four(settings: &[(&str, &str)], left: [u64; 4]) -> [u16; 4] {
    let (routes, policy) = (written(USAGE_ROUTES), written(USAGE_POLICY));
    let bootstrap = Bootstrap::shipped().with_routes(routes.path());
    let stack = Stack::with_settings(bootstrap, policy.path(), settings);
    left.map(|left| {
        let status = stack.ask(&get("/")).status;
        let what = format!("the bill that leaves {left}");
        wait::until(&what, || {
            let limits = stack.tidegate.left("edge", "route=llm");
            limits.values().copied().eq([left]).then_some(())
        });
        status
    })
}

#[test]
fn a_usage_limit_of_21_that_each_answer_bills_10_refuses_the_fourth_request() {
    let billed = usage_of_four(&[("TIDEGATE_CHARGE", "billed")], [11, 1, 0, 0]);
    assert_eq!(billed, [200, 200, 200, 429]);
    assert_eq!(usage_of_four(&[], [11, 1, 1, 1]), [200; 4], "refused bills charge nothing");
}
