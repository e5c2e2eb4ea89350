//! The compiled policy, arranged for lookup: an arena of nodes and two hash tables.
//!
//! The first table finds, for a node and an entry's key, the group of children with that key; the
//! second, for a group and a value, the child for exactly that value. A group also has its patterns
//! and its default child. A step down the tree is thus two probes, however many rules there are.
//!
//! The hash is seeded at random. What callers send is only ever looked up, never inserted, so they
//! cannot degrade the tables.
//!
//! Not here: how a tree is put together (`build`), a request's walk and its checks (`matcher`).

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::counter_key::Secret;
use super::patterns::Patterns;
use crate::domain::{Accounting, Entry, Limit, RuleId};
use crate::policy::compile::spec::{Body, LimitSpec, SourceLocation, ValueSpec};

/// A policy compiled for lookup. Immutable: a reload builds another one.
#[derive(Debug)]
pub struct Policy {
    pub(crate) rules: Vec<Rule>,
    /// The number of the first rule.
    pub(crate) first: u32,
    /// Shared with the policies that overrides derive from this one.
    pub(crate) tree: Arc<Tree>,
    pub(crate) secret: Secret,
    /// Limit names that some rule replaces.
    pub(crate) replaced_names: Vec<Box<str>>,
}

/// The rule of descriptors that end at a node.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Number of the rule in the policy.
    pub id: RuleId,
    /// Path as envoyproxy/ratelimit prints it: `domain.key_value.key`.
    pub path: Box<str>,
    /// Unlimited: no counter.
    pub unlimited: bool,
    /// Limits in file order.
    pub limits: Box<[LimitSpec]>,
    /// Shadow mode: counted, answered OK when over the limit.
    pub shadow_mode: bool,
    /// Quota mode: refuses only if all quota descriptors of the request are over their limits.
    pub quota_mode: bool,
    /// Metadata returned to Envoy if the descriptor passes.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// Body of refusals: that of the rule, else that of its domain.
    pub body: Option<Arc<Body>>,
    /// File and line of its descriptor.
    pub location: Option<SourceLocation>,
    /// Whether [`Policy::printed_path`] shows all values of the request.
    pub(crate) detailed_metric: bool,
    /// Node of the rule.
    pub(crate) node: NodeId,
    /// For each limit, the plan of its counter keys.
    pub(crate) plans: Arc<[Plan]>,
    /// Names of limits that a match of this rule replaces.
    pub(crate) replaces: Box<[NameId]>,
}

/// Index of a node in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub u32);

/// Index of a limit name that some rule replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameId(pub u32);

/// Plan of a limit's counter keys.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Prefix of the identity: domain, name, window.
    pub prefix: Box<[u8]>,
    /// Prefix per consumer class, for a limit with classes.
    pub classes: Box<[Box<[u8]>]>,
    /// Entries of the identity, in the order of the path.
    pub parts: Box<[Part]>,
    /// Entries of the hash tag, if the counter has all entries of the domain's `hash_tag`.
    pub tag: Option<Box<[Part]>>,
    /// Name of the limit, if some rule replaces it.
    pub replaced_as: Option<NameId>,
}

impl Plan {
    /// Returns the limit and the key prefix that apply to a descriptor: those of the rule, or those of
    /// the class that the last entry names. `None` if the value belongs to no class.
    pub(crate) fn of<'a>(
        &'a self,
        spec: &'a LimitSpec,
        entries: &[Entry<'_>],
    ) -> Option<(&'a Arc<Limit>, &'a [u8])> {
        if spec.tiers.is_none() {
            return Some((&spec.limit, &self.prefix));
        }
        let (class, limit) = spec.class(entries.last()?.value)?;
        Some((limit, &self.classes[class]))
    }
}

/// An entry of the path that is part of a key.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Position on the path.
    pub at: usize,
    /// Pattern whose text replaces the value (`share_threshold`).
    pub shared: Option<Box<str>>,
}

/// The trees of all domains in one arena.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub nodes: Vec<Node>,
    pub groups: Vec<Group>,
    pub domains: Vec<Domain>,
    pub hash: RandomState,
    pub domain_of: HashTable<u32>,
    pub group_of: HashTable<u32>,
    pub exact_of: HashTable<Exact>,
}

/// A domain; its root node has no key.
#[derive(Debug)]
pub(crate) struct Domain {
    pub name: Box<str>,
    pub accounting: Accounting,
    pub hash_tag: Box<[Box<str>]>,
    pub root: NodeId,
}

