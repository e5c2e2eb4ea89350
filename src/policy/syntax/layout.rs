//! A first, streaming look at a file's shape: nesting, aliases and documents, before any tree is
//! built from it.
//!
//! It holds one frame per open list or map and nothing else, so that a file made to blow up
//! (`[[[[…`, aliases of aliases) is refused before it does. Not here: keys, values, paths.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, Span};

/// The deepest nesting: maps in maps, and lists that stand directly in lists (`descriptors` and the
/// map below it are one level). A request has at most 16 entries, so that twice as deep leaves room
/// for `rate_limit` and for metadata.
pub(crate) const DEPTH_MAX: usize = 32;

/// The most nodes that aliases may add to those written: a policy of 100,000 rules that all share
/// one anchored `rate_limit` of eight nodes stays below it, a "billion laughs" file does not.
pub(crate) const ALIASED_NODES_MAX: u64 = 1_000_000;

/// What the parser says of 256 open brackets. It looks ahead, so that it says so before it reports
/// the first of them; a test notices if its words change.
const TOO_DEEP_FOR_THE_PARSER: &str = "recursion limit exceeded";

/// What stands in the way of reading a file at all, or of reading all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Deeper than [`DEPTH_MAX`].
    TooDeep,
    /// Aliases add more than [`ALIASED_NODES_MAX`] nodes, or contain themselves.
    AliasBomb,
    /// A second document begins.
    SecondDocument,
}

/// Line and column, from 1.
pub(crate) type Place = (usize, usize);

pub(crate) fn place(span: &Span) -> Place {
    (span.start.line(), span.start.col() + 1)
}

struct Frame {
    is_list: bool,
    anchor: usize,
    nodes: u64,
    depth: usize,
}

/// Looks for the first obstacle. `None` where there is none, or where the text is not YAML to this
/// parser: then the reading of its values says what is wrong.
pub(crate) fn survey(text: &str) -> Option<(Obstacle, Place)> {
    let mut parser = Parser::new_from_str(text);
    let mut open: Vec<Frame> = Vec::new();
    let mut weights: HashMap<usize, u64> = HashMap::new();
    let (mut documents, mut written) = (0_usize, 0_u64);
    while let Some(next) = parser.next_event() {
        let (event, span) = match next {
            Ok(next) => next,
            Err(error) => {
                let place = (error.marker().line(), error.marker().col() + 1);
                return (error.info() == TOO_DEEP_FOR_THE_PARSER)
                    .then_some((Obstacle::TooDeep, place));
            }
        };
        let (anchor, nodes) = match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Some((Obstacle::SecondDocument, place(&span)));
                }
                continue;
            }
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                let is_list = matches!(event, Event::SequenceStart(..));
                written += 1;
                let above = open.last();
                let counts = !is_list || above.is_some_and(|frame| frame.is_list);
                let depth = above.map_or(0, |frame| frame.depth) + usize::from(counts);
                if depth > DEPTH_MAX {
                    return Some((Obstacle::TooDeep, place(&span)));
                }
                open.push(Frame { is_list, anchor, nodes: 1, depth });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(frame) => (frame.anchor, frame.nodes),
                None => continue,
            },
            Event::Scalar(_, _, anchor, _) => {
                written += 1;
                (anchor, 1)
            }
            Event::Alias(anchor) => match weights.get(&anchor) {
                Some(nodes) => (0, *nodes),
                // The anchor is still open: it contains itself.
                None => return Some((Obstacle::AliasBomb, place(&span))),
            },
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => continue,
        };
        if anchor != 0 {
            weights.insert(anchor, nodes);
        }
        if let Some(frame) = open.last_mut() {
            frame.nodes = frame.nodes.saturating_add(nodes);
            if frame.nodes > written.saturating_add(ALIASED_NODES_MAX) {
                return Some((Obstacle::AliasBomb, place(&span)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<Obstacle> {
        survey(text).map(|(obstacle, _)| obstacle)
    }

    #[test]
    fn thirty_two_levels_pass_and_thirty_three_do_not() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        // A single list does not count by itself: lists count where they stand in lists.
        assert_eq!(found(&nested(33)), None);
        assert_eq!(found(&nested(34)), Some(Obstacle::TooDeep));
        let maps = |n: usize| format!("{}1{}", "{a: ".repeat(n), "}".repeat(n));
        assert_eq!(found(&maps(32)), None);
        assert_eq!(found(&maps(33)), Some(Obstacle::TooDeep));
    }

    #[test]
    fn a_great_many_open_brackets_are_refused_at_once() {
        assert_eq!(found(&"[".repeat(1 << 20)), Some(Obstacle::TooDeep));
        assert_eq!(found(&"{a: ".repeat(1 << 20)), Some(Obstacle::TooDeep));
        assert_eq!(found(&"- ".repeat(1 << 16)), Some(Obstacle::TooDeep));
    }

    #[test]
    fn aliases_of_aliases_and_self_reference_are_refused() {
        let mut text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (name, of) in [("b", "a"), ("c", "b"), ("d", "c"), ("e", "d"), ("f", "e"), ("g", "f")] {
            let list = vec![format!("*{of}"); 10].join(", ");
            text.push_str(&format!("{name}: &{name} [{list}]\n"));
        }
        assert_eq!(found(&text), Some(Obstacle::AliasBomb));
        assert_eq!(found("a: &a [*a]\n"), Some(Obstacle::AliasBomb));
        assert_eq!(found("a: &a {b: 1}\nc: *a\nd: *a\n"), None);
    }

    #[test]
    fn a_second_document_is_found_at_its_place() {
        assert_eq!(survey("---\na: 1\n---\nb: 2\n"), Some((Obstacle::SecondDocument, (3, 1))));
        assert_eq!(survey("---\na: 1\n...\n"), None);
    }
}
