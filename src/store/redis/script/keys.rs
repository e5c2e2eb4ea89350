//! Redis keys of counters, and the cluster slots of those keys.
//!
//! ```text
//! <prefix>tg1<a>:{<tag>}         the tag is the identity
//! <prefix>tg1<a>:{<tag>}:<id>    the tag is the hash of the limit's hash_tag entries
//! ```
//!
//! `a` is a letter for the algorithm and the version of its state, or `x` for the block of a counter. The holds of a limit with
//! `reserve` are in two more keys, with the letters `r` (amounts) and `z` (ends). `tag` and `id` (the counter's
//! identity) are 128 bits each, as 22 characters of base64url. Without hash_tag the key has 29
//! characters, and the counter takes 134 bytes in Redis. Keys contain no text from callers, and the
//! tag is a keyed hash, so that a caller cannot choose the slot of its counters.
//!
//! Not here: computing an identity (`policy`), the values of keys (`lua`).

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use smallvec::SmallVec;

use crate::domain::{Algorithm, CounterKey, Window};

/// Number of hash slots in a Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// Number of characters that 128 bits take in base64url without padding.
const HASH_CHARS: usize = 22;

/// Position of the hash tag's characters in a key without its prefix: after `tg1`, a letter, and `:{`.
const TAG_CHARS: Range<usize> = 6..6 + HASH_CHARS;

/// Maximum number of bytes of a key after the prefix: `tg1`, a letter, `:{`, a hash tag, `}:`, and
/// an identity.
const TAIL_BYTES_MAX: usize = 3 + 1 + 2 + HASH_CHARS + 2 + HASH_CHARS;

/// Maximum length of the key prefix in bytes. The length is bounded because every counter's key
/// contains the prefix.
pub const PREFIX_BYTES_MAX: usize = 64;

/// Text of a Redis key. Stays on the stack, because no key is longer than the inline capacity.
pub type KeyText = SmallVec<[u8; PREFIX_BYTES_MAX + TAIL_BYTES_MAX]>;

/// Version of the key and state formats that this build uses in Redis. Replicas with different
/// versions do not share counters.
const STATE_FORMAT: &str = "tg1";

/// Returns the text that replicas compare to find out whether they share counters: the version of
/// the formats, and the fingerprint of the key secret.
pub fn key_format(secret_fingerprint: &str) -> String {
    format!("{STATE_FORMAT} {secret_fingerprint}")
}

/// Validated prefix of all Redis keys (`CACHE_KEY_PREFIX`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix(String);

/// Reason why a key prefix is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// The prefix has more than [`PREFIX_BYTES_MAX`] bytes.
    TooLong,
    /// The prefix contains this character: a brace would change the hash tag, and whitespace or a
    /// control character breaks ACL patterns and shell commands.
    Character(char),
}

impl std::fmt::Display for PrefixError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PrefixError::TooLong => write!(f, "the key prefix is over {PREFIX_BYTES_MAX} bytes"),
            PrefixError::Character(found) => {
                write!(f, "the key prefix must not contain {found:?} (braces, blanks, control)")
            }
        }
    }
}

impl std::error::Error for PrefixError {}

impl Prefix {
    /// Creates a prefix after checking that `text` is safe in keys.
    ///
    /// # Errors
    ///
    /// Returns a [`PrefixError`] if the text is too long or contains a forbidden character.
    pub fn new(text: &str) -> Result<Prefix, PrefixError> {
        if text.len() > PREFIX_BYTES_MAX {
            return Err(PrefixError::TooLong);
        }
        let unsafe_char = |c: &char| matches!(c, '{' | '}') || c.is_whitespace() || c.is_control();
        match text.chars().find(unsafe_char) {
            Some(found) => Err(PrefixError::Character(found)),
            None => Ok(Prefix(text.to_owned())),
        }
    }

    /// Returns the Redis key of the metadata entry, which holds the fingerprint of the key secret
    /// and the version of the key format.
    pub fn meta_key(&self) -> String {
        format!("{}tg1meta", self.0)
    }

    /// Returns the Redis keys of the overrides at run time, all in one hash slot: their records, their ids
    /// by version, and the replicas that follow them.
    #[cfg(feature = "server")]
    pub(crate) fn override_keys(&self) -> [String; 3] {
        ["records", "versions", "replicas"]
            .map(|name| format!("{}tg1o:{{overrides}}:{name}", self.0))
    }

    /// Returns the pattern of all keys, for an ACL.
    pub(crate) fn key_pattern(&self) -> String {
        format!("{}tg1*", self.0)
    }

    /// Returns the key of the counter from which new connections take a hit, to learn whether they may.
    pub(crate) fn probe_key(&self) -> String {
        format!("{}tg1probe", self.0)
    }

    /// Returns such a key in a hash slot of a cluster. Tries 16,384 keys on average, in 1 ms.
    pub(crate) fn probe_key_in(&self, slot: u16) -> String {
        let keys = (0_u32..).map(|number| format!("{}:{{{number}}}", self.probe_key()));
        keys.into_iter().find(|key| key_slot(key.as_bytes()) == slot).unwrap_or_default()
    }

