//! Compiled policy for lookup: an arena of nodes, with hash tables to find them.
//!
//! One table maps a node and an entry's key to the group of children with that key. Another maps a
//! group and a value to the child with exactly that value. A group also has its patterns and its
//! default child. One step down the tree therefore takes two hash lookups, regardless of the number
//! of rules.
//!
//! The hash seed is random, and values from requests are never inserted, so callers cannot degrade
//! the tables.
//!
//! Not here: building the tree (`build`), matching requests (`matcher`).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash as _, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::Equivalent;

use super::counter_key::Secret;
use super::override_index::{OverrideIndex, RuleOverrides};
use super::patterns::Patterns;
use crate::domain::{Accounting, Charge, Entry, Limit, RuleId};
use crate::policy::compiled_policy::{
    ClassSpec, HttpMapping, LimitSpec, RejectionBody, SourceLocation, ValueSpec,
};

/// Policy compiled for lookup. A policy is immutable; each reload builds a new one.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Rules, with the overrides of domains and rules applied.
    pub(crate) rules: Arc<Vec<Rule>>,
    /// Id of the first rule. The ids of later rules are consecutive.
    pub(crate) first_rule_id: u32,
    /// Lookup tree. Policies that differ only in operator overrides share one tree.
    pub(crate) tree: Arc<DescriptorTree>,
    pub(crate) secret: Secret,
    /// Maximum number of checks per call.
    pub(crate) checks_max: usize,
    /// Whether any limit has `mark` or `log_near`.
    pub(crate) has_soft_limits: bool,
    /// Overrides in force; `None` if there are none.
    pub(crate) overrides: Option<Arc<OverrideIndex>>,
}

/// Rule that applies to a descriptor whose last entry matches the rule's tree node.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Identifier of the rule, unique among all policies that the process has loaded.
    pub id: RuleId,
    /// Path as envoyproxy/ratelimit prints it: `domain.key_value.key`.
    pub path: Arc<str>,
    /// Limits of the rule, in file order. Empty if the rule allows every request without counting.
    pub limits: Arc<[LimitSpec]>,
    /// Shadow mode: requests over the limit are counted but admitted.
    pub shadow_mode: bool,
    /// Quota mode: a request is rejected only if all of its quota groups are over a limit.
    pub quota_mode: bool,
    /// Metadata returned to Envoy if the descriptor passes.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// Response body for rejections: the rule's own body or, if it has none, the domain's.
    pub body: Option<Arc<RejectionBody>>,
    /// Position of the rule's descriptor in a file or resource; `None` if the rule comes from
    /// neither.
    pub location: Option<SourceLocation>,
    /// Whether metrics show values of the request, because of `detailed_metric` on the rule or
    /// `value_to_metric` on a level of its path.
    pub values_in_metrics: bool,
    /// Whether [`Policy::printed_path`] shows the request's values on every level.
    pub(crate) detailed_metric: bool,
    /// Position of the rule's domain in [`DescriptorTree::domains`].
    pub(crate) domain: u32,
    pub(crate) node: NodeId,
    /// Key template of each limit, in the order of `limits`. Consecutive rules with equal templates
    /// share them.
    pub(crate) key_templates: Arc<[KeyTemplate]>,
    /// Names of limits that are skipped for a whole request if this rule matches.
    pub(crate) replaces: Box<[Box<str>]>,
    /// Overrides in force on this rule; `None` if there are none.
    pub(crate) overrides: Option<Arc<RuleOverrides>>,
    /// Position in [`OverrideIndex::sequences`] of the overrides of values with the keys of this rule's
    /// path; `None` if there are none.
    pub(crate) value_overrides: Option<u32>,
}

/// Index of a node in the arena of [`DescriptorTree`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub u32);

/// Template for the counter identities of a limit, which are hashed to counter keys: constant
/// prefixes, and the descriptor entries to append to them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyTemplate {
    /// Identity prefix shared by all counters of the limit: domain, name, algorithm, window, and the
    /// rule's path if `entries` is not the whole path.
    pub prefix: Box<[u8]>,
    /// Identity prefix for each consumer class; empty if the limit has no `tiers`.
    pub class_prefixes: Box<[Box<[u8]>]>,
    /// Descriptor entries that the counter key contains, in path order.
    pub entries: Box<[KeyEntry]>,
    /// Descriptor entries that the hash tag contains. `None` if the domain has no `hash_tag` or if
    /// the counter key lacks an entry that `hash_tag` names.
    pub tag: Option<Box<[KeyEntry]>>,
}

