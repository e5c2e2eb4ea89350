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
    /// Text of the excerpt, with `…` where the line was cut.
    pub(super) text: String,
    /// One `^` below each character of the faulty part; at least one.
    pub(super) underline: String,
}

impl Excerpt {
    /// Returns the excerpt with its line indented by `blanks` additional spaces. Returns the
    /// excerpt unchanged if the start of the line was cut.
    pub(crate) fn indented_by(self, blanks: usize) -> Self {
        if self.text.starts_with('…') {
            return self;
        }
        let indented = |text: &str| format!("{:blanks$}{text}", "");
        Excerpt { text: indented(&self.text), underline: indented(&self.underline) }
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
        let prefix = [ellipsis(skipped > 0), &escaped(&prefix)].concat();
        let underlined = escaped(underlined.trim_end());
        let (indent, width) = (prefix.chars().count(), underlined.chars().count().max(1));
        Excerpt {
            text: [&*prefix, &underlined, &escaped(&suffix), ellipsis(is_cut)].concat(),
            underline: [" ".repeat(indent), "^".repeat(width)].concat(),
        }
    }
}

/// Returns the column at which a span starts, from 0.
fn column(span: Span) -> usize {
    (span.column as usize).saturating_sub(1)
}

/// Index of the lines of a file. The byte offset of the start of each line is computed for the first
/// diagnostic that has an excerpt.
#[derive(Debug)]
pub(crate) struct LineIndex<'s> {
    text: &'s str,
    line_starts: OnceCell<Vec<usize>>,
}

impl<'s> LineIndex<'s> {
    pub(crate) fn new(text: &'s str) -> Self {
        LineIndex { text, line_starts: OnceCell::new() }
    }

    /// Returns an excerpt of the source line of a span; `None` if the file has no such line.
    pub(crate) fn excerpt(&self, span: Span) -> Option<Excerpt> {
        let line_starts = self.line_starts.get_or_init(|| line_starts(self.text));
        let start = line_starts.get((span.line as usize).checked_sub(1)?)?;
        let skipped = column(span).saturating_sub(PREFIX_CHARS_MAX);
        let chars = self.text[*start..].chars().skip(skipped);
        Some(Excerpt::new(chars.take_while(|c| !matches!(c, '\n' | '\r')), skipped, span))
    }
}

/// Returns the byte offset of the start of each line. `\r\n` counts as one line break.
fn line_starts(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let is_break = |at: &usize| match bytes[*at] {
        b'\n' => true,
        b'\r' => bytes.get(at + 1) != Some(&b'\n'),
        _ => false,
    };
    let breaks = (0..bytes.len()).filter(is_break).map(|at| at + 1);
    std::iter::once(0).chain(breaks).collect()
}
