//! Errors that stop the YAML parser, worded for the author of a policy.
//!
//! Not here: errors after which parsing continues (`yaml`).

use saphyr_parser::ScanError;

use super::ALIASED_NODES_MAX;
use super::input::{Input, LOOKAHEAD_PUNCTUATION_MAX};
use super::template::has_template;
use super::tree::{DEPTH_MAX, YamlError};
use crate::policy::diagnostic::{DiagnosticKind, Span};

/// Error message that `saphyr_parser` returns at 256 nested brackets. The parser reads ahead, so
/// the error comes before the events for these brackets. A test fails if the wording changes.
const PARSER_DEPTH_ERROR: &str = "recursion limit exceeded";

const TAB_ERROR: &str =
    "a tab in the indentation; replace it with spaces, here and on the lines below";

const TEMPLATE_ERROR: &str = "this line has a template that was not filled in; render the file \
                              first, for example with `helm template`";

/// Example of `descriptors` with one limit, for hints on how to begin a policy.
pub(crate) const EXAMPLE_DESCRIPTORS: &str =
    "`descriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 100}}]`";

/// Converts a parser error to a [`YamlError`] with its position in the file.
pub(super) fn syntax_error(text: &str, input: &Input<'_>, error: &ScanError) -> YamlError {
    let line = error.marker().line();
    let column = input.column(line, error.marker().col());
    if error.info() == PARSER_DEPTH_ERROR {
        return depth_error(Span::at(line, column + 1));
    }
    let blanks = |c: char| c == ' ' || c == '\t';
    let source = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    if error.info().contains("found a tab") {
        // The parser reports the beginning of the text before the tab.
        let indent = |line: &str| line.chars().take_while(|c| blanks(*c)).position(|c| c == '\t');
        let mut below = text.lines().enumerate().skip(line.saturating_sub(1));
        if let Some((nth, tab)) = below.find_map(|(nth, line)| Some((nth, indent(line)?))) {
            let span = Span::at(nth + 1, tab + 1);
            return YamlError::new(DiagnosticKind::Syntax, TAB_ERROR, span);
        }
    }
    if let Some(tab) = source.chars().take_while(|c| blanks(*c)).position(|c| c == '\t') {
        return YamlError::new(DiagnosticKind::Syntax, TAB_ERROR, Span::at(line, tab + 1));
    }
    if has_template(source) {
        return YamlError::new(DiagnosticKind::Syntax, TEMPLATE_ERROR, Span::at(line, column + 1));
    }
    let message = format!("this is not YAML: {}", reword_error(error.info()));
    YamlError::new(DiagnosticKind::Syntax, message, Span::at(line, column + 1))
}

/// Rewords a parser error. Suggests the fix for a common mistake. Otherwise, moves the context
/// ("while parsing …") to the end of the message.
fn reword_error(info: &str) -> String {
    match info {
        "invalid indentation"
        | "invalid indentation in flow construct"
        | "invalid indentation in quoted scalar" => "text in brackets or quotes goes on with too \
             little indentation; indent it more than the key that it belongs to"
            .to_owned(),
        "simple key expected" | "simple key expect ':'" => {
            "the key above has no `:` after it; write `key: value`".to_owned()
        }
        "did not find expected <document start>" => {
            "this line does not belong to any key above; correct its indentation".to_owned()
        }
        "mapping values are not allowed in this context" => {
            "a value contains `: `; put it in quotes".to_owned()
        }
        "while parsing a block collection, did not find expected '-' indicator" => {
            "this line is neither in the list entry above nor a new one; indent it like the \
             entry's other keys, or begin it with `- `"
                .to_owned()
        }
        "while parsing node, found unknown anchor" => "unknown anchor".to_owned(),
        _ => match info.strip_prefix("while ").and_then(|rest| rest.split_once(", ")) {
            Some((context, error)) => format!("{error}, while {context}"),
            None => info.to_owned(),
        },
    }
}

/// Returns the error for a file without content.
pub(super) fn empty_error() -> YamlError {
    let message = format!(
        "the file has no content (comments do not count); begin with `domain: edge` and \
         {EXAMPLE_DESCRIPTORS}"
    );
    let span = Span { width: 0, ..Span::at(1, 1) };
    YamlError::new(DiagnosticKind::Empty, message, span)
}

pub(super) fn depth_error(span: Span) -> YamlError {
    let message = format!(
        "nested deeper than {DEPTH_MAX} levels, which is more than a request can have \
                 entries; flatten it"
    );
    YamlError::new(DiagnosticKind::TooLarge, message, span)
}

pub(super) fn bracket_error(span: Span) -> YamlError {
    let message = format!(
        "the list or map in brackets after this has more than {LOOKAHEAD_PUNCTUATION_MAX} punctuation \
         characters; write its entries as a block, each on a line of its own"
    );
    YamlError::new(DiagnosticKind::TooLarge, message, span)
}

pub(super) fn alias_error(span: Span) -> YamlError {
    let message = format!(
        "aliases contain themselves, or add more than {ALIASED_NODES_MAX} nodes to the file; write \
         the values out instead"
    );
    YamlError::new(DiagnosticKind::TooLarge, message, span)
}
