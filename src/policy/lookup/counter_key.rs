//! Counter keys: 128 bits of a keyed BLAKE3 over the length-prefixed parts of an identity.
//!
//! The identity of a counter consists of the domain, the limit's name if the rule is a list, the
//! algorithm, its window if it has one, the consumer class if each class has its own bucket, and the
//! entries of the path or of `per`. It never includes the numbers of the limit, so that a changed limit
//! keeps its counters. The encoding is injective: every part is a varint length followed by that many
//! bytes, and every choice is a byte of its own.
//!
//! Not here: which entries make a counter (`tree`), the spelling of keys in Redis (`store::redis`).

use smallvec::SmallVec;

use crate::domain::{Algorithm, CounterKey, Holder, Limit, Window};

#[cfg(test)]
mod tests;

/// What the bytes begin with, so that a counter of the policy, one of a limit that the caller
/// brought along, and a tag never look alike.
const LIMIT: u8 = 1;
const OVERRIDE: u8 = 2;
const TAG: u8 = 3;
const HOLDER: u8 = 4;

/// What precedes the window, one number for each algorithm.
const FIXED_WINDOW: u8 = 1;
const SLIDING_WINDOW: u8 = 2;
const SLIDING_LOG: u8 = 3;
const TOKEN_BUCKET: u8 = 4;
const LEAKY_BUCKET: u8 = 5;
const HYBRID: u8 = 6;
const CONCURRENCY: u8 = 7;
const CALENDAR: u8 = 8;

/// What precedes an optional part.
const ABSENT: u8 = 0;
const PRESENT: u8 = 1;

/// What precedes an entry's value: the caller's bytes, or the text of a pattern whose values share
/// a counter. A caller who sends the text of a pattern as a value does not meet the shared counter.
const VALUE: u8 = 0;
const PATTERN: u8 = 1;

/// Identities up to this size need no heap. Envoy's descriptors are one or two entries of some
/// twenty to sixty bytes; a token of 1 KiB spills, which costs less than hashing it.
const IDENTITY_INLINE: usize = 512;

/// The name under which a configured text becomes a secret. Changing it starts all counters anew.
const DERIVE_CONTEXT: &str = "tidegate 2025 counter keys v1";

/// The name under which a secret becomes its fingerprint.
const FINGERPRINT_CONTEXT: &str = "tidegate 2025 secret fingerprint v1";

/// The key of the hash, so that nobody who does not know it can make two counters collide, or
/// learn a client's address from a key in Redis.
///
/// Replicas that share a store must share the secret: with different ones each would count alone.
#[derive(Clone)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    /// The secret that a configured text stands for. Any text does; a good one has 128 random bits.
    ///
    /// ```
    /// use tidegate::policy::Secret;
    /// assert_eq!(Secret::derive("correct horse").0, Secret::derive("correct horse").0);
    /// assert_ne!(Secret::derive("correct horse").0, Secret::default().0);
    /// ```
    pub fn derive(text: &str) -> Self {
        Secret(blake3::derive_key(DERIVE_CONTEXT, text.as_bytes()))
    }

    /// 64 bits in hexadecimal digits that tell one secret from another and say nothing else of it:
    /// what replicas compare.
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

/// The secret where none is configured: the same for everybody who runs Tidegate, so that replicas
/// agree, and therefore no protection of personal data.
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

/// One entry's part in an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held<'a> {
    /// The caller's value.
    Value(&'a [u8]),
    /// The text of a pattern whose values share one counter.
    Pattern(&'a [u8]),
}

/// Writes identities. Reused for all checks of a call.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    bytes: SmallVec<[u8; IDENTITY_INLINE]>,
}

impl Identity {
    /// Starts with what is the same for every counter of a limit: what [`prefix`] wrote.
    pub(crate) fn begin(&mut self, prefix: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(prefix);
    }

