//! Heap allocations of a match. Counted per thread, so that other tests do not disturb it.

use tidegate::domain::Request;
use tidegate::policy::{DescriptorMatch, Policy, Secret};

use crate::support::policy_specs::{descriptor, domain, entry, key, pair, request};

fn allocations(act: impl FnMut()) -> u64 {
    allocation_counter::measure(act).count_total
}

/// Exact, default and pattern nodes, with an index over the patterns.
fn policy() -> Policy {
    let mut spec = domain("d", [key("b").over([key("c").limit(1)])]);
    for n in 0..1000 {
        spec.nodes.push(pair("a", &format!("exact{n}")).limit(1).0);
        spec.nodes.push(pair("a", &format!("front{n}*")).limit(1).0);
        spec.nodes.push(pair("a", &format!("*back{n}")).limit(1).0);
        spec.nodes.push(pair("a", &format!("*mid{n}*dle{n}*")).limit(1).0);
        spec.nodes.push(key(&format!("default{n}")).limit(1).0);
    }
    Policy::build(vec![spec], Secret::default())
}

#[test]
fn a_request_that_matches_nothing_allocates_nothing() {
    let policy = policy();
    let long = "mid1mid2dle3".repeat(4000);
    let entries = [
        vec![],
        vec![entry("unknown", "x")],
        vec![entry("a", "no such value")],
        vec![entry("a", &long)],
        vec![entry("b", "x"), entry("z", "y")],
        vec![entry("b", "x"), entry("c", "y"), entry("too", "deep")],
    ];
    let descriptors: Vec<_> = entries.iter().map(|entries| descriptor(entries)).collect();
    let nowhere = Request { domain: "unknown", descriptors: &descriptors };
    // A thread's first lookup among patterns with pieces in the middle makes room for their
    // positions, and keeps it.
    policy.find(&request(&descriptors));
    let count = allocations(|| {
        for request in [&request(&descriptors), &nowhere] {
            let matches = policy.find(request);
            assert!(matches.found.iter().all(|found| matches!(found, DescriptorMatch::NoRule)));
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn an_ordinary_request_allocates_nothing_to_find_its_checks() {
    let policy = policy();
    let (one, two) = ([entry("b", "x"), entry("c", "192.168.100.100")], [entry("a", "front7x")]);
    let descriptors = [descriptor(&one), descriptor(&two)];
    let request = request(&descriptors);
    let count = allocations(|| {
        let matches = policy.find(&request);
        assert_eq!(policy.checks(&request, &matches).each.len(), 2);
    });
    assert_eq!(count, 0);
}
