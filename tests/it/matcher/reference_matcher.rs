//! The matcher against a naive one, written as the documentation states the rules.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::domain::{Entry, Unit};
use tidegate::policy::compiled_policy::{NodeSpec, ValueSpec};
use tidegate::policy::{DescriptorMatch, Policy, Secret};

use crate::support::policy_specs::{descriptor, domain, entry, request, spec, window};

/// The number in the rule that a path ends at.
fn naive(level: &[NodeSpec], entries: &[(String, Vec<u8>)]) -> Option<u32> {
    let ((key, value), deeper) = entries.split_first()?;
    let of_key = || level.iter().filter(|node| *node.key == **key);
    let exact = of_key()
        .find(|node| matches!(&node.value, ValueSpec::Exact(own) if own.as_bytes() == value));
    let pattern = || {
        of_key().find(
            |node| matches!(&node.value, ValueSpec::Pattern(text) if fits(text.as_bytes(), value)),
        )
    };
    let default = || of_key().find(|node| node.value == ValueSpec::Any);
    let node = exact.or_else(pattern).or_else(default)?;
    if deeper.is_empty() {
        node.rule.as_ref().map(|rule| rule.limits[0].limit.rate.requests_per_unit)
    } else {
        naive(&node.children, deeper)
    }
}

/// Whether a value fits a pattern, by trying every length for every star.
fn fits(pattern: &[u8], value: &[u8]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((b'*', rest)) => (0..=value.len()).any(|skip| fits(rest, &value[skip..])),
        Some((byte, rest)) => value.first() == Some(byte) && fits(rest, &value[1..]),
    }
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("a_b"), Just("a*")].prop_map(String::from)
}

fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab]{1,3}\\*",
        4 => "\\*[ab]{1,3}",
        4 => "[ab]{1,2}\\*[ab]{1,2}",
        4 => "\\*[ab]{1,3}\\*",
        8 => "[ab]{0,2}\\*[ab]{1,2}\\*[ab]{0,2}\\*[ab]{0,2}",
        2 => "[ab*]{1,6}\\*",
        1 => Just("*".to_owned()),
    ]
}

fn value() -> impl Strategy<Value = ValueSpec> {
    prop_oneof![
        1 => Just(ValueSpec::Any),
        3 => "[ab_]{1,4}".prop_map(|text| ValueSpec::Exact(text.into())),
        5 => pattern().prop_map(|text| ValueSpec::Pattern(text.into())),
    ]
}

fn node(key: String, value: ValueSpec, has_rule: bool, children: Vec<NodeSpec>) -> NodeSpec {
    let mut node = crate::support::policy_specs::key(&key);
    if has_rule {
        node = node.limit(0);
    }
    NodeSpec { value, children, ..node.0 }
}

fn level() -> impl Strategy<Value = Vec<NodeSpec>> {
    let leaf = (key(), value(), any::<bool>()).prop_map(|(k, v, rule)| node(k, v, rule, vec![]));
    let deeper = leaf.prop_recursive(3, 60, 15, |inner| {
        (key(), value(), prop::bool::weighted(0.8), vec(inner, 0..15))
            .prop_map(|(k, v, rule, children)| node(k, v, rule, children))
    });
    vec(deeper, 0..15)
}

/// Gives every rule a number of its own, to be told by.
fn number(level: &mut [NodeSpec], next: &mut u32) {
    for node in level {
        if let Some(rule) = &mut node.rule {
            rule.limits = vec![spec(None, window(*next, Unit::Second))].into();
            *next += 1;
        }
        number(&mut node.children, next);
    }
}

fn met(policy: &Policy, entries: &[(String, Vec<u8>)]) -> Option<u32> {
    let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| entry(key, value)).collect();
    let descriptors = [descriptor(&entries)];
    match policy.find(&request(&descriptors)).found[0] {
        DescriptorMatch::Limited(rule) => Some(rule.limits[0].limit.rate.requests_per_unit),
        DescriptorMatch::NoRule => None,
        ref other => panic!("{other:?}"),
    }
}

fn build(mut nodes: Vec<NodeSpec>) -> (Policy, Vec<NodeSpec>) {
    number(&mut nodes, &mut 1);
    let mut spec = domain("d", []);
    spec.nodes.clone_from(&nodes);
    (Policy::build(vec![spec], Secret::default()), nodes)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof!["[ab_*]{0,8}".prop_map(String::into_bytes), vec(any::<u8>(), 0..3)]
}

proptest! {
    #[test]
    fn random_requests_meet_the_rule_that_the_naive_matcher_finds(
        nodes in level(),
        requests in vec(vec((key(), bytes()), 0..4), 20),
    ) {
        let (policy, nodes) = build(nodes);
        for entries in requests {
            prop_assert_eq!(met(&policy, &entries), naive(&nodes, &entries), "{:?}", entries);
        }
    }

    #[test]
    fn among_many_sibling_patterns_the_naive_matchers_choice_is_met(
        texts in vec(pattern().prop_filter("fits all", |text| !text.trim_matches('*').is_empty()), 9..80),
        values in vec("[ab]{0,24}", 40),
    ) {
        let patterns = texts.into_iter().map(|text| ValueSpec::Pattern(text.into()));
        let (policy, nodes) =
            build(patterns.map(|value| node("a".to_owned(), value, true, vec![])).collect());
        for value in values {
            let entries = [("a".to_owned(), value.into_bytes())];
            prop_assert_eq!(met(&policy, &entries), naive(&nodes, &entries), "{:?}", entries);
        }
    }
}
