//! Counter keys: 128-bit keyed BLAKE3 hashes of counter identities.
//!
//! The identity of a counter consists of the domain, the limit's name if it is an entry of
//! `rate_limits`, the algorithm, its window if it has one, the consumer class if each class has its
//! own bucket, and the entries of the path or of `per`. If these entries are not the whole path
//! (`tiers`, `per`), limits of several rules could have the same ones, so the identity also includes
//! the rule's path as configured. Every counter therefore belongs to one limit of one rule.
//!
//! The identity never includes `requests_per_unit`, `burst`, or the window of a bucket, so a limit
//! keeps its counters when these change. The encoding is injective: every part is a varint length
//! followed by that many bytes, and every alternative is marked by one byte.
//!
//! Not here: which entries are part of a key (`tree`), the names of keys in Redis (`store::redis`).

use crate::domain::{Algorithm, CounterKey, Holder, Limit, Window};

#[cfg(test)]
mod tests;

/// First byte of the identity of a limit's counter whose key contains the whole path. Each kind of
/// identity has its own first byte, so identities of different kinds are never equal.
const LIMIT_KIND: u8 = 1;
/// First byte of the identity of a request override's counter.
const OVERRIDE_KIND: u8 = 2;
/// First byte of the identity of a hash tag.
const TAG_KIND: u8 = 3;
/// First byte of the identity of a slot holder.
const HOLDER_KIND: u8 = 4;
/// First byte of the identity of a limit's counter whose key lacks entries of the path.
const RULE_LIMIT_KIND: u8 = 5;
/// First byte of the identity of a limit with its rule, whose hash follows [`RULE_LIMIT_KIND`].
const RULE_KIND: u8 = 6;

/// Byte in an identity for a fixed window that is aligned to the Unix epoch. The byte of an
/// algorithm is followed by the window if the algorithm has one.
const FIXED_WINDOW_MARKER: u8 = 1;
const SLIDING_WINDOW_MARKER: u8 = 2;
const SLIDING_LOG_MARKER: u8 = 3;
const TOKEN_BUCKET_MARKER: u8 = 4;
const LEAKY_BUCKET_MARKER: u8 = 5;
const HYBRID_MARKER: u8 = 6;
const CONCURRENCY_MARKER: u8 = 7;
const CALENDAR_MARKER: u8 = 8;
/// Like [`CALENDAR_MARKER`], for windows that do not start on the first day of their unit. The anchor
/// follows the time zone.
const ANCHORED_MARKER: u8 = 9;

/// Byte in an identity for an optional part that is absent.
const ABSENT_MARKER: u8 = 0;
/// Byte in an identity before an optional part that is present.
const PRESENT_MARKER: u8 = 1;

/// Byte before an entry's value in an identity. It differs from [`PATTERN_MARKER`], so that a
/// caller cannot reach the shared counter of a pattern by sending the pattern's text as a value.
const VALUE_MARKER: u8 = 0;
/// Byte before the text of a pattern, which replaces an entry's value in an identity.
const PATTERN_MARKER: u8 = 1;

/// Maximum size of an identity that is stored without a heap allocation, in bytes. Envoy's
/// descriptors usually have one or two entries of 20 to 60 bytes. Longer identities, such as those
/// with a 1 KiB token, allocate, which costs less than hashing them.
const IDENTITY_INLINE_BYTES: usize = 512;

/// BLAKE3 context for deriving a secret from the configured text. Changing it resets all counters.
const SECRET_CONTEXT: &str = "tidegate 2025 counter keys v1";

/// BLAKE3 context for deriving the fingerprint of a secret.
const FINGERPRINT_CONTEXT: &str = "tidegate 2025 secret fingerprint v1";

