//! Compiled form of a policy. Each domain is a tree of nodes with rules, and all numbers are
//! validated.
//!
//! `compile` builds this form from YAML, and `lookup::build` converts it to hash tables.

use std::sync::Arc;

use crate::domain::{Accounting, Charge, Hits, Limit, Mark, Micros, named_enum};

/// Maximum length of a window: ten years of 365 days. No real limit has a longer window. In
/// microseconds, this maximum fits into 49 bits.
pub const WINDOW_MAX: Micros = Micros::from_secs(10 * 365 * 86_400);

/// Compiled domain of a policy.
#[derive(Clone, Debug)]
pub struct DomainSpec {
    /// Domain name; never empty.
    pub name: Box<str>,
    /// Accounting mode: whether a rejected request charges the limits that had room left.
    pub accounting: Accounting,
    /// Charge mode for request overrides. If the rule at the end of the override's path has exactly
    /// one limit, the charge mode of that limit applies instead.
    pub charge: Charge,
    /// Keys of the entries whose values form the Redis Cluster hash tag. If empty, the identity of
    /// each counter is its hash tag, which spreads counters over all hash slots.
    pub hash_tag: Box<[Box<str>]>,
    /// Entry keys of `quota_group`. The quota descriptors of a call that have the same values for
    /// these keys form a group. If empty, every quota descriptor forms a separate group.
    pub quota_group: Box<[Box<str>]>,
    /// Response body for rejections by rules that do not set `body`.
    pub body: Option<Arc<RejectionBody>>,
    /// Mapping from HTTP requests to descriptors for `/authz`; `None` if the domain has no mapping.
    pub http: Option<Arc<HttpMapping>>,
    /// Nodes on the first level of the descriptor tree, in file order.
    pub nodes: Vec<NodeSpec>,
}

/// Node of the descriptor tree; matches one entry of a descriptor.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Key of the entry.
    pub key: Box<str>,
    /// Values of the entry that this node matches.
    pub value: ValueSpec,
    /// Whether all values that match the pattern share one counter.
    pub share_threshold: bool,
    /// Whether the rule's path in metrics contains the request's value for this node.
    pub value_to_metric: bool,
    /// Rule for descriptors that end at this node. `None` if the node has neither `rate_limit` nor
    /// `rate_limits`; such descriptors are always allowed.
    pub rule: Option<RuleSpec>,
    /// Child nodes, in file order.
    pub children: Vec<NodeSpec>,
}

/// Values that a node matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ValueSpec {
    /// Any value that matches no sibling with the same key. A node with this variant is a default
    /// node.
    #[default]
    Any,
    /// Exactly this value; not empty.
    Exact(Arc<str>),
    /// Any value that matches the pattern, where each `*` matches zero or more bytes.
    Pattern(Arc<str>),
}

impl ValueSpec {
    /// Returns the `value` of a descriptor as written in the policy; empty if the descriptor matches
    /// any value.
    pub(crate) fn text(&self) -> &str {
        match self {
            ValueSpec::Any => "",
            ValueSpec::Exact(text) | ValueSpec::Pattern(text) => text,
        }
    }
}

/// Rule for descriptors that end at a node.
#[derive(Clone, Debug)]
pub struct RuleSpec {
    /// Limits in file order: one for `rate_limit`, one or more for `rate_limits`. Empty if the rule is
    /// unlimited (`rate_limit.unlimited`); it then has no counter.
    pub limits: Arc<[LimitSpec]>,
    /// Names of limits that are skipped for the whole request if this rule matches.
    pub replaces: Box<[Box<str>]>,
    /// Name in the rule's `rate_limit`, which may be unlimited. `None` if `rate_limit` has no name,
    /// or if the rule has `rate_limits`, whose entries have their own names.
    pub name: Option<Box<str>>,
    /// Shadow mode: requests over the limit are counted but admitted.
    pub shadow_mode: bool,
    /// Quota mode: a request is rejected only if all of its quota groups are over a limit.
    pub quota_mode: bool,
    /// Whether the rule's path in metrics contains the request's values on all levels.
    pub detailed_metric: bool,
    /// Dynamic metadata returned to Envoy if the descriptor passes.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// Response body for rejections by this rule. If `None`, the domain's body is used.
    pub body: Option<Arc<RejectionBody>>,
    /// Position of the rule's descriptor in a policy file or a resource; `None` if the rule comes
    /// from neither.
    pub location: Option<SourceLocation>,
}