impl KeyTemplate {
    /// Returns the limit that applies to a descriptor, and the identity prefix of its counters.
    /// With `tiers`, they are those of the consumer class that the value of the last entry selects.
    /// Returns `None` if the value selects no class, so that no limit applies.
    pub(crate) fn select_limit<'a>(
        &'a self,
        spec: &'a LimitSpec,
        entries: &[Entry<'_>],
    ) -> Option<SelectedLimit<'a>> {
        let (limit, bill_limit, prefix, class) = match spec.tiers {
            None => (&spec.limit, &spec.bill_limit, &self.prefix, None),
            Some(_) => {
                let (at, class) = spec.select_class(entries.last()?.value)?;
                (&class.limit, &class.bill_limit, &self.class_prefixes[at], Some(class))
            }
        };
        Some(SelectedLimit { limit, bill_limit: bill_limit.as_ref(), prefix, class })
    }
}

/// Limit that applies to a descriptor, with the identity prefix of its counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectedLimit<'a> {
    pub limit: &'a Arc<Limit>,
    /// Limit to which bills are charged. A bill consists of hits that a descriptor reports as
    /// already used. `None` if bills are charged like other hits.
    pub bill_limit: Option<&'a Arc<Limit>>,
    /// Identity prefix of the limit's counters.
    pub prefix: &'a [u8],
    /// Consumer class whose limit this is; `None` without `tiers`.
    pub class: Option<&'a ClassSpec>,
}

/// Descriptor entry that a counter key contains.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyEntry {
    /// Index of the entry in the descriptor, from 0.
    pub position: usize,
    /// Text of the pattern that replaces the request's value in the counter key; `None` without
    /// `share_threshold`.
    pub shared_pattern: Option<Arc<str>>,
}

/// Descriptor trees of all domains, in one arena.
#[derive(Debug, Default)]
pub(crate) struct DescriptorTree {
    pub nodes: Vec<TreeNode>,
    pub groups: Vec<KeyGroup>,
    pub domains: Vec<Domain>,
    pub hash: RandomState,
    pub domain_index: HashMap<Box<str>, usize, RandomState>,
    /// Position of the group of each parent node and key.
    pub group_index: ScopedIndex,
    /// Child of each group that matches exactly one value.
    pub exact_index: ScopedIndex,
    /// Hash of the keys of each rule's path, with its domain's root.
    pub rule_keys: HashSet<u64, RandomState>,
}

/// Domain with its settings and its tree. The root of the tree is a node without a key.
#[derive(Debug)]
pub(crate) struct Domain {
    pub name: Box<str>,
    pub accounting: Accounting,
    pub charge: Charge,
    pub hash_tag: Box<[Box<str>]>,
    pub quota_group: Box<[Box<str>]>,
    pub http: Option<Arc<HttpMapping>>,
    pub root: NodeId,
}

/// Node of the descriptor tree; matches one entry of a descriptor.
#[derive(Debug, Default)]
pub(crate) struct TreeNode {
    pub parent: Option<NodeId>,
    pub key: Box<str>,
    pub value: ValueSpec,
    pub share_threshold: bool,
    pub value_to_metric: bool,
    pub rule: Option<RuleId>,
    pub is_leaf: bool,
}

/// Children of a node that have the same key.
#[derive(Debug, Default)]
pub(crate) struct KeyGroup {
    pub parent: NodeId,
    pub key: Box<str>,
    pub has_exact: bool,
    /// Patterns in file order, each with its child node; `None` if the group has no patterns.
    pub patterns: Option<(Patterns, Box<[NodeId]>)>,
    pub default: Option<NodeId>,
}

/// Hash table of positions by scope, a parent node or a group, and text.
pub(crate) type ScopedIndex = hashbrown::HashMap<(u32, Arc<[u8]>), u32, RandomState>;

/// Borrowed key of a [`ScopedIndex`].
#[derive(Hash)]
struct Scoped<'t>(u32, &'t [u8]);

impl Equivalent<(u32, Arc<[u8]>)> for Scoped<'_> {
    fn equivalent(&self, (scope, text): &(u32, Arc<[u8]>)) -> bool {
        self.0 == *scope && *self.1 == **text
    }
}

/// Kind of match between a descriptor entry and a tree node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchKind {
    /// The node has the entry's key and exactly the entry's value.
    Exact,
    /// A pattern of the key matches the value. Contains the pattern's index among all patterns of
    /// the key, from 0.
    Pattern(usize),
    /// The node has the entry's key and no value. It is the key's default node.
    Default,
}

impl Policy {
    /// Sets the maximum number of checks per call, which is
    /// [`CHECKS_MAX`](super::matcher::CHECKS_MAX) by default.
    #[must_use]
    pub fn with_checks_max(self, checks_max: usize) -> Policy {
        Policy { checks_max, ..self }
    }

