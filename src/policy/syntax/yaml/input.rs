//! Character source of the YAML parser. Limits how far the parser reads ahead, so that its token
//! buffer cannot exhaust memory.
//!
//! Not here: the events of the parser (`yaml`).

use std::cell::Cell;
use std::str::Chars;

use saphyr_parser::{Marker, Span};

/// Maximum number of punctuation characters that the parser may read between two events. A list or
/// map in brackets could be a key, so the parser buffers all of its tokens until the closing
/// bracket. For 1 MiB of `[a,a,a…`, the buffer would take 176 MiB; this bound limits it to 20 MiB.
/// A list of 8,000 rules in one pair of brackets stays below the bound. Block style is not
/// affected.
pub(crate) const LOOKAHEAD_PUNCTUATION_MAX: usize = 1 << 16;

/// YAML document marker. A list or map that follows the marker on the same line cannot be a key,
/// so the parser does not buffer its tokens.
const DOCUMENT_START: &str = "--- ";

/// Text of a file as passed to the parser. If the top level is in brackets, as in JSON,
/// [`DOCUMENT_START`] is inserted before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'t> {
    /// Blank lines and comments before the inserted [`DOCUMENT_START`]; empty if none was inserted.
    preamble: &'t str,
    marker: &'static str,
    content: &'t str,
    /// Line at which [`DOCUMENT_START`] was inserted, from 1; 0 if none was inserted.
    marker_line: usize,
    /// Width of the indentation before the first bracket, in bytes. The indentation is not passed
    /// to the parser.
    bracket_indent: usize,
}

impl<'t> Input<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        let mut at = 0;
        for (nth, line) in (1..).zip(text.split_inclusive('\n')) {
            let trimmed = line.trim_start_matches([' ', '\t']);
            if trimmed.starts_with(['{', '[']) {
                let indent = line.len() - trimmed.len();
                let (preamble, content) = (&text[..at], &text[at + indent..]);
                return Input {
                    preamble,
                    marker: DOCUMENT_START,
                    content,
                    marker_line: nth,
                    bracket_indent: indent,
                };
            }
            if !(trimmed.trim_end().is_empty() || trimmed.starts_with('#')) {
                break;
            }
            at += line.len();
        }
        Input { preamble: "", marker: "", content: text, marker_line: 0, bracket_indent: 0 }
    }

    pub(crate) fn chars(&self) -> impl Iterator<Item = char> + use<'t> {
        let chars: fn(&'t str) -> Chars<'t> = str::chars;
        chars(self.preamble).chain(self.marker.chars()).chain(self.content.chars())
    }

    /// Converts a column reported by the parser to the corresponding column in the file. Both count
    /// from 0.
    pub(crate) fn column(&self, line: usize, column: usize) -> usize {
        if line == self.marker_line {
            (column + self.bracket_indent).saturating_sub(self.marker.len())
        } else {
            column
        }
    }

    /// Converts the columns of a span reported by the parser to columns in the file.
    pub(crate) fn restore_columns(&self, span: &mut Span) {
        let restored =
            |at: &Marker| Marker::new(at.index(), at.line(), self.column(at.line(), at.col()));
        *span = Span::new(restored(&span.start), restored(&span.end));
    }
}

/// Counter of punctuation characters since the last parser event. It bounds the parser's token
/// buffer, because every bracket, quote and comma may become a token. Outside brackets, the count
/// restarts on each line: a key must end on its line, so the parser does not buffer beyond it.
#[derive(Debug, Default)]
pub(crate) struct PunctuationCounter {
    count: Cell<usize>,
    in_brackets: Cell<bool>,
}

impl PunctuationCounter {
    /// Wraps `chars` in an iterator that ends early if more than [`LOOKAHEAD_PUNCTUATION_MAX`]
    /// punctuation characters are read without a parser event.
    pub(crate) fn limit_lookahead(
        &self,
        mut chars: impl Iterator<Item = char>,
    ) -> impl Iterator<Item = char> {
        std::iter::from_fn(move || {
            if self.is_exceeded() {
                return None;
            }
            let c = chars.next()?;
            if c == '\n' && !self.in_brackets.get() {
                self.restart();
            } else if c.is_ascii_punctuation() {
                self.count.set(self.count.get() + 1);
                self.in_brackets.set(self.in_brackets.get() || matches!(c, '[' | '{'));
            }
            Some(c)
        })
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.count.get() > LOOKAHEAD_PUNCTUATION_MAX
    }

    /// Resets the count. Called after each parser event.
    pub(crate) fn restart(&self) {
        self.count.set(0);
        self.in_brackets.set(false);
    }
}
