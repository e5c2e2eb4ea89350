//! The words of the policy language: which key belongs where and what it takes.
//!
//! One table, read by three: the reader (unknown, misplaced and mistyped keys), `schema` (what
//! editors complete) and the tests that hold the two together. A new key is a line here and its
//! meaning in `descriptor` or `rule`. Not here: what a key means.

use super::limit::WINDOW_MAX;
use crate::domain::Micros;

/// A kind of map in a policy file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// The top of the file.
    File,
    /// An entry of `descriptors`.
    Descriptor,
    /// `rate_limit`.
    RateLimit,
    /// An entry of `replaces`.
    Replaces,
    /// `body`.
    Body,
}

impl Level {
    /// All of them.
    pub(super) const ALL: [Level; 5] =
        [Level::File, Level::Descriptor, Level::RateLimit, Level::Replaces, Level::Body];

    /// As messages name it.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Level::File => "the top level of the file",
            Level::Descriptor => "the descriptor",
            Level::RateLimit => "`rate_limit`",
            Level::Replaces => "an entry of `replaces`",
            Level::Body => "`body`",
        }
    }

    /// As the schema names it.
    pub(super) const fn id(self) -> &'static str {
        match self {
            Level::File => "file",
            Level::Descriptor => "descriptor",
            Level::RateLimit => "rate_limit",
            Level::Replaces => "replaces",
            Level::Body => "body",
        }
    }
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Text of at most so many bytes, without control characters.
    Name,
    /// Any text of at most so many bytes.
    Text {
        /// The most bytes.
        bytes_max: usize,
    },
    /// A truth value.
    Bool,
    /// A whole number within bounds.
    Number {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// One of these words.
    Word {
        /// The words.
        words: &'static [&'static str],
        /// Words of the language that this version does not have yet.
        later: &'static [&'static str],
        /// Capitals make no difference.
        any_case: bool,
    },
    /// A list of names.
    Names,
    /// A list of maps.
    List(Level),
    /// A map.
    Map(Level),
    /// A map of anything.
    Free,
    /// Known, but not available in this version.
    NotYet,
}

/// A key of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// Where it belongs.
    pub(super) level: Level,
    /// The word.
    pub(super) name: &'static str,
    /// What it takes.
    pub(super) shape: Shape,
    /// One line for editors.
    pub(super) about: &'static str,
}

/// The longest name (domain, key, limit): a name becomes part of a metric's labels and of log
/// lines, and 255 bytes is what file systems and DNS taught everybody to expect.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// The longest value of a descriptor: Envoy accepts 60 KiB of headers, so that nothing longer can
/// ever be asked for.
pub(super) const VALUE_BYTES_MAX: usize = 60 * 1024;

/// The longest refusal body: it is sent with every refusal, inside one gRPC message whose other
/// parts are smaller than this.
pub(super) const BODY_BYTES_MAX: usize = 1024;

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

const fn word(words: &'static [&'static str], later: &'static [&'static str]) -> Shape {
    Shape::Word { words, later, any_case: false }
}

const fn number(least: u64, most: u64) -> Shape {
    Shape::Number { least, most }
}

const FAILURE: Shape = word(&["local", "allow", "deny", "error"], &[]);

pub(super) const DOMAIN: Key = key(
    Level::File,
    "domain",
    Shape::Name,
    "The domain that callers name. Required, and only one file may have it unless domains merge.",
);
pub(super) const ACCOUNTING: Key = key(
    Level::File,
    "accounting",
    word(&["all_or_nothing", "independent"], &[]),
    "all_or_nothing (default): a refused call charges nothing. independent: checks that pass are charged whatever becomes of the call.",
);
pub(super) const HASH_TAG: Key = key(
    Level::File,
    "hash_tag",
    Shape::Names,
    "Entries whose values place counters in one Redis Cluster slot.",
);
pub(super) const DOMAIN_FAILURE: Key = key(
    Level::File,
    "on_store_failure",
    FAILURE,
    "What rules answer when the store cannot be asked in time: local (default), allow, deny or error.",
);
pub(super) const DOMAIN_BODY: Key =
    key(Level::File, "body", Shape::Map(Level::Body), "The body of this domain's refusals.");
pub(super) const DESCRIPTORS: Key = key(
    Level::File,
    "descriptors",
    Shape::List(Level::Descriptor),
    "The first level of the descriptor tree.",
);

pub(super) const KEY: Key = key(
    Level::Descriptor,
    "key",
    Shape::Name,
    "The descriptor entry's key, such as remote_address. Required.",
);
pub(super) const VALUE: Key = key(
    Level::Descriptor,
    "value",
    Shape::Text { bytes_max: VALUE_BYTES_MAX },
    "The entry's value. Absent or empty: any value that no sibling takes. `*` stands for any characters.",
);
pub(super) const RATE_LIMIT: Key = key(
    Level::Descriptor,
    "rate_limit",
    Shape::Map(Level::RateLimit),
    "The limit for descriptors that end here. Absent, and without descriptors below: always allowed.",
);
pub(super) const RATE_LIMITS: Key =
    key(Level::Descriptor, "rate_limits", Shape::NotYet, "Several limits at once.");