/// A node of the tree: one level of a path.
#[derive(Debug)]
pub(crate) struct Node {
    pub parent: Option<NodeId>,
    pub key: Box<str>,
    pub value: ValueSpec,
    pub share_threshold: bool,
    pub value_to_metric: bool,
    pub rule: Option<RuleId>,
    pub is_leaf: bool,
}

/// The children of a node with the same key.
#[derive(Debug)]
pub(crate) struct Group {
    pub parent: NodeId,
    pub key: Box<str>,
    pub has_exact: bool,
    /// Patterns, each with its child.
    pub patterns: Option<(Patterns, Box<[NodeId]>)>,
    pub default: Option<NodeId>,
}

/// The child of a group for one exact value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    pub group: u32,
    pub node: NodeId,
}

/// How a child was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchKind {
    /// By its exact key and value.
    Exact,
    /// By the pattern with this index among its siblings with the same key.
    Pattern(usize),
    /// By the node with the key and no value.
    Default,
}

impl Policy {
    /// Returns all rules, ordered by id.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the rule with an id, or `None` if it belongs to another policy.
    pub fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(id.0.wrapping_sub(self.first) as usize)
    }

    /// Returns whether the policy has a domain.
    pub fn knows(&self, domain: &str) -> bool {
        self.tree.domain(domain).is_some()
    }

    pub(crate) fn replaced_name(&self, name: NameId) -> Option<String> {
        self.replaced_names.get(name.0 as usize).map(ToString::to_string)
    }
}

impl Tree {
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(crate) fn domain(&self, name: &str) -> Option<&Domain> {
        let at = self.domain_of.find(self.hash_of(0, name.as_bytes()), |at| {
            *self.domains[*at as usize].name == *name
        })?;
        Some(&self.domains[*at as usize])
    }

    /// Returns the child of `parent` for an entry: the exact key and value, else the first matching
    /// pattern of the key, else the key without a value. Key and value are compared separately, so
    /// `(a, b_c)` differs from `(a_b, c)`.
    pub(crate) fn step(&self, parent: NodeId, entry: &Entry<'_>) -> Option<(NodeId, MatchKind)> {
        if self.node(parent).is_leaf {
            return None;
        }
        let group = self.group(parent, entry.key)?;
        if let Some(node) = self.exact(group, entry.value) {
            return Some((node, MatchKind::Exact));
        }
        let group = &self.groups[group as usize];
        if let Some((patterns, nodes)) = &group.patterns
            && let Some(at) = patterns.first(entry.value)
        {
            return Some((nodes[at], MatchKind::Pattern(at)));
        }
        group.default.map(|node| (node, MatchKind::Default))
    }

    /// Returns the nodes from the domain down to `node`, inclusive.
    pub(crate) fn path_to(&self, node: NodeId) -> Vec<&Node> {
        let mut path = Vec::new();
        let mut at = self.node(node);
        while let Some(parent) = at.parent {
            path.push(at);
            at = self.node(parent);
        }
        path.reverse();
        path
    }

    pub(crate) fn group(&self, parent: NodeId, key: &[u8]) -> Option<u32> {
        let is_it = |at: &u32| {
            let group = &self.groups[*at as usize];
            group.parent == parent && group.key.as_bytes() == key
        };
        self.group_of.find(self.hash_of(parent.0, key), is_it).copied()
    }

    pub(crate) fn exact(&self, group: u32, value: &[u8]) -> Option<NodeId> {
        if !self.groups[group as usize].has_exact {
            return None;
        }
        let is_it = |exact: &Exact| {
            exact.group == group
                && matches!(&self.node(exact.node).value, ValueSpec::Exact(own) if own.as_bytes() == value)
        };
        self.exact_of.find(self.hash_of(group, value), is_it).map(|exact| exact.node)
    }

    pub(crate) fn hash_of(&self, scope: u32, bytes: &[u8]) -> u64 {
        hash_with(&self.hash, scope, bytes)
    }
}

/// Hashes bytes under a parent or a group. A free function, because a growing table rehashes its
/// entries while the tree is borrowed.
pub(crate) fn hash_with(state: &RandomState, scope: u32, bytes: &[u8]) -> u64 {
    let mut hasher = state.build_hasher();
    hasher.write_u32(scope);
    hasher.write(bytes);
    hasher.finish()
}