    /// Returns the maximum number of checks per call.
    pub fn checks_max(&self) -> usize {
        self.checks_max
    }

    /// Returns all rules, ordered by id.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the rule with this id; `None` if the id belongs to another policy.
    pub fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(self.rule_position(id))
    }

    /// Returns the position of a rule among the rules; beyond all if the id belongs to another policy.
    pub(crate) fn rule_position(&self, id: RuleId) -> usize {
        id.0.wrapping_sub(self.first_rule_id) as usize
    }

    /// Returns the rule whose limit has this [`limit_id`](crate::domain::Limit::limit_id); `None`
    /// if there is none. Searches all rules, which is too slow for anything but logging.
    pub fn rule_of_limit(&self, limit_id: u64) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.limits.iter().any(|limit| limit.has_id(limit_id)))
    }

    /// Returns whether the policy has a domain with this name.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.tree.domain(domain).is_some()
    }

    /// Returns the names of all domains.
    pub fn domain_names(&self) -> impl Iterator<Item = &str> {
        self.tree.domains.iter().map(|domain| &*domain.name)
    }

    /// Returns a domain's mapping from HTTP requests to descriptors; `None` if the domain has none.
    pub fn http_mapping(&self, domain: &str) -> Option<&Arc<HttpMapping>> {
        self.tree.domain(domain)?.http.as_ref()
    }
}

impl DescriptorTree {
    pub(crate) fn node(&self, id: NodeId) -> &TreeNode {
        &self.nodes[id.0 as usize]
    }

    pub(crate) fn domain(&self, name: &str) -> Option<&Domain> {
        self.domain_index.get(name).map(|at| &self.domains[*at])
    }

    /// Returns the child of `parent` that matches an entry; `None` if there is none. The exact key
    /// and value take precedence, then the first matching pattern of the key, then the key without
    /// a value. Key and value are compared separately, so `(a, b_c)` differs from `(a_b, c)`.
    pub(crate) fn find_child(
        &self,
        parent: NodeId,
        entry: &Entry<'_>,
    ) -> Option<(NodeId, MatchKind)> {
        if self.node(parent).is_leaf {
            return None;
        }
        let group = self.find_group(parent, entry.key)?;
        if let Some(node) = self.find_exact(group, entry.value) {
            return Some((node, MatchKind::Exact));
        }
        let group = &self.groups[group as usize];
        if let Some((patterns, nodes)) = &group.patterns
            && let Some(at) = patterns.first_match(entry.value)
        {
            return Some((nodes[at], MatchKind::Pattern(at)));
        }
        group.default.map(|node| (node, MatchKind::Default))
    }

    /// Returns the nodes from the first level down to `node`, both included.
    pub(crate) fn path_to(&self, node: NodeId) -> Vec<&TreeNode> {
        let mut path = Vec::new();
        let mut at = self.node(node);
        while let Some(parent) = at.parent {
            path.push(at);
            at = self.node(parent);
        }
        path.reverse();
        path
    }

    /// Hashes a sequence of keys below the root of a domain.
    pub(crate) fn hash_of_keys<'k>(
        &self,
        root: NodeId,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> u64 {
        let mut hasher = self.hash.build_hasher();
        hasher.write_u32(root.0);
        keys.for_each(|key| key.hash(&mut hasher));
        hasher.finish()
    }

    pub(crate) fn find_group(&self, parent: NodeId, key: &[u8]) -> Option<u32> {
        self.group_index.get(&Scoped(parent.0, key)).copied()
    }

    fn find_exact(&self, group: u32, value: &[u8]) -> Option<NodeId> {
        if !self.groups[group as usize].has_exact {
            return None;
        }
        self.exact_index.get(&Scoped(group, value)).map(|node| NodeId(*node))
    }
}

/// Formats the configured path of a rule: the domain, then one segment per level, separated by
/// dots. A segment is `key_value`, `key_a*` for a pattern, or `key` if the level has no value.
pub(crate) fn configured_path(domain: &str, path: &[&TreeNode]) -> String {
    let mut text = String::from(domain);
    for node in path {
        push_segment(&mut text, &node.key, node.value.text());
    }
    text
}

/// Appends the segment of one level to a configured path. `value` is empty if the level has none.
pub(crate) fn push_segment(path: &mut String, key: &str, value: &str) {
    path.push('.');
    path.push_str(key);
    if !value.is_empty() {
        push_value(path, value);
    }
}

pub(crate) fn push_value(text: &mut String, value: &str) {
    text.push('_');
    text.push_str(value);
}
