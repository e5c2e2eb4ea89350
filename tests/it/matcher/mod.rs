//! The matcher: which rule a descriptor matches, which counters it charges, and how `explain` shows
//! that.

mod allocations;
mod checks;
mod counter_keys;
mod counter_owners;
mod explain;
mod operator_overrides;
mod reference_matcher;
mod replaces;
mod rule_paths;
mod rule_selection;

use tidegate::domain::{Check, Entry, Request};
use tidegate::policy::{DescriptorMatch, Policy};

use crate::support::policy_specs as specs;

/// The path of the rule that a descriptor of these entries meets in the domain `d`.
fn met<'p>(policy: &'p Policy, entries: &[(&str, &str)]) -> Option<&'p str> {
    met_bytes(policy, &entries.iter().map(|(k, v)| specs::entry(*k, *v)).collect::<Vec<_>>())
}

fn met_bytes<'p>(policy: &'p Policy, entries: &[Entry<'_>]) -> Option<&'p str> {
    let descriptors = [specs::descriptor(entries)];
    match policy.find(&specs::request(&descriptors)).found[0] {
        DescriptorMatch::Limited(rule) | DescriptorMatch::Unlimited(rule) => Some(&rule.path),
        DescriptorMatch::NoRule => None,
        other => panic!("{other:?}"),
    }
}

/// The checks of a request, as numbers to compare.
fn checks_of<T>(policy: &Policy, request: &Request<'_>, read: impl Fn(&Check<'_>) -> T) -> Vec<T> {
    let matches = policy.find(request);
    let checks = policy.checks(request, &matches);
    assert_eq!(checks.spans.len(), request.descriptors.len());
    assert_eq!(checks.names.len(), checks.each.len());
    checks.each.iter().map(read).collect()
}
