//! Counts the checks that one request can need.

use std::collections::BTreeMap;

use crate::domain::Bounds;
use crate::policy::compiled_policy::{DomainSpec, NodeSpec};

/// Returns the maximum number of checks that one request can need if this number exceeds
/// `bounds.checks_max`, otherwise `None`. Assumes that a request has at most one descriptor for
/// each sequence of keys, because a rate limit action of Envoy has fixed keys. Other requests can
/// need more checks, and are rejected on arrival if they exceed the bound.
pub(crate) fn excessive_check_count(domain: &DomainSpec, bounds: &Bounds) -> Option<usize> {
    let mut counts = BTreeMap::new();
    count_limits(&domain.nodes, &mut Vec::new(), &mut counts);
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let worst: usize = counts.iter().take(bounds.descriptors_max).sum();
    (worst > bounds.checks_max).then_some(worst)
}

/// Adds the maximum number of limits of a rule for each sequence of keys below `path`.
fn count_limits<'a>(
    nodes: &'a [NodeSpec],
    path: &mut Vec<&'a str>,
    counts: &mut BTreeMap<Vec<&'a str>, usize>,
) {
    for node in nodes {
        path.push(&node.key);
        let limits = node.rule.as_ref().map_or(0, |rule| rule.limits.len());
        let most = counts.entry(path.clone()).or_insert(0);
        *most = limits.max(*most);
        count_limits(&node.children, path, counts);
        path.pop();
    }
}
