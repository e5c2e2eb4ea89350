//! Request overrides: limits that a descriptor carries.

use tidegate::domain::{Hits, Micros, Override, Unit};

use super::test_decider::{Bench, d};
use crate::support::limits::overridden;

const POLICY: &str = "
domain: t
descriptors:
  - key: k
    rate_limit: {name: mine, unit: hour, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
";

fn of(requests_per_unit: u32, unit: Unit) -> Override {
    Override { requests_per_unit, unit, unit_multiplier: 1 }
}

#[test]
fn an_override_replaces_the_tree_and_needs_only_a_known_domain() {
    let bench = Bench::new(POLICY);
    for path in ["k=a", "free=a", "nobody=a", "x=1 > y=2"] {
        let five = d(path).limit(of(5, Unit::Minute));
        let passed = (0..9).filter(|_| bench.ask(std::slice::from_ref(&five)).passes()).count();
        assert_eq!(passed, 5, "{path}");
    }
    let elsewhere = [d("k=a").limit(of(0, Unit::Minute))];
    assert!(bench.ask_domain("unknown", &elsewhere).passes());
}

#[test]
fn an_override_of_nothing_refuses() {
    let bench = Bench::new(POLICY);
    assert!(!bench.ask(&[d("k=a").limit(of(0, Unit::Second))]).passes());
}

#[test]
fn an_override_shows_itself_without_a_name() {
    let bench = Bench::new(POLICY);
    let answer = bench.ask(&[d("k=a").limit(of(5, Unit::Minute))]);
    assert_eq!((answer.rows[0].limit, answer.rows[0].name.as_str()), (Some(5), ""));
    assert_eq!(answer.rows[0].remaining, 4);
}

#[test]
fn an_override_may_change_from_request_to_request_on_one_counter() {
    let bench = Bench::new(POLICY);
    let with = |n| bench.ask(&[d("k=a").limit(of(n, Unit::Hour))]);
    assert!(with(1).passes());
    assert!(!with(1).passes());
    assert!(with(3).passes(), "a refusal under a low override does not block a higher one");
    assert!(with(3).passes());
    assert!(!with(3).passes());
}

#[test]
fn overrides_of_different_windows_do_not_share_a_counter() {
    let bench = Bench::new(POLICY);
    assert!(bench.ask(&[d("k=a").limit(of(1, Unit::Hour))]).passes());
    assert!(bench.ask(&[d("k=a").limit(of(1, Unit::Day))]).passes());
    assert!(bench.ask(&[d("k=a")]).passes(), "nor with the policy's own limit");
    let two_hours = Override { unit_multiplier: 2, ..of(1, Unit::Hour) };
    assert!(bench.ask(&[d("k=a").limit(two_hours)]).passes());
}

#[test]
fn an_override_is_never_replaced() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: k
    rate_limit: {name: mine, unit: hour, requests_per_unit: 2}
  - key: vip
    rate_limit: {unlimited: true, replaces: [{name: mine}]}
",
    );
    let call = [d("k=a").limit(of(1, Unit::Hour)), d("vip=a")];
    assert!(bench.ask(&call).passes());
    assert!(!bench.ask(&call).passes());
}

/// Five a minute, of which three are used; then a limit in the request of four a minute.
#[test]
fn an_override_of_the_same_period_keeps_the_algorithm_and_the_counter() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: k
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 5}
",
    );
    assert_eq!(bench.passes("k=a", 3), 3);
    let four = bench.ask(&[d("k=a").limit(of(4, Unit::Minute))]);
    assert!(four.passes());
    assert_eq!((four.rows[0].limit, four.rows[0].remaining), (Some(4), 0));
    let without = bench.one("k=a");
    assert!(!without.passes());
    assert_eq!(without.retry_after, Some(Micros(3_000_000)));
    // Equal length is the same period; a second is another one.
    let seconds = Override { unit_multiplier: 60, ..of(4, Unit::Second) };
    assert!(!bench.ask(&[d("k=a").limit(seconds)]).passes());
    assert!(bench.ask(&[d("k=a").limit(of(4, Unit::Second))]).passes());
}

