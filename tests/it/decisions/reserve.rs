//! `reserve`: hits that calls hold first and settle later.

use tidegate::domain::{Code, Micros, Override, Unit};

use super::test_decider::{Bench, TestDecision, TestDescriptor, d};

/// A budget of 100 an hour, whose holds end after a minute, beside what a test adds.
fn bench(more: &str) -> Bench {
    Bench::new(&format!(
        "{{domain: t, descriptors: [{{key: k, rate_limit: {{unit: hour, requests_per_unit: 100, \
         reserve: {{ttl: 60}}}}}} {more}]}}"
    ))
}

fn hold(id: &str, hits: u64) -> TestDescriptor {
    d("k=a").hits(hits).hold(id)
}

fn settle(id: &str, hits: u64) -> TestDescriptor {
    d("k=a").hits(hits).settle(id)
}

/// The code and the hits left of the first descriptor.
fn told(decision: &TestDecision) -> (Code, u32) {
    (decision.code, decision.rows[0].remaining)
}

#[test]
fn the_table_of_the_documentation() {
    let bench = bench("");
    let (ok, over) = (Code::Ok, Code::OverLimit);
    let mut clock = 0;
    for (at, asked, code, left, retry_s) in [
        (0, hold("a", 60), ok, 40, None),
        (1, hold("b", 50), over, 0, Some(59)),
        (2, hold("b", 40), ok, 0, None),
        (5, settle("a", 25), ok, 35, None),
        (6, settle("a", 25), ok, 35, None),
        (7, hold("b", 70), ok, 5, None),
        (67, d("k=a").hits(0), ok, 75, None),
        (70, settle("b", 80), ok, 0, None),
    ] {
        bench.advance(Micros::from_secs(at - clock));
        clock = at;
        let decision = bench.ask(&[asked]);
        assert_eq!(told(&decision), (code, left), "at {at} s");
        assert_eq!(decision.retry_after, retry_s.map(Micros::from_secs), "at {at} s");
    }
    assert!(!bench.ask(&[d("k=a").hits(0)]).passes(), "105 are used");
}

#[test]
fn of_estimates_above_the_limit_only_the_first_is_held() {
    let bench = bench("");
    let waits = [58, 80, 175, 175, 175].map(|estimate| {
        let decision = bench.ask(&[hold("", estimate)]);
        (decision.passes(), decision.retry_after.map(Micros::ceil_secs))
    });
    let never = (false, None);
    assert_eq!(waits, [(true, None), (false, Some(60)), never, never, never]);
}

#[test]
fn an_admitted_hold_is_told_its_id() {
    let bench = bench(", {key: n, rate_limit: {unit: hour, requests_per_unit: 1}}");
    assert_eq!(bench.ask(&[hold("mine", 10)]).hold.as_deref(), Some("sent"));
    let made = [(); 2].map(|()| bench.ask(&[hold("", 10)]).hold.unwrap());
    assert!(made[0].len() == 32 && made[0] != made[1], "{made:?}");
    assert_eq!(bench.ask(&[hold("", 90)]).hold, None, "rejected");
    assert_eq!(bench.ask(&[d("n=a").hold("x")]).hold, None, "nothing can be held");
    assert_eq!(bench.ask(&[hold("mine", 0)]).hold, None, "a peek");
    assert_eq!(bench.ask(&[settle(&made[0], 3)]).hold, None);
    assert_eq!(told(&bench.ask(&[d("k=a").hits(0)])), (Code::Ok, 77), "3 used, 10 and 10 held");
}

#[test]
fn a_limit_without_reserve_is_charged_the_estimate_and_not_asked_by_the_settle() {
    let bench = Bench::new(
        "{domain: t, charge: billed, descriptors: [{key: k, rate_limits: [\
         {name: budget, unit: hour, requests_per_unit: 100, reserve: {ttl: 60}}, \
         {name: calls, unit: hour, requests_per_unit: 90}]}]}",
    );
    let left = || told(&bench.ask(&[d("k=a").hits(0)])).1;
    assert!(bench.ask(&[hold("a", 60)]).passes());
    assert_eq!(left(), 30, "calls has 90 - 60, the budget 100 - 60");
    assert!(!bench.ask(&[hold("b", 40)]).passes(), "an estimate is no bill");
    assert_eq!(left(), 30);
    assert!(bench.ask(&[settle("a", 90)]).passes());
    assert_eq!(left(), 10, "the budget has 100 - 90");
}

