//! Charging failures only, such as failed logins, in two ways: take first and refund what
//! succeeded, or peek first and charge after the response.

use super::test_decider::{Bench, d};

const REFUND: &str = "
domain: t
descriptors:
  - key: login
    rate_limit: {unit: hour, requests_per_unit: 5}
";

const CHARGE: &str = "
domain: t
descriptors:
  - key: login
    rate_limit: {unit: hour, requests_per_unit: 5, charge: always}
";

/// Which statuses are failures is the policy's choice, made in Envoy's actions.
fn failed(status: u16) -> bool {
    matches!(status, 401 | 403)
}

#[test]
fn by_refund_only_failed_logins_count() {
    let bench = Bench::new(REFUND);
    let mut failures = 0;
    for status in [200, 401, 200, 404, 403, 200, 200, 401, 401, 200] {
        assert!(bench.one("login=ann").passes(), "{status} after {failures}");
        if failed(status) {
            failures += 1;
        } else {
            bench.ask(&[d("login=ann").refund(1)]);
        }
    }
    assert_eq!(failures, 4);
    assert!(bench.one("login=ann").passes());
    assert!(!bench.one("login=ann").passes(), "the fifth failure was the last");
    assert!(bench.one("login=bob").passes());
}

#[test]
fn by_charge_after_the_fact_only_failed_logins_count() {
    let bench = Bench::new(CHARGE);
    let mut answers = Vec::new();
    for status in [200, 401, 429, 403, 200, 401, 401, 200, 401, 200, 401] {
        // The request asks (a peek takes nothing), the end of its stream charges.
        let passes = bench.ask(&[d("login=ann").hits(0)]).passes();
        answers.push(passes);
        if passes && failed(status) {
            bench.ask(&[d("login=ann").hits(1)]);
        }
    }
    assert_eq!(answers.iter().filter(|passes| **passes).count(), 9);
    assert_eq!(answers[8..], [true, false, false], "the fifth failure was the ninth request");
}

#[test]
fn what_fails_at_the_same_time_counts_beyond_the_limit() {
    let bench = Bench::new(CHARGE);
    // Eight requests asked before the first of them had failed.
    for _ in 0..8 {
        assert!(bench.ask(&[d("login=ann").hits(0)]).passes());
    }
    for _ in 0..8 {
        bench.ask(&[d("login=ann")]);
    }
    assert!(!bench.ask(&[d("login=ann").hits(0)]).passes());
    let facts = bench.told.0.lock().unwrap();
    let charged: u64 = facts.iter().map(|facts| facts.outcome.charged.0).sum();
    assert_eq!(charged, 8, "all of them, not five");
}
