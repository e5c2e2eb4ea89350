//! The checks of a matched request.

use tidegate::domain::{
    Accounting, Algorithm, Charge, Descriptor, Hits, Micros, Op, Role, Unit, Window,
};
use tidegate::policy::{CHECKS_MAX, DescriptorMatch, Policy, Secret};

use super::checks_of;
use crate::support::policy_specs::{
    bringing, bucket, descriptor, domain, entry, key, listed, policy, request, spec, window,
};

fn op(hits: u64, cost: u64, refund: bool) -> Op {
    let mut limit = spec(None, window(5, Unit::Second));
    limit.cost = cost;
    let policy = policy([key("a").with(limit)]);
    let entries = [entry("a", "x")];
    let descriptors = [Descriptor { hits: Hits(hits), refund, ..descriptor(&entries) }];
    checks_of(&policy, &request(&descriptors), |check| check.op)[0]
}

#[test]
fn hits_are_taken_times_the_cost_of_the_limit() {
    assert_eq!(op(1, 1, false), Op::Take { cost: Hits(1) });
    assert_eq!(op(3, 5, false), Op::Take { cost: Hits(15) });
    assert_eq!(op(u64::MAX, 2, false), Op::Take { cost: Hits(u64::MAX) });
}

#[test]
fn zero_hits_are_a_peek_for_one_request_at_the_cost_of_the_limit() {
    assert_eq!(op(0, 1, false), Op::PEEK);
    assert_eq!(op(0, 7, false), Op::Peek { hits: Hits(7) });
}

#[test]
fn negative_hits_are_refunded_times_the_cost_of_the_limit() {
    assert_eq!(op(3, 5, true), Op::Refund { cost: Hits(15) });
    assert_eq!(op(0, 5, true), Op::Refund { cost: Hits(0) }, "asks for nothing, so no peek");
}

#[test]
fn checks_stand_in_the_order_of_the_descriptors_and_of_the_file() {
    let policy = policy([
        key("a").with(listed("one", None, bucket(1, 1))).with(listed("two", None, bucket(1, 2))),
        key("b").named("three", 3),
    ]);
    let (a, b, z) = ([entry("a", "x")], [entry("b", "x")], [entry("z", "x")]);
    let descriptors = [descriptor(&b), descriptor(&z), descriptor(&a)];
    let request = request(&descriptors);
    let matches = policy.find(&request);
    let checks = policy.checks(&request, &matches);
    assert_eq!(checks.names.as_slice(), ["three", "one", "two"]);
    assert_eq!(checks.spans.as_slice(), [0..1, 1..1, 1..3]);
}

#[test]
fn a_mode_of_the_rule_is_the_role_of_its_checks_and_shadow_wins() {
    for (shadow, quota, role) in [
        (false, false, Role::Required),
        (false, true, Role::Quota(0)),
        (true, false, Role::Shadow),
        (true, true, Role::Shadow),
    ] {
        let policy = policy([key("a").limit(1).ruled(|rule| {
            rule.shadow_mode = shadow;
            rule.quota_mode = quota;
        })]);
        let entries = [entry("a", "x")];
        let descriptors = [descriptor(&entries)];
        assert_eq!(checks_of(&policy, &request(&descriptors), |check| check.role), [role]);
    }
}

#[test]
fn a_limit_that_the_caller_brings_along_skips_the_tree() {
    let policy = policy([key("a").named("own", 1).ruled(|rule| rule.shadow_mode = true)]);
    let (a, z) = ([entry("a", "x")], [entry("nowhere", "y")]);
    let descriptors = [
        bringing(&a, 42, Unit::Hour),
        descriptor(&a),
        Descriptor { hits: Hits::ZERO, ..bringing(&z, 0, Unit::Day) },
    ];
    let request = request(&descriptors);
    let matches = policy.find(&request);
    assert!(matches!(
        matches.found.as_slice(),
        [DescriptorMatch::Override(0), DescriptorMatch::Limited(_), DescriptorMatch::Override(1)]
    ));
    let checks = policy.checks(&request, &matches);
    let brought = &checks.each[0];
    assert_eq!(brought.limit.rate.requests_per_unit, 42);
    assert_eq!(brought.limit.capacity(), Hits(42));
    assert_eq!(brought.limit.charge, Charge::Admitted);
    assert_eq!((brought.role, brought.op), (Role::Required, Op::Take { cost: Hits(1) }));
    assert_eq!(checks.names.as_slice(), ["", "own", ""]);
    assert_eq!((checks.each[2].op, checks.each[2].limit.capacity()), (Op::PEEK, Hits(0)));
}