/// Position in a policy: line of a policy file, or path in a resource of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// File name as passed to `compile`, or name of the resource.
    pub file: Arc<str>,
    /// Line number, from 1; 0 in a resource.
    pub line: u32,
    /// Path in a resource, such as `descriptors[0]`; `None` in a file.
    pub path: Option<Arc<str>>,
}

/// Compiled limit of a rule.
#[derive(Clone, Debug)]
pub struct LimitSpec {
    /// Limit name. Required in a `rate_limits` list, where it is part of the counter key.
    pub name: Option<Box<str>>,
    /// Whether the limit is an entry of `rate_limits`. If so, its counter keys contain its name.
    pub in_list: bool,
    /// Positions of the path entries that the counter key contains; `None` if it contains all.
    pub per: Option<Box<[usize]>>,
    /// Compiled limit. With `tiers`, this is the limit for the whole bucket that the classes
    /// divide.
    pub limit: Arc<Limit>,
    /// Limit that bills (hits that the caller has already used) are charged against. `None` if
    /// bills are charged like other hits; see [`Limit::bill_limit`]. With `tiers`, each class has
    /// its own limit for bills.
    pub bill_limit: Option<Arc<Limit>>,
    /// Consumer classes, selected by the value of the path's last entry; `None` without `tiers`.
    pub tiers: Option<Arc<TiersSpec>>,
    /// Marks of admitted calls and log line near the limit; `None` without `mark` and `log_near`.
    pub soft: Option<Arc<SoftLimit>>,
    /// Hits charged per hit of the request; at least 1. Does not apply to bills, which are hits
    /// that the caller has already used (`charge: billed`).
    pub cost: u64,
}

impl LimitSpec {
    /// Returns the consumer class that a value selects, with the position of the class. Returns
    /// `None` if the limit has no `tiers`, or if the value is unlisted and unlisted values are not
    /// limited.
    pub(crate) fn select_class(&self, value: &[u8]) -> Option<(usize, &ClassSpec)> {
        let tiers = self.tiers.as_ref()?;
        let listed = tiers.classes.iter().position(|class| class.name.as_bytes() == value);
        let class = listed.or(tiers.default)?;
        Some((class, &tiers.classes[class]))
    }

    /// Returns whether this limit or one of its consumer classes has the given `limit_id`.
    pub fn has_id(&self, limit_id: u64) -> bool {
        let classes = self.tiers.iter().flat_map(|tiers| &tiers.classes);
        self.limit.limit_id == limit_id
            || classes.into_iter().any(|class| class.limit.limit_id == limit_id)
    }
}

/// Compiled `mark` and `log_near`: what happens near a limit and over it, apart from rejections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftLimit {
    /// Used part of the limit from which it counts as near, in millionths; at most 1,000,000.
    pub near_at: u32,
    /// Headers of admitted calls that leave the limit near.
    pub near: Box<[Mark]>,
    /// Headers of admitted calls that the limit refuses, or that leave no hits.
    pub over: Box<[Mark]>,
    /// Whether the call that brings a counter near its limit is logged.
    pub log_near: bool,
}

impl SoftLimit {
    /// Default of `near_at` in millionths: that of the setting `--near-limit-ratio`.
    pub const NEAR_AT_DEFAULT: u32 = 800_000;

    /// Returns the number of used hits from which a limit with this capacity is near, rounded up.
    pub fn near_hits(&self, capacity: Hits) -> Hits {
        let hits = (u128::from(capacity.0) * u128::from(self.near_at)).div_ceil(1_000_000);
        Hits(u64::try_from(hits).unwrap_or(u64::MAX))
    }
}

