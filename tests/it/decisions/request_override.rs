//! Request overrides: limits that a descriptor carries.

use tidegate::domain::{Override, Unit};

use super::test_decider::{Bench, d};

const POLICY: &str = "
domain: t
descriptors:
  - key: k
    rate_limit: {name: mine, unit: hour, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
";

fn of(requests_per_unit: u32, unit: Unit) -> Override {
    Override { requests_per_unit, unit, unit_multiplier: 1 }
}

#[test]
fn an_override_replaces_the_tree_and_needs_only_a_known_domain() {
    let bench = Bench::new(POLICY);
    for path in ["k=a", "free=a", "nobody=a", "x=1 > y=2"] {
        let five = d(path).limit(of(5, Unit::Minute));
        let passed = (0..9).filter(|_| bench.ask(std::slice::from_ref(&five)).passes()).count();
        assert_eq!(passed, 5, "{path}");
    }
    let elsewhere = [d("k=a").limit(of(0, Unit::Minute))];
    assert!(bench.ask_domain("unknown", &elsewhere).passes());
}

#[test]
fn an_override_of_nothing_refuses() {
    let bench = Bench::new(POLICY);
    assert!(!bench.ask(&[d("k=a").limit(of(0, Unit::Second))]).passes());
}

#[test]
fn an_override_shows_itself_without_a_name() {
    let bench = Bench::new(POLICY);
    let answer = bench.ask(&[d("k=a").limit(of(5, Unit::Minute))]);
    assert_eq!((answer.rows[0].limit, answer.rows[0].name.as_str()), (Some(5), ""));
    assert_eq!(answer.rows[0].remaining, 4);
}

#[test]
fn an_override_may_change_from_request_to_request_on_one_counter() {
    let bench = Bench::new(POLICY);
    let with = |n| bench.ask(&[d("k=a").limit(of(n, Unit::Hour))]);
    assert!(with(1).passes());
    assert!(!with(1).passes());
    assert!(with(3).passes(), "a refusal under a low override does not block a higher one");
    assert!(with(3).passes());
    assert!(!with(3).passes());
}

#[test]
fn overrides_of_different_windows_do_not_share_a_counter() {
    let bench = Bench::new(POLICY);
    assert!(bench.ask(&[d("k=a").limit(of(1, Unit::Hour))]).passes());
    assert!(bench.ask(&[d("k=a").limit(of(1, Unit::Day))]).passes());
    assert!(bench.ask(&[d("k=a")]).passes(), "nor with the policy's own limit");
    let two_hours = Override { unit_multiplier: 2, ..of(1, Unit::Hour) };
    assert!(bench.ask(&[d("k=a").limit(two_hours)]).passes());
}

#[test]
fn an_override_is_never_shadowed_nor_replaced() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: k
    shadow_mode: true
    rate_limit: {name: mine, unit: hour, requests_per_unit: 2}
  - key: vip
    rate_limit: {unlimited: true, replaces: [{name: mine}]}
",
    );
    let call = [d("k=a").limit(of(1, Unit::Hour)), d("vip=a")];
    assert!(bench.ask(&call).passes());
    assert!(!bench.ask(&call).passes());
}
