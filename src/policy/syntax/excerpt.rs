//! Source lines in diagnostics, with the wrong part underlined.

use std::cell::OnceCell;

use super::yaml::Span;
use crate::domain::escaped;

/// Most characters of a line before the underlined part.
const BEFORE_CHARS_MAX: usize = 60;

/// Most characters of a line from the underlined part on.
const AFTER_CHARS_MAX: usize = 60;

/// One line of a policy file, cut to a readable length and escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    before: String,
    marked: String,
    after: String,
}

impl Excerpt {
    /// Returns the line, with `…` where it is cut.
    pub fn text(&self) -> String {
        [self.before.as_str(), &self.marked, &self.after].concat()
    }

    /// Returns the line below it: `^` below each character of the wrong part, at least one.
    pub fn underline(&self) -> String {
        let indent = self.before.chars().count();
        let width = self.marked.chars().count().max(1);
        [" ".repeat(indent), "^".repeat(width)].concat()
    }

    /// `shown` is the line from the character `skipped` on, up to its end.
    fn new(mut shown: impl Iterator<Item = char>, skipped: usize, span: Span) -> Self {
        let before: String = shown.by_ref().take(column(span) - skipped).collect();
        let mut rest: Vec<char> = shown.take(AFTER_CHARS_MAX + 1).collect();
        let is_cut = rest.len() > AFTER_CHARS_MAX;
        rest.truncate(AFTER_CHARS_MAX);
        let (marked, after) = rest.split_at(rest.len().min(span.width as usize));
        let (marked, after) = (String::from_iter(marked), String::from_iter(after));
        let dots = |is_cut: bool| if is_cut { "…" } else { "" };
        Excerpt {
            before: [dots(skipped > 0), &escaped(&before)].concat(),
            marked: escaped(marked.trim_end()).into_owned(),
            after: [&escaped(&after), dots(is_cut)].concat(),
        }
    }
}

/// Column from 0.
fn column(span: Span) -> usize {
    (span.column as usize).saturating_sub(1)
}

/// The lines of a file, located when the first diagnostic needs one.
#[derive(Debug)]
pub(crate) struct Lines<'s> {
    text: &'s str,
    offsets: OnceCell<Offsets>,
}

/// Distance of [`Offsets::bytes`] in characters. A file of one long line may have a thousand
/// diagnostics, each of which would otherwise walk the line from its start.
const STEP: usize = 1_024;

#[derive(Debug, Default)]
struct Offsets {
    /// Character at which each line begins.
    lines: Vec<usize>,
    /// Byte offset of every [`STEP`]th character.
    bytes: Vec<usize>,
}

impl Offsets {
    fn of(text: &str) -> Self {
        let mut offsets = Offsets { lines: vec![0], bytes: Vec::new() };
        let mut chars = text.char_indices().enumerate().peekable();
        while let Some((at, (byte, c))) = chars.next() {
            if at % STEP == 0 {
                offsets.bytes.push(byte);
            }
            // `\r\n` is one line break.
            let is_break =
                c == '\n' || (c == '\r' && !matches!(chars.peek(), Some((_, (_, '\n')))));
            if is_break {
                offsets.lines.push(at + 1);
            }
        }
        offsets
    }
}

impl<'s> Lines<'s> {
    pub(crate) fn new(text: &'s str) -> Self {
        Lines { text, offsets: OnceCell::new() }
    }

    /// Returns the line of a span.
    pub(crate) fn excerpt(&self, span: Span) -> Option<Excerpt> {
        let offsets = self.offsets.get_or_init(|| Offsets::of(self.text));
        let line = offsets.lines.get((span.line as usize).checked_sub(1)?)?;
        let skipped = column(span).saturating_sub(BEFORE_CHARS_MAX);
        let from = line + skipped;
        let byte = offsets.bytes.get(from / STEP).copied().unwrap_or(self.text.len());
        let chars = self.text[byte..].chars().skip(from % STEP);
        Some(Excerpt::new(chars.take_while(|c| !matches!(c, '\n' | '\r')), skipped, span))
    }
}
