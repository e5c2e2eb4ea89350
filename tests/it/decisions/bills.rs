//! `charge: billed`: hits that a descriptor names were used already, so they count in any case.

use tidegate::domain::{Code, LossCause, Override, Unit};

use super::test_decider::{Bench, TestDescriptor, d};

/// A limit of 21 an hour; `keys` stand beside it, `domain` beside the domain.
fn bench(domain: &str, keys: &str) -> Bench {
    Bench::new(&format!(
        "{{domain: t, {domain} descriptors: [{{key: k, rate_limit: {{unit: hour, \
         requests_per_unit: 21 {keys}}}}}, {{key: n, rate_limit: {{unit: hour, \
         requests_per_unit: 0}}}}]}}"
    ))
}

fn billed() -> Bench {
    bench("charge: billed,", "")
}

fn question() -> TestDescriptor {
    d("k=a").hits(0)
}

fn bill(hits: u64) -> TestDescriptor {
    d("k=a").hits(hits)
}

/// Questions that pass before one is refused, with a bill of 10 after each.
fn questions_before_refusal(bench: &Bench) -> usize {
    let mut passed = 0;
    while passed < 9 && bench.ask(&[question()]).passes() {
        bench.ask(&[bill(10)]);
        passed += 1;
    }
    passed
}

#[test]
fn bills_of_10_on_a_limit_of_21_let_three_questions_pass() {
    assert_eq!(questions_before_refusal(&billed()), 3);
    assert_eq!(questions_before_refusal(&bench("", ", charge: billed")), 3, "the rule's own");
    assert_eq!(questions_before_refusal(&bench("", "")), 9, "a refused bill charges nothing");
    let own = bench("charge: billed,", ", charge: admitted");
    assert_eq!(questions_before_refusal(&own), 9, "the rule's own stands above the domain's");
}

#[test]
fn hits_that_no_descriptor_names_are_charged_only_if_they_pass() {
    let bench = billed();
    bench.ask(&[bill(21)]);
    for _ in 0..3 {
        assert!(!bench.one("k=a").passes());
    }
    bench.ask(&[d("k=a").refund(1)]);
    assert!(bench.one("k=a").passes(), "a refused request had charged something");
}

#[test]
fn a_bill_counts_although_another_limit_rejects_the_call() {
    let bench = billed();
    assert_eq!(bench.ask(&[bill(20), d("n=x")]).code, Code::OverLimit);
    assert_eq!(bench.ask(&[bill(20), d("n=x")]).code, Code::OverLimit);
    assert_eq!(bench.ask(&[question()]).code, Code::OverLimit);
    let bench = billed();
    assert_eq!(bench.ask(&[d("k=a"), d("n=x")]).code, Code::OverLimit);
    assert_eq!(bench.ask(&[question()]).rows[0].remaining, 21, "an implicit hit was charged");
}

#[test]
fn the_cost_of_a_rule_multiplies_requests_and_not_bills() {
    let bench = bench("charge: billed,", ", cost: 5");
    assert_eq!(bench.ask(&[bill(10)]).rows[0].remaining, 11);
    assert_eq!(bench.one("k=a").rows[0].remaining, 6);
}

#[test]
fn a_question_asks_for_one_request_at_the_rules_cost() {
    for domain in ["", "charge: billed,"] {
        let bench = bench(domain, ", cost: 5");
        for left in [16, 11, 6, 1] {
            assert!(bench.ask(&[question()]).passes());
            assert_eq!(bench.one("k=a").rows[0].remaining, left);
        }
        assert!(!bench.ask(&[question()]).passes(), "1 is left, and a request costs 5");
        assert!(!bench.one("k=a").passes());
    }
}

#[test]
fn bills_beyond_a_buckets_debt_are_lost() {
    let bench = bench("charge: billed,", ", algorithm: token_bucket");
    bench.ask(&[bill(30)]);
    bench.ask(&[bill(30)]);
    let told = bench.told.0.lock().unwrap();
    let lost: Vec<_> = told.iter().map(|check| check.lost_bill).collect();
    let lost_hits = lost[1].map(|lost| (lost.hits.0, lost.cause));
    assert_eq!((lost[0], lost_hits), (None, Some((60 - 42, LossCause::DebtBound))));
}

#[test]
fn a_rejected_bill_is_lost_under_admitted() {
    let bench = bench("", "");
    bench.ask(&[bill(20)]);
    bench.ask(&[bill(20)]);
    bench.ask(&[question()]);
    let told = bench.told.0.lock().unwrap();
    let lost: Vec<_> =
        told.iter().map(|check| check.lost_bill.map(|lost| (lost.hits.0, lost.cause))).collect();
    assert_eq!(lost, [None, Some((20, LossCause::Rejected)), None]);
    assert_eq!(told.iter().map(|check| check.is_peek).collect::<Vec<_>>(), [false, false, true]);
}

fn hourly(requests_per_unit: u32) -> Override {
    Override { requests_per_unit, unit: Unit::Hour, unit_multiplier: 1 }
}

#[test]
fn bills_that_carry_an_override_which_the_question_also_carries_are_enforced() {
    let questions = |bench: &Bench, path: &str| {
        let mut passed = 0;
        while passed < 9 && bench.ask(&[d(path).hits(0).limit(hourly(21))]).passes() {
            bench.ask(&[d(path).hits(10).limit(hourly(21))]);
            passed += 1;
        }
        passed
    };
    assert_eq!(questions(&billed(), "k=a"), 3);
    assert_eq!(questions(&billed(), "unknown=a"), 3, "the domain's charge, without a rule");
    assert_eq!(questions(&bench("", ", charge: billed"), "k=a"), 3, "the rule's charge");
    assert_eq!(questions(&bench("", ", charge: always"), "k=a"), 3);
    assert_eq!(questions(&bench("", ""), "k=a"), 9);
}

#[test]
fn an_override_counts_on_the_rules_own_counter() {
    let bench = billed();
    bench.ask(&[bill(15)]);
    let raised = bench.ask(&[d("k=a").limit(hourly(100))]);
    assert_eq!(raised.rows[0].remaining, 100 - 16);
    assert!(!bench.ask(&[d("k=a").limit(hourly(16))]).passes());
    assert_eq!(bench.one("k=a").rows[0].remaining, 21 - 17);
    let other_windows = Override { unit: Unit::Day, ..hourly(100) };
    assert_eq!(bench.ask(&[d("k=a").limit(other_windows)]).rows[0].remaining, 99);
}

#[test]
fn a_limit_that_keeps_no_debt_ignores_the_charge_of_its_domain() {
    let bench = Bench::new(
        "{domain: t, charge: billed, descriptors: [{key: c, rate_limit: {algorithm: concurrency, \
         requests_per_unit: 2}}]}",
    );
    assert!(bench.ask(&[d("c=a").hits(2).holder("one")]).passes());
    assert!(!bench.ask(&[d("c=a").hits(2).holder("two")]).passes());
}
