//! Keyword table: one row per key of the policy language, with level, type, bounds, and
//! documentation.
//!
//! The reader, the JSON Schema, and the tables of `docs/POLICY.md` are derived from these rows. To
//! add a key, add a row here and implement the key in `compile`.

use crate::domain::{Accounting, Charge, Micros, NamedEnum, OnStoreFailure, Unit, named_enum};
use crate::policy::compiled_policy::{EmptySegments, RequestPart, TierMethod, WINDOW_MAX};
use crate::policy::diagnostic::PathStep;
use crate::policy::words::{AlgorithmName, Align, Prepay};

named_enum! {
    /// Kind of map in a policy file. The kind determines which keys are allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Level {
        File => "file",
        Descriptor => "descriptor",
        RateLimit => "rate_limit",
        Replaces => "replaces",
        Mark => "mark",
        Reserve => "reserve",
        Tiers => "tiers",
        Class => "class",
        Body => "body",
        Http => "http",
        HttpDescriptor => "http_descriptor",
        HttpEntry => "http_entry",
    }
}

impl Level {
    /// Returns the level's name in messages and documentation.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Level::File => "the top level of the file",
            Level::Descriptor => "the descriptor",
            Level::RateLimit => "`rate_limit`",
            Level::Replaces => "an entry of `replaces`",
            Level::Mark => "`mark`",
            Level::Reserve => "`reserve`",
            Level::Tiers => "`tiers`",
            Level::Class => "a class of `tiers`",
            Level::Body => "`body`",
            Level::Http => "`http`",
            Level::HttpDescriptor => "a descriptor of `http`",
            Level::HttpEntry => "an entry of `http`",
        }
    }

    /// Returns the keys that are allowed at this level.
    pub(crate) fn keys(self) -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(move |key| key.level == self)
    }

    /// Returns the key called `name` if it is allowed at this level.
    pub(crate) fn key(self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueType {
    /// Text without control characters, at most [`NAME_BYTES_MAX`] bytes.
    Name,
    /// Text of at most `bytes_max` bytes.
    Text {
        bytes_max: usize,
    },
    Bool,
    /// Whole number from `min` to `max`, inclusive.
    Number {
        min: u64,
        max: u64,
    },
    /// One of `words`; case is ignored if `any_case` is true.
    OneOf {
        words: &'static [&'static str],
        any_case: bool,
    },
    /// List of names, each restricted like a [`ValueType::Name`].
    Names,
    /// List of maps with the keys of the given level.
    List(Level),
    Map(Level),
    /// Map with arbitrary keys, whose values are maps with the keys of the given level.
    MapOf(Level),
    /// Whole percentage, such as `24%`.
    Percent,
    /// Map with arbitrary keys and values.
    AnyMap,
}

/// Key of the policy language: one row of the keyword table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Level at which the key is allowed.
    pub(crate) level: Level,
    pub(crate) name: &'static str,
    pub(crate) required: bool,
    pub(crate) value_type: ValueType,
    /// Documentation, shown in editors and `docs/POLICY.md`.
    pub(crate) doc: &'static str,
}

impl From<&Key> for PathStep {
    fn from(key: &Key) -> Self {
        PathStep::Key(key.name.into())
    }
}

/// Maximum length of a name (domain, key, limit), in bytes. Names appear in metric labels and log
/// lines. File names and DNS names have the same maximum.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Maximum length of a descriptor's value, in bytes. Envoy accepts at most 60 KiB of headers, so no
/// request has a longer value.
pub(crate) const VALUE_BYTES_MAX: usize = 60 * 1024;

/// Maximum length of a response body, in bytes. The maximum is small because the body is sent with
/// every rejection.
pub(crate) const BODY_BYTES_MAX: usize = 1024;

/// Maximum of a numeric key, unless the key has a smaller maximum. envoyproxy/ratelimit rejects
/// larger integers, and no algorithm supports numbers this large.
const NUMBER_MAX: u64 = i64::MAX as u64;

