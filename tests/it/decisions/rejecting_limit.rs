//! Which limit a rejection names, and the wait that it reports.

use tidegate::domain::{Code, Micros, WaitPrecision};

use super::test_decider::{Bench, NOON, TestDescriptor, d};

const LIMITS: &str = "
domain: t
descriptors:
  - key: minute
    rate_limit: {algorithm: sliding_log, unit: minute, requests_per_unit: 1}
  - key: hour
    rate_limit: {algorithm: sliding_log, unit: hour, requests_per_unit: 1}
  - key: never
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: shadow
    shadow_mode: true
    rate_limit: {algorithm: sliding_log, unit: day, requests_per_unit: 1}
  - key: qa
    quota_mode: true
    rate_limit: {algorithm: sliding_log, unit: minute, requests_per_unit: 1}
  - key: qb
    quota_mode: true
    rate_limit: {algorithm: sliding_log, unit: hour, requests_per_unit: 1}
  - key: wide
    quota_mode: true
    rate_limit: {algorithm: sliding_log, unit: hour, requests_per_unit: 100}
  - key: list
    quota_mode: true
    rate_limits:
      - {name: short, algorithm: sliding_log, unit: second, requests_per_unit: 1}
      - {name: long, algorithm: sliding_log, unit: day, requests_per_unit: 1}
";

/// Uses up these limits one by one, then rejects a call of all of them. Returns the limit that the
/// rejection names, its wait in seconds, and the codes of the descriptors.
fn rejected(keys: &[&str]) -> (String, Option<u64>, Vec<Code>) {
    let bench = Bench::new(LIMITS);
    let descriptors: Vec<TestDescriptor> = keys.iter().map(|key| d(&format!("{key}=x"))).collect();
    for descriptor in &descriptors {
        bench.ask(std::slice::from_ref(descriptor));
    }
    let answer = bench.ask(&descriptors);
    assert_eq!(answer.code, Code::OverLimit, "{keys:?}");
    let codes = answer.rows.iter().map(|row| row.code).collect();
    (answer.limited_by.unwrap(), answer.retry_after.map(Micros::ceil_secs), codes)
}

fn named(keys: &[&str]) -> (String, Option<u64>) {
    let (name, wait, _) = rejected(keys);
    (name, wait)
}

#[test]
fn of_required_limits_the_longest_wait_counts() {
    assert_eq!(named(&["minute", "hour"]), ("t.hour".into(), Some(3_600)));
    assert_eq!(named(&["hour", "minute"]), ("t.hour".into(), Some(3_600)));
    assert_eq!(named(&["hour", "never"]), ("t.never".into(), None));
}

#[test]
fn of_equal_waits_the_first_limit_of_the_request_is_named() {
    let of_a_minute = |name: &str| (name.to_owned(), Some(60));
    assert_eq!(named(&["minute", "qa"]), of_a_minute("t.minute"));
    assert_eq!(named(&["qa", "minute"]), of_a_minute("t.qa"));
    // With two quota groups, the wait of the groups is merged with that of the required limit.
    assert_eq!(named(&["minute", "qa", "qb"]), of_a_minute("t.minute"));
    assert_eq!(named(&["qa", "qb", "minute"]), of_a_minute("t.qa"));
}

#[test]
fn a_shadowed_refusal_is_not_named_beside_an_enforced_one() {
    for keys in [["shadow", "minute"], ["minute", "shadow"]] {
        let (name, wait, codes) = rejected(&keys);
        assert_eq!((name.as_str(), wait), ("t.minute", Some(60)));
        for (key, code) in keys.iter().zip(codes) {
            let expected = if *key == "shadow" { Code::Ok } else { Code::OverLimit };
            assert_eq!(code, expected, "{key}");
        }
    }
}

#[test]
fn the_status_of_a_shadowed_refusal_shows_the_reset_and_not_the_wait() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: shadow
    shadow_mode: true
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 60, burst: 5}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 0}
",
    );
    assert!(bench.ask(&[d("shadow=x").hits(5)]).passes());
    let answer = bench.ask(&[d("shadow=x"), d("minute=x")]);
    assert_eq!(answer.limited_by.as_deref(), Some("t.minute"));
    assert_eq!(answer.rows[0].reset_s, Some(5), "a hit is back after 1 s, all are after 5 s");
    assert_eq!(answer.rows[1].reset_s, Some(60 - NOON.0 / 1_000_000 % 60));
}

#[test]
fn of_quota_descriptors_the_shortest_wait_counts() {
    assert_eq!(named(&["qb", "qa"]), ("t.qa".into(), Some(60)));
    assert_eq!(named(&["qa", "qb"]), ("t.qa".into(), Some(60)));
}

#[test]
fn within_a_quota_descriptor_the_longest_wait_counts() {
    assert_eq!(named(&["list"]), ("long".into(), Some(86_400)));
    assert_eq!(named(&["list", "qb"]), ("t.qb".into(), Some(3_600)));
}

#[test]
fn a_quota_group_that_passes_is_not_named() {
    assert_eq!(named(&["qb", "wide", "minute"]), ("t.minute".into(), Some(60)));
}

#[test]
fn required_and_quota_limits_must_both_pass() {
    assert_eq!(named(&["minute", "qb"]), ("t.qb".into(), Some(3_600)));
    assert_eq!(named(&["hour", "qa", "qb"]), ("t.hour".into(), Some(3_600)));
}

#[test]
fn the_wait_for_a_counter_that_a_call_charges_twice_is_a_lower_bound() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: two
    rate_limit: {algorithm: sliding_log, unit: minute, requests_per_unit: 2}
",
    );
    let twice = [d("two=x"), d("two=x")];
    assert!(bench.one("two=x").passes());
    bench.advance(Micros::from_secs(30));
    assert!(bench.one("two=x").passes());
    let answer = bench.ask(&twice);
    assert_eq!(answer.retry_after, Some(Micros::from_secs(30)));
    assert_eq!(answer.precision, Some(WaitPrecision::AtLeast), "one hit fits then, not two");
    bench.advance(Micros::from_secs(30));
    assert!(!bench.ask(&twice).passes());
    for alone in [&[d("two=x").hits(2)][..], &[d("two=x").hits(0), d("two=x").hits(2)]] {
        assert_eq!(bench.ask(alone).precision, Some(WaitPrecision::Exact), "a peek takes nothing");
    }
}

#[test]
fn the_wait_beside_a_limit_that_the_rejected_call_used_up_is_a_lower_bound() {
    for (accounting, precision) in
        [("independent", WaitPrecision::AtLeast), ("all_or_nothing", WaitPrecision::Exact)]
    {
        let bench = Bench::new(&format!("{LIMITS}accounting: {accounting}\n"));
        assert!(bench.one("minute=x").passes());
        let both = [d("minute=x"), d("hour=x")];
        let answer = bench.ask(&both);
        assert_eq!(answer.retry_after, Some(Micros::from_secs(60)));
        assert_eq!(answer.precision, Some(precision), "{accounting}");
        bench.advance(Micros::from_secs(60));
        assert_eq!(bench.ask(&both).passes(), precision == WaitPrecision::Exact, "{accounting}");
    }
}
