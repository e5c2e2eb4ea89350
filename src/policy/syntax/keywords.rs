//! The table of the policy language: every key, where it belongs, what it takes.
//!
//! A new key is a line here and its meaning in `descriptor`, `rule` or `tiers`. Not here: what a key
//! means.

use super::language::{Key, Level, Shape};
use crate::domain::Micros;
use crate::policy::compile::limit_numbers::WINDOW_MAX;

/// The longest name (domain, key, limit): a name becomes part of a metric's labels and of log
/// lines, and 255 bytes is what file systems and DNS taught everybody to expect.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// The longest value of a descriptor: Envoy accepts 60 KiB of headers, so that nothing longer can
/// ever be asked for.
pub(crate) const VALUE_BYTES_MAX: usize = 60 * 1024;

/// The longest refusal body: it is sent with every refusal, inside one gRPC message whose other
/// parts are smaller than this.
pub(crate) const BODY_BYTES_MAX: usize = 1024;

/// The largest number a key takes unless it says otherwise: envoyproxy/ratelimit refuses integers
/// beyond it anywhere, and no algorithm's arithmetic goes that far.
const NUMBER_MAX: u64 = i64::MAX as u64;

/// `requests_per_unit` is a 32-bit field of Envoy's message.
const WIRE_NUMBER_MAX: u64 = u32::MAX as u64;

/// The longest window in the smallest unit.
const UNIT_MULTIPLIER_MAX: u64 = WINDOW_MAX.0 / Micros::SECOND.0;

const fn key(level: Level, name: &'static str, shape: Shape, about: &'static str) -> Key {
    Key { level, name, shape, about }
}

const fn word(words: &'static [&'static str]) -> Shape {
    Shape::Word { words, any_case: false }
}

const fn number(least: u64, most: u64) -> Shape {
    Shape::Number { least, most }
}

const FAILURE: Shape = word(&["local", "allow", "deny", "error"]);

pub(crate) const DOMAIN: Key = key(
    Level::File,
    "domain",
    Shape::Name,
    "The domain that callers name. Required, and only one file may have it unless domains merge.",
);
pub(crate) const ACCOUNTING: Key = key(
    Level::File,
    "accounting",
    word(&["all_or_nothing", "independent"]),
    "all_or_nothing (default): a refused call charges nothing. independent: checks that pass are charged whatever becomes of the call.",
);
pub(crate) const HASH_TAG: Key = key(
    Level::File,
    "hash_tag",
    Shape::Names,
    "Entries whose values place counters in one Redis Cluster slot.",
);
pub(crate) const DOMAIN_FAILURE: Key = key(
    Level::File,
    "on_store_failure",
    FAILURE,
    "What rules answer when the store cannot be asked in time: local (default), allow, deny or error.",
);
pub(crate) const DOMAIN_BODY: Key =
    key(Level::File, "body", Shape::Map(Level::Body), "The body of this domain's refusals.");
pub(crate) const DESCRIPTORS: Key = key(
    Level::File,
    "descriptors",
    Shape::List(Level::Descriptor),
    "The first level of the descriptor tree.",
);

