//! Finds pairs of limits that one request can hit, and determines whether Redis Cluster stores
//! their counters in one hash slot. Also counts the checks that one request can need.
//!
//! Envoy sends at most one descriptor per sequence of keys, because a rate limit action has fixed
//! keys. Limits whose paths differ only in values are therefore not reported as pairs, although
//! other clients, such as Envoy AI Gateway, can hit several of them in one request. Two limits are
//! colocated if both counter keys contain every `hash_tag` entry with the same values.
//!
//! Not here: building the hash tag (`lookup::build`, `lookup::counter_key`).

use std::collections::BTreeMap;
use std::fmt;

use super::spec::{DomainSpec, LimitSpec, NodeSpec, ValueSpec};
use crate::domain::{Bounds, escaped};

/// Maximum number of pairs reported. A policy with thousands of limits has millions of pairs, and
/// a report of more than a thousand pairs does not help the operator.
const LIMIT_PAIRS_MAX: usize = 1_000;

/// Pair of limits that one request can hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPair {
    /// Path of the limit that comes first in the policy, followed by its name if it has one.
    pub one: String,
    /// Path of the limit that comes second in the policy, followed by its name if it has one.
    pub other: String,
    /// Whether Redis Cluster stores both counters in the same hash slot.
    pub colocation: Colocation,
}

/// Whether Redis Cluster stores the counters of two limits in the same hash slot, so that one
/// script charges both or neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Colocation {
    /// Counters in the same hash slot.
    SameSlot,
    /// Counters that may be in different hash slots. The list contains the entry keys that both
    /// counter keys have and whose values can be equal. A `hash_tag` of one or more of these entry
    /// keys would put both counters in the same slot.
    ColocatableBy(Vec<String>),
    /// Counters that no `hash_tag` can put in the same hash slot, because their keys have no entry
    /// in common.
    NotColocatable,
}

impl fmt::Display for LimitPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}: ", self.one, self.other)?;
        match &self.colocation {
            Colocation::SameSlot => f.write_str("joined"),
            Colocation::ColocatableBy(keys) => write!(f, "joinable by {}", keys.join(" or ")),
            Colocation::NotColocatable => f.write_str("not joinable"),
        }
    }
}

/// Limit with its position in the domain and the entries of its counter key.
pub(crate) struct LimitSite<'a> {
    /// Index of each node on the limit's path among its siblings, from the first level down.
    pub(crate) indices: Vec<usize>,
    /// Index of the limit within its rule.
    pub(crate) index_in_rule: usize,
    /// Whether the limit is an entry of `rate_limits` rather than a single `rate_limit`.
    pub(crate) in_list: bool,
    /// Entry keys on the limit's path, from the first level down.
    path_keys: Vec<&'a str>,
    /// Entries in the limit's counter key: the key of each entry, and its value if the policy
    /// specifies one.
    key_entries: Vec<(&'a str, Option<&'a str>)>,
    /// Path and name of the limit as shown in messages, with control characters escaped.
    pub(crate) label: String,
}

impl LimitSite<'_> {
    /// Returns the keys of the entries in the limit's counter key.
    pub(crate) fn counted_keys(&self) -> impl Iterator<Item = &str> {
        self.key_entries.iter().map(|(key, _)| *key)
    }
}

/// Returns the limits of a domain. If several paths differ only in their values and the counter
/// keys of their limits have the same entry keys, returns only the limits of the first of these
/// paths, because a descriptor matches at most one of them.
pub(crate) fn limit_sites(domain: &DomainSpec) -> Vec<LimitSite<'_>> {
    let mut limits = Vec::new();
    visit_paths(&domain.nodes, &mut Vec::new(), &mut Vec::new(), &mut |at, path| {
        let rule = path.last().and_then(|node| node.rule.as_ref());
        for (nth, spec) in rule.iter().flat_map(|rule| rule.limits.iter()).enumerate() {
            limits.push(limit_site(&domain.name, at, nth, path, spec));
        }
    });
    let mut seen = BTreeMap::new();
    limits.retain(|site| {
        let key_entries: Vec<&str> = site.key_entries.iter().map(|(key, _)| *key).collect();
        // One request hits all limits of a rule, whichever entries they count by.
        let (at, nth) = (site.indices.clone(), site.index_in_rule);
        let first =
            seen.entry((site.path_keys.clone(), key_entries)).or_insert_with(|| (at.clone(), nth));
        first.0 == at
    });
    limits
}

