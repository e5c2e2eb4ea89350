//! Consumer classes, from policy text to what each class gets.

use tidegate::domain::Micros;

use super::test_decider::{Bench, d};

fn policy(method: &str, classes: &str, more: &str) -> String {
    format!(
        "
domain: t
descriptors:
  - key: plan
    rate_limit:
      algorithm: token_bucket
      unit: second
      requests_per_unit: 10
      burst: 100
      tiers: {{method: {method}, {more} classes: {{{classes}}}}}
"
    )
}

const SHARED: &str = "gold: {floor: 0%}, silver: {floor: 24%}, free: {floor: 62%}";

#[test]
fn classes_of_a_shared_bucket_are_refused_in_order() {
    let bench = Bench::new(&policy("shared", SHARED, ""));
    assert_eq!(bench.passes("plan=free", 200), 39, "while 62 are there before it takes");
    assert_eq!(bench.passes("plan=silver", 200), 38, "while 24 are there");
    assert_eq!(bench.passes("plan=gold", 200), 23, "to the last one");
    let waits = ["gold", "silver", "free"]
        .map(|class| bench.one(&format!("plan={class}")).retry_after.unwrap().0 / 100_000);
    assert_eq!(waits, [1, 24, 62], "a hit comes back in a tenth of a second");
}

#[test]
fn a_status_tells_what_the_callers_class_could_take() {
    let bench = Bench::new(&policy("shared", SHARED, ""));
    let left = |class: &str| bench.ask(&[d(&format!("plan={class}")).hits(0)]).rows[0].remaining;
    assert_eq!((left("gold"), left("silver"), left("free")), (100, 77, 39));
    let bench = Bench::new(&policy("separate", "gold: {share: 60%}, free: {share: 20%}", ""));
    let shown = |class: &str| bench.one(&format!("plan={class}")).rows[0].limit;
    assert_eq!((shown("gold"), shown("free")), (Some(6), Some(2)), "the class's rate");
}

#[test]
fn separate_classes_do_not_touch_each_other() {
    let bench = Bench::new(&policy("separate", "gold: {share: 50%}, free: {share: 40%}", ""));
    assert_eq!(bench.passes("plan=free", 200), 40);
    assert_eq!(bench.passes("plan=gold", 200), 50);
    bench.advance(Micros::SECOND);
    assert_eq!((bench.passes("plan=free", 50), bench.passes("plan=gold", 50)), (4, 5));
}

#[test]
fn a_hybrid_guarantees_shares_and_lends_the_rest() {
    let classes = "gold: {share: 30%}, free: {share: 20%, floor: 50%}";
    let bench = Bench::new(&policy("hybrid", classes, ""));
    assert_eq!(bench.passes("plan=free", 200), 20 + 26, "its share, and the pool's upper half");
    assert_eq!(bench.passes("plan=gold", 200), 30 + 24, "its share, and the rest of the pool");
    bench.advance(Micros::SECOND);
    assert_eq!(bench.passes("plan=free", 50), 2, "nobody is starved");
    assert_eq!(bench.passes("plan=gold", 50), 8, "3 of its own and what the shares leave over");
}

#[test]
fn an_unlisted_value_is_of_the_default_class() {
    let bench = Bench::new(&policy("shared", SHARED, ""));
    assert_eq!(bench.passes("plan=stranger", 200), 39, "that with the highest floor");
    let bench = Bench::new(&policy("shared", SHARED, "default: gold,"));
    assert_eq!(bench.passes("plan=stranger", 200), 100);
    for classes in [
        "gold: {share: 60%}, free: {share: 10%}, silver: {share: 30%}",
        "gold: {share: 60%}, free: {burst: 10, requests_per_unit: 1}, silver: {share: 30%}",
    ] {
        let bench = Bench::new(&policy("separate", classes, ""));
        assert_eq!(bench.passes("plan=stranger", 200), 10, "that with the smallest share");
    }
}

