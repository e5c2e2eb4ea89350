//! The status of each descriptor in a response.

use tidegate::domain::{Code, Micros, Override, Unit};

use super::test_decider::{Bench, NOON, Row, d};

const POLICY: &str = "
domain: t
descriptors:
  - key: window
    rate_limit: {name: per-window, unit: minute, requests_per_unit: 3}
  - key: long
    rate_limit: {unit: minute, unit_multiplier: 15, requests_per_unit: 5}
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 10, burst: 20}
  - key: none
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: huge
    rate_limit: {unit: hour, requests_per_unit: 4294967295}
";

fn window_left(length: Micros) -> u64 {
    Micros(length.0 - NOON.0 % length.0).ceil_secs()
}

#[test]
fn one_status_per_descriptor_in_the_order_of_the_request() {
    let bench = Bench::new(POLICY);
    let answer = bench.ask(&[d("window=a"), d("nobody=a"), d("bucket=a"), d("long=a")]);
    assert_eq!(
        answer.rows.iter().map(|row| row.limit).collect::<Vec<_>>(),
        [Some(3), None, Some(10), Some(5)]
    );
}

#[test]
fn a_window_shows_its_rate_its_remaining_hits_and_its_end() {
    let bench = Bench::new(POLICY);
    assert_eq!(
        bench.one("window=a").rows,
        [Row {
            code: Code::Ok,
            limit: Some(3),
            name: "per-window".to_owned(),
            remaining: 2,
            reset_s: Some(window_left(Micros::from_secs(60))),
        }]
    );
    assert_eq!(bench.passes("window=a", 5), 2);
    let over = bench.one("window=a");
    assert_eq!(over.rows[0].remaining, 0);
    assert_eq!(over.rows[0].reset_s, Some(window_left(Micros::from_secs(60))));
    assert_eq!(over.limited_by.as_deref(), Some("per-window"));
}

#[test]
fn a_multiplied_unit_makes_a_longer_window() {
    let bench = Bench::new(POLICY);
    assert_eq!(bench.passes("long=a", 9), 5);
    assert_eq!(bench.one("long=a").rows[0].reset_s, Some(window_left(Micros::from_secs(900))));
}

#[test]
fn a_bucket_shows_its_rate_what_is_left_of_its_burst_and_when_it_is_full() {
    let bench = Bench::new(POLICY);
    let first = &bench.one("bucket=a").rows[0];
    assert_eq!((first.limit, first.remaining, first.reset_s), (Some(10), 19, Some(1)));
    assert_eq!(bench.passes("bucket=a", 19), 19);
    let over = bench.one("bucket=a");
    assert_eq!(over.retry_after, Some(Micros(100_000)), "one hit comes back in 100 ms");
    assert_eq!(over.rows[0].reset_s, Some(1), "never shorter than the truth");
}

#[test]
fn a_limit_of_nothing_refuses_everything_and_no_wait_helps() {
    let bench = Bench::new(POLICY);
    let answer = bench.one("none=a");
    assert_eq!(answer.code, Code::OverLimit);
    assert_eq!((answer.retry_after, answer.rows[0].limit), (None, Some(0)));
    assert_eq!(answer.rows[0].reset_s, Some(window_left(Micros::from_secs(3_600))));
    assert!(!bench.ask(&[d("none=a").hits(0)]).passes());
}

#[test]
fn a_refusal_that_no_wait_ends_shows_when_the_bucket_is_full() {
    let bench = Bench::new(POLICY);
    let over = |hits| bench.ask(&[d("bucket=a").hits(hits)]).rows[0].reset_s;
    assert_eq!(over(21), Some(2), "a full bucket shows its whole refill time");
    assert_eq!(bench.passes("bucket=a", 5), 5);
    assert_eq!(over(u64::MAX), Some(1), "5 of 20 hits refill in half a second");
}

#[test]
fn an_override_of_nothing_shows_the_end_of_its_window() {
    let bench = Bench::new(POLICY);
    for (unit, seconds) in [(Unit::Minute, 60), (Unit::Day, 86_400)] {
        for path in ["window=a", "bucket=a", "nobody=a"] {
            let none = Override { requests_per_unit: 0, unit, unit_multiplier: 1 };
            let answer = bench.ask(&[d(path).limit(none)]);
            let left = window_left(Micros::from_secs(seconds));
            assert_eq!((answer.retry_after, answer.rows[0].reset_s), (None, Some(left)), "{path}");
        }
    }
}

#[test]
fn of_several_descriptors_each_shows_when_its_own_window_ends() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: window
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: quota
    quota_mode: true
    rate_limit: {algorithm: sliding_window, unit: day, requests_per_unit: 0}
  - key: class
    rate_limit:
      algorithm: token_bucket
      unit: hour
      requests_per_unit: 60
      tiers: {method: separate, default: none, classes: {gold: {share: 50%}}}
  - key: free
    rate_limit: {unlimited: true}
  - key: slots
    rate_limit: {algorithm: concurrency, requests_per_unit: 0}
",
    );
    let keys = ["window=a", "quota=a", "free=a", "nobody=a", "slots=a"];
    let mut call: Vec<_> = keys.map(d).into();
    call.push(d("class=gold").hits(31));
    let answer = bench.ask(&call);
    let shown: Vec<_> = answer.rows.iter().map(|row| row.reset_s).collect();
    let minute = window_left(Micros::from_secs(60));
    assert_eq!(shown, [Some(minute), Some(86_400), None, None, None, Some(3_600)]);
    assert_eq!(answer.retry_after, None);
}

#[test]
fn remaining_never_says_unlimited_where_there_is_a_limit() {
    let bench = Bench::new(POLICY);
    assert_eq!(bench.ask(&[d("huge=a").hits(0)]).rows[0].remaining, u32::MAX - 1);
}

#[test]
fn the_call_is_limited_by_the_refusing_limit_with_the_longest_wait() {
    let bench = Bench::new(POLICY);
    assert_eq!(bench.passes("window=a", 3), 3);
    assert_eq!(bench.passes("long=a", 5), 5);
    let answer = bench.ask(&[d("window=a"), d("long=a")]);
    assert_eq!(answer.limited_by.as_deref(), Some("t.long"));
    let answer = bench.ask(&[d("long=a"), d("none=a")]);
    assert_eq!(answer.limited_by.as_deref(), Some("t.none"), "never is the longest wait");
    assert_eq!(answer.retry_after, None);
}

#[test]
fn a_raised_limit_holds_at_once_and_a_lowered_one_too() {
    let at = |n: u32| {
        format!(
            "{{domain: t, descriptors: [{{key: k, rate_limit: {{unit: hour, requests_per_unit: {n}}}}}]}}"
        )
    };
    let bench = Bench::new(&at(5));
    assert_eq!(bench.passes("k=a", 9), 5);
    bench.reload(&at(8));
    assert_eq!(bench.passes("k=a", 9), 3, "the counter stays, so three more pass");
    bench.reload(&at(2));
    assert_eq!(bench.passes("k=a", 9), 0);
}