/// Maximum `requests_per_unit`, a 32-bit field in Envoy's protocol.
const REQUESTS_PER_UNIT_MAX: u64 = u32::MAX as u64;

/// Maximum length of a window, lease, or block, in seconds.
const WINDOW_SECONDS_MAX: u64 = WINDOW_MAX.0 / Micros::SECOND.0;

/// Maximum time for which calls may hold hits, in seconds: one day.
const RESERVE_SECONDS_MAX: u64 = 86_400;

const fn text(bytes_max: usize) -> ValueType {
    ValueType::Text { bytes_max }
}

const fn one_of<T: NamedEnum>() -> ValueType {
    ValueType::OneOf { words: T::WORDS, any_case: false }
}

const fn number(min: u64, max: u64) -> ValueType {
    ValueType::Number { min, max }
}

const UNITS: ValueType = ValueType::OneOf { words: Unit::WORDS, any_case: true };

/// Declares one [`Key`] constant per row, and [`KEYS`] with all rows.
macro_rules! keys {
    ($($constant:ident: $level:ident $name:literal $(($required:ident))?, $value_type:expr, $doc:literal;)*) => {
        $(pub(crate) const $constant: Key = Key {
            level: Level::$level,
            name: $name,
            required: !stringify!($($required)?).is_empty(),
            value_type: $value_type,
            doc: $doc,
        };)*

        /// All keys of the policy language, grouped by level.
        pub(crate) const KEYS: &[Key] = &[$($constant),*];
    };
}