    /// Returns the Redis key of a counter.
    ///
    /// ```
    /// use tidegate::domain::*;
    /// use tidegate::store::redis::script::keys::Prefix;
    ///
    /// let window = Window::Epoch { length: Micros::SECOND };
    /// let algorithm = Algorithm::FixedWindow(FixedWindow { hits: Hits(1), window });
    /// let prefix = Prefix::new("edge:").unwrap();
    /// let key = prefix.key(&CounterKey { identity: 1, tag: None }, &algorithm);
    /// assert_eq!(key.as_slice(), b"edge:tg1w:{AAAAAAAAAAAAAAAAAAAAAQ}");
    /// ```
    pub fn key(&self, key: &CounterKey, algorithm: &Algorithm) -> KeyText {
        self.key_with_letter(key, algorithm_letter(algorithm))
    }

    /// Returns the Redis keys of a counter's holds: their amounts, and their ends.
    pub fn hold_keys(&self, key: &CounterKey) -> [KeyText; 2] {
        [b'r', b'z'].map(|letter| self.key_with_letter(key, letter))
    }

    /// Returns the Redis key with the letter of an algorithm, or that of a counter's block.
    pub(super) fn key_with_letter(&self, key: &CounterKey, letter: u8) -> KeyText {
        // Filled in place, because an append costs more than copying these few bytes.
        let mut tag = *b"tg1_:{______________________}";
        tag[STATE_FORMAT.len()] = letter;
        tag[TAG_CHARS].copy_from_slice(&encode_base64url(key.tag.unwrap_or(key.identity)));
        let mut text = KeyText::from_slice(self.0.as_bytes());
        text.extend_from_slice(&tag);
        if key.tag.is_some() {
            text.push(b':');
            text.extend_from_slice(&encode_base64url(key.identity));
        }
        text
    }
}

/// Letter of the blocks of counters in keys and in script arguments.
pub(super) const BLOCK_LETTER: u8 = b'x';

/// Returns the letter that identifies the algorithm and the version of its state format in keys. A
/// new state format needs a new letter. Both refill forms of a bucket (arrival and credits) share
/// one format, so that a limit whose rate changes keeps its counter.
pub(super) const fn algorithm_letter(algorithm: &Algorithm) -> u8 {
    match algorithm {
        Algorithm::FixedWindow(window) => match window.window {
            Window::Epoch { .. } => b'w',
            Window::Calendar(_) => b'k',
        },
        Algorithm::SlidingWindow(_) => b's',
        Algorithm::SlidingLog(_) => b'g',
        Algorithm::Bucket(bucket) if bucket.leaky => b'l',
        Algorithm::Bucket(_) => b'b',
        Algorithm::Hybrid(_) => b'h',
        Algorithm::Concurrency(_) => b'c',
    }
}

/// Returns the hash slot of a counter's key in a Redis Cluster.
pub fn counter_slot(key: &CounterKey) -> u16 {
    crc16(&encode_base64url(key.tag.unwrap_or(key.identity))) % SLOTS
}

/// Returns the hash slot of any key in a Redis Cluster, as Redis computes it: from the text between
/// the first `{` and the next `}`, or from the whole key if that text is missing or empty.
pub fn key_slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// Encodes 128 bits in base64url without padding.
fn encode_base64url(bits: u128) -> [u8; HASH_CHARS] {
    let mut text = [b'A'; HASH_CHARS];
    // Cannot fail: 16 bytes are 22 characters.
    let written = URL_SAFE_NO_PAD.encode_slice(bits.to_be_bytes(), &mut text);
    debug_assert_eq!(written, Ok(HASH_CHARS));
    text
}

/// Computes CRC16/XMODEM, the hash of Redis Cluster: polynomial 0x1021, initial value 0, not
/// reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes
        .iter()
        .fold(0, |crc: u16, byte| (crc << 8) ^ CRC16_TABLE[usize::from((crc >> 8) as u8 ^ *byte)])
}

/// CRC16 checksum of each byte value, so that [`crc16`] processes one byte per step.
const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut at = 0;
    while at < 256 {
        let mut crc = (at as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_cluster_keyslot() {
        // 0x31C3 is the check value of CRC16/XMODEM; the others are CLUSTER KEYSLOT's answers.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(key_slot(b"rl:{a}"), 15_495);
        assert_eq!(key_slot(b"a"), 15_495);
        assert_eq!(key_slot(b"rl:{}{a}"), 519);
        assert_eq!(key_slot(b"rl:{{a}}"), 10_276);
        assert_eq!(key_slot(b"foo"), 12_182);
        assert_eq!(key_slot(b""), 0);
    }

    #[test]
    fn a_prefix_cannot_take_over_the_tag() {
        assert_eq!(Prefix::new("a{b"), Err(PrefixError::Character('{')));
        assert_eq!(Prefix::new("a}"), Err(PrefixError::Character('}')));
        assert_eq!(Prefix::new("a b"), Err(PrefixError::Character(' ')));
        assert_eq!(Prefix::new("a\n"), Err(PrefixError::Character('\n')));
        assert_eq!(Prefix::new(&"x".repeat(65)), Err(PrefixError::TooLong));
        assert_eq!(Prefix::new("edge:").map(|p| p.meta_key()), Ok("edge:tg1meta".to_owned()));
    }
}
