//! Text for logs and terminals: escapes untrusted characters, formats errors with their causes,
//! and suggests spellings.
//!
//! Not here: validation of text (`policy`, `settings`).

use std::borrow::Cow;
use std::error::Error;

/// Returns whether a character could be used to forge log lines or terminal output. True for the
/// control characters (C0, DEL, C1), the line and paragraph separators, and the bidirectional
/// controls. All of these characters are below U+10000.
pub fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the text with every character for which [`needs_escape`] is true replaced by its Rust
/// escape, such as `\n` or `\u{202e}`.
///
/// ```
/// use tidegate::domain::escaped;
/// assert_eq!(escaped("grün\u{202e}\n"), r"grün\u{202e}\n");
/// ```
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(needs_escape) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if needs_escape(c) { escaped.extend(c.escape_debug()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

/// Like [`escaped`], for bytes: invalid UTF-8 is shown in the form `\xff`.
pub fn escaped_bytes(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(&escaped(chunk.valid()));
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

/// Like [`escaped_bytes`], but cut after `bytes_max` bytes of the result. An ellipsis marks the cut.
///
/// ```
/// use tidegate::domain::escaped_prefix;
/// assert_eq!(escaped_prefix(b"remote_address", 6), "remote…");
/// ```
pub fn escaped_prefix(bytes: &[u8], bytes_max: usize) -> String {
    let mut text = escaped_bytes(truncate_utf8(bytes, bytes_max));
    let length = truncate_utf8(text.as_bytes(), bytes_max).len();
    if length < text.len() || bytes.len() > bytes_max {
        text.truncate(length);
        text.push('…');
    }
    text
}

/// Returns the longest prefix of at most `bytes_max` bytes that does not split a UTF-8 character.
pub fn truncate_utf8(bytes: &[u8], bytes_max: usize) -> &[u8] {
    if bytes.len() <= bytes_max {
        return bytes;
    }
    let mut end = bytes_max;
    // UTF-8 continuation bytes start with the bits 10. A character has at most three of them.
    while end > bytes_max.saturating_sub(3) && bytes[end] & 0xC0 == 0x80 {
        end -= 1;
    }
    &bytes[..end]
}

/// Formats an error followed by its causes. Skips causes whose text the message already contains.
///
/// ```
/// use tidegate::domain::with_causes;
/// let error: Box<dyn std::error::Error> = "no such host".into();
/// assert_eq!(with_causes(&*error), "no such host");
/// ```
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let cause = source.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = source.source();
    }
    text
}

/// Maximum length of a misspelled word, in bytes. Longer words, such as long file names, get no
/// suggestion. Every setting and policy key is shorter.
const MISSPELLED_WORD_BYTES_MAX: usize = 48;

/// Returns the known word that `given` is probably a misspelling of; `None` if none is similar.
///
/// A known word is similar if it differs from `given` in at most one letter, or in at most two
/// letters if `given` has more than five. Case, hyphens, and underscores are ignored. Swapping two
/// adjacent letters counts as a difference of one letter. If no known word is similar and `given`
/// is an abbreviation of at least three letters, returns the shortest word that begins with it.
///
/// ```
/// use tidegate::domain::nearest_word;
/// let units = ["second", "minute", "hour"];
/// assert_eq!(nearest_word("minuet", units), Some("minute"));
/// assert_eq!(nearest_word("mins", units), Some("minute"));
/// assert_eq!(nearest_word("fortnight", units), None);
/// ```
pub fn nearest_word<'w>(given: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    if given.len() > MISSPELLED_WORD_BYTES_MAX {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_'], "").into_bytes();
    let given = plain(given);
    let distance_max = if given.len() > 5 { 2 } else { 1 };
    let stem = given.strip_suffix(b"s").unwrap_or(&given);
    let rate = |word: &str| {
        let word = plain(word);
        let letters = edit_distance(&word, &given);
        let begins_with_it = word.starts_with(stem);
        match letters <= distance_max && letters < given.len() {
            // Of two words as close, "off" rather than "on" was meant by "of".
            true => Some((0, letters, !begins_with_it)),
            false => (stem.len() >= 3 && begins_with_it).then_some((1, word.len(), false)),
        }
    };
    let rated = known.into_iter().filter_map(|word| Some((rate(word)?, word)));
    rated.min_by_key(|(rating, _)| *rating).map(|(_, word)| word)
}

/// Returns the edit distance of two texts (optimal string alignment): the minimum number of bytes
/// to insert, remove, replace, or swap with a neighbor to turn one text into the other.
fn edit_distance(one: &[u8], other: &[u8]) -> usize {
    let width = other.len() + 1;
    let mut table: Vec<usize> = (0..width).collect();
    table.resize(width * (one.len() + 1), 0);
    for (row, a) in (1..).zip(one) {
        table[row * width] = row;
        for (column, b) in (1..).zip(other) {
            let at = row * width + column;
            let replaced = table[at - width - 1] + usize::from(a != b);
            let mut least = replaced.min(table[at - 1] + 1).min(table[at - width] + 1);
            let is_swapped = row > 1 && column > 1 && one[row - 2] == *b && other[column - 2] == *a;
            if is_swapped {
                least = least.min(table[at - 2 * width - 2] + 1);
            }
            table[at] = least;
        }
    }
    table.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insertions_removals_replacements_and_swaps_count_as_one_edit() {
        for (one, other, letters) in
            [("", "", 0), ("", "ab", 2), ("key", "kye", 1), ("unit", "units", 1), ("a", "b", 1)]
        {
            assert_eq!(edit_distance(one.as_bytes(), other.as_bytes()), letters, "{one} {other}");
            assert_eq!(edit_distance(other.as_bytes(), one.as_bytes()), letters, "{other} {one}");
        }
    }

    #[test]
    fn a_word_is_only_suggested_if_it_is_similar() {
        let words = ["single", "sentinel", "cluster", "on", "off", "key"];
        for (given, meant) in [
            ("Cluster", Some("cluster")),
            ("clutser", Some("cluster")),
            ("sentinal", Some("sentinel")),
            ("kye", Some("key")),
            ("sent", Some("sentinel")),
            ("of", Some("off")),
            ("x", None),
            ("standalone", None),
            ("", None),
        ] {
            assert_eq!(nearest_word(given, words), meant, "{given}");
        }
        assert_eq!(nearest_word(&"cluster".repeat(100), words), None);
    }
}
