//! The overall code: quota mode, shadow mode, `replaces`, unlimited.

use tidegate::decide::GlobalModes;
use tidegate::domain::{Code, Source};

use super::test_decider::{Bench, d};

const TWO: &str = "
domain: t
descriptors:
  - key: small
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: large
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: quota_small
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: quota_large
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: shadow_quota
    shadow_mode: true
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
  - key: step
";

#[test]
fn one_descriptor_over_its_limit_refuses_the_call() {
    let bench = Bench::new(TWO);
    assert!(bench.ask(&[d("small=a"), d("large=a")]).passes());
    let answer = bench.ask(&[d("large=a"), d("small=a")]);
    assert_eq!(answer.code, Code::OverLimit);
    assert_eq!(answer.rows[0].code, Code::Ok);
    assert_eq!(answer.rows[1].code, Code::OverLimit);
    assert_eq!(answer.limited_by.as_deref(), Some("t.small"));
}

#[test]
fn quota_descriptors_refuse_only_together() {
    let bench = Bench::new(TWO);
    let both = [d("quota_small=a"), d("quota_large=a")];
    assert!(bench.ask(&both).passes());
    let second = bench.ask(&both);
    assert!(second.passes(), "the larger quota still passes");
    assert_eq!(second.rows[0].code, Code::OverLimit);
    assert_eq!(bench.ask(&both).code, Code::OverLimit);
}

#[test]
fn a_quota_descriptor_alone_refuses() {
    let bench = Bench::new(TWO);
    assert_eq!(bench.passes("quota_small=a", 3), 1);
}

#[test]
fn a_required_descriptor_refuses_whatever_the_quotas_say() {
    let bench = Bench::new(TWO);
    assert_eq!(bench.passes("small=a", 1), 1);
    assert!(!bench.ask(&[d("small=a"), d("quota_large=a")]).passes());
    assert_eq!(bench.passes("quota_large=a", 5), 2, "and its refusal charged no quota");
}

#[test]
fn under_global_quota_mode_every_descriptor_is_a_quota_descriptor() {
    let bench = Bench::with_modes(TWO, GlobalModes { quota: true, shadow: false });
    let both = [d("small=a"), d("large=a")];
    assert!(bench.ask(&both).passes());
    let second = bench.ask(&both);
    assert!(second.passes(), "the larger one still passes");
    assert_eq!(
        second.quotas,
        [(true, false), (true, false)],
        "quotas, of which no group is refused"
    );
    assert_eq!(bench.passes("small=b", 3), 1, "alone it refuses");
}

#[test]
fn under_global_quota_mode_an_unmatched_descriptor_disables_rejection() {
    let bench = Bench::with_modes(TWO, GlobalModes { quota: true, shadow: false });
    assert_eq!(bench.passes("small=a", 3), 1);
    let answer = bench.ask(&[d("small=a"), d("nobody=a")]);
    assert!(answer.passes());
    assert_eq!(answer.rows[0].code, Code::OverLimit);
}

#[test]
fn a_shadowed_rule_counts_and_never_refuses() {
    let bench = Bench::new(TWO);
    assert!(bench.one("shadow=a").passes());
    let over = bench.one("shadow=a");
    assert!(over.passes());
    assert_eq!(over.rows[0].code, Code::Ok);
    assert_eq!(over.rows[0].remaining, 0);
    assert_eq!(over.rows[0].limit, Some(1), "the limit is shown all the same");
    assert_eq!(over.limited_by, None);
}

#[test]
fn a_shadowed_quota_descriptor_counts_as_one_that_passes() {
    let bench = Bench::new(TWO);
    assert_eq!(bench.passes("quota_small=a", 1), 1);
    assert!(bench.ask(&[d("quota_small=a"), d("shadow_quota=a")]).passes());
    assert!(bench.ask(&[d("quota_small=a"), d("shadow_quota=a")]).passes());
}

#[test]
fn global_shadow_mode_answers_ok_and_keeps_each_status() {
    let bench = Bench::with_modes(TWO, GlobalModes { shadow: true, quota: false });
    assert!(bench.one("small=a").passes());
    let over = bench.one("small=a");
    assert!(over.passes());
    assert!(over.shadowed);
    assert_eq!(over.rows[0].code, Code::OverLimit);
}

#[test]
fn global_shadow_mode_charges_as_if_enforced() {
    let bench = Bench::with_modes(TWO, GlobalModes { shadow: true, quota: false });
    assert!(bench.one("small=a").passes());
    for _ in 0..5 {
        assert!(bench.ask(&[d("small=a"), d("large=a")]).shadowed);
    }
    assert_eq!(bench.one("large=a").rows[0].remaining, 99, "the refused calls charged nothing");
}

#[test]
fn an_unlimited_rule_makes_no_check() {
    let bench = Bench::new(TWO);
    let answer = bench.one("free=a");
    assert!(answer.passes());
    assert_eq!(answer.source, Source::Policy);
    assert_eq!(answer.rows[0].remaining, u32::MAX);
    assert_eq!((answer.rows[0].limit, answer.rows[0].reset_s), (None, None));
}

#[test]
fn what_no_rule_matches_passes_with_a_bare_status() {
    let bench = Bench::new(TWO);
    for answer in [
        bench.one("nobody=a"),
        bench.one("step=a"),
        bench.one(""),
        bench.ask_domain("unknown", &[d("small=a")]),
    ] {
        assert!(answer.passes());
        let row = &answer.rows[0];
        assert_eq!((row.code, row.limit, row.remaining, row.reset_s), (Code::Ok, None, 0, None));
    }
}

const REPLACES: &str = "
domain: t
descriptors:
  - key: everybody
    rate_limit: {name: general, unit: hour, requests_per_unit: 1}
  - key: vip
    rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: general}]}
  - key: staff
    rate_limit: {unlimited: true, replaces: [{name: general}]}
";

#[test]
fn a_replaced_limit_is_not_counted_and_shows_nothing() {
    let bench = Bench::new(REPLACES);
    for _ in 0..5 {
        let answer = bench.ask(&[d("everybody=a"), d("vip=a")]);
        assert!(answer.passes());
        assert_eq!(answer.rows[0].limit, None);
        assert_eq!(answer.rows[1].limit, Some(5));
    }
    assert!(!bench.ask(&[d("everybody=a"), d("vip=a")]).passes());
    assert!(bench.one("everybody=a").passes(), "untouched until now");
}

#[test]
fn an_unlimited_rule_replaces_too() {
    let bench = Bench::new(REPLACES);
    for _ in 0..5 {
        assert!(bench.ask(&[d("staff=a"), d("everybody=a")]).passes());
    }
    assert_eq!(bench.passes("everybody=a", 3), 1);
}
