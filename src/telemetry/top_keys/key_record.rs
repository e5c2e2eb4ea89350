//! Fixed-size record of a check: its limit, its counter, its result, and the displayable part of the
//! descriptor entries that identify the counter.

use crate::domain::{Entry, KeyEvent, RuleId, ValueDisplay, escaped_prefix, truncate_utf8};

/// Maximum number of displayed bytes of a descriptor value. Enough for an IPv4 address or the /64
/// prefix of an IPv6 address, but only part of a token, which usually has 32 or more characters.
const VALUE_BYTES_MAX: usize = 24;

/// Maximum length of a record's text in bytes. Four typical descriptor entries fit.
const TEXT_BYTES_MAX: usize = 120;

/// Maximum length of a displayed key in bytes, after escaping. Excludes the ellipsis that marks
/// truncation.
const DISPLAY_BYTES_MAX: usize = 240;

/// Suffix that marks truncated text.
const ELLIPSIS: &[u8] = "…".as_bytes();

/// Result of a recorded check.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyResult {
    /// The limit has no room for the hits of the check.
    Refused,
    /// The check charged hits.
    Passed {
        /// Hits that the record stands for: more than those of the check if only a sample is recorded,
        /// and 0 if the check is recorded only because its key came near the limit.
        hits: u64,
        /// Checks that the record stands for.
        checks: u64,
        /// Used share of the limit after the check, in millionths.
        used_ppm: u32,
    },
}

/// Fixed-size record of a check, sent from the request path to the statistics of keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyRecord {
    /// Id of the rule and position of the limit within the rule; `None` for a request override.
    pub(crate) limit: Option<(RuleId, u16)>,
    /// Keyed hash that identifies the counter.
    pub(crate) counter: u128,
    /// Whether the refusal did not reject its call, because of shadow mode or because a quota group
    /// of the call passes.
    pub(crate) shadow: bool,
    pub(crate) result: KeyResult,
    length: u8,
    is_truncated: bool,
    text: [u8; TEXT_BYTES_MAX],
}

impl KeyRecord {
    /// Creates a record. Called on the request path, so it does not allocate.
    pub(crate) fn new(key: &KeyEvent<'_>, result: KeyResult, values: ValueDisplay) -> KeyRecord {
        let limit = key.rule.map(|rule| (rule, u16::try_from(key.limit).unwrap_or(u16::MAX)));
        let (counter, shadow) = (key.counter.identity, key.shadow);
        let mut record = KeyRecord {
            limit,
            counter,
            shadow,
            result,
            length: 0,
            is_truncated: false,
            text: [0; TEXT_BYTES_MAX],
        };
        for (at, Entry { key, value }) in key.entries.iter().enumerate() {
            if at > 0 {
                record.push(b", ");
            }
            record.push(key);
            if values == ValueDisplay::Shortened {
                record.push(b"=");
                let prefix = truncate_utf8(value, VALUE_BYTES_MAX);
                record.push(prefix);
                if prefix.len() < value.len() {
                    record.push(ELLIPSIS);
                }
            }
        }
        record
    }

    /// Appends as many bytes to the record's text as fit. If the bytes do not fit, marks the text
    /// as truncated with an ellipsis; further calls then have no effect.
    fn push(&mut self, bytes: &[u8]) {
        if self.is_truncated {
            return;
        }
        let room = TEXT_BYTES_MAX - ELLIPSIS.len() - usize::from(self.length);
        if bytes.len() <= room {
            self.append(bytes);
        } else {
            self.append(truncate_utf8(bytes, room));
            self.append(ELLIPSIS);
            self.is_truncated = true;
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        let at = usize::from(self.length);
        let end = at + bytes.len();
        if let (Some(free), Ok(length)) = (self.text.get_mut(at..end), u8::try_from(end)) {
            free.copy_from_slice(bytes);
            self.length = length;
        }
    }

    /// Returns the record's descriptor entries as text, with invalid UTF-8 and control characters
    /// escaped.
    pub(crate) fn display(&self) -> String {
        // Escaping can expand one byte to six characters.
        escaped_prefix(&self.text[..usize::from(self.length)], DISPLAY_BYTES_MAX)
    }
}
