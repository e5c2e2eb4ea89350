//! Rules that an operator overrides: what changes, and what does not.

use std::sync::Arc;

use tidegate::domain::{
    Charge, Descriptor, Hits, Limit, Micros, OnStoreFailure, Request, Role, RuleId, Unit,
};
use tidegate::policy::{Options, Policy, RuleOverride, RuleOverrideError, Secret, Source, compile};

use super::checks_of;
use crate::support::policy_specs as specs;

fn written() -> Policy {
    specs::policy([specs::key("client").limit(100), specs::key("user").limit(3)])
}

fn switched(target: &str, switch: RuleOverride) -> Policy {
    written().with_overrides([(target, switch)].into_iter())
}

/// Capacity and role of each check of a request with both descriptors.
fn checks(policy: &Policy) -> Vec<(u64, Role)> {
    let (client, user) = ([specs::entry("client", "a")], [specs::entry("user", "b")]);
    let descriptors = [specs::descriptor(&client), specs::descriptor(&user)];
    checks_of(policy, &specs::request(&descriptors), |check| (check.limit.capacity().0, check.role))
}

#[test]
fn a_switch_changes_its_target_and_nothing_else() {
    use Role::{Required, Shadow};
    assert_eq!(checks(&written()), [(100, Required), (3, Required)]);
    assert_eq!(checks(&switched("d.client", RuleOverride::Shadow)), [(100, Shadow), (3, Required)]);
    assert_eq!(checks(&switched("d.client", RuleOverride::Allow)), [(3, Required)]);
    assert_eq!(checks(&switched("d.client", RuleOverride::Deny)), [(0, Required), (3, Required)]);
    assert_eq!(checks(&switched("d", RuleOverride::Scale(20))), [(20, Required), (1, Required)]);
    assert_eq!(checks(&switched("d", RuleOverride::Scale(100))), [(100, Required), (3, Required)]);
    assert_eq!(checks(&switched("nobody", RuleOverride::Deny)), checks(&written()));
}

#[test]
fn counters_and_numbers_of_rules_stay() {
    let (client, written) = ([specs::entry("client", "a")], written());
    let descriptors = [specs::descriptor(&client)];
    let key = |policy: &Policy| checks_of(policy, &specs::request(&descriptors), |check| check.key);
    for switch in [RuleOverride::Shadow, RuleOverride::Deny, RuleOverride::Scale(1)] {
        let switched = written.with_overrides([("d", switch)].into_iter());
        assert_eq!(key(&switched), key(&written));
        assert_eq!(switched.rule(RuleId(1)).unwrap().path, written.rule(RuleId(1)).unwrap().path);
    }
}

#[test]
fn what_is_denied_is_denied_without_the_store_too() {
    let policy = switched("d.client", RuleOverride::Deny);
    let limit = &policy.rules()[0].limits[0].limit;
    assert_eq!((limit.capacity(), limit.on_store_failure), (Hits(0), OnStoreFailure::Deny));
    let end = |limit: &Limit| limit.window_end(Micros::ZERO);
    let written = written();
    let original = &written.rules()[0].limits[0].limit;
    assert_eq!(end(limit), end(original), "clients are told the end of the limit's own window");
}

#[test]
fn the_classes_of_a_limit_are_switched_with_it() {
    let text = include_bytes!("../policy/good/tiers.yaml").to_vec();
    let source = Source { name: "tiers.yaml".into(), text };
    let compiled = compile(&[source], &Options::default()).unwrap();
    let written = Policy::build(compiled.domains, Secret::default());
    let gold = [specs::entry("shared", "gold")];
    let capacity = |policy: &Policy| {
        let descriptors = [specs::descriptor(&gold)];
        let request = Request { domain: "edge", descriptors: &descriptors };
        checks_of(policy, &request, |check| check.limit.capacity().0)
    };
    assert_eq!(capacity(&written), [200]);
    for (switch, left) in [(RuleOverride::Deny, 0), (RuleOverride::Scale(10), 20)] {
        assert_eq!(
            capacity(&written.with_overrides([("edge.shared", switch)].into_iter())),
            [left]
        );
    }
}

