//! Payments that fail, counted when the answer is known: a question before, a charge after.

use super::http_client::{Reply, post};
use super::stack::Stand;
use crate::support::wait;

/// Failed payments in 15 minutes, as the example states it.
const LIMIT: u64 = 10;

fn pay(stand: &Stand, answer: &str) -> Reply {
    stand.ask(&post("/payment").with("x-backend-status", answer))
}

/// Envoy does not wait for the charge, so the test does: payments that succeed are not counted and
/// show what is left.
fn wait_for_remaining(stand: &Stand, remaining: u64) {
    wait::until(&format!("the charge that leaves {remaining}"), || {
        (pay(stand, "200").number("x-ratelimit-remaining") == remaining).then_some(())
    });
}

#[test]
fn only_failed_payments_count_and_the_one_after_the_last_is_refused() {
    let stand = Stand::of_example("public-api");
    for (left, answer) in (1..LIMIT).rev().zip(["402", "503", "400"].into_iter().cycle()) {
        assert_eq!(pay(&stand, answer).status.to_string(), answer);
        wait_for_remaining(&stand, left);
    }
    assert_eq!(pay(&stand, "402").status, 402);
    let refusal = wait::until("the refusal", || {
        let reply = pay(&stand, "200");
        (reply.status == 429).then_some(reply)
    });
    assert!((1..=15 * 60).contains(&refusal.number("retry-after")), "{refusal:?}");
    let served = stand.backend.served();
    assert_eq!(pay(&stand, "402").status, 429);
    assert_eq!(stand.backend.served(), served, "a refused payment reached the backend");
}
