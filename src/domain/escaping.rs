//! Escaping of text from outside before it is shown in a log or on a terminal.
//!
//! Not here: which texts are allowed (`policy`, `settings`).

use std::borrow::Cow;

/// Whether a character can forge a log line or terminal output, because it starts a new line, controls
/// the terminal or reorders the text around it: control characters (C0, DEL, C1), line and paragraph
/// separators, and bidirectional controls. None is beyond U+FFFF.
pub fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the text with those characters escaped as in Rust, such as `\n` and `\u{202e}`.
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
