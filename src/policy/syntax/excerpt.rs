//! The source line that a diagnostic shows, with the part that it is about marked.
//!
//! Not here: the rest of a diagnostic (`diagnostic`).

use std::cell::OnceCell;

use super::yaml::Span;
use crate::domain::escaped;

/// Longest part of a line shown before the mark, in characters; longer ones are cut there.
const BEFORE_CHARS_MAX: usize = 60;

/// Longest part of a line shown from the beginning of the mark on, in characters.
const AFTER_CHARS_MAX: usize = 60;

/// One line of a policy file, cut to a readable length, with control characters escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    before: String,
    marked: String,
    after: String,
}

impl Excerpt {
    /// The line. `…` stands where it is cut.
    pub fn text(&self) -> String {
        [self.before.as_str(), &self.marked, &self.after].concat()
    }

    /// Blanks up to the marked part, and a `^` below each of its characters, at least one.
    pub fn underline(&self) -> String {
        let blanks = self.before.chars().count();
        let width = self.marked.chars().count().max(1);
        [" ".repeat(blanks), "^".repeat(width)].concat()
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

/// The lines of a file, found when the first diagnostic needs one.
#[derive(Debug)]
pub(crate) struct Lines<'s> {
    text: &'s str,
    /// Where each line begins.
    starts: OnceCell<Vec<usize>>,
}

impl<'s> Lines<'s> {
    pub(crate) fn new(text: &'s str) -> Self {
        Lines { text, starts: OnceCell::new() }
    }

    /// The line at a position.
    pub(crate) fn excerpt(&self, span: Span) -> Option<Excerpt> {
        let starts = self.starts.get_or_init(|| {
            let breaks = self.text.match_indices(['\n', '\r']);
            let ends = breaks.map(|(at, found)| at + found.len());
            // A `\r\n` is one break.
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