pub(super) const SHADOW_MODE: Key = key(
    Level::Descriptor,
    "shadow_mode",
    Shape::Bool,
    "Count and decide, but answer OK when over the limit.",
);
pub(super) const QUOTA_MODE: Key = key(
    Level::Descriptor,
    "quota_mode",
    Shape::Bool,
    "Refuse a call only if all of its quota descriptors are over their limits.",
);
pub(super) const DETAILED_METRIC: Key = key(
    Level::Descriptor,
    "detailed_metric",
    Shape::Bool,
    "The rule's printed path has every request value.",
);
pub(super) const VALUE_TO_METRIC: Key = key(
    Level::Descriptor,
    "value_to_metric",
    Shape::Bool,
    "The request's value takes this node's place in the rule's printed path.",
);
pub(super) const SHARE_THRESHOLD: Key = key(
    Level::Descriptor,
    "share_threshold",
    Shape::Bool,
    "All values that match the pattern share one counter.",
);
pub(super) const METADATA: Key = key(
    Level::Descriptor,
    "metadata",
    Shape::Free,
    "Returned in dynamic metadata for descriptors that pass.",
);
pub(super) const RULE_BODY: Key =
    key(Level::Descriptor, "body", Shape::Map(Level::Body), "The body of this rule's refusals.");
pub(super) const CHILDREN: Key = key(
    Level::Descriptor,
    "descriptors",
    Shape::List(Level::Descriptor),
    "The next level of the descriptor tree.",
);

pub(super) const UNIT: Key = key(
    Level::RateLimit,
    "unit",
    Shape::Word {
        words: &["second", "minute", "hour", "day", "week", "month", "year"],
        later: &[],
        any_case: true,
    },
    "The window's unit.",
);
pub(super) const UNIT_MULTIPLIER: Key = key(
    Level::RateLimit,
    "unit_multiplier",
    number(1, UNIT_MULTIPLIER_MAX),
    "The window is that many units (default 1).",
);
pub(super) const REQUESTS_PER_UNIT: Key = key(
    Level::RateLimit,
    "requests_per_unit",
    number(0, WIRE_NUMBER_MAX),
    "Hits per window. 0 refuses everything.",
);
pub(super) const UNLIMITED: Key = key(
    Level::RateLimit,
    "unlimited",
    Shape::Bool,
    "No counter at all. Must not stand beside a unit.",
);
pub(super) const NAME: Key = key(
    Level::RateLimit,
    "name",
    Shape::Name,
    "The limit's name in answers, and what `replaces` refers to.",
);
pub(super) const REPLACES: Key = key(
    Level::RateLimit,
    "replaces",
    Shape::List(Level::Replaces),
    "Limits that a match here takes out of the whole request.",
);
pub(super) const ALGORITHM: Key = key(
    Level::RateLimit,
    "algorithm",
    word(
        &["fixed_window", "token_bucket"],
        &["sliding_window", "sliding_log", "leaky_bucket", "concurrency"],
    ),
    "fixed_window (default) or token_bucket.",
);
pub(super) const BURST: Key = key(
    Level::RateLimit,
    "burst",
    number(1, NUMBER_MAX),
    "Capacity of a bucket, in hits (default: requests_per_unit).",
);
pub(super) const COST: Key = key(
    Level::RateLimit,
    "cost",
    number(1, NUMBER_MAX),
    "Hits that one hit of the caller counts for (default 1).",
);
pub(super) const CHARGE: Key = key(
    Level::RateLimit,
    "charge",
    word(&["admitted", "always"], &[]),
    "always: the hits were used already, so they count even beyond the limit.",
);
pub(super) const RULE_FAILURE: Key = key(
    Level::RateLimit,
    "on_store_failure",
    FAILURE,
    "What this rule answers when the store cannot be asked in time (default: the domain's).",
);
const PER: Key = key(Level::RateLimit, "per", Shape::NotYet, "The entries of the counter's key.");
const ALIGN: Key = key(Level::RateLimit, "align", Shape::NotYet, "Calendar windows.");
const TIME_ZONE: Key = key(Level::RateLimit, "time_zone", Shape::NotYet, "Calendar windows' zone.");
const LEASE: Key = key(Level::RateLimit, "lease", Shape::NotYet, "When an idle slot frees itself.");
const TIERS: Key = key(Level::RateLimit, "tiers", Shape::NotYet, "Consumer classes.");

pub(super) const REPLACED_NAME: Key =
    key(Level::Replaces, "name", Shape::Name, "The name of the limit to take out. Required.");

pub(super) const CONTENT_TYPE: Key = key(
    Level::Body,
    "content_type",
    Shape::Name,
    "The content-type header (default application/json).",
);
pub(super) const BODY_TEXT: Key = key(
    Level::Body,
    "text",
    Shape::Text { bytes_max: BODY_BYTES_MAX },
    "The text; {name} and {retry_after_seconds} are filled in. Required.",
);

/// The whole language.
pub(super) const KEYS: &[Key] = &[
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
    REPLACED_NAME,
    CONTENT_TYPE,
    BODY_TEXT,
];

/// The keys of one level.
pub(super) fn keys_of(level: Level) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.level == level)
}

/// The key of that name on that level.
pub(super) fn find(level: Level, name: &str) -> Option<&'static Key> {
    keys_of(level).find(|key| key.name == name)
}

/// The levels on which a key of that name belongs.
pub(super) fn homes(name: &str) -> Vec<Level> {
    Level::ALL.into_iter().filter(|level| find(*level, name).is_some()).collect()
}
