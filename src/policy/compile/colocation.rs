//! Which limits can meet in one call: how many that makes at most, and whether a Redis Cluster can
//! keep their counters together.
//!
//! A call has at most one descriptor for each sequence of keys (a rate limit action of Envoy has
//! fixed keys), so that siblings with other values of one key never meet. Two limits that meet are
//! joined where both of their counters' keys hold every entry of `hash_tag`, with the same values.
//! Not here: how the tag is made (`arrange`, `key`).

use std::collections::BTreeMap;
use std::fmt;

use super::spec::{DomainSpec, LimitSpec, NodeSpec, ValueSpec};
use crate::domain::{Bounds, escaped};
use crate::policy::lookup::matcher::CHECKS_MAX;

/// A request has at most this many descriptors: longer ones are refused on arrival.
const DESCRIPTORS_MAX: usize = Bounds::DEFAULT.descriptors_max;

/// So many pairs are told of; the rest of a policy of thousands of limits is more of the same.
const MEETINGS_MAX: usize = 1_000;

/// Two limits that can meet in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPair {
    /// The path, and the name where there is one, of the limit that stands first.
    pub one: String,
    /// The same of the other.
    pub other: String,
    /// Whether a cluster keeps their counters together.
    pub joint: Colocation,
}

/// Whether a Redis Cluster keeps the counters of two limits in one slot, so that a call charges both
/// or neither in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Colocation {
    /// It does.
    Joined,
    /// It would with a `hash_tag` of one or more of these entries.
    JoinableBy(Vec<String>),
    /// They have no entry in common.
    NotJoinable,
}

impl fmt::Display for LimitPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}: ", self.one, self.other)?;
        match &self.joint {
            Colocation::Joined => f.write_str("joined"),
            Colocation::JoinableBy(keys) => write!(f, "joinable by {}", keys.join(" or ")),
            Colocation::NotJoinable => f.write_str("not joinable"),
        }
    }
}

/// A limit, and what its counters' keys are made of.
pub(crate) struct LimitSite<'a> {
    /// The position of its node on each level.
    pub(crate) at: Vec<usize>,
    /// Its position in the rule.
    pub(crate) nth: usize,
    pub(crate) in_list: bool,
    /// The keys of its path.
    keys: Vec<&'a str>,
    /// The entries of its counters' keys; with the value where it is fixed.
    own: Vec<(&'a str, Option<&'a str>)>,
    label: String,
}

/// The limits of a domain, one for each sequence of keys and each choice of entries: those that
/// differ in nothing but values and numbers never meet.
pub(crate) fn limits(domain: &DomainSpec) -> Vec<LimitSite<'_>> {
    let mut limits = Vec::new();
    walk(&domain.nodes, &mut Vec::new(), &mut Vec::new(), &mut |at, path| {
        let rule = path.last().and_then(|node| node.rule.as_ref());
        for (nth, spec) in rule.iter().flat_map(|rule| rule.limits.iter()).enumerate() {
            limits.push(met(&domain.name, at, nth, path, spec));
        }
    });
    let mut seen = BTreeMap::new();
    limits.retain(|met| {
        let own: Vec<&str> = met.own.iter().map(|(key, _)| *key).collect();
        // Limits of one rule do meet, whatever they count by.
        let (at, nth) = (met.at.clone(), met.nth);
        let first = seen.entry((met.keys.clone(), own)).or_insert_with(|| (at.clone(), nth));
        first.0 == at
    });
    limits
}

fn met<'a>(
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
    let is_own = |at: &usize| spec.per.as_ref().is_none_or(|per| per.contains(at));
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
        at: at.to_vec(),
        nth,
        in_list: spec.in_list,
        keys: path.iter().map(|node| &*node.key).collect(),
        own: (0..levels).filter(is_own).map(|at| entry(&path[at])).collect(),
        // It goes to terminals.
        label: escaped(&label).into_owned(),
    }
}

fn walk<'a>(
    nodes: &'a [NodeSpec],
    at: &mut Vec<usize>,
    path: &mut Vec<&'a NodeSpec>,
    see: &mut impl FnMut(&[usize], &[&'a NodeSpec]),
) {
    for (position, node) in nodes.iter().enumerate() {
        at.push(position);
        path.push(node);
        see(at, path);
        walk(&node.children, at, path, see);
        at.pop();
        path.pop();
    }
}

/// Every pair of limits that can meet, by their positions in `limits`.
pub(crate) fn pairs<'a>(
    hash_tag: &[Box<str>],
    limits: &'a [LimitSite<'a>],
) -> impl Iterator<Item = (usize, usize, Colocation)> {
    let all = limits.iter().enumerate().flat_map(move |(later, other)| {
        limits[..later].iter().enumerate().map(move |(earlier, one)| (earlier, later, one, other))
    });
    all.filter(|(.., one, other)| one.at == other.at || one.keys != other.keys)
        .map(|(earlier, later, one, other)| (earlier, later, joint(hash_tag, one, other)))
        .take(MEETINGS_MAX)
}

fn joint(hash_tag: &[Box<str>], one: &LimitSite<'_>, other: &LimitSite<'_>) -> Colocation {
    let common: Vec<&str> = one
        .own
        .iter()
        .filter(|(key, value)| {
            let same = |(their_key, their_value): &(&str, Option<&str>)| {
                key == their_key
                    && (value.is_none() || their_value.is_none() || value == their_value)
            };
            other.own.iter().any(same)
        })
        .map(|(key, _)| *key)
        .collect();
    if !hash_tag.is_empty() && hash_tag.iter().all(|key| common.contains(&&**key)) {
        Colocation::Joined
    } else if common.is_empty() {
        Colocation::NotJoinable
    } else {
        Colocation::JoinableBy(common.into_iter().map(str::to_owned).collect())
    }
}

/// What is told of all pairs.
pub(crate) fn told(domain: &DomainSpec) -> Vec<LimitPair> {
    let limits = limits(domain);
    pairs(&domain.hash_tag, &limits)
        .map(|(one, other, joint)| LimitPair {
            one: limits[one].label.clone(),
            other: limits[other].label.clone(),
            joint,
        })
        .collect()
}

/// How a limit is called when another's warning speaks of it.
pub(crate) fn label<'a>(met: &'a LimitSite<'_>) -> &'a str {
    &met.label
}

/// The most checks that one call can need, if that is more than a call may have.
pub(crate) fn too_many_checks(domain: &DomainSpec) -> Option<usize> {
    let mut most: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    walk(&domain.nodes, &mut Vec::new(), &mut Vec::new(), &mut |_, path| {
        let limits = path.last().and_then(|node| node.rule.as_ref()).map_or(0, |r| r.limits.len());
        let keys = path.iter().map(|node| &*node.key).collect();
        let most = most.entry(keys).or_insert(0);
        *most = limits.max(*most);
    });
    let mut counts: Vec<usize> = most.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let worst: usize = counts.iter().take(DESCRIPTORS_MAX).sum();
    (worst > CHECKS_MAX).then_some(worst)
}
