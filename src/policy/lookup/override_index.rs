//! Index of the overrides that operators set at run time: which of them apply to a rule, and to the
//! values of a descriptor.
//!
//! Targets without `*` are found by a hash table, so that a lookup among 100,000 takes as long as one
//! among 10. Targets with `*` are tried one by one, the most specific first. A rule with overrides of
//! values is built when the first request meets them, and then shared by all later requests.
//!
//! Not here: what overrides do to a rule (`operator_overrides`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use smallvec::{Array, SmallVec};

use super::patterns::NamePattern;
use super::tree::Rule;
use crate::domain::{Entry, RuleId};
use crate::policy::override_entry::{OverrideChange, OverrideEntry, OverrideMode, OverrideTarget};

/// Maximum number of overrides with `*` for one sequence of keys. Each one costs a call of these keys
/// a few nanoseconds.
pub const PATTERN_TARGETS_MAX: usize = 1_000;

/// Maximum number of ways in which overrides with `*` of one sequence of keys can be combined, each
/// of a different kind or limit. A rule is kept in memory for each combination that a request meets.
pub const PATTERN_COMBINATIONS_MAX: usize = 10_000;

/// Number of parts of a hash table. A change copies one part, about 1,600 pointers of 100,000.
const SHARDS: usize = 64;

/// Overrides in force on a rule.
#[derive(Debug)]
pub(crate) struct RuleOverrides {
    /// Overrides in force: those of numbers, then the scale, then the mode.
    pub entries: Vec<Arc<OverrideEntry>>,
    /// The rule without its mode, if the mode decides without the counter.
    pub counted: Option<Box<Rule>>,
}

/// All overrides, by target.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverrideIndex {
    /// Rules without overrides, in the order of the policy's rules.
    pub loaded: Arc<Vec<Rule>>,
    /// Overrides of domains and rules, by the name of the domain or the path of the rule.
    broad: Arc<HashMap<Box<str>, Vec<Arc<OverrideEntry>>>>,
    sequence_positions: Arc<HashMap<KeySequenceId, u32>>,
    sequences: Vec<Arc<KeySequence>>,
    hash: RandomState,
}

/// Domain and keys of a target with values.
type KeySequenceId = (Box<str>, Vec<Box<str>>);

/// Overrides of values with the same sequence of keys.
#[derive(Clone, Debug)]
struct KeySequence {
    /// Overrides of values without `*`, by these values, in [`SHARDS`] parts.
    exact: Vec<Arc<HashMap<Values, Arc<ExactTarget>, RandomState>>>,
    /// Overrides whose target has a value with `*`, the most specific first.
    patterns: Arc<Vec<PatternTarget>>,
}

/// Values of a descriptor, each after its length. Short ones are inside the hash table, because each
/// part of memory that a lookup among 100,000 reads is a cache miss.
type Values = SmallVec<[u8; 32]>;

/// Overrides of the same values, without `*`; at least one.
#[derive(Debug)]
pub(crate) struct ExactTarget {
    pub overrides: Vec<Arc<OverrideEntry>>,
    /// The rule that these values match, with all overrides in force; `None` if each of them is
    /// restricted to another rule.
    pub rule: OnceLock<Option<Box<Rule>>>,
}

/// Override of values with `*`.
#[derive(Debug)]
pub(crate) struct PatternTarget {
    values: Vec<NamePattern>,
    pub entry: Arc<OverrideEntry>,
    /// Chain of the rules on which this override is the most specific one with `*` in force.
    rules: OnceLock<Box<MemoNode>>,
}

/// Rule with a combination of overrides in force.
#[derive(Debug)]
struct MemoNode {
    id: RuleId,
    /// Positions in [`KeySequence::patterns`].
    winners: SmallVec<[u32; 4]>,
    rule: Rule,
    next: OnceLock<Box<MemoNode>>,
}