#[test]
fn a_limit_that_the_caller_brings_along_needs_a_known_domain() {
    let policy = policy([key("a").limit(1)]);
    let entries = [entry("a", "x")];
    let descriptors = [bringing(&entries, 1, Unit::Second)];
    let request = tidegate::domain::Request { domain: "other", descriptors: &descriptors };
    assert!(matches!(policy.find(&request).found[0], DescriptorMatch::NoRule));
}

#[test]
fn a_brought_limit_has_windows_of_its_unit_times_its_multiplier() {
    let policy = policy([]);
    let entries = [entry("a", "x")];
    let lengths = [(1, 60), (15, 900), (0, 60)].map(|(multiplier, seconds)| {
        let mut one = bringing(&entries, 1, Unit::Minute);
        one.limit.as_mut().unwrap().unit_multiplier = multiplier;
        let descriptors = [one];
        let matches = policy.find(&request(&descriptors));
        let Algorithm::FixedWindow(fixed) = &matches.overrides[0].algorithm else { panic!() };
        (fixed.window.clone(), Window::Epoch { length: Micros::from_secs(seconds) })
    });
    for (is, should_be) in lengths {
        assert_eq!(is, should_be);
    }
}

#[test]
fn the_longest_brought_window_stays_within_exact_arithmetic() {
    let policy = policy([]);
    let entries = [entry("a", "x")];
    let mut one = bringing(&entries, 1, Unit::Year);
    one.limit.as_mut().unwrap().unit_multiplier = u32::MAX;
    let descriptors = [one];
    let matches = policy.find(&request(&descriptors));
    let Algorithm::FixedWindow(fixed) = &matches.overrides[0].algorithm else { panic!() };
    let Window::Epoch { length } = fixed.window else { panic!("{fixed:?}") };
    assert!(length.0 < 1 << 53);
}

#[test]
fn brought_limits_of_one_domain_and_window_are_one_family() {
    let specs = vec![domain("d", []), domain("e", [])];
    let policy = Policy::build(specs, Secret::default());
    let entries = [entry("a", "x")];
    let family = |domain, per_unit, unit| {
        let descriptors = [bringing(&entries, per_unit, unit)];
        let request = tidegate::domain::Request { domain, descriptors: &descriptors };
        policy.find(&request).overrides[0].limit_id
    };
    assert_eq!(family("d", 1, Unit::Second), family("d", 2, Unit::Second));
    assert_ne!(family("d", 1, Unit::Second), family("e", 1, Unit::Second));
    assert_ne!(family("d", 1, Unit::Second), family("d", 1, Unit::Minute));
}

#[test]
fn a_call_that_needs_more_checks_than_the_bound_is_cut_off_and_says_so() {
    assert_eq!(CHECKS_MAX, 2_048);
    let policy_of_one = || policy([key("a").limit(1)]);
    let policy = policy_of_one();
    let entries = [entry("a", "x")];
    let descriptors = vec![descriptor(&entries); CHECKS_MAX + 3];
    let request = request(&descriptors);
    let matches = policy.find(&request);
    let checks = policy.checks(&request, &matches);
    assert_eq!(checks.each.len(), CHECKS_MAX);
    assert_eq!(checks.spans.len(), CHECKS_MAX + 3);
    assert_eq!(checks.spans[CHECKS_MAX], CHECKS_MAX..CHECKS_MAX);
    assert!(checks.is_truncated);
    let fewer = tidegate::domain::Request { descriptors: &descriptors[..CHECKS_MAX], ..request };
    let matches = policy.find(&fewer);
    assert!(!policy.checks(&fewer, &matches).is_truncated);
    let policy = policy_of_one().with_checks_max(CHECKS_MAX - 1);
    let matches = policy.find(&fewer);
    assert!(policy.checks(&fewer, &matches).is_truncated);
}

#[test]
fn the_accounting_is_the_domains() {
    let mut independent = domain("d", [key("a").limit(1)]);
    independent.accounting = Accounting::Independent;
    let policy = Policy::build(vec![independent, domain("e", [])], Secret::default());
    let accounting =
        |domain| policy.find(&tidegate::domain::Request { domain, descriptors: &[] }).accounting;
    assert_eq!(accounting("d"), Accounting::Independent);
    assert_eq!(accounting("e"), Accounting::AllOrNothing);
    assert_eq!(accounting("unknown"), Accounting::AllOrNothing);
}