#[test]
fn unlisted_values_are_not_limited_where_the_default_is_none() {
    let bench = Bench::new(&policy("shared", SHARED, "default: none,"));
    let answer = bench.one("plan=stranger");
    assert!(answer.passes());
    assert_eq!((answer.rows[0].limit, answer.rows[0].remaining), (None, u32::MAX));
    assert_eq!(bench.passes("plan=stranger", 300), 300);
    assert_eq!(bench.passes("plan=gold", 300), 100);
}

/// In a shared bucket what was used stays used; a bucket of one's own is another one; in a hybrid
/// the pool is what all have in common.
#[test]
fn a_caller_who_changes_class_in_mid_window_gets_what_the_method_says() {
    let shared = Bench::new(&policy("shared", SHARED, ""));
    assert_eq!(shared.passes("plan=free", 200), 39);
    assert_eq!(shared.passes("plan=gold", 200), 61);
    let separate = Bench::new(&policy("separate", "gold: {share: 60%}, free: {share: 40%}", ""));
    assert_eq!(separate.passes("plan=free", 200), 40);
    assert_eq!(separate.passes("plan=gold", 200), 60);
    let hybrid = "gold: {share: 30%}, free: {share: 20%}";
    let hybrid = Bench::new(&policy("hybrid", hybrid, ""));
    assert_eq!(hybrid.passes("plan=free", 200), 70);
    assert_eq!(hybrid.passes("plan=gold", 200), 30);
}

#[test]
fn classes_divide_a_bucket_for_each_client() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: tenant
    descriptors:
      - key: plan
        rate_limit:
          algorithm: token_bucket
          unit: hour
          requests_per_unit: 10
          tiers: {method: shared, classes: {gold: {floor: 0%}, free: {floor: 50%}}}
",
    );
    assert_eq!(bench.passes("tenant=a > plan=free", 20), 6);
    assert_eq!(bench.passes("tenant=b > plan=gold", 20), 10);
    assert_eq!(bench.passes("tenant=a > plan=gold", 20), 4);
}

/// A policy of [`policy`] with a bucket of 10.
fn small(method: &str, classes: &str) -> Bench {
    Bench::new(&policy(method, classes, "").replace("burst: 100", "burst: 10"))
}

#[test]
fn a_floor_is_rounded_up_and_the_burst_of_a_class_is_rounded_down_to_a_whole_hit() {
    let bench = small("shared", "gold: {floor: 0%}, free: {floor: 24%}");
    assert_eq!(bench.passes("plan=free", 20), 8, "while 3 are there: 24% are 2.4");
    let bench = small("separate", "gold: {share: 58%}, free: {share: 42%}");
    assert_eq!((bench.passes("plan=gold", 20), bench.passes("plan=free", 20)), (5, 4));
}

#[test]
fn a_share_may_be_a_single_hit_or_the_whole_bucket() {
    assert_eq!(
        small("separate", "gold: {share: 90%}, free: {share: 10%}").passes("plan=free", 9),
        1
    );
    assert_eq!(small("separate", "gold: {share: 100%}").passes("plan=gold", 20), 10);
}

#[test]
fn a_bill_is_charged_to_the_callers_class_beyond_what_the_class_has_left() {
    let policy = policy("separate", "gold: {share: 60%}, free: {share: 20%}", "");
    let bench = Bench::new(&policy.replace("domain: t", "domain: t\ncharge: billed"));
    bench.ask(&[d("plan=free").hits(30)]);
    assert!(!bench.one("plan=free").passes(), "10 more than its 20 are used");
    assert_eq!(bench.ask(&[d("plan=gold").hits(0)]).rows[0].remaining, 60);
    bench.advance(Micros::from_secs(5));
    assert!(!bench.one("plan=free").passes(), "the debt of 10 is paid, and nothing is left");
    bench.advance(Micros::SECOND);
    assert!(bench.one("plan=free").passes());
}