/// Compiled `tiers`: consumer classes that divide one bucket.
#[derive(Clone, Debug)]
pub struct TiersSpec {
    /// Method by which the classes divide the bucket.
    pub method: TierMethod,
    /// Classes, highest priority first; at most [`CLASSES_MAX`].
    pub classes: Vec<ClassSpec>,
    /// Position of the class that applies to unlisted values; `None` if such values are not
    /// limited.
    pub default: Option<usize>,
}

/// Maximum number of classes of one limit. Typical policies use three to five. The state of a
/// hybrid limit stores one integer per class, so this maximum bounds the size of the state.
pub const CLASSES_MAX: usize = 16;

named_enum! {
    /// Method by which consumer classes divide a bucket.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TierMethod {
        /// One bucket for all classes. A class may use the bucket only while at least the class's floor
        /// is left in it.
        Shared => "shared",
        /// A separate bucket for each class.
        Separate => "separate",
        /// A guaranteed share for each class, and a common pool. A class may use the pool only while at
        /// least the class's floor is left in it.
        Hybrid => "hybrid",
    }
}

/// Compiled consumer class.
#[derive(Clone, Debug)]
pub struct ClassSpec {
    /// Class name. The class applies if the last entry of the path has this value.
    pub name: Box<str>,
    /// Compiled limit of the class.
    pub limit: Arc<Limit>,
    /// Limit that bills of this class (hits that the caller has already used) are charged against.
    /// `None` if bills are charged like other hits; see [`Limit::bill_limit`].
    pub bill_limit: Option<Arc<Limit>>,
}

/// Response body for rejections; at most 1 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectionBody {
    /// Value of the `content-type` header, ASCII.
    pub content_type: Box<str>,
    /// Text with the placeholders `{name}` and `{retry_after_seconds}`.
    pub text: Box<str>,
}

pub(crate) fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("application/json") || media.ends_with("+json")
}

/// Mapping from an HTTP request to descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpMapping {
    /// Number of trusted proxies that append to `X-Forwarded-For`; at least 1.
    pub trusted_hops: usize,
    /// Number of bits to which IPv6 addresses of clients are cut, 1 to 128.
    pub ipv6_prefix: u32,
    /// Treatment of empty segments in paths.
    pub empty_segments: EmptySegments,
    /// Entries of each descriptor, in file order.
    pub descriptors: Box<[Box<[HttpEntry]>]>,
}

impl Default for HttpMapping {
    /// Returns a mapping without descriptors. Only the proxy that calls `/authz` is trusted. A /64
    /// is the network of one client: its hosts choose the other 64 bits themselves. Slashes are
    /// merged, as NGINX and most routers do.
    fn default() -> Self {
        HttpMapping {
            trusted_hops: 1,
            ipv6_prefix: 64,
            empty_segments: EmptySegments::Merge,
            descriptors: Box::default(),
        }
    }
}

named_enum! {
    /// Treatment of the empty segments of a path: those between two slashes, and after the last one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EmptySegments {
        /// Merges slashes that follow each other: `//a/` is `/a/`.
        Merge => "merge",
        /// Removes the slash at the end, too: `//a/` is `/a`.
        Remove => "remove",
        /// Keeps all of them: `//a/` is `//a/`.
        Keep => "keep",
    }
}

/// Entry that an `http` mapping adds to a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpEntry {
    /// Key of the entry.
    pub key: Box<str>,
    /// Source of the entry's value.
    pub source: HttpSource,
}

/// Source of an entry's value: a property of the HTTP request, or fixed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpSource {
    /// First value of the header with this name. The name is in lower case.
    Header(Box<str>),
    /// Fixed text from the policy.
    Value(Box<str>),
    /// Part of the request.
    Request(RequestPart),
}

named_enum! {
    /// Part of an HTTP request that can be an entry's value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RequestPart {
        /// Address of the client.
        RemoteAddress => "remote_address",
        /// Method of the request.
        Method => "method",
        /// Path of the request, without the query.
        Path => "path",
        /// Host of the request.
        Host => "host",
    }
}
