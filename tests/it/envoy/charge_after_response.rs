//! Failed payments, charged when the response is known: a peek before, a charge after.

use super::http_client::{Reply, post};
use super::stack::Stack;
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
