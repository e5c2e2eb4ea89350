//! Which limits a refused call charges.

use super::test_decider::{Bench, d};

fn policy(accounting: &str) -> String {
    format!(
        "
domain: t
accounting: {accounting}
descriptors:
  - key: small
    rate_limit: {{unit: hour, requests_per_unit: 1}}
  - key: large
    rate_limit: {{unit: hour, requests_per_unit: 100}}
  - key: shadow
    shadow_mode: true
    rate_limit: {{unit: hour, requests_per_unit: 100}}
  - key: used
    rate_limit: {{unit: hour, requests_per_unit: 100, charge: always}}
"
    )
}

fn remaining(bench: &Bench, path: &str) -> u32 {
    bench.ask(&[d(path).hits(0)]).rows[0].remaining
}

#[test]
fn all_or_nothing_a_refused_call_charges_nothing_shadow_checks_included() {
    let bench = Bench::new(&policy("all_or_nothing"));
    let call = [d("large=a"), d("small=a"), d("shadow=a")];
    assert!(bench.ask(&call).passes());
    for _ in 0..10 {
        assert!(!bench.ask(&call).passes());
    }
    assert_eq!(remaining(&bench, "large=a"), 99);
    assert_eq!(remaining(&bench, "shadow=a"), 99);
}

#[test]
fn all_or_nothing_is_the_default() {
    let bench = Bench::new(&policy("all_or_nothing").replace("accounting: all_or_nothing", ""));
    assert!(bench.ask(&[d("large=a"), d("small=a")]).passes());
    assert!(!bench.ask(&[d("large=a"), d("small=a")]).passes());
    assert_eq!(remaining(&bench, "large=a"), 99);
}

#[test]
fn independent_charges_every_check_that_passes_and_none_that_refuses() {
    let bench = Bench::new(&policy("independent"));
    let call = [d("large=a"), d("small=a"), d("shadow=a")];
    for _ in 0..10 {
        bench.ask(&call);
    }
    assert_eq!(remaining(&bench, "large=a"), 90);
    assert_eq!(remaining(&bench, "shadow=a"), 90);
    assert_eq!(remaining(&bench, "small=a"), 0);
}

#[test]
fn what_was_used_already_is_charged_whatever_becomes_of_the_call() {
    let bench = Bench::new(&policy("all_or_nothing"));
    let call = [d("used=a").hits(7), d("small=a")];
    assert!(bench.ask(&call).passes());
    assert!(!bench.ask(&call).passes());
    assert_eq!(remaining(&bench, "used=a"), 86);
}

#[test]
fn the_same_descriptor_twice_is_charged_twice() {
    let bench = Bench::new(&policy("all_or_nothing"));
    assert!(bench.ask(&[d("large=a"), d("large=a")]).passes());
    assert_eq!(remaining(&bench, "large=a"), 98);
    assert!(!bench.ask(&[d("small=a"), d("small=a")]).passes(), "the second meets the first");
    assert!(bench.one("small=a").passes(), "and the refused call charged neither");
}