    /// Starts the identity of a limit that the caller brought along.
    pub(crate) fn begin_override(&mut self, domain: &str, limit: &Limit) {
        self.bytes.clear();
        self.bytes.push(OVERRIDE);
        self.part(domain.as_bytes());
        self.algorithm(limit);
    }

    /// Starts a tag. It has no domain: a call has only one.
    pub(crate) fn begin_tag(&mut self) {
        self.bytes.clear();
        self.bytes.push(TAG);
    }

    /// Adds an entry.
    pub(crate) fn entry(&mut self, key: &[u8], held: Held<'_>) {
        self.part(key);
        let (kind, bytes) = match held {
            Held::Value(bytes) => (VALUE, bytes),
            Held::Pattern(bytes) => (PATTERN, bytes),
        };
        self.bytes.push(kind);
        self.part(bytes);
    }

    /// 128 bits that stand for what was written, in the order of the hash's bytes: the first one is
    /// the highest.
    pub(crate) fn hash(&self, secret: &Secret) -> u128 {
        let hash = blake3::keyed_hash(&secret.0, &self.bytes);
        hash.as_bytes()[..16].iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte))
    }

    /// The algorithm, and its window: counters of two algorithms, or of windows that differ, never
    /// meet. A bucket's rate is none of it, so that a changed rate keeps its counter.
    fn algorithm(&mut self, limit: &Limit) {
        let (algorithm, window) = match &limit.algorithm {
            Algorithm::FixedWindow(fixed) => match &fixed.window {
                Window::Epoch { length } => (FIXED_WINDOW, Some(*length)),
                Window::Calendar(calendar) => {
                    self.bytes.push(CALENDAR);
                    self.part(calendar.unit().as_str().as_bytes());
                    return self.part(calendar.zone().as_bytes());
                }
            },
            Algorithm::SlidingWindow(sliding) => (SLIDING_WINDOW, Some(sliding.length)),
            Algorithm::SlidingLog(log) => (SLIDING_LOG, Some(log.length)),
            Algorithm::Bucket(bucket) if bucket.leaky => (LEAKY_BUCKET, None),
            Algorithm::Bucket(_) => (TOKEN_BUCKET, None),
            // Its state is in units of the window.
            Algorithm::Hybrid(hybrid) => (HYBRID, Some(hybrid.window)),
            Algorithm::Concurrency(_) => (CONCURRENCY, None),
        };
        self.bytes.push(algorithm);
        if let Some(window) = window {
            self.number(window.0);
        }
    }

    fn optional(&mut self, name: Option<&str>) {
        match name {
            None => self.bytes.push(ABSENT),
            Some(name) => {
                self.bytes.push(PRESENT);
                self.part(name.as_bytes());
            }
        }
    }

    fn part(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A number in groups of seven bits, the lowest first; the high bit says that more follow.
    /// Short, because two entries of ordinary size then fit into two of the hash's 64-byte blocks.
    fn number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.bytes.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

/// What is the same for every counter of a limit. `name` only where the limit stands in a list,
/// `class` only where each consumer class has a bucket of its own.
pub(crate) fn prefix(
    domain: &str,
    name: Option<&str>,
    class: Option<&str>,
    limit: &Limit,
) -> Box<[u8]> {
    let mut identity = Identity::default();
    identity.bytes.push(LIMIT);
    identity.part(domain.as_bytes());
    identity.optional(name);
    identity.algorithm(limit);
    identity.optional(class);
    identity.bytes.into_vec().into_boxed_slice()
}

/// The holder that a caller's text stands for. Keyed like the counters, so that a store does not
/// learn what callers call themselves.
pub(crate) fn holder(secret: &Secret, text: &[u8]) -> Holder {
    let mut identity = Identity::default();
    identity.bytes.push(HOLDER);
    identity.part(text);
    Holder(identity.hash(secret))
}

/// A key as operators see it: `{tag}`, followed by `:id` where the tag is not the identity. Each is
/// 22 characters of base64url, without padding, of the 16 bytes with the highest first.
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
