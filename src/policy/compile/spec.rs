//! What a policy says once it is understood: a tree of nodes with rules, every number checked.
//!
//! `compile` makes it from YAML, `tree` makes it fast. Not here: YAML, places, faults, lookup.

use std::sync::Arc;

use crate::domain::{Accounting, Limit};

/// One domain of a policy.
#[derive(Clone, Debug)]
pub struct DomainSpec {
    /// Its name; not empty.
    pub name: Box<str>,
    /// How refused calls are charged.
    pub accounting: Accounting,
    /// Entries whose values place counters in a Redis Cluster; empty: by identity.
    pub hash_tag: Box<[Box<str>]>,
    /// The body of refusals, unless a rule has its own.
    pub body: Option<Arc<Body>>,
    /// The first level of the tree, in file order.
    pub nodes: Vec<NodeSpec>,
}

/// A node: one step of a descriptor's path.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// The entry's key.
    pub key: Box<str>,
    /// Which values it stands for.
    pub value: ValueSpec,
    /// All values that match the pattern share one counter.
    pub share_threshold: bool,
    /// The request's value takes the node's place in the rule's printed path.
    pub value_to_metric: bool,
    /// What applies to a descriptor that ends here. `None`: only a step on the way, or an explicit
    /// allow.
    pub rule: Option<RuleSpec>,
    /// The next level, in file order.
    pub children: Vec<NodeSpec>,
}

/// Which values a node stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSpec {
    /// Any value that no sibling with the same key takes: the default node.
    Any,
    /// Exactly this one; not empty.
    Exact(Box<str>),
    /// Any value that fits the pattern: `*` stands for zero or more bytes, anywhere, any number of
    /// times.
    Pattern(Box<str>),
}

/// What applies to a descriptor that ends at a node.
#[derive(Clone, Debug)]
pub struct RuleSpec {
    /// `rate_limit.unlimited`: no counter at all; then `limits` is empty.
    pub unlimited: bool,
    /// The limits, in file order: one for `rate_limit`, several for `rate_limits`.
    pub limits: Vec<LimitSpec>,
    /// Names of limits that a match here takes out of the whole request.
    pub replaces: Box<[Box<str>]>,
    /// The name of an unlimited rule (limits carry their own).
    pub name: Option<Box<str>>,
    /// OVER_LIMIT is answered as OK.
    pub shadow_mode: bool,
    /// Has a say only together with the other quota descriptors.
    pub quota_mode: bool,
    /// The printed path has every request value.
    pub detailed_metric: bool,
    /// Returned in dynamic metadata when the descriptor passes.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The body of refusals.
    pub body: Option<Arc<Body>>,
    /// Where its descriptor is written; `None` for a rule that no file has.
    pub written: Option<WrittenAt>,
}

/// Where something is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenAt {
    /// The file's name, as it was given to `compile`.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
}

/// One limit of a rule.
#[derive(Clone, Debug)]
pub struct LimitSpec {
    /// `name`; required and part of the key in a list.
    pub name: Option<Box<str>>,
    /// The limit stands in a `rate_limits` list, so its name is part of its counter's key.
    pub in_list: bool,
    /// Which entries of the path make the counter's key, as positions; `None`: all.
    pub per: Option<Box<[usize]>>,
    /// The numbers; where there are classes, those of the whole bucket that they divide.
    pub limit: Arc<Limit>,
    /// The consumer classes; the value of the last entry of the path is the class.
    pub tiers: Option<Arc<TiersSpec>>,
    /// Hits that one hit of the caller counts for; at least 1.
    pub cost: u64,
}

impl LimitSpec {
    /// The limit of the class that a value names: its position among the classes and its numbers.
    /// `None` where unlisted values are not limited. Only for a limit with `tiers`.
    pub(crate) fn class(&self, value: &[u8]) -> Option<(usize, &Arc<Limit>)> {
        let tiers = self.tiers.as_ref()?;
        let listed = tiers.classes.iter().position(|class| class.name.as_bytes() == value);
        let class = listed.or(tiers.default)?;
        Some((class, &tiers.classes[class].limit))
    }
}

/// Consumer classes that divide one bucket.
#[derive(Clone, Debug)]
pub struct TiersSpec {
    /// How.
    pub method: TierMethod,
    /// The classes, the highest priority first; at most [`CLASSES_MAX`].
    pub classes: Vec<ClassSpec>,
    /// The class of an unlisted value; `None`: such values are not limited.
    pub default: Option<usize>,
}

/// The most classes of one limit: people name three to five, and a hybrid's state has an integer for
/// each.
pub const CLASSES_MAX: usize = 16;

/// How consumer classes divide a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierMethod {
    /// One bucket, in which each class has a floor.
    Shared,
    /// A bucket for each class.
    Separate,
    /// A share for each class and a common pool with floors.
    Hybrid,
}

impl TierMethod {
    /// The word that policy files use.
    pub const fn as_str(self) -> &'static str {
        match self {
            TierMethod::Shared => "shared",
            TierMethod::Separate => "separate",
            TierMethod::Hybrid => "hybrid",
        }
    }
}

/// One consumer class.
#[derive(Clone, Debug)]
pub struct ClassSpec {
    /// Its name: the value that an entry has.
    pub name: Box<str>,
    /// Its numbers.
    pub limit: Arc<Limit>,
}

/// A body for refusals: at most 1 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The `content-type` header.
    pub content_type: Box<str>,
    /// The text; `{name}` and `{retry_after_seconds}` are filled in.
    pub text: Box<str>,
}