impl OverrideIndex {
    pub(crate) fn new<'e>(
        loaded: Arc<Vec<Rule>>,
        entries: impl Iterator<Item = &'e Arc<OverrideEntry>>,
    ) -> OverrideIndex {
        let mut broad: HashMap<Box<str>, Vec<Arc<OverrideEntry>>> = HashMap::new();
        let mut positions = HashMap::new();
        let mut patterns: HashMap<u32, Vec<Arc<OverrideEntry>>> = HashMap::new();
        let mut index = OverrideIndex { loaded, ..OverrideIndex::default() };
        for entry in entries {
            let target = &entry.target;
            if target.entries.is_empty() {
                let name = target.rule.as_ref().unwrap_or(&target.domain);
                broad.entry(name.clone()).or_default().push(Arc::clone(entry));
                continue;
            }
            let next = index.sequences.len() as u32;
            let at = *positions.entry(sequence_id(target)).or_insert(next);
            if at == next {
                let (exact, patterns) = (vec![Arc::default(); SHARDS], Arc::default());
                index.sequences.push(Arc::new(KeySequence { exact, patterns }));
            }
            if has_wildcard(target) {
                patterns.entry(at).or_default().push(Arc::clone(entry));
            } else {
                index.change_exact(at, entry, true);
            }
        }
        for (at, entries) in patterns {
            let sequence = Arc::make_mut(&mut index.sequences[at as usize]);
            sequence.patterns = Arc::new(pattern_targets(entries));
        }
        (index.broad, index.sequence_positions) = (Arc::new(broad), Arc::new(positions));
        index
    }

    /// Returns this index after some overrides have ended and others are set, which replace those of
    /// the same id. Copies little. Returns `None` if that is not possible, because a change concerns
    /// more than one combination of values.
    pub(crate) fn with_exact_changes(
        &self,
        ended: &[&Arc<OverrideEntry>],
        set: &[&Arc<OverrideEntry>],
    ) -> Option<OverrideIndex> {
        let mut index = self.clone();
        let changes = ended.iter().map(|entry| (entry, false));
        for (entry, is_set) in changes.chain(set.iter().map(|entry| (entry, true))) {
            let target = &entry.target;
            let at = self.sequence_positions.get(&sequence_id(target)).copied()?;
            if has_wildcard(target) {
                return None;
            }
            index.change_exact(at, entry, is_set);
        }
        Some(index)
    }

    /// Returns the overrides of a domain and of one of its rules, without those of values.
    pub(crate) fn broad<'i>(
        &'i self,
        domain: &'i str,
        rule: &'i Rule,
    ) -> impl Iterator<Item = &'i Arc<OverrideEntry>> {
        let named = |name: &str| self.broad.get(name).into_iter().flatten();
        // A domain may have the name of a rule's path.
        let of_domain = named(domain).filter(|entry| entry.target.rule.is_none());
        let of_rule = named(&rule.path).filter(|entry| entry.target.rule.is_some());
        of_domain.chain(of_rule).filter(move |entry| *entry.target.domain == *domain)
    }

    /// Returns the position of the overrides of values with these keys; `None` if there are none.
    pub(crate) fn sequence_position<'k>(
        &self,
        domain: &str,
        keys: impl Iterator<Item = &'k str>,
    ) -> Option<u32> {
        if self.sequences.is_empty() {
            return None;
        }
        self.sequence_positions.get(&(domain.into(), keys.map(Box::from).collect())).copied()
    }

    /// Returns the overrides of exactly the values of a descriptor, and those of values with `*`.
    pub(crate) fn value_overrides(
        &self,
        at: u32,
        entries: &[Entry<'_>],
    ) -> Option<(Option<&ExactTarget>, &[PatternTarget])> {
        let sequence = self.sequences.get(at as usize)?;
        // On the stack, unless the values are longer than almost any.
        let values: SmallVec<[u8; 512]> = join_values(entries.iter().map(|entry| entry.value));
        let exact = sequence.exact[self.shard_of(&values)].get(&values[..]);
        Some((exact.map(|target| &**target), &sequence.patterns))
    }

    /// Returns whether an override with `*` can be set without exceeding a bound.
    pub(crate) fn has_room_for(&self, entry: &OverrideEntry) -> bool {
        let at = self.sequence_positions.get(&sequence_id(&entry.target));
        let Some(sequence) = at.and_then(|at| self.sequences.get(*at as usize)) else {
            return true;
        };
        let others = sequence.patterns.iter().map(|target| &*target.entry);
        let others = others.filter(|other| !has_same_identity(other, entry));
        let all: Vec<&OverrideEntry> = others.chain([entry]).collect();
        all.len() <= PATTERN_TARGETS_MAX
            && combinations(all.iter().copied()) <= PATTERN_COMBINATIONS_MAX
    }

    fn change_exact(&mut self, at: u32, entry: &Arc<OverrideEntry>, is_set: bool) {
        let values: Values =
            join_values(entry.target.entries.iter().map(|(_, value)| value.as_bytes()));
        let shard = self.shard_of(&values);
        let sequence = Arc::make_mut(&mut self.sequences[at as usize]);
        let shard = Arc::make_mut(&mut sequence.exact[shard]);
        let former = shard.remove(&values);
        let mut overrides = former.map_or_else(Vec::new, |target| target.overrides.clone());
        overrides.retain(|other| !has_same_identity(other, entry));
        overrides.extend(is_set.then(|| Arc::clone(entry)));
        if !overrides.is_empty() {
            shard.insert(values, Arc::new(ExactTarget { overrides, rule: OnceLock::new() }));
        }
    }

    fn shard_of(&self, values: &[u8]) -> usize {
        self.hash.hash_one(values) as usize % SHARDS
    }
}

/// Joins values, each after its length.
fn join_values<'v, A: Array<Item = u8>>(values: impl Iterator<Item = &'v [u8]>) -> SmallVec<A> {
    let mut joined = SmallVec::new();
    for value in values {
        joined.extend_from_slice(&(value.len() as u32).to_le_bytes());
        joined.extend_from_slice(value);
    }
    joined
}

