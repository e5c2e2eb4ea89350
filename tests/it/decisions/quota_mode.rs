//! Which descriptors take part in quota mode, as in envoyproxy/ratelimit.

use tidegate::decide::GlobalModes;
use tidegate::domain::Code;

use super::test_decider::{Bench, d};

const QUOTAS: &str = "
domain: t
descriptors:
  - key: qa
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: qb
    quota_mode: true
    rate_limit: {name: b, unit: hour, requests_per_unit: 5}
  - key: qu
    quota_mode: true
    rate_limit: {unlimited: true}
  - key: vip
    rate_limit: {unit: hour, requests_per_unit: 100, replaces: [{name: b}]}
  - key: class
    quota_mode: true
    rate_limit:
      algorithm: token_bucket
      unit: hour
      requests_per_unit: 100
      tiers: {method: shared, default: none, classes: {gold: {floor: 0%}}}
  - key: list
    quota_mode: true
    rate_limits:
      - {name: narrow, unit: hour, requests_per_unit: 1}
      - {name: wide, unit: day, requests_per_unit: 100}
  - key: list2
    quota_mode: true
    rate_limits:
      - {name: narrow2, unit: hour, requests_per_unit: 2}
      - {name: wide2, unit: day, requests_per_unit: 100}
";

/// A bench whose quota `qa` is used up.
fn used_up() -> Bench {
    let bench = Bench::new(QUOTAS);
    assert!(bench.one("qa=x").passes());
    bench
}

#[test]
fn an_unlimited_quota_descriptor_makes_no_check() {
    assert_eq!(used_up().ask(&[d("qa=x"), d("qu=x")]).code, Code::OverLimit);
    assert!(used_up().one("qu=x").passes());
    let global = Bench::with_modes(QUOTAS, GlobalModes { quota: true, shadow: false });
    assert!(global.one("qa=x").passes());
    assert_eq!(global.ask(&[d("qa=x"), d("qu=x")]).code, Code::OverLimit);
}

#[test]
fn a_replaced_quota_descriptor_makes_no_check() {
    let bench = used_up();
    assert!(bench.ask(&[d("qa=x"), d("qb=x")]).passes(), "the other quota has room");
    assert_eq!(bench.ask(&[d("qa=x"), d("qb=x"), d("vip=x")]).code, Code::OverLimit);
}

#[test]
fn a_value_without_a_class_makes_no_check() {
    assert!(used_up().ask(&[d("qa=x"), d("class=gold")]).passes());
    assert_eq!(used_up().ask(&[d("qa=x"), d("class=other")]).code, Code::OverLimit);
}

#[test]
fn a_refund_is_no_member_of_the_quota_group() {
    assert_eq!(used_up().ask(&[d("qa=x"), d("qb=x").refund(1)]).code, Code::OverLimit);
    assert!(used_up().ask(&[d("qb=x").refund(1)]).passes());
}

#[test]
fn a_list_in_quota_mode_counts_as_one_descriptor() {
    let bench = Bench::new(QUOTAS);
    assert_eq!(bench.passes("list=a", 3), 1, "the wide limit does not outvote the narrow one");
    let both = [d("list=b"), d("list2=b")];
    assert!(bench.ask(&both).passes());
    assert!(bench.ask(&both).passes(), "the second list has room in both of its limits");
    let third = bench.ask(&both);
    assert_eq!(third.code, Code::OverLimit, "both lists are over one of their limits");
}
