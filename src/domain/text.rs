//! Text for logs and terminals: escapes untrusted characters, and adds the causes to an error.
//!
//! Not here: validation of texts (`policy`, `settings`).

use std::borrow::Cow;
use std::error::Error;

/// Returns whether a character could be used to forge log lines or terminal output. These are the
/// control characters (C0, DEL, C1), the line and paragraph separators, and the bidirectional
/// controls, all below U+10000.
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

/// Formats an error followed by its causes. Skips a cause whose text is already part of the
/// message.
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
