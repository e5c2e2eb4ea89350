//! `hits_addend`: how many hits a call takes.

use tidegate::domain::{Code, Micros};

use super::test_decider::{Bench, NOON, d};

const TEN_A_MINUTE: &str = "
domain: t
descriptors:
  - key: k
    rate_limit: {unit: minute, requests_per_unit: 10}
";

#[test]
fn a_call_of_one_hit_passes_until_the_limit_and_not_beyond() {
    let bench = Bench::new(TEN_A_MINUTE);
    assert_eq!(bench.passes("k=a", 15), 10);
    assert_eq!(bench.passes("k=b", 15), 10, "another value is another counter");
}

#[test]
fn hits_are_taken_as_one_piece_or_not_at_all() {
    let bench = Bench::new(TEN_A_MINUTE);
    assert!(bench.ask(&[d("k=a").hits(9)]).passes());
    assert!(!bench.ask(&[d("k=a").hits(2)]).passes(), "one hit is left, two are asked");
    assert!(bench.one("k=a").passes(), "the refusal took nothing, so the one hit is still there");
    assert!(!bench.one("k=a").passes());
}

#[test]
fn a_refused_call_does_not_push_the_counter_on() {
    // There: with 90 of 100 used, a refused 20 blocks a later 10.
    let bench = Bench::new(
        "{domain: t, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 100}}]}",
    );
    assert!(bench.ask(&[d("k=a").hits(90)]).passes());
    assert!(!bench.ask(&[d("k=a").hits(20)]).passes());
    assert!(bench.ask(&[d("k=a").hits(10)]).passes());
}

#[test]
fn a_peek_takes_nothing_and_refuses_at_exactly_the_limit() {
    let bench = Bench::new(TEN_A_MINUTE);
    for _ in 0..20 {
        assert!(bench.ask(&[d("k=a").hits(0)]).passes());
    }
    assert_eq!(bench.passes("k=a", 10), 10);
    let peek = bench.ask(&[d("k=a").hits(0)]);
    assert_eq!(peek.code, Code::OverLimit, "no further hit would pass");
}

#[test]
fn hits_at_the_ends_of_their_range_are_refused_without_a_trace() {
    let bench = Bench::new(TEN_A_MINUTE);
    for hits in [11, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX - 1, u64::MAX] {
        let answer = bench.ask(&[d("k=a").hits(hits)]);
        assert!(!answer.passes());
        assert_eq!(answer.rows[0].reset_s, Some(60 - NOON.0 / 1_000_000 % 60));
        assert_eq!(answer.retry_after, None, "waiting does not help a cost above the capacity");
    }
    assert_eq!(bench.passes("k=a", 11), 10);
}

#[test]
fn negative_hits_refund_and_are_answered_ok() {
    let bench = Bench::new(TEN_A_MINUTE);
    assert_eq!(bench.passes("k=a", 10), 10);
    assert!(!bench.one("k=a").passes());
    assert!(bench.ask(&[d("k=a").refund(3)]).passes());
    assert_eq!(bench.passes("k=a", 5), 3);
    assert!(bench.ask(&[d("k=a").refund(1_000)]).passes());
    assert_eq!(bench.passes("k=a", 50), 10, "never above the capacity");
    assert!(bench.ask(&[d("k=never-seen").refund(5)]).passes());
    assert_eq!(bench.passes("k=never-seen", 50), 10);
}

#[test]
fn a_refund_comes_first_even_if_it_is_listed_last() {
    let bench = Bench::new(TEN_A_MINUTE);
    assert_eq!(bench.passes("k=a", 10), 10);
    assert!(bench.ask(&[d("k=a"), d("k=a").refund(1)]).passes());
}

#[test]
fn the_cost_of_a_rule_multiplies_the_hits() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: report
    rate_limit: {unit: minute, requests_per_unit: 10, cost: 4}
",
    );
    assert_eq!(bench.passes("report=x", 5), 2);
    let peek = bench.ask(&[d("report=x").hits(0)]);
    assert_eq!(peek.code, Code::OverLimit, "two hits are left, too few for one more call");
    assert_eq!(bench.dry_run(&[d("report=x").hits(0)]).code, Code::OverLimit);
}

#[test]
fn the_window_ends_for_everybody_at_the_same_time() {
    let bench = Bench::new(TEN_A_MINUTE);
    assert_eq!(bench.passes("k=a", 10), 10);
    let refused = bench.one("k=a");
    let wait = refused.retry_after.unwrap();
    assert_eq!(refused.rows[0].reset_s, Some(wait.ceil_secs()));
    bench.advance(Micros(wait.0 - 1));
    assert!(!bench.one("k=a").passes(), "one microsecond too early");
    bench.advance(Micros(1));
    assert_eq!(bench.passes("k=a", 15), 10);
}

#[test]
fn a_token_bucket_lets_a_burst_pass_and_then_its_rate() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: k
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 5, burst: 20}
",
    );
    assert_eq!(bench.passes("k=a", 30), 20);
    bench.advance(Micros(200_000));
    assert_eq!(bench.passes("k=a", 30), 1);
    bench.advance(Micros::from_secs(1));
    assert_eq!(bench.passes("k=a", 30), 5);
    bench.advance(Micros::from_secs(3_600));
    assert_eq!(bench.passes("k=a", 30), 20);
}

#[test]
fn a_peek_then_a_charge_of_150_on_100_under_charge_always_refuses_the_next_peek() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: tokens
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 100, charge: always}
",
    );
    assert!(bench.ask(&[d("tokens=a").hits(0)]).passes());
    bench.ask(&[d("tokens=a").hits(150)]);
    assert!(!bench.ask(&[d("tokens=a").hits(0)]).passes());
    bench.advance(Micros::from_secs(31));
    assert!(bench.ask(&[d("tokens=a").hits(0)]).passes(), "the debt of 50 is paid after 30 s");
}