pub(crate) const KEY: Key = key(
    Level::Descriptor,
    "key",
    Shape::Name,
    "The descriptor entry's key, such as remote_address. Required.",
);
pub(crate) const VALUE: Key = key(
    Level::Descriptor,
    "value",
    Shape::Text { bytes_max: VALUE_BYTES_MAX },
    "The entry's value. Absent or empty: any value that no sibling takes. `*` stands for any characters.",
);
pub(crate) const RATE_LIMIT: Key = key(
    Level::Descriptor,
    "rate_limit",
    Shape::Map(Level::RateLimit),
    "The limit for descriptors that end here. Absent, and without descriptors below: always allowed.",
);
pub(crate) const RATE_LIMITS: Key = key(
    Level::Descriptor,
    "rate_limits",
    Shape::List(Level::RateLimit),
    "Several limits at once, each with a name of its own: all must pass.",
);
pub(crate) const SHADOW_MODE: Key = key(
    Level::Descriptor,
    "shadow_mode",
    Shape::Bool,
    "Count and decide, but answer OK when over the limit.",
);
pub(crate) const QUOTA_MODE: Key = key(
    Level::Descriptor,
    "quota_mode",
    Shape::Bool,
    "Refuse a call only if all of its quota descriptors are over their limits.",
);
pub(crate) const DETAILED_METRIC: Key = key(
    Level::Descriptor,
    "detailed_metric",
    Shape::Bool,
    "The rule's printed path has every request value.",
);
pub(crate) const VALUE_TO_METRIC: Key = key(
    Level::Descriptor,
    "value_to_metric",
    Shape::Bool,
    "The request's value takes this node's place in the rule's printed path.",
);
pub(crate) const SHARE_THRESHOLD: Key = key(
    Level::Descriptor,
    "share_threshold",
    Shape::Bool,
    "All values that match the pattern share one counter.",
);
pub(crate) const METADATA: Key = key(
    Level::Descriptor,
    "metadata",
    Shape::Free,
    "Returned in dynamic metadata for descriptors that pass.",
);
pub(crate) const RULE_BODY: Key =
    key(Level::Descriptor, "body", Shape::Map(Level::Body), "The body of this rule's refusals.");
pub(crate) const CHILDREN: Key = key(
    Level::Descriptor,
    "descriptors",
    Shape::List(Level::Descriptor),
    "The next level of the descriptor tree.",
);

pub(crate) const UNIT: Key = key(
    Level::RateLimit,
    "unit",
    Shape::Word {
        words: &["second", "minute", "hour", "day", "week", "month", "year"],
        any_case: true,
    },
    "The window's unit. Absent for concurrency.",
);
pub(crate) const UNIT_MULTIPLIER: Key = key(
    Level::RateLimit,
    "unit_multiplier",
    number(1, UNIT_MULTIPLIER_MAX),
    "The window is that many units (default 1).",
);
pub(crate) const REQUESTS_PER_UNIT: Key = key(
    Level::RateLimit,
    "requests_per_unit",
    number(0, WIRE_NUMBER_MAX),
    "Hits per window; slots for concurrency. 0 refuses everything.",
);
pub(crate) const UNLIMITED: Key = key(
    Level::RateLimit,
    "unlimited",
    Shape::Bool,
    "No counter at all. Must not stand beside a unit.",
);
pub(crate) const NAME: Key = key(
    Level::RateLimit,
    "name",
    Shape::Name,
    "The limit's name in answers, and what `replaces` refers to.",
);
pub(crate) const REPLACES: Key = key(
    Level::RateLimit,
    "replaces",
    Shape::List(Level::Replaces),
    "Limits that a match here takes out of the whole request.",
);
pub(crate) const ALGORITHM: Key = key(
    Level::RateLimit,
    "algorithm",
    word(&[
        "fixed_window",
        "sliding_window",
        "sliding_log",
        "token_bucket",
        "leaky_bucket",
        "concurrency",
    ]),
    "How hits are counted (default fixed_window).",
);
pub(crate) const BURST: Key = key(
    Level::RateLimit,
    "burst",
    number(1, NUMBER_MAX),
    "Capacity of a bucket, in hits (default: requests_per_unit; 1 for leaky_bucket).",
);
pub(crate) const COST: Key = key(
    Level::RateLimit,
    "cost",
    number(1, NUMBER_MAX),
    "Hits that one hit of the caller counts for (default 1).",
);
pub(crate) const CHARGE: Key = key(
    Level::RateLimit,
    "charge",
    word(&["admitted", "always"]),
    "always: the hits were used already, so they count even beyond the limit.",
);
pub(crate) const RULE_FAILURE: Key = key(
    Level::RateLimit,
    "on_store_failure",
    FAILURE,
    "What this rule answers when the store cannot be asked in time (default: the domain's).",
);
pub(crate) const PER: Key = key(
    Level::RateLimit,
    "per",
    Shape::Names,
    "In rate_limits: the entries of the path that make the counter's key (default: all).",
);
pub(crate) const ALIGN: Key = key(
    Level::RateLimit,
    "align",
    word(&["epoch", "calendar"]),
    "calendar: days, weeks from Monday, months and years as the time zone has them.",
);
pub(crate) const TIME_ZONE: Key = key(
    Level::RateLimit,
    "time_zone",
    Shape::Name,
    "The IANA zone of calendar windows, such as Europe/Berlin (default UTC).",
);
pub(crate) const LEASE: Key = key(
    Level::RateLimit,
    "lease",
    number(1, UNIT_MULTIPLIER_MAX),
    "Seconds after which a slot that was not returned frees itself (default 60).",
);
pub(crate) const TIERS: Key = key(
    Level::RateLimit,
    "tiers",
    Shape::Map(Level::Tiers),
    "Consumer classes: the value of the descriptor's key is the class.",
);

