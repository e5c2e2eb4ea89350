//! What is noted of a refusal: which limit, which counter, and the counter's entries as they may be
//! shown, in a text of fixed size.
//!
//! Not here: what becomes of it (`sketch`).

use crate::domain::{Entry, RefusalEvent, RuleId, escaped};

/// How the values of refused keys are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// Their first 24 bytes.
    #[default]
    Shortened,
    /// Not at all: only the keyed hash that names the counter, as `explain` prints it for a
    /// value that one knows.
    Hashed,
}

impl Values {
    /// The word that settings and listings use.
    pub const fn word(self) -> &'static str {
        match self {
            Values::Shortened => "shortened",
            Values::Hashed => "hashed",
        }
    }
}

/// Shown of a value: an IPv4 address and the /64 of an IPv6 address whole, a token of the usual 32
/// and more characters only in part.
const VALUE_BYTES_MAX: usize = 24;

/// Shown of all entries together; four ordinary ones fit in.
const TEXT_BYTES_MAX: usize = 120;

/// The longest text of a key once it is escaped.
const SHOWN_BYTES_MAX: usize = 240;

/// What takes the place of a part that is cut off.
const CUT: &[u8] = "…".as_bytes();

/// A refusal.
#[derive(Clone, Debug)]
pub(super) struct Note {
    /// The rule and the position among its limits; `None`: a limit that the caller brought along.
    pub(super) limit: Option<(RuleId, u16)>,
    /// The counter's identity.
    pub(super) counter: u128,
    /// The refusal had no say.
    pub(super) shadow: bool,
    length: u8,
    cut: bool,
    text: [u8; TEXT_BYTES_MAX],
}

impl Note {
    /// On the request path: no allocation.
    pub(super) fn of(refused: &RefusalEvent<'_>, values: Values) -> Note {
        let limit =
            refused.rule.map(|rule| (rule, u16::try_from(refused.limit).unwrap_or(u16::MAX)));
        let (counter, shadow) = (refused.counter.identity, refused.shadow);
        let mut note =
            Note { limit, counter, shadow, length: 0, cut: false, text: [0; TEXT_BYTES_MAX] };
        for (at, Entry { key, value }) in refused.entries.iter().enumerate() {
            if at > 0 {
                note.push(b", ");
            }
            note.push(key);
            if values == Values::Shortened {
                note.push(b"=");
                let shown = start(value, VALUE_BYTES_MAX);
                note.push(shown);
                if shown.len() < value.len() {
                    note.push(CUT);
                }
            }
        }
        note
    }

    /// Appends what there is room for; a text that is cut ends in the mark, and takes no more.
    fn push(&mut self, bytes: &[u8]) {
        if self.cut {
            return;
        }
        let room = TEXT_BYTES_MAX - CUT.len() - usize::from(self.length);
        if bytes.len() <= room {
            self.append(bytes);
        } else {
            self.append(start(bytes, room));
            self.append(CUT);
            self.cut = true;
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

    /// The entries as a person reads them: what is not UTF-8 or would not print is escaped.
    pub(super) fn shown(&self) -> String {
        let mut text = String::new();
        for chunk in self.text[..usize::from(self.length)].utf8_chunks() {
            text.push_str(&escaped(chunk.valid()));
            text.extend(chunk.invalid().escape_ascii().map(char::from));
        }
        // Escaping can make six characters out of a byte.
        if text.len() > SHOWN_BYTES_MAX {
            text = String::from_utf8_lossy(start(text.as_bytes(), SHOWN_BYTES_MAX)).into_owned();
            text.push('…');
        }
        text
    }
}

/// At most `most` bytes from the start, not ending within a character.
pub(super) fn start(bytes: &[u8], most: usize) -> &[u8] {
    if bytes.len() <= most {
        return bytes;
    }
    let mut end = most;
    // A continuation byte begins with the bits 10; a character has at most three of them.
    while end > most.saturating_sub(3) && bytes[end] & 0xC0 == 0x80 {
        end -= 1;
    }
    &bytes[..end]
}