/// Secret with which counter keys are hashed. Without the secret, nobody can construct descriptors
/// whose counter keys collide, or recover a client's address from a key in Redis.
///
/// Replicas that share a store must use the same secret; otherwise each replica counts separately.
#[derive(Clone)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    /// Derives a secret from a configured text of any length. The text should contain at least 128
    /// random bits.
    ///
    /// ```
    /// use tidegate::policy::Secret;
    /// assert_eq!(Secret::derive("correct horse").0, Secret::derive("correct horse").0);
    /// assert_ne!(Secret::derive("correct horse").0, Secret::default().0);
    /// ```
    pub fn derive(text: &str) -> Self {
        Secret(blake3::derive_key(SECRET_CONTEXT, text.as_bytes()))
    }

    /// Returns 64 bits of a one-way hash of the secret, in hexadecimal. Replicas compare
    /// fingerprints to detect different secrets.
    ///
    /// ```
    /// use tidegate::policy::Secret;
    /// assert_eq!(Secret::derive("a").fingerprint(), Secret::derive("a").fingerprint());
    /// assert_ne!(Secret::derive("a").fingerprint(), Secret::derive("b").fingerprint());
    /// ```
    pub fn fingerprint(&self) -> String {
        let hash = blake3::derive_key(FINGERPRINT_CONTEXT, &self.0);
        hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Default secret, the same in every installation so that replicas agree. It is public and
/// therefore does not protect personal data.
impl Default for Secret {
    fn default() -> Self {
        Secret::derive("")
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Value that an entry contributes to a counter's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryValue<'a> {
    /// Value of the entry in the request.
    Request(&'a [u8]),
    /// Text of a pattern. All values that match the pattern share one counter.
    Pattern(&'a [u8]),
}

/// Encoder of counter identities. One encoder and its buffer are reused for all checks of a call.
#[derive(Debug)]
pub(crate) struct Identity {
    inline: [u8; IDENTITY_INLINE_BYTES],
    /// Number of bytes in `inline`.
    length: usize,
    /// The whole identity if it is too long for `inline`, otherwise empty.
    long: Vec<u8>,
}

impl Default for Identity {
    fn default() -> Self {
        Identity { inline: [0; IDENTITY_INLINE_BYTES], length: 0, long: Vec::new() }
    }
}

impl Identity {
    /// Starts an identity with the limit's prefix (see [`identity_prefix`] and
    /// [`rule_identity_prefix`]).
    pub(crate) fn begin(&mut self, prefix: &[u8]) {
        self.clear();
        self.push_bytes(prefix);
    }

    /// Starts the identity of a request override's counter.
    pub(crate) fn begin_override(&mut self, domain: &str, limit: &Limit) {
        self.clear();
        self.push_byte(OVERRIDE_KIND);
        self.push_part(domain.as_bytes());
        self.push_algorithm(limit);
    }

    /// Starts the identity of a hash tag. Omits the domain, because all checks of a call belong to
    /// the same domain.
    pub(crate) fn begin_tag(&mut self) {
        self.clear();
        self.push_byte(TAG_KIND);
    }

    pub(crate) fn push_entry(&mut self, key: &[u8], value: EntryValue<'_>) {
        self.push_part(key);
        let (kind, bytes) = match value {
            EntryValue::Request(bytes) => (VALUE_MARKER, bytes),
            EntryValue::Pattern(bytes) => (PATTERN_MARKER, bytes),
        };
        self.push_byte(kind);
        self.push_part(bytes);
    }

    /// Returns the first 128 bits of the identity's keyed hash, in big-endian order.
    pub(crate) fn hash(&self, secret: &Secret) -> u128 {
        let hash = blake3::keyed_hash(&secret.0, self.as_bytes());
        hash.as_bytes()[..16].iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte))
    }

    /// Appends the algorithm and its window, so that a limit starts a new counter if either
    /// changes. Omits the rate of a bucket, so that a change of the rate keeps the counter.
    fn push_algorithm(&mut self, limit: &Limit) {
        let (algorithm, window) = match &limit.algorithm {
            Algorithm::FixedWindow(fixed) => match &fixed.window {
                Window::Epoch { length } => (FIXED_WINDOW_MARKER, Some(*length)),
                Window::Calendar(calendar) => {
                    let anchor = calendar.anchor();
                    self.push_byte(anchor.as_ref().map_or(CALENDAR_MARKER, |_| ANCHORED_MARKER));
                    self.push_part(calendar.unit().as_str().as_bytes());
                    self.push_part(calendar.time_zone().as_bytes());
                    return anchor.iter().for_each(|anchor| self.push_part(anchor.as_bytes()));
                }
            },
            Algorithm::SlidingWindow(sliding) => (SLIDING_WINDOW_MARKER, Some(sliding.length)),
            Algorithm::SlidingLog(log) => (SLIDING_LOG_MARKER, Some(log.length)),
            Algorithm::Bucket(bucket) if bucket.leaky => (LEAKY_BUCKET_MARKER, None),
            Algorithm::Bucket(_) => (TOKEN_BUCKET_MARKER, None),
            // A hybrid's state counts in ticks of the window.
            Algorithm::Hybrid(hybrid) => (HYBRID_MARKER, Some(hybrid.window)),
            Algorithm::Concurrency(_) => (CONCURRENCY_MARKER, None),
        };
        self.push_byte(algorithm);
        if let Some(window) = window {
            self.push_varint(window.0);
        }
    }

    fn push_optional(&mut self, name: Option<&str>) {
        match name {
            None => self.push_byte(ABSENT_MARKER),
            Some(name) => {
                self.push_byte(PRESENT_MARKER);
                self.push_part(name.as_bytes());
            }
        }
    }

    fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.inline[..self.length] } else { &self.long }
    }

    fn clear(&mut self) {
        self.length = 0;
        self.long.clear();
    }

    fn push_byte(&mut self, byte: u8) {
        self.push_bytes(&[byte]);
    }

    #[inline]
    fn push_bytes(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.inline.get_mut(self.length..end) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            _ => self.push_to_long(bytes),
        }
    }

    #[cold]
    fn push_to_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.inline[..self.length]);
        }
        self.long.extend_from_slice(bytes);
    }

    fn push_part(&mut self, bytes: &[u8]) {
        // Nearly every part is short, and each entry has two of them.
        match u8::try_from(bytes.len()) {
            Ok(length @ ..=0x7f) => self.push_byte(length),
            _ => self.push_varint(bytes.len() as u64),
        }
        self.push_bytes(bytes);
    }

    /// Appends an unsigned LEB128 varint. Fixed-width lengths would push an identity of two typical
    /// entries beyond two of BLAKE3's 64-byte blocks.
    fn push_varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.push_byte((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.push_byte(number as u8);
    }
}