#[test]
fn the_rest_of_the_rule_applies_to_an_override_of_its_period() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: shadow
    shadow_mode: true
    rate_limit: {name: mine, unit: hour, requests_per_unit: 2}
  - key: dear
    rate_limit: {unit: hour, requests_per_unit: 9, cost: 3}
  - key: billed
    rate_limit: {unit: hour, requests_per_unit: 9, cost: 2, charge: billed}
  - key: day
    rate_limit: {unit: day, requests_per_unit: 2, align: calendar, time_zone: Asia/Tokyo}
",
    );
    let with = |path: &str, n, unit| bench.ask(&[d(path).limit(of(n, unit))]);
    for _ in 0..3 {
        let shadow = with("shadow=a", 1, Unit::Hour);
        assert_eq!((shadow.passes(), shadow.rows[0].name.as_str()), (true, "mine"));
    }
    assert_eq!(with("dear=a", 6, Unit::Hour).rows[0].remaining, 3);
    assert_eq!(bench.one("dear=a").rows[0].remaining, 3, "two of three hits on one counter");
    let bill = bench.ask(&[d("billed=a").limit(of(4, Unit::Hour)).hits(5)]);
    assert!(!bill.passes());
    assert_eq!(bench.ask(&[d("billed=a").hits(0)]).rows[0].remaining, 4, "a bill has no cost");
    assert_eq!(bench.passes("day=a", 1), 1);
    assert!(!with("day=a", 1, Unit::Day).passes(), "a calendar day is a day");
}

#[test]
fn an_override_that_the_rule_cannot_have_counts_apart_in_a_window() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: none
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 0}
  - key: log
    rate_limit: {algorithm: sliding_log, unit: minute, requests_per_unit: 5}
  - key: long
    rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 1, burst: 142}
  - key: slots
    rate_limit: {algorithm: concurrency, requests_per_unit: 5}
  - key: plan
    rate_limit:
      {algorithm: token_bucket, unit: minute, requests_per_unit: 5,
       tiers: {method: shared, classes: {gold: {floor: 0%}}}}
  - key: two
    rate_limits:
      - {name: a, unit: minute, requests_per_unit: 5}
      - {name: b, unit: minute, requests_per_unit: 6}
",
    );
    for (path, number, unit) in [
        ("none=a", 3, Unit::Minute),
        ("log=a", 10_001, Unit::Minute),
        ("long=a", 3, Unit::Year),
        ("slots=a", 3, Unit::Minute),
        ("plan=gold", 3, Unit::Minute),
        ("two=a", 3, Unit::Minute),
    ] {
        for left in [number - 1, number - 2] {
            let asked = bench.ask(&[d(path).limit(of(number, unit))]);
            assert_eq!((asked.passes(), asked.rows[0].remaining), (true, left), "{path}");
        }
    }
    for path in ["log=a", "long=a"] {
        assert!(!bench.ask(&[d(path).limit(of(0, Unit::Minute))]).passes(), "{path}");
        assert!(bench.one(path).passes(), "{path}");
    }
}

#[test]
fn the_burst_of_an_override_is_that_of_the_rule_in_proportion_and_at_least_one() {
    for (keys, number, burst) in [
        ("requests_per_unit: 5", 4, 4),
        ("requests_per_unit: 5, burst: 2", 3, 2),
        ("requests_per_unit: 100, burst: 7", 1, 1),
        ("requests_per_unit: 100, burst: 7", 1_000, 70),
    ] {
        let limits = overridden(
            &format!("algorithm: token_bucket, unit: minute, {keys}"),
            Unit::Minute,
            &[number],
        );
        assert_eq!(limits[1].capacity(), Hits(burst), "{keys}");
    }
}
