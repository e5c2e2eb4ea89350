//! A dry run returns the decision that the call then gets, and leaves no trace.

use tidegate::domain::Micros;

use super::test_decider::{Bench, TestDecision, TestDescriptor, d};
use crate::support::random::Random;

const ALL_KINDS: &str = "
domain: t
descriptors:
  - key: window
    rate_limit: {unit: minute, requests_per_unit: 7}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 9}
  - key: leaky
    rate_limit: {unit: second, requests_per_unit: 3, algorithm: leaky_bucket, burst: 2}
  - key: sliding
    rate_limit: {unit: minute, requests_per_unit: 8, algorithm: sliding_window}
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 6, algorithm: sliding_log}
  - key: costly
    rate_limit: {unit: minute, requests_per_unit: 20, cost: 3}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: quota
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 4}
  - key: list
    rate_limits:
      - {name: short, unit: second, requests_per_unit: 2}
      - {name: long, unit: hour, requests_per_unit: 30}
  - key: tiers
    rate_limit:
      algorithm: token_bucket
      unit: second
      requests_per_unit: 4
      burst: 10
      tiers: {method: shared, classes: {'0': {floor: 0%}, '1': {floor: 30%}}}
  - key: hybrid
    rate_limit:
      algorithm: token_bucket
      unit: second
      requests_per_unit: 4
      burst: 20
      tiers: {method: hybrid, classes: {'0': {share: 20%, floor: 0%}, '1': {share: 30%, floor: 40%}}}
  - key: free
    rate_limit: {unlimited: true}
";

/// Charged whatever the verdict.
const DEBT: &str = "
domain: t
descriptors:
  - key: debt
    rate_limit: {unit: minute, requests_per_unit: 7, charge: always}
";

const KEYS: [&str; 13] = [
    "hybrid", "window", "bucket", "leaky", "sliding", "log", "costly", "shadow", "quota", "list",
    "tiers", "free", "nobody",
];

/// What both must say alike. When a counter that was charged is as new is only known afterwards.
fn told(answered: &TestDecision) -> impl PartialEq + std::fmt::Debug {
    let rows =
        answered.rows.iter().map(|row| (row.code, row.limit, row.name.clone(), row.remaining));
    (answered.code, rows.collect::<Vec<_>>(), answered.shadowed)
}

/// What a refusal tells: which limit, and the wait.
fn named(answered: &TestDecision) -> (Option<Micros>, Option<String>) {
    (answered.retry_after, answered.limited_by.clone())
}

/// Foresees calls and then makes them; of `hits` at most for each of at most that many descriptors.
fn foreseen_as_answered(accounting: &str, hits: u64, descriptors_max: u64) {
    // Of two classes of one hybrid limit what one leaves the other is not told by looks at both.
    let keys = if descriptors_max > 1 { &KEYS[1..] } else { &KEYS };
    let bench = Bench::new(&ALL_KINDS.replace("domain: t", &format!("domain: t\n{accounting}")));
    let mut numbers = Random::seeded(hits + 7);
    let (mut refused, mut waits) = (0, 0);
    for round in 0..4_000 {
        bench.advance(Micros(numbers.below(1_500_000)));
        let descriptor = |numbers: &mut Random| {
            let path =
                format!("{}={}", keys[numbers.below(keys.len() as u64) as usize], numbers.below(2));
            d(&path).hits(if hits > 1 { numbers.below(hits + 1) } else { 1 })
        };
        let descriptors: Vec<TestDescriptor> =
            (0..=numbers.below(descriptors_max)).map(|_| descriptor(&mut numbers)).collect();
        let dry_run = bench.dry_run(&descriptors);
        assert_eq!(told(&bench.dry_run(&descriptors)), told(&dry_run), "round {round}: a trace");
        let real = bench.ask(&descriptors);
        assert_eq!(told(&dry_run), told(&real), "round {round}");
        if !real.passes() {
            refused += 1;
            if dry_run.retry_after.is_some() {
                assert_eq!(named(&dry_run), named(&real), "round {round}");
                waits += 1;
            }
        }
    }
    // A peek knows the wait for a single hit only.
    assert!((400..3_600).contains(&refused) && (hits > 1 || waits > 200), "{refused} {waits}");
}

#[test]
fn a_call_is_answered_as_foreseen_and_foreseeing_charges_nothing() {
    foreseen_as_answered("", 1, 3);
}

#[test]
fn so_is_one_of_several_hits() {
    foreseen_as_answered("", 11, 3);
    foreseen_as_answered("", 11, 1);
}

#[test]
fn so_is_one_whose_limits_are_charged_each_for_itself() {
    foreseen_as_answered("accounting: independent", 1, 3);
    foreseen_as_answered("accounting: independent", 11, 3);
}

#[test]
fn a_debt_is_not_charged_to_find_out_a_wait() {
    let bench = Bench::new(DEBT);
    bench.ask(&[d("debt=a").hits(5)]);
    let dry_run = bench.dry_run(&[d("debt=a").hits(3)]);
    assert!(!dry_run.passes() && dry_run.retry_after.is_none());
    let one_by_one = bench.passes("debt=a", 5);
    assert_eq!(one_by_one, 2, "two hits were left");
}