/// Returns the part of the identity that all counters of a limit share, if their keys contain the
/// whole path. `name` is set only for entries of `rate_limits`. `class` is set only if each consumer
/// class has its own bucket.
pub(crate) fn identity_prefix(
    domain: &str,
    name: Option<&str>,
    class: Option<&str>,
    limit: &Limit,
) -> Box<[u8]> {
    let mut identity = Identity::default();
    identity.push_byte(LIMIT_KIND);
    identity.push_part(domain.as_bytes());
    identity.push_optional(name);
    identity.push_algorithm(limit);
    identity.push_optional(class);
    identity.as_bytes().into()
}

/// Returns the part of the identity that all counters of a limit share, if their keys lack entries
/// of the path. `prefix` is the [`identity_prefix`] of the limit. `path` contains the configured key
/// and value of each level of its rule, with an empty value if the policy specifies none.
///
/// Returns a hash of these, because every call hashes the result again: with the path itself, most
/// identities would need another of BLAKE3's 64-byte blocks.
pub(crate) fn rule_identity_prefix<'a>(
    secret: &Secret,
    prefix: &[u8],
    path: impl Iterator<Item = (&'a str, &'a str)>,
) -> Box<[u8]> {
    let mut identity = Identity::default();
    identity.push_byte(RULE_KIND);
    identity.push_bytes(prefix);
    for (key, value) in path {
        identity.push_part(key.as_bytes());
        identity.push_part(value.as_bytes());
    }
    let hash = identity.hash(secret);
    identity.begin(&[RULE_LIMIT_KIND]);
    identity.push_bytes(&hash.to_be_bytes());
    identity.as_bytes().into()
}

/// Hashes the name of a slot holder with the secret, so that no store contains the name.
pub(crate) fn hash_holder(secret: &Secret, text: &[u8]) -> Holder {
    let mut identity = Identity::default();
    identity.push_byte(HOLDER_KIND);
    identity.push_part(text);
    Holder(identity.hash(secret))
}

/// Formats a counter key for display to operators: `{identity}`, or `{tag}:identity` if the key has
/// a hash tag. Each part is 22 characters of unpadded base64url over the 16 bytes in big-endian
/// order.
///
/// ```
/// use tidegate::{domain::CounterKey, policy::key_text};
/// assert_eq!(key_text(CounterKey { identity: 1, tag: None }), "{AAAAAAAAAAAAAAAAAAAAAQ}");
/// ```
pub fn key_text(key: CounterKey) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let identity = URL_SAFE_NO_PAD.encode(key.identity.to_be_bytes());
    match key.tag {
        None => format!("{{{identity}}}"),
        Some(tag) => format!("{{{}}}:{identity}", URL_SAFE_NO_PAD.encode(tag.to_be_bytes())),
    }
}
