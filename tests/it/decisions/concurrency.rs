//! Concurrency limits: slots and their holders, generated where the caller names none.

use tidegate::domain::Micros;

use super::test_decider::{Bench, d};

const POLICY: &str = "
domain: t
descriptors:
  - key: upstream
    rate_limit: {algorithm: concurrency, requests_per_unit: 2, lease: 30}
  - key: small
    rate_limit: {unit: hour, requests_per_unit: 1}
";

#[test]
fn a_take_is_told_its_holder_and_returns_its_slot_by_it() {
    let bench = Bench::new(POLICY);
    let (one, two) = (bench.one("upstream=a"), bench.one("upstream=a"));
    let (one, two) = (one.slot.unwrap(), two.slot.unwrap());
    assert_ne!(one, two);
    let refused = bench.one("upstream=a");
    assert!(!refused.passes());
    assert_eq!(refused.slot, None, "told on admission only");
    assert!(bench.ask(&[d("upstream=a").refund(1).holder(&one)]).passes());
    assert!(bench.one("upstream=a").passes());
    // Once: the same name frees nothing more.
    bench.ask(&[d("upstream=a").refund(1).holder(&one)]);
    assert!(!bench.one("upstream=a").passes());
}

#[test]
fn a_return_frees_all_slots_of_its_holder_whatever_its_hits() {
    for hits in [0, 1, 2, 9] {
        let bench = Bench::new(POLICY);
        assert!(bench.ask(&[d("upstream=a").hits(2).holder("worker-7")]).passes());
        assert!(!bench.one("upstream=a").passes());
        assert!(bench.ask(&[d("upstream=a").refund(hits).holder("worker-7")]).passes());
        assert_eq!(bench.passes("upstream=a", 5), 2, "{hits}");
    }
}

#[test]
fn a_return_without_a_holder_frees_nothing_and_is_counted() {
    let bench = Bench::new(POLICY);
    assert_eq!(bench.passes("upstream=a", 5), 2);
    for _ in 0..3 {
        assert!(bench.ask(&[d("upstream=a").refund(1)]).passes());
    }
    assert!(!bench.one("upstream=a").passes());
    assert_eq!(*bench.told.1.lock().unwrap(), 3);
}

#[test]
fn a_named_holder_renews_its_lease_and_is_told_nothing() {
    let bench = Bench::new(POLICY);
    let mine = || d("upstream=a").holder("worker-7");
    let first = bench.ask(&[mine()]);
    assert!(first.passes());
    assert_eq!(first.slot, None, "it knows its name");
    bench.advance(Micros::from_secs(20));
    assert!(bench.ask(&[mine()]).passes());
    assert_eq!(bench.ask(&[d("upstream=a").hits(0)]).rows[0].remaining, 1, "still one slot");
    bench.advance(Micros::from_secs(20));
    assert_eq!(bench.passes("upstream=a", 3), 1, "the lease runs from the renewal");
    bench.advance(Micros::from_secs(10));
    assert_eq!(bench.passes("upstream=a", 3), 1, "and ends");
}

#[test]
fn slots_that_nobody_returns_come_back_after_their_lease() {
    let bench = Bench::new(POLICY);
    assert_eq!(bench.passes("upstream=a", 5), 2);
    let refused = bench.one("upstream=a");
    assert_eq!(refused.retry_after, Some(Micros::from_secs(30)));
    bench.advance(Micros::from_secs(30));
    assert_eq!(bench.passes("upstream=a", 5), 2);
}

#[test]
fn a_refused_call_holds_no_slot() {
    let bench = Bench::new(POLICY);
    assert!(bench.one("small=x").passes());
    for _ in 0..5 {
        let refused = bench.ask(&[d("upstream=a"), d("small=x")]);
        assert!(!refused.passes());
        assert_eq!(refused.slot, None);
    }
    assert_eq!(bench.passes("upstream=a", 5), 2);
}

#[test]
fn a_shadow_limit_without_a_free_slot_passes_and_names_no_holder() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: upstream
    shadow_mode: true
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, lease: 30}
  - key: client
    rate_limit: {unit: hour, requests_per_unit: 9}
",
    );
    assert!(bench.one("upstream=a").slot.is_some());
    for call in [&[d("upstream=a")][..], &[d("upstream=a"), d("client=a")]] {
        let beyond = bench.ask(call);
        assert!(beyond.passes());
        assert_eq!(beyond.slot, None, "it holds no slot");
    }
}

#[test]
fn a_status_of_slots_has_no_unit_and_shows_what_is_free() {
    let bench = Bench::new(POLICY);
    let row = &bench.one("upstream=a").rows[0];
    assert_eq!((row.limit, row.remaining, row.reset_s), (Some(2), 1, Some(30)));
}

#[test]
fn one_name_is_for_all_slots_of_a_call() {
    let bench = Bench::new(POLICY);
    let slot = bench.ask(&[d("upstream=a"), d("upstream=b")]).slot.unwrap();
    assert_eq!(bench.passes("upstream=a", 5), 1);
    for path in ["upstream=a", "upstream=b"] {
        bench.ask(&[d(path).refund(1).holder(&slot)]);
        assert_eq!(bench.passes(path, 1), 1);
    }
}
