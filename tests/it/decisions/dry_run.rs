//! A dry run returns the decision that the call then gets, and leaves no trace.

use tidegate::decide::DryRunLimit;
use tidegate::domain::{Code, Hits, Micros};

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

/// What a prediction and the answer have in common: everything but the time of the reset and, if
/// waits are unknown, which of several refusing limits is shown.
fn common(answered: &TestDecision, knows_waits: bool) -> impl PartialEq + std::fmt::Debug + use<> {
    let rows = answered.rows.iter().map(|row| {
        let limit = (knows_waits || row.code == Code::Ok).then(|| (row.limit, row.name.clone()));
        (row.code, limit, row.remaining)
    });
    (answered.code, rows.collect::<Vec<_>>(), answered.shadowed)
}

/// The limit that a refusal names, and its wait.
fn named(answered: &TestDecision) -> (Option<Micros>, Option<String>) {
    (answered.retry_after, answered.limited_by.clone())
}

/// Predicts calls and then makes them, with at most `hits` for each of at most that many descriptors.
fn predictions_match_answers(accounting: &str, hits: u64, descriptors_max: u64) {
    // A peek does not tell what one class of a hybrid limit leaves to another, or the largest cost.
    let keys = if descriptors_max > 1 || hits > 1 { &KEYS[1..] } else { &KEYS };
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
        let again = bench.dry_run(&descriptors);
        assert_eq!(common(&again, true), common(&dry_run, true), "round {round}: a trace");
        let real = bench.ask(&descriptors);
        let knows_waits = hits == 1 && descriptors.len() == 1;
        assert_eq!(common(&dry_run, knows_waits), common(&real, knows_waits), "round {round}");
        if !real.passes() {
            refused += 1;
            if dry_run.retry_after.is_some() {
                assert_eq!(named(&dry_run), named(&real), "round {round}");
                waits += 1;
            }
        }
    }
    // A peek knows the wait for a single hit only.
    let refused_min = if hits * descriptors_max == 1 { 200 } else { 400 };
    let sampled = (refused_min..3_600).contains(&refused) && (hits > 1 || waits > 200);
    assert!(sampled, "{refused} {waits}");
}

#[test]
fn a_prediction_matches_the_answer_and_charges_nothing() {
    predictions_match_answers("", 1, 1);
    predictions_match_answers("", 1, 3);
}

#[test]
fn a_prediction_of_several_hits_matches() {
    predictions_match_answers("", 11, 3);
    predictions_match_answers("", 11, 1);
}

#[test]
fn a_prediction_with_independent_accounting_matches() {
    predictions_match_answers("accounting: independent", 1, 3);
    predictions_match_answers("accounting: independent", 11, 3);
}

#[test]
fn a_prediction_charges_no_debt() {
    let bench = Bench::new(DEBT);
    bench.ask(&[d("debt=a").hits(5)]);
    let dry_run = bench.dry_run(&[d("debt=a").hits(3)]);
    assert!(!dry_run.passes() && dry_run.retry_after.is_none());
    let one_by_one = bench.passes("debt=a", 5);
    assert_eq!(one_by_one, 2, "two hits were left");
}

#[test]
fn a_refund_in_a_prediction_takes_no_hits() {
    let bench = Bench::new(ALL_KINDS);
    assert!(bench.ask(&[d("window=a").hits(4)]).passes());
    let call = [d("window=a").refund(2), d("window=a").hits(3)];
    assert!(bench.dry_run(&call).passes(), "three of seven are left");
    assert!(bench.ask(&call).passes());
}

#[test]
fn a_dry_run_describes_each_limit_as_it_is_before_the_call() {
    let bench = Bench::new(ALL_KINDS);
    assert!(bench.one("costly=a").passes());
    assert_eq!(bench.passes("shadow=a", 3), 3);
    let limit = |name, capacity, cost, available, passes, shadow| DryRunLimit {
        name,
        capacity: Hits(capacity),
        cost: Hits(cost),
        available: Some(Hits(available)),
        passes,
        shadow,
    };
    let call = [d("costly=a").hits(2), d("shadow=a"), d("list=a"), d("free=a")];
    bench.with_dry_run(&call, |foreseen| {
        let expected = [
            vec![limit("", 20, 6, 17, true, false)],
            vec![limit("", 3, 1, 0, false, true)],
            vec![limit("short", 2, 1, 2, true, false), limit("long", 30, 1, 30, true, false)],
            vec![],
        ];
        assert_eq!(foreseen.limits, expected);
    });
}