#[test]
fn several_switches_act_one_after_the_other() {
    let both = [("d", RuleOverride::Scale(50)), ("d.user", RuleOverride::Shadow)];
    let policy = written().with_overrides(both.into_iter());
    assert_eq!(checks(&policy), [(50, Role::Required), (1, Role::Shadow)]);
}

#[test]
fn a_switch_that_would_do_nothing_is_refused() {
    let policy = written();
    assert_eq!(policy.check_override("d", RuleOverride::Deny), Ok(()));
    assert_eq!(policy.check_override("d.user", RuleOverride::Allow), Ok(()));
    assert!(matches!(
        policy.check_override("d.nobody", RuleOverride::Allow),
        Err(RuleOverrideError::UnknownTarget(_))
    ));
    let unlimited = specs::policy([specs::key("client").unlimited()]);
    let refused = unlimited.check_override("d", RuleOverride::Deny);
    assert!(matches!(refused, Err(RuleOverrideError::NoLimitToDeny(_))));
}

#[test]
fn what_is_denied_counts_nothing_even_where_hits_are_charged_always() {
    use tidegate::algorithm;
    use tidegate::domain::{Limit, Micros, Op};

    let mut node = specs::key("client").limit(100);
    let [spec] = Arc::make_mut(&mut node.0.rule.as_mut().unwrap().limits) else { panic!() };
    spec.limit = Arc::new(Limit { charge: Charge::Always, ..(*spec.limit).clone() });
    let policy = specs::policy([node]).with_overrides([("d", RuleOverride::Deny)].into_iter());
    let limit = &policy.rules()[0].limits[0].limit;
    for op in [Op::Take { cost: Hits(7) }, Op::PEEK, Op::Refund { cost: Hits(7) }] {
        let step = algorithm::apply(None, limit, op, Micros(1_763_668_800_000_000));
        assert_eq!((step.outcome.charged, step.write), (Hits(0), None), "{op:?}");
    }
}

#[test]
fn a_bill_is_charged_to_the_overridden_limit() {
    let mut billed = specs::window(100, Unit::Second);
    Arc::make_mut(&mut billed).charge = Charge::Billed;
    let written = specs::policy([specs::key("client").with(specs::spec(None, billed))]);
    let client = [specs::entry("client", "a")];
    let descriptors = [Descriptor { has_hits_addend: true, ..specs::descriptor(&client) }];
    let charged = |policy: &Policy| {
        let read =
            |check: &tidegate::domain::Check<'_>| (check.limit.capacity(), check.limit.charge);
        checks_of(policy, &specs::request(&descriptors), read)
    };
    let under = |value| charged(&written.with_overrides([("d", value)].into_iter()));
    assert_eq!(charged(&written), [(Hits(100), Charge::Always)]);
    assert_eq!(under(RuleOverride::Scale(20)), [(Hits(20), Charge::Always)]);
    assert_eq!(under(RuleOverride::Deny), [(Hits::ZERO, Charge::Admitted)]);
}

#[test]
fn an_override_keeps_the_secret_the_bound_on_checks_and_the_replaced_names() {
    let nodes = [specs::key("client").limit(100).replaces(["base"])];
    let written =
        Policy::build(vec![specs::domain("d", nodes)], Secret::derive("s")).with_checks_max(7);
    let switched = written.with_overrides([("d", RuleOverride::Scale(50))].into_iter());
    let client = [specs::entry("client", "a")];
    let descriptors = [specs::descriptor(&client)];
    let key = |policy: &Policy| checks_of(policy, &specs::request(&descriptors), |check| check.key);
    assert_eq!(key(&switched), key(&written));
    assert_eq!(switched.checks_max(), 7);
    assert!(switched.explain("d", &client).to_string().ends_with("replaces base"));
}

#[test]
fn a_percentage_is_a_whole_number_from_1_to_100() {
    assert_eq!(RuleOverride::read("1%"), Ok(RuleOverride::Scale(1)));
    assert_eq!(RuleOverride::read("100%"), Ok(RuleOverride::Scale(100)));
    for word in ["0%", "101%", "-1%", "1.5%", "%", "50"] {
        assert_eq!(
            RuleOverride::read(word),
            Err(RuleOverrideError::InvalidWord(word.to_owned())),
            "{word}"
        );
    }
}
