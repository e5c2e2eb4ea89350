//! The compiled policy, arranged for lookup: an arena of nodes and two hash tables.
//!
//! The first table finds, for a node and an entry's key, the group of children with that key; the
//! second, for a group and a value, the child for exactly that value. A group also has its patterns
//! and its default child. A step down the tree is thus two probes, however many rules there are.
//!
//! The hash is seeded at random. What callers send is only ever looked up, never inserted, so they
//! cannot degrade the tables.
//!
//! Not here: how a tree is put together (`arrange`), a request's walk and its checks (`matcher`).

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::counter_key::Secret;
use super::patterns::Patterns;
use crate::domain::{Accounting, Entry, Limit, RuleId};
use crate::policy::compile::spec::{Body, LimitSpec, ValueSpec, WrittenAt};

/// A policy, ready to be matched against. Immutable: a reload makes another one.
#[derive(Debug)]
pub struct Policy {
    pub(crate) rules: Vec<Rule>,
    /// The number of the first rule.
    pub(crate) first: u32,
    /// Shared with the policies that were made from this one by switches.
    pub(crate) tree: Arc<Tree>,
    pub(crate) secret: Secret,
    /// The text of every name that some rule replaces.
    pub(crate) replaced_names: Vec<Box<str>>,
}

/// What applies to a descriptor that ends at a node.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its number in the policy.
    pub id: RuleId,
    /// Its printed path: `domain.key_value.key` as envoyproxy/ratelimit prints it.
    pub path: Box<str>,
    /// No counter at all.
    pub unlimited: bool,
    /// The limits, in file order.
    pub limits: Box<[LimitSpec]>,
    /// Answered as OK when over.
    pub shadow_mode: bool,
    /// Has a say only together with the other quota descriptors.
    pub quota_mode: bool,
    /// Returned in dynamic metadata when the descriptor passes.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The body of refusals: the rule's, else its domain's.
    pub body: Option<Arc<Body>>,
    /// Where its descriptor is written.
    pub written: Option<WrittenAt>,
    /// [`Policy::printed_path`] has every request value.
    pub(crate) detailed_metric: bool,
    /// Where it stands in the tree.
    pub(crate) node: NodeId,
    /// For each limit how its counters' keys are made.
    pub(crate) plans: Arc<[Plan]>,
    /// Names of limits that a match of this rule takes out of the request.
    pub(crate) replaces: Box<[NameId]>,
}

/// A node's place in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub u32);

/// A name that some rule of the policy replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameId(pub u32);

/// How the keys of a limit's counters are made.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The beginning of the identity: domain, name, window.
    pub prefix: Box<[u8]>,
    /// For a limit with consumer classes: the same for each class.
    pub classes: Box<[Box<[u8]>]>,
    /// The entries that follow, in the path's order.
    pub parts: Box<[Part]>,
    /// The entries that make the tag, where the counter has all of the domain's `hash_tag`.
    pub tag: Option<Box<[Part]>>,
    /// The limit's name, if some rule replaces it.
    pub replaced_as: Option<NameId>,
}

impl Plan {
    /// Under which limit a descriptor is counted, and how its key begins: the rule's, or that of the
    /// class that the last entry names. `None` for a value that is in no class.
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

/// An entry's part in a key.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Its position on the path.
    pub at: usize,
    /// The pattern whose text stands for the value, where all its values share a counter.
    pub shared: Option<Box<str>>,
}

/// All domains' trees in one arena.
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

/// A domain. Its root is a node without a key.
#[derive(Debug)]
pub(crate) struct Domain {
    pub name: Box<str>,
    pub accounting: Accounting,
    pub hash_tag: Box<[Box<str>]>,
    pub root: NodeId,
}

/// One step of a path.
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

/// The children of a node that have one key.
#[derive(Debug)]
pub(crate) struct Group {
    pub parent: NodeId,
    pub key: Box<str>,
    pub has_exact: bool,
    /// The patterns, and for each the child it leads to.
    pub patterns: Option<(Patterns, Box<[NodeId]>)>,
    pub default: Option<NodeId>,
}

/// The child of a group for exactly one value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    pub group: u32,
    pub node: NodeId,
}

/// By which of a level's three ways a child was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Key and value as written.
    Exact,
    /// The pattern at that position among its siblings with the same key.
    Pattern(usize),
    /// The key's node without a value.
    Default,
}

impl Policy {
    /// All rules, by id.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// One rule.
    pub fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(id.0.wrapping_sub(self.first) as usize)
    }

    /// Whether the policy has that domain.
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

    /// The child of `parent` for an entry: the one for exactly that key and value, else the first
    /// of the key's patterns that the value fits, else the key's default. Key and value are compared
    /// as two things: `(a, b_c)` is not `(a_b, c)`.
    pub(crate) fn step(&self, parent: NodeId, entry: &Entry<'_>) -> Option<(NodeId, By)> {
        if self.node(parent).is_leaf {
            return None;
        }
        let group = self.group(parent, entry.key)?;
        if let Some(node) = self.exact(group, entry.value) {
            return Some((node, By::Exact));
        }
        let group = &self.groups[group as usize];
        if let Some((patterns, nodes)) = &group.patterns
            && let Some(at) = patterns.first(entry.value)
        {
            return Some((nodes[at], By::Pattern(at)));
        }
        group.default.map(|node| (node, By::Default))
    }

    /// The nodes on the way from the domain down to `node`, which is the last one.
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

/// The hash of bytes under a parent or a group. Apart from [`Tree`], because a table that grows
/// hashes its entries while the tree is borrowed.
pub(crate) fn hash_with(state: &RandomState, scope: u32, bytes: &[u8]) -> u64 {
    let mut hasher = state.build_hasher();
    hasher.write_u32(scope);
    hasher.write(bytes);
    hasher.finish()
}
