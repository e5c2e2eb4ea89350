//! Source lines in diagnostics, with the faulty part underlined.

use std::cell::OnceCell;

use super::diagnostic::Span;
use crate::domain::escaped;

/// Maximum number of characters shown before the underlined part.
const PREFIX_CHARS_MAX: usize = 60;

/// Maximum number of characters shown from the start of the underlined part onward.
const TAIL_CHARS_MAX: usize = 60;

/// Excerpt of one line of a policy file, escaped and truncated to a readable length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    prefix: String,
    underlined: String,
    suffix: String,
}

impl Excerpt {
    /// Returns the excerpt as text, with `…` where the line was cut.
    pub fn text(&self) -> String {
        [self.prefix.as_str(), &self.underlined, &self.suffix].concat()
    }

    /// Returns the underline: one `^` below each character of the faulty part. If the faulty part
    /// is empty, the underline still has one `^`.
    pub fn underline(&self) -> String {
        let indent = self.prefix.chars().count();
        let width = self.underlined.chars().count().max(1);
        [" ".repeat(indent), "^".repeat(width)].concat()
    }

    /// Returns the excerpt with its line indented by `blanks` additional spaces. Returns the
    /// excerpt unchanged if the start of the line was cut.
    pub(crate) fn indented_by(mut self, blanks: usize) -> Self {
        if !self.prefix.starts_with('…') {
            self.prefix.insert_str(0, &" ".repeat(blanks));
        }
        self
    }

    /// Creates an excerpt from `line`, which is the source line without its first `skipped`
    /// characters. A tab is shown as a single `→`, so that the underline stays aligned.
    fn new(line: impl Iterator<Item = char>, skipped: usize, span: Span) -> Self {
        let mut line = line.map(|c| if c == '\t' { '→' } else { c });
        let prefix: String = line.by_ref().take(column(span) - skipped).collect();
        let mut rest: Vec<char> = line.take(TAIL_CHARS_MAX + 1).collect();
        let is_cut = rest.len() > TAIL_CHARS_MAX;
        rest.truncate(TAIL_CHARS_MAX);
        let (underlined, suffix) = rest.split_at(rest.len().min(span.width as usize));
        let (underlined, suffix) = (String::from_iter(underlined), String::from_iter(suffix));
        let ellipsis = |is_cut: bool| if is_cut { "…" } else { "" };
        Excerpt {
            prefix: [ellipsis(skipped > 0), &escaped(&prefix)].concat(),
            underlined: escaped(underlined.trim_end()).into_owned(),
            suffix: [&escaped(&suffix), ellipsis(is_cut)].concat(),
        }
    }
}

/// Returns the column at which a span starts, from 0.
fn column(span: Span) -> usize {
    (span.column as usize).saturating_sub(1)
}

/// Index of the lines of a file. The line offsets are computed for the first diagnostic that has an
/// excerpt.
#[derive(Debug)]
pub(crate) struct LineIndex<'s> {
    text: &'s str,
    offsets: OnceCell<Offsets>,
}

/// Number of characters between two consecutive offsets in [`Offsets::byte_offsets`]. Without these
/// offsets, every diagnostic would scan its line from the start, which is slow if one long line has
/// 1,000 diagnostics.
const OFFSET_STRIDE: usize = 1_024;

#[derive(Debug, Default)]
struct Offsets {
    /// Offset of the start of each line, in characters from the start of the file.
    line_starts: Vec<usize>,
    /// Byte offset of every [`OFFSET_STRIDE`]th character.
    byte_offsets: Vec<usize>,
}

impl Offsets {
    fn new(text: &str) -> Self {
        let mut offsets = Offsets { line_starts: vec![0], byte_offsets: Vec::new() };
        let mut chars = text.char_indices().enumerate().peekable();
        while let Some((at, (byte, c))) = chars.next() {
            if at % OFFSET_STRIDE == 0 {
                offsets.byte_offsets.push(byte);
            }
            // `\r\n` counts as one line break.
            let is_break =
                c == '\n' || (c == '\r' && !matches!(chars.peek(), Some((_, (_, '\n')))));
            if is_break {
                offsets.line_starts.push(at + 1);
            }
        }
        offsets
    }
}

impl<'s> LineIndex<'s> {
    pub(crate) fn new(text: &'s str) -> Self {
        LineIndex { text, offsets: OnceCell::new() }
    }

    /// Returns an excerpt of the source line of a span; `None` if the file has no such line.
    pub(crate) fn excerpt(&self, span: Span) -> Option<Excerpt> {
        let offsets = self.offsets.get_or_init(|| Offsets::new(self.text));
        let line = offsets.line_starts.get((span.line as usize).checked_sub(1)?)?;
        let skipped = column(span).saturating_sub(PREFIX_CHARS_MAX);
        let from = line + skipped;
        let byte =
            offsets.byte_offsets.get(from / OFFSET_STRIDE).copied().unwrap_or(self.text.len());
        let chars = self.text[byte..].chars().skip(from % OFFSET_STRIDE);
        Some(Excerpt::new(chars.take_while(|c| !matches!(c, '\n' | '\r')), skipped, span))
    }
}