/// Returns the most specific overrides with `*` within the bounds, in this order.
fn pattern_targets(mut entries: Vec<Arc<OverrideEntry>>) -> Vec<PatternTarget> {
    entries.sort_by_cached_key(|entry| specificity(entry));
    entries.truncate(PATTERN_TARGETS_MAX);
    while combinations(entries.iter().map(|entry| &**entry)) > PATTERN_COMBINATIONS_MAX {
        entries.pop();
    }
    let target = |entry: Arc<OverrideEntry>| PatternTarget {
        values: entry.target.entries.iter().map(|(_, value)| NamePattern::new(value)).collect(),
        entry,
        rules: OnceLock::new(),
    };
    entries.into_iter().map(target).collect()
}

/// Returns the rule with the most specific overrides with `*` of each kind in force, which `build` makes
/// of them; `None` if no override matches. Allocates only if no request has met these overrides yet.
pub(crate) fn rule_with_patterns<'t>(
    patterns: &'t [PatternTarget],
    rule: &Rule,
    entries: &[Entry<'_>],
    build: impl Fn(&[&'t Arc<OverrideEntry>]) -> Rule,
) -> Option<&'t Rule> {
    let mut winners: SmallVec<[u32; 4]> = SmallVec::new();
    for (at, target) in (0..).zip(patterns) {
        let kind = conflict_kind(&target.entry);
        let same = |other: &u32| conflict_kind(&patterns[*other as usize].entry) == kind;
        if !winners.iter().any(same) && target.matches(rule, entries) {
            winners.push(at);
        }
    }
    let mut link = &patterns[*winners.first()? as usize].rules;
    loop {
        let node = link.get_or_init(|| {
            let won = winners.iter().map(|at| &patterns[*at as usize].entry);
            let rule_in_force = build(&won.collect::<Vec<_>>());
            let (id, winners, next) = (rule.id, winners.clone(), OnceLock::new());
            Box::new(MemoNode { id, winners, rule: rule_in_force, next })
        });
        if node.id == rule.id && node.winners == winners {
            return Some(&node.rule);
        }
        link = &node.next;
    }
}

impl PatternTarget {
    pub(crate) fn matches(&self, rule: &Rule, entries: &[Entry<'_>]) -> bool {
        let mut pairs = self.values.iter().zip(entries);
        pairs.all(|(pattern, entry)| pattern.matches(entry.value))
            && allows_rule(&self.entry.target, rule)
    }
}

/// Returns whether a target is not restricted to another rule.
pub(crate) fn allows_rule(target: &OverrideTarget, rule: &Rule) -> bool {
    target.rule.as_ref().is_none_or(|path| **path == *rule.path)
}

/// Returns a key that orders overrides of the same rule: the more specific one comes first. Values come
/// before rules, and rules before domains; then fewer `*`, then the longer text before the first `*`,
/// entry by entry; then the later one, and then the greater id, so that all replicas agree.
pub(crate) fn specificity(entry: &OverrideEntry) -> impl Ord + use<> {
    let OverrideTarget { entries, rule, .. } = &entry.target;
    let level = if entries.is_empty() { 1 + u8::from(rule.is_none()) } else { 0 };
    let stars: usize = entries.iter().map(|(_, value)| value.matches('*').count()).sum();
    let prefix_length = |(_, value): &(String, String)| value.find('*').unwrap_or(value.len());
    let prefix_lengths: Vec<usize> = entries.iter().map(prefix_length).collect();
    (level, stars, Reverse((prefix_lengths, entry.set_at, entry.id())))
}

/// Returns what of an override can be in force only once on a rule: the limit that it gives numbers,
/// the scale, or the mode. `deny` has a kind of its own, because it wins over more specific modes.
fn conflict_kind(entry: &OverrideEntry) -> (&'static str, Option<&str>, bool) {
    let is_deny = entry.change == OverrideChange::Mode(OverrideMode::Deny);
    (entry.change.kind(), entry.target.limit_name.as_deref(), is_deny)
}

/// Returns the number of ways in which overrides can be combined, if all of them match.
fn combinations<'e>(entries: impl Iterator<Item = &'e OverrideEntry>) -> usize {
    let mut counts: HashMap<_, usize> = HashMap::new();
    for entry in entries {
        *counts.entry(conflict_kind(entry)).or_default() += 1;
    }
    counts.values().fold(1, |product: usize, count| product.saturating_mul(count + 1))
}

fn has_same_identity(a: &OverrideEntry, b: &OverrideEntry) -> bool {
    a.target == b.target && a.change.kind() == b.change.kind()
}

pub(crate) fn has_wildcard(target: &OverrideTarget) -> bool {
    target.entries.iter().any(|(_, value)| value.contains('*'))
}

fn sequence_id(target: &OverrideTarget) -> KeySequenceId {
    (target.domain.clone(), target.entries.iter().map(|(key, _)| Box::from(&**key)).collect())
}
