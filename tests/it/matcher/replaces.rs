//! `replaces`: limits that a matched rule removes from the request.

use tidegate::domain::Unit;
use tidegate::policy::{DescriptorMatch, Policy};

use crate::support::policy_specs::{
    bringing, bucket, descriptor, entry, key, listed, policy, request, window,
};

/// For each descriptor, a request of the keys given with the value `x`: what was found and the
/// names of the limits that are checked.
fn outcome(policy: &Policy, keys: &[&str]) -> Vec<(char, Vec<String>)> {
    let entries: Vec<_> = keys.iter().map(|key| [entry(*key, "x")]).collect();
    let descriptors: Vec<_> = entries.iter().map(|entries| descriptor(entries)).collect();
    let request = request(&descriptors);
    let matches = policy.find(&request);
    let checks = policy.checks(&request, &matches);
    matches
        .found
        .iter()
        .zip(&checks.spans)
        .map(|(found, span)| {
            let letter = match found {
                DescriptorMatch::NoRule => '-',
                DescriptorMatch::Replaced(_) => 'r',
                DescriptorMatch::Unlimited(_) => 'u',
                DescriptorMatch::Limited(_) => 'l',
                DescriptorMatch::Overridden(_) | DescriptorMatch::Override(_) => 'o',
            };
            (letter, checks.names[span.clone()].iter().map(ToString::to_string).collect())
        })
        .collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn a_matched_limit_whose_name_is_replaced_is_dropped_whatever_the_order() {
    let policy = policy([
        key("a").named("base", 1),
        key("b").named("better", 2).replaces(["base"]),
        key("c").named("other", 3),
    ]);
    assert_eq!(outcome(&policy, &["a"]), [('l', names(&["base"]))]);
    assert_eq!(outcome(&policy, &["a", "b"]), [('r', vec![]), ('l', names(&["better"]))]);
    assert_eq!(outcome(&policy, &["b", "a"]), [('l', names(&["better"])), ('r', vec![])]);
    assert_eq!(
        outcome(&policy, &["a", "c", "z"]),
        [('l', names(&["base"])), ('l', names(&["other"])), ('-', vec![])]
    );
}

#[test]
fn replacing_works_across_the_whole_request_not_per_branch() {
    let policy = policy([
        key("a").over([key("x").named("deep", 1)]),
        key("b").over([key("y").named("elsewhere", 1).replaces(["deep"])]),
    ]);
    let (one, two) = ([entry("a", "1"), entry("x", "1")], [entry("b", "1"), entry("y", "1")]);
    let descriptors = [descriptor(&one), descriptor(&two)];
    let matches = policy.find(&request(&descriptors));
    assert!(matches!(matches.found[0], DescriptorMatch::Replaced(rule) if &*rule.path == "d.a.x"));
    assert!(matches!(matches.found[1], DescriptorMatch::Limited(_)));
}

#[test]
fn unlimited_rules_replace_too_and_stay_unlimited() {
    let policy = policy([
        key("a").named("base", 1),
        key("vip").unlimited().replaces(["base"]),
        key("b").named("x", 1).replaces(["vip"]),
    ]);
    assert_eq!(
        outcome(&policy, &["a", "vip", "b"]),
        [('r', vec![]), ('u', vec![]), ('l', names(&["x"]))]
    );
}

#[test]
fn replaced_rules_still_replace_others() {
    let policy = policy([
        key("a").named("a", 1).replaces(["b"]),
        key("b").named("b", 1).replaces(["a", "c"]),
        key("c").named("c", 1),
    ]);
    assert_eq!(outcome(&policy, &["a", "b", "c"]), [('r', vec![]), ('r', vec![]), ('r', vec![])]);
}

#[test]
fn single_limits_of_a_list_are_dropped_and_the_others_stay() {
    let policy = policy([
        key("a").with(listed("burst", None, bucket(10, 20))).with(listed(
            "daily",
            None,
            window(100, Unit::Day),
        )),
        key("b").unlimited().replaces(["burst"]),
        key("c").unlimited().replaces(["daily"]),
    ]);
    assert_eq!(outcome(&policy, &["a"])[0], ('l', names(&["burst", "daily"])));
    assert_eq!(outcome(&policy, &["a", "b"])[0], ('l', names(&["daily"])));
    assert_eq!(outcome(&policy, &["c", "a"])[1], ('l', names(&["burst"])));
    assert_eq!(outcome(&policy, &["c", "a", "b"])[1], ('r', vec![]));
}

#[test]
fn a_limit_never_replaces_itself() {
    let policy = policy([
        key("a")
            .with(listed("one", None, bucket(10, 20)))
            .with(listed("two", None, bucket(1, 2)))
            .replaces(["one"]),
        key("b").named("one", 5),
    ]);
    assert_eq!(
        outcome(&policy, &["a", "a"]),
        [('l', names(&["one", "two"])), ('l', names(&["one", "two"]))]
    );
    assert_eq!(outcome(&policy, &["a", "b"])[1], ('r', vec![]));
}

#[test]
fn replacing_a_limit_that_does_not_exist_changes_nothing() {
    let policy = policy([key("a").limit(1), key("b").named("b", 1).replaces(["ghost"])]);
    assert_eq!(outcome(&policy, &["a", "b"]), [('l', names(&[""])), ('l', names(&["b"]))]);
}

#[test]
fn a_limit_that_the_caller_brought_along_is_never_replaced() {
    let policy = policy([key("a").named("base", 1), key("b").unlimited().replaces(["base", ""])]);
    let (one, two) = ([entry("a", "1")], [entry("b", "1")]);
    let descriptors = [bringing(&one, 3, Unit::Second), descriptor(&two)];
    let matches = policy.find(&request(&descriptors));
    assert!(matches!(matches.found[0], DescriptorMatch::Overridden(_)));
    assert_eq!(policy.checks(&request(&descriptors), &matches).each.len(), 1);
}