fn limit_site<'a>(
    domain: &str,
    at: &[usize],
    nth: usize,
    path: &[&'a NodeSpec],
    spec: &LimitSpec,
) -> LimitSite<'a> {
    let entry = |node: &&'a NodeSpec| {
        let fixed = match &node.value {
            ValueSpec::Exact(value) => Some(&**value),
            ValueSpec::Pattern(text) if node.share_threshold => Some(&**text),
            ValueSpec::Any | ValueSpec::Pattern(_) => None,
        };
        (&*node.key, fixed)
    };
    let levels = path.len() - usize::from(spec.tiers.is_some());
    let is_counted = |at: &usize| spec.per.as_ref().is_none_or(|per| per.contains(at));
    let mut label = domain.to_owned();
    for node in path {
        label.push('.');
        label.push_str(&node.key);
        if let (_, Some(value)) = entry(node) {
            label.push('_');
            label.push_str(value);
        }
    }
    if let Some(name) = &spec.name {
        label.push_str(&format!(" ({name})"));
    }
    LimitSite {
        indices: at.to_vec(),
        index_in_rule: nth,
        in_list: spec.in_list,
        path_keys: path.iter().map(|node| &*node.key).collect(),
        key_entries: (0..levels).filter(is_counted).map(|at| entry(&path[at])).collect(),
        // The label is printed to terminals.
        label: escaped(&label).into_owned(),
    }
}

/// Calls `visit` once for each node, parents first. The arguments of `visit` describe the path to
/// the node: the index of each node among its siblings, and the nodes themselves.
fn visit_paths<'a>(
    nodes: &'a [NodeSpec],
    at: &mut Vec<usize>,
    path: &mut Vec<&'a NodeSpec>,
    visit: &mut impl FnMut(&[usize], &[&'a NodeSpec]),
) {
    for (position, node) in nodes.iter().enumerate() {
        at.push(position);
        path.push(node);
        visit(at, path);
        visit_paths(&node.children, at, path, visit);
        at.pop();
        path.pop();
    }
}

/// Returns the first [`LIMIT_PAIRS_MAX`] pairs of limits that one request can hit, each as two
/// indices into `limits` and the colocation of the pair.
pub(crate) fn find_pairs<'a>(
    hash_tag: &[Box<str>],
    limits: &'a [LimitSite<'a>],
) -> impl Iterator<Item = (usize, usize, Colocation)> {
    let all = limits.iter().enumerate().flat_map(move |(later, other)| {
        limits[..later].iter().enumerate().map(move |(earlier, one)| (earlier, later, one, other))
    });
    all.filter(|(.., one, other)| one.indices == other.indices || one.path_keys != other.path_keys)
        .map(|(earlier, later, one, other)| (earlier, later, find_colocation(hash_tag, one, other)))
        .take(LIMIT_PAIRS_MAX)
}

fn find_colocation(
    hash_tag: &[Box<str>],
    one: &LimitSite<'_>,
    other: &LimitSite<'_>,
) -> Colocation {
    let common: Vec<&str> = one
        .key_entries
        .iter()
        .filter(|(key, value)| {
            let same = |(their_key, their_value): &(&str, Option<&str>)| {
                key == their_key
                    && (value.is_none() || their_value.is_none() || value == their_value)
            };
            other.key_entries.iter().any(same)
        })
        .map(|(key, _)| *key)
        .collect();
    if !hash_tag.is_empty() && hash_tag.iter().all(|key| common.contains(&&**key)) {
        Colocation::SameSlot
    } else if common.is_empty() {
        Colocation::NotColocatable
    } else {
        Colocation::ColocatableBy(common.into_iter().map(str::to_owned).collect())
    }
}

/// Returns the pairs of a domain's limits that one request can hit. Returns only the first
/// [`LIMIT_PAIRS_MAX`] pairs if there are more.
pub(crate) fn limit_pairs(domain: &DomainSpec) -> Vec<LimitPair> {
    let limits = limit_sites(domain);
    find_pairs(&domain.hash_tag, &limits)
        .map(|(one, other, colocation)| LimitPair {
            one: limits[one].label.clone(),
            other: limits[other].label.clone(),
            colocation,
        })
        .collect()
}

/// Returns the maximum number of checks that one request can need if this number exceeds
/// `bounds.checks_max`, otherwise `None`. Assumes that a request has at most one descriptor for
/// each sequence of keys. Other requests can need more checks, and are rejected on arrival if they
/// exceed the bound.
pub(crate) fn excessive_check_count(domain: &DomainSpec, bounds: &Bounds) -> Option<usize> {
    let mut most: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    visit_paths(&domain.nodes, &mut Vec::new(), &mut Vec::new(), &mut |_, path| {
        let limits = path.last().and_then(|node| node.rule.as_ref()).map_or(0, |r| r.limits.len());
        let keys = path.iter().map(|node| &*node.key).collect();
        let most = most.entry(keys).or_insert(0);
        *most = limits.max(*most);
    });
    let mut counts: Vec<usize> = most.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let worst: usize = counts.iter().take(bounds.descriptors_max).sum();
    (worst > bounds.checks_max).then_some(worst)
}