#[test]
fn a_rejected_call_holds_nothing_under_either_accounting() {
    for accounting in ["all_or_nothing", "independent"] {
        let bench = Bench::new(&format!(
            "{{domain: t, accounting: {accounting}, descriptors: [{{key: k, rate_limit: {{unit: hour, \
             requests_per_unit: 100, reserve: {{ttl: 60}}}}}}, {{key: n, rate_limit: {{unit: hour, \
             requests_per_unit: 10, reserve: {{ttl: 60}}}}}}]}}"
        ));
        let both = [hold("a", 50), d("n=a").hits(11).hold("a")];
        assert!(!bench.ask(&both).passes());
        assert_eq!(told(&bench.ask(&[d("k=a").hits(0)])), (Code::Ok, 100), "{accounting}");
        let fits = [hold("a", 50), d("n=a").hits(10).hold("a")];
        assert!(bench.ask(&fits).passes());
        assert_eq!(told(&bench.ask(&[d("k=a").hits(0)])), (Code::Ok, 50), "{accounting}");
        // Beside a rejection, too, a settle is charged and OK.
        let decision = bench.ask(&[settle("a", 7), d("n=a").hits(11)]);
        assert_eq!((decision.code, decision.rows[0].code), (Code::OverLimit, Code::Ok));
        assert_eq!(told(&bench.ask(&[d("k=a").hits(0)])), (Code::Ok, 93), "{accounting}");
    }
}

#[test]
fn a_settle_takes_no_part_in_admission() {
    let bench = Bench::new(
        "{domain: t, descriptors: [{key: k, quota_mode: true, rate_limit: {unit: hour, \
         requests_per_unit: 100, reserve: {ttl: 60}}}, {key: n, quota_mode: true, rate_limit: \
         {unit: hour, requests_per_unit: 0}}]}",
    );
    assert!(bench.ask(&[hold("a", 50), d("n=a")]).passes(), "one group suffices");
    assert!(!bench.ask(&[settle("a", 5), d("n=a")]).passes(), "a settle is no group");
    assert_eq!(told(&bench.ask(&[d("k=a").hits(0)])), (Code::Ok, 95));
}

#[test]
fn a_shadow_limit_holds_what_fits() {
    let bench = Bench::new(
        "{domain: t, descriptors: [{key: k, shadow_mode: true, rate_limit: {unit: hour, \
         requests_per_unit: 100, reserve: {ttl: 60}}}]}",
    );
    assert_eq!(told(&bench.ask(&[hold("a", 60)])), (Code::Ok, 40));
    assert_eq!(bench.ask(&[hold("b", 50)]).code, Code::Ok);
    assert_eq!(told(&bench.ask(&[hold("c", 40)])), (Code::Ok, 0));
}

#[test]
fn a_limit_in_the_request_sees_the_holds_of_the_rule() {
    let bench = bench("");
    let limit = Override { requests_per_unit: 70, unit: Unit::Hour, unit_multiplier: 1 };
    assert!(bench.ask(&[hold("a", 60)]).passes());
    assert!(!bench.ask(&[d("k=a").hits(11).limit(limit)]).passes());
    assert_eq!(told(&bench.ask(&[d("k=a").hits(10).limit(limit)])), (Code::Ok, 0));
    assert_eq!(told(&bench.ask(&[settle("a", 20).limit(limit)])), (Code::Ok, 40));
    assert_eq!(told(&bench.ask(&[d("k=a").hits(0)])), (Code::Ok, 70));
}

#[test]
fn without_reserve_open_holds_are_forgotten() {
    let bench = bench("");
    assert!(bench.ask(&[hold("a", 60)]).passes());
    assert!(bench.ask(&[d("k=a").hits(10)]).passes());
    bench.reload(
        "{domain: t, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 100}}]}",
    );
    assert_eq!(told(&bench.ask(&[d("k=a").hits(0)])), (Code::Ok, 90));
    assert_eq!(told(&bench.ask(&[hold("b", 50)])), (Code::Ok, 40), "a take");
}
