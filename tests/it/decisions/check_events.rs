//! The events that an observer receives for each check; every counter is computed from them.
//!
//! Not here: the arithmetic of the counters (`src/telemetry`).

use tidegate::decide::GlobalModes;
use tidegate::domain::{CheckEvent, Hits, Verdict};

use super::test_decider::{Bench, d};

const POLICY: &str = "
domain: t
descriptors:
  - key: k
    rate_limit: {name: mine, unit: hour, requests_per_unit: 10}
  - key: quiet
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: small
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: vip
    rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: mine}]}
  - key: free
    rate_limit: {unlimited: true}
  - key: list
    rate_limits:
      - {name: wide, unit: hour, requests_per_unit: 9}
      - {name: narrow, unit: day, requests_per_unit: 1}
";

fn told(bench: &Bench) -> Vec<CheckEvent> {
    std::mem::take(&mut bench.told.0.lock().unwrap())
}

fn one(bench: &Bench) -> CheckEvent {
    let facts = told(bench);
    assert_eq!(facts.len(), 1);
    facts[0]
}

#[test]
fn hits_are_told_as_asked_whether_they_pass_or_not() {
    let bench = Bench::new(POLICY);
    bench.ask(&[d("k=a").hits(7)]);
    let passed = one(&bench);
    assert_eq!((passed.hits, passed.outcome.charged, passed.admitted), (Hits(7), Hits(7), true));
    bench.ask(&[d("k=a").hits(7)]);
    let refused = one(&bench);
    assert_eq!((refused.hits, refused.outcome.verdict), (Hits(7), Verdict::Refuse));
    assert_eq!((refused.capacity, refused.outcome.available), (Hits(10), Hits(3)));
}

#[test]
fn hits_of_a_call_that_another_check_refused_are_told_as_not_charged() {
    let bench = Bench::new(POLICY);
    bench.ask(&[d("small=a")]);
    told(&bench);
    bench.ask(&[d("k=a").hits(4), d("small=a")]);
    let facts = told(&bench);
    assert_eq!((facts[0].outcome.verdict, facts[0].outcome.charged), (Verdict::Pass, Hits(0)));
    assert!(!facts[0].admitted);
}

#[test]
fn a_call_that_only_global_shadow_mode_lets_pass_is_told_as_not_admitted() {
    let bench = Bench::with_modes(POLICY, GlobalModes { shadow: true, quota: false });
    bench.ask(&[d("small=a")]);
    assert!(one(&bench).admitted);
    assert!(bench.ask(&[d("k=a").hits(4), d("small=a")]).passes());
    let facts = told(&bench);
    assert_eq!(facts.iter().map(|facts| facts.admitted).collect::<Vec<_>>(), [false, false]);
}

#[test]
fn a_shadowed_check_and_a_refund_are_told_as_such() {
    let bench = Bench::new(POLICY);
    bench.passes("quiet=a", 2);
    assert!(told(&bench).iter().all(|facts| facts.shadow));
    bench.ask(&[d("k=a").refund(3)]);
    assert!(one(&bench).is_refund);
}

#[test]
fn replaced_and_unmatched_descriptors_are_not_counted() {
    let bench = Bench::new(POLICY);
    bench.ask(&[d("k=a"), d("vip=a"), d("nobody=a")]);
    let facts = told(&bench);
    assert_eq!(facts.len(), 1, "only vip's own limit was counted: {facts:?}");
}

#[test]
fn hits_on_an_unlimited_rule_are_told_as_charged() {
    let bench = Bench::new(POLICY);
    bench.ask(&[d("free=a").hits(7)]);
    let passed = one(&bench);
    assert_eq!((passed.hits, passed.outcome.charged), (Hits(7), Hits(7)));
    assert_eq!((passed.outcome.verdict, passed.capacity), (Verdict::Pass, Hits(u64::MAX)));
    assert!(passed.rule.is_some() && passed.admitted && !passed.is_refund && !passed.is_peek);
    bench.ask(&[d("free=a").refund(7)]);
    assert!(one(&bench).is_refund);
    bench.ask(&[d("free=a").hits(0)]);
    assert!(one(&bench).is_peek);
}

#[test]
fn a_refusal_is_told_with_the_position_of_its_limit_and_whether_it_is_enforced() {
    let bench = Bench::new(POLICY);
    let call = [d("list=a"), d("quiet=a")];
    assert!(bench.ask(&call).passes());
    assert!(!bench.ask(&call).passes());
    assert_eq!(*bench.told.2.lock().unwrap(), [(1, false), (0, true)]);
}