pub(crate) const METHOD: Key = key(
    Level::Tiers,
    "method",
    word(&["shared", "separate", "hybrid"]),
    "How classes divide the bucket: floors in one, a bucket each, or shares and a pool. Required.",
);
pub(crate) const CLASSES: Key = key(
    Level::Tiers,
    "classes",
    Shape::MapOf(Level::Class),
    "The classes by name, the highest priority first. Required.",
);
pub(crate) const DEFAULT_CLASS: Key = key(
    Level::Tiers,
    "default",
    Shape::Name,
    "The class of an unlisted value (default: the lowest); `none`: such values are not limited.",
);
pub(crate) const FLOOR: Key = key(
    Level::Class,
    "floor",
    Shape::Percent,
    "The class passes only while the bucket (hybrid: the pool) is at least this full.",
);
pub(crate) const SHARE: Key =
    key(Level::Class, "share", Shape::Percent, "The class's part of the bucket and of its rate.");
pub(crate) const CLASS_BURST: Key =
    key(Level::Class, "burst", number(1, NUMBER_MAX), "The size of the class's own bucket.");
pub(crate) const CLASS_REQUESTS: Key = key(
    Level::Class,
    "requests_per_unit",
    number(1, WIRE_NUMBER_MAX),
    "The rate of the class's own bucket.",
);

pub(crate) const REPLACED_NAME: Key =
    key(Level::Replaces, "name", Shape::Name, "The name of the limit to take out. Required.");

pub(crate) const CONTENT_TYPE: Key = key(
    Level::Body,
    "content_type",
    Shape::Name,
    "The content-type header (default application/json).",
);
pub(crate) const BODY_TEXT: Key = key(
    Level::Body,
    "text",
    Shape::Text { bytes_max: BODY_BYTES_MAX },
    "The text; {name} and {retry_after_seconds} are filled in. Required.",
);

/// The whole language.
pub(crate) const KEYS: &[Key] = &[
    DOMAIN,
    ACCOUNTING,
    HASH_TAG,
    DOMAIN_FAILURE,
    DOMAIN_BODY,
    DESCRIPTORS,
    KEY,
    VALUE,
    RATE_LIMIT,
    RATE_LIMITS,
    SHADOW_MODE,
    QUOTA_MODE,
    DETAILED_METRIC,
    VALUE_TO_METRIC,
    SHARE_THRESHOLD,
    METADATA,
    RULE_BODY,
    CHILDREN,
    UNIT,
    UNIT_MULTIPLIER,
    REQUESTS_PER_UNIT,
    UNLIMITED,
    NAME,
    REPLACES,
    ALGORITHM,
    BURST,
    COST,
    CHARGE,
    RULE_FAILURE,
    PER,
    ALIGN,
    TIME_ZONE,
    LEASE,
    TIERS,
    METHOD,
    CLASSES,
    DEFAULT_CLASS,
    FLOOR,
    SHARE,
    CLASS_BURST,
    CLASS_REQUESTS,
    REPLACED_NAME,
    CONTENT_TYPE,
    BODY_TEXT,
];

/// The keys of one level.
pub(crate) fn keys_of(level: Level) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.level == level)
}

/// The key of that name on that level.
pub(crate) fn find(level: Level, name: &str) -> Option<&'static Key> {
    keys_of(level).find(|key| key.name == name)
}

/// The levels on which a key of that name belongs.
pub(crate) fn homes(name: &str) -> Vec<Level> {
    Level::ALL.into_iter().filter(|level| find(*level, name).is_some()).collect()
}
