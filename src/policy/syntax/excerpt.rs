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

    fn new(line: &str, span: Span) -> Self {
        let column = (span.column as usize).saturating_sub(1);
        let skipped = column.saturating_sub(BEFORE_CHARS_MAX);
        let mut shown = line.chars().skip(skipped);
        let before: String = shown.by_ref().take(column - skipped).collect();
        let rest: String = shown.by_ref().take(AFTER_CHARS_MAX).collect();
        let width = (span.width as usize).min(rest.chars().count());
        let (marked, after) =
            rest.split_at(rest.char_indices().nth(width).map_or(rest.len(), |(at, _)| at));
        let dots = |cut: bool| if cut { "…" } else { "" };
        Excerpt {
            before: [dots(skipped > 0), &escaped(&before)].concat(),
            marked: escaped(marked.trim_end()).into_owned(),
            after: [&escaped(after), dots(shown.next().is_some())].concat(),
        }
    }
}

/// The lines of a file, located when the first diagnostic needs one.
#[derive(Debug)]
pub(crate) struct Lines<'s> {
    text: &'s str,
    /// Byte offset of each line.
    starts: OnceCell<Vec<usize>>,
}

impl<'s> Lines<'s> {
    pub(crate) fn new(text: &'s str) -> Self {
        Lines { text, starts: OnceCell::new() }
    }

    /// Returns the line of a span.
    pub(crate) fn excerpt(&self, span: Span) -> Option<Excerpt> {
        let starts = self.starts.get_or_init(|| {
            let breaks = self.text.match_indices(['\n', '\r']);
            let ends = breaks.map(|(at, found)| at + found.len());
            // `\r\n` is one line break.
            let ends = ends.filter(|end| {
                !self.text[..*end].ends_with('\r') || !self.text[*end..].starts_with('\n')
            });
            std::iter::once(0).chain(ends).collect()
        });
        let at = (span.line as usize).checked_sub(1)?;
        let line = &self.text[*starts.get(at)?..];
        let line = line.split(['\n', '\r']).next().unwrap_or_default();
        Some(Excerpt::new(line, span))
    }
}