keys! {
    DOMAIN: File "domain" (required), ValueType::Name,
        "Domain that callers name. Only one file may have it unless domains merge.";
    ACCOUNTING: File "accounting", one_of::<Accounting>(),
        "all_or_nothing (default): a rejected call charges nothing. independent: limits that pass are charged even if the call is rejected.";
    HASH_TAG: File "hash_tag", ValueType::Names,
        "Entries whose values place counters in one Redis Cluster slot.";
    QUOTA_GROUP: File "quota_group", ValueType::Names,
        "Entries whose values group the quota descriptors of a call: all of one group must pass, and one group is enough. Without it, each is a group of its own.";
    DOMAIN_FAILURE: File "on_store_failure", one_of::<OnStoreFailure>(),
        "Answer of the domain's limits if Redis does not respond in time (default local).";
    DOMAIN_CHARGE: File "charge", one_of::<Charge>(),
        "`charge` of the domain's limits that have none of their own (default: the setting --charge).";
    DOMAIN_BODY: File "body", ValueType::Map(Level::Body),
        "Response body of this domain's rejections.";
    DOMAIN_HTTP: File "http", ValueType::Map(Level::Http),
        "How /authz builds the descriptors of an HTTP request that a proxy asks about.";
    DESCRIPTORS: File "descriptors", ValueType::List(Level::Descriptor),
        "First level of the descriptor tree.";

    KEY: Descriptor "key" (required), ValueType::Name,
        "Key of the descriptor entry, such as remote_address.";
    VALUE: Descriptor "value", text(VALUE_BYTES_MAX),
        "Value of the entry. Absent or empty: any value without a descriptor of its own. `*` matches any characters.";
    RATE_LIMIT: Descriptor "rate_limit", ValueType::Map(Level::RateLimit),
        "Limit for requests whose descriptor ends here. Without a limit, and without descriptors below, such requests are always allowed.";
    RATE_LIMITS: Descriptor "rate_limits", ValueType::List(Level::RateLimit),
        "Several limits, each with a name of its own. All must pass.";
    SHADOW_MODE: Descriptor "shadow_mode", ValueType::Bool,
        "Count and decide, but answer OK when over the limit.";
    QUOTA_MODE: Descriptor "quota_mode", ValueType::Bool,
        "Reject a call only if all of its quota groups are over a limit. Each quota descriptor is a group of its own, unless the domain has a `quota_group`.";
    DETAILED_METRIC: Descriptor "detailed_metric", ValueType::Bool,
        "Show the request's values in the rule's metric path.";
    VALUE_TO_METRIC: Descriptor "value_to_metric", ValueType::Bool,
        "Show the request's value of this entry in the rule's metric path.";
    SHARE_THRESHOLD: Descriptor "share_threshold", ValueType::Bool,
        "All values that match the pattern in `value` share one counter.";
    METADATA: Descriptor "metadata", ValueType::AnyMap,
        "Dynamic metadata to return for descriptors that pass, up to 16384 bytes as JSON (RESPONSE_DYNAMIC_METADATA).";
    RULE_BODY: Descriptor "body", ValueType::Map(Level::Body),
        "Response body of this rule's rejections.";
    CHILDREN: Descriptor "descriptors", ValueType::List(Level::Descriptor),
        "Next level of the descriptor tree.";

    UNIT: RateLimit "unit", UNITS,
        "Unit of the window. Absent for concurrency.";
    UNIT_MULTIPLIER: RateLimit "unit_multiplier", number(1, WINDOW_SECONDS_MAX),
        "Length of the window in units (default 1).";
    REQUESTS_PER_UNIT: RateLimit "requests_per_unit", number(0, REQUESTS_PER_UNIT_MAX),
        "Hits per window; for concurrency, the number of slots. 0 rejects everything.";
    UNLIMITED: RateLimit "unlimited", ValueType::Bool,
        "No limit and no counter. Cannot be combined with `unit`.";
    NAME: RateLimit "name", ValueType::Name,
        "Name of the limit in responses and in `replaces`, without quotes and backslashes.";
    REPLACES: RateLimit "replaces", ValueType::List(Level::Replaces),
        "Limits to drop from the whole request when this one matches.";
    ALGORITHM: RateLimit "algorithm", one_of::<AlgorithmName>(),
        "How hits are counted (default fixed_window).";
    BURST: RateLimit "burst", number(1, NUMBER_MAX),
        "Capacity of a bucket, in hits (default: requests_per_unit; 1 for leaky_bucket).";
    COST: RateLimit "cost", number(1, NUMBER_MAX),
        "Hits to charge for each hit of the request (default 1).";
    CHARGE: RateLimit "charge", one_of::<Charge>(),
        "Which hits count even beyond the limit, because they were used already. admitted: none. billed: hits above 0 that a descriptor names. always: all (default: the domain's).";
    RULE_FAILURE: RateLimit "on_store_failure", one_of::<OnStoreFailure>(),
        "Answer of this limit if Redis does not respond in time (default: the domain's).";
    PER: RateLimit "per", ValueType::Names,
        "In rate_limits: the entries of the path that make up the counter's key (default: all).";
    PREPAY: RateLimit "prepay", one_of::<Prepay>(),
        "auto: while a counter is hot, each replica takes hits of the next 50 ms from Redis in advance (default off). Only for fixed_window, sliding_window, and token_bucket.";
    RESERVE: RateLimit "reserve", ValueType::Map(Level::Reserve),
        "Calls may hold hits, an upper estimate, and settle later what they used. Only for fixed_window and token_bucket.";
    ALIGN: RateLimit "align", one_of::<Align>(),
        "calendar: windows are calendar days, weeks (from Monday), months, or years in the time zone. Default: epoch.";
    TIME_ZONE: RateLimit "time_zone", ValueType::Name,
        "IANA time zone of calendar windows, such as Europe/Berlin (default UTC).";
    ANCHOR: RateLimit "anchor", ValueType::Name,
        "With `align: calendar`: the day on which a month starts, 1 to 31, or the date on which a year starts, such as 04-01 (default 1, 01-01). In a month that is too short, its last day.";
    LEASE: RateLimit "lease", number(1, WINDOW_SECONDS_MAX),
        "Seconds after which a concurrency slot that was not released becomes free (default 60).";
    MARK: RateLimit "mark", ValueType::Map(Level::Mark),
        "Headers that admitted calls carry to the upstream near the limit and over it.";
    LOG_NEAR: RateLimit "log_near", ValueType::Bool,
        "Log a line when a call brings a counter near its limit, up to `near_at` of `mark`.";
    BLOCK: RateLimit "block", number(1, WINDOW_SECONDS_MAX),
        "Seconds for which a rejection by this limit blocks its key (default: none).";
    TIERS: RateLimit "tiers", ValueType::Map(Level::Tiers),
        "Consumer classes: the value of the descriptor's key is the class.";

    REPLACED_NAME: Replaces "name" (required), ValueType::Name,
        "Name of the limit to drop.";

    NEAR: Mark "near", ValueType::AnyMap,
        "Headers of calls after which at least `near_at` of the limit is used, at most 8.";
    OVER: Mark "over", ValueType::AnyMap,
        "Headers of calls that this limit would reject, but that pass, and of calls that leave no hit, at most 8.";
    NEAR_AT: Mark "near_at", ValueType::Percent,
        "Used part of the limit from which calls are near it (default: the setting --near-limit-ratio).";
    RESERVE_TTL: Reserve "ttl" (required), number(1, RESERVE_SECONDS_MAX),
        "Seconds after which a hold that was not settled ends.";

    METHOD: Tiers "method" (required), one_of::<TierMethod>(),
        "How classes divide the bucket: floors in one bucket, a bucket each, or shares and a common pool.";
    CLASSES: Tiers "classes" (required), ValueType::MapOf(Level::Class),
        "Classes by name, highest priority first.";
    DEFAULT_CLASS: Tiers "default", ValueType::Name,
        "Class of unlisted values (default: the lowest). `none`: such values are not limited.";

    FLOOR: Class "floor", ValueType::Percent,
        "The class passes only while the bucket (hybrid: the pool) is at least this full.";
    SHARE: Class "share", ValueType::Percent,
        "Part of the bucket and of its rate that the class has for itself.";
    CLASS_BURST: Class "burst", number(1, NUMBER_MAX),
        "Capacity of the class's own bucket.";
    CLASS_REQUESTS: Class "requests_per_unit", number(1, REQUESTS_PER_UNIT_MAX),
        "Rate of the class's own bucket.";

    CONTENT_TYPE: Body "content_type", ValueType::Name,
        "Content-Type header (default application/json).";
    BODY_TEXT: Body "text" (required), text(BODY_BYTES_MAX),
        "Text of the body. {name} and {retry_after_seconds} are replaced.";

    HTTP_DESCRIPTORS: Http "descriptors" (required), ValueType::List(Level::HttpDescriptor),
        "Descriptors to build, at most 16. One is left out if the request lacks one of its headers.";
    HTTP_TRUSTED_HOPS: Http "trusted_hops", number(1, 16),
        "Number of proxies that append to X-Forwarded-For, up to the one that asks (default 1). The client's address is at this position from the right.";
    HTTP_IPV6_PREFIX: Http "ipv6_prefix", number(1, 128),
        "Bits to which IPv6 addresses of clients are cut, such as 2001:db8:1:2::/64 (default 64). 128 keeps the whole address.";
    HTTP_EMPTY_SEGMENTS: Http "empty_segments", one_of::<EmptySegments>(),
        "Empty segments of a path. merge (default): //a/ is /a/. remove: it is /a. keep: it stays.";

    HTTP_ENTRIES: HttpDescriptor "entries" (required), ValueType::List(Level::HttpEntry),
        "Entries of the descriptor, at most 16, in the order of the path to the limit.";

    HTTP_KEY: HttpEntry "key" (required), ValueType::Name,
        "Key of the entry.";
    HTTP_HEADER: HttpEntry "header", ValueType::Name,
        "Header whose first value is the entry's value. An entry has one of `header`, `request`, and `value`.";
    HTTP_REQUEST: HttpEntry "request", one_of::<RequestPart>(),
        "Part of the request that is the entry's value, from X-Forwarded-For, -Method, -Uri (without the query), or -Host.";
    HTTP_VALUE: HttpEntry "value", ValueType::Name,
        "Text that is the entry's value.";
}

/// Returns the levels at which a key called `name` is allowed.
pub(crate) fn levels_of(name: &str) -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(move |level| level.key(name).is_some())
}
