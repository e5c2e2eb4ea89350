//! The matcher: which rule a descriptor meets, which counters it has, how that is explained.

// Tests stop at the first surprise, and the support serves several of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, dead_code)]
#![allow(unreachable_pub)]

#[path = "../support/specs.rs"]
mod specs;

mod checks;
mod costs;
mod explained;
mod keys;
mod matching;
mod paths;
mod reference;
mod replaces;
mod switched;

use tidegate::domain::{Check, Entry, Request};
use tidegate::policy::{Found, Policy};

/// The path of the rule that a descriptor of these entries meets in the domain `d`.
fn met<'p>(policy: &'p Policy, entries: &[(&str, &str)]) -> Option<&'p str> {
    met_bytes(policy, &entries.iter().map(|(k, v)| specs::entry(*k, *v)).collect::<Vec<_>>())
}

fn met_bytes<'p>(policy: &'p Policy, entries: &[Entry<'_>]) -> Option<&'p str> {
    let descriptors = [specs::descriptor(entries)];
    match policy.find(&specs::request(&descriptors)).found[0] {
        Found::Limited(rule) | Found::Unlimited(rule) => Some(&rule.path),
        Found::Nothing => None,
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
