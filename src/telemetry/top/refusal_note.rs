//! A note of a rejected check: its limit, its counter, and the counter's entries as they may be
//! displayed, in a text of fixed size.
//!
//! Not here: counting the notes (`space_saving`).

use crate::domain::{Entry, RefusalEvent, RuleId, escaped};

/// How the values of rejected keys are displayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueDisplay {
    /// Their first 24 bytes.
    #[default]
    Shortened,
    /// Not at all: only the keyed hash that identifies the counter. `explain` prints the hash of a
    /// known value.
    Hashed,
}

impl ValueDisplay {
    /// Its name in settings and listings.
    pub const fn as_str(self) -> &'static str {
        match self {
            ValueDisplay::Shortened => "shortened",
            ValueDisplay::Hashed => "hashed",
        }
    }
}

/// Displayed bytes of a value: enough for an IPv4 address or the /64 of an IPv6 address, and only a
/// part of a token with the usual 32 or more characters.
const VALUE_BYTES_MAX: usize = 24;

/// Bytes of all entries together; four ordinary ones fit.
const TEXT_BYTES_MAX: usize = 120;

/// The length of a displayed key after escaping.
const DISPLAY_BYTES_MAX: usize = 240;

/// Replaces the part that is cut off.
const ELLIPSIS: &[u8] = "…".as_bytes();

/// A note of a rejected check.
#[derive(Clone, Debug)]
pub(super) struct RefusalNote {
    /// The rule's id and the position of the limit within it; `None`: a request override.
    pub(super) limit: Option<(RuleId, u16)>,
    /// The counter's identity.
    pub(super) counter: u128,
    /// Whether the limit is in shadow mode.
    pub(super) shadow: bool,
    length: u8,
    is_cut: bool,
    text: [u8; TEXT_BYTES_MAX],
}

impl RefusalNote {
    /// A note of a rejected check. On the request path: no allocation.
    pub(super) fn new(refused: &RefusalEvent<'_>, values: ValueDisplay) -> RefusalNote {
        let limit =
            refused.rule.map(|rule| (rule, u16::try_from(refused.limit).unwrap_or(u16::MAX)));
        let (counter, shadow) = (refused.counter.identity, refused.shadow);
        let mut note = RefusalNote {
            limit,
            counter,
            shadow,
            length: 0,
            is_cut: false,
            text: [0; TEXT_BYTES_MAX],
        };
        for (at, Entry { key, value }) in refused.entries.iter().enumerate() {
            if at > 0 {
                note.push(b", ");
            }
            note.push(key);
            if values == ValueDisplay::Shortened {
                note.push(b"=");
                let prefix = truncated(value, VALUE_BYTES_MAX);
                note.push(prefix);
                if prefix.len() < value.len() {
                    note.push(ELLIPSIS);
                }
            }
        }
        note
    }

    /// Appends as much as fits. A text that is cut ends in an ellipsis and takes no more.
    fn push(&mut self, bytes: &[u8]) {
        if self.is_cut {
            return;
        }
        let room = TEXT_BYTES_MAX - ELLIPSIS.len() - usize::from(self.length);
        if bytes.len() <= room {
            self.append(bytes);
        } else {
            self.append(truncated(bytes, room));
            self.append(ELLIPSIS);
            self.is_cut = true;
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

    /// The entries as text. Bytes that are not UTF-8 and control characters are escaped.
    pub(super) fn display(&self) -> String {
        let mut text = String::new();
        for chunk in self.text[..usize::from(self.length)].utf8_chunks() {
            text.push_str(&escaped(chunk.valid()));
            text.extend(chunk.invalid().escape_ascii().map(char::from));
        }
        // Escaping can turn one byte into six characters.
        if text.len() > DISPLAY_BYTES_MAX {
            text =
                String::from_utf8_lossy(truncated(text.as_bytes(), DISPLAY_BYTES_MAX)).into_owned();
            text.push('…');
        }
        text
    }
}

/// The first bytes, at most `most`, without cutting a character in two.
pub(super) fn truncated(bytes: &[u8], most: usize) -> &[u8] {
    if bytes.len() <= most {
        return bytes;
    }
    let mut end = most;
    // Continuation bytes start with the bits 10; a character has at most three.
    while end > most.saturating_sub(3) && bytes[end] & 0xC0 == 0x80 {
        end -= 1;
    }
    &bytes[..end]
}
