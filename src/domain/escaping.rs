//! Which characters are spelt out wherever a text from outside is shown, and how.
//!
//! Not here: where texts are shown (each room), what a text may hold (`policy`, `settings`).

use std::borrow::Cow;

/// Whether a character may begin a line of its own, steer a terminal or reorder what stands around
/// it, and so make a log or a terminal say what nobody wrote: control characters (C0, DEL, C1), the
/// separators of lines and paragraphs, and the marks of writing direction. None is beyond U+FFFF.
pub fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with its unruly characters as Rust writes them, such as `\n` and `\u{202e}`.
///
/// ```
/// use tidegate::domain::escaped;
/// assert_eq!(escaped("grün\u{202e}\n"), r"grün\u{202e}\n");
/// ```
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(needs_escape) {
        return Cow::Borrowed(text);
    }
    let mut spelt = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if needs_escape(c) { spelt.extend(c.escape_debug()) } else { spelt.push(c) }
    }
    Cow::Owned(spelt)
}
