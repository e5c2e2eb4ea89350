//! YAML parser: builds a tree of values with source positions from the events of `saphyr_parser`.
//!
//! The bounds on nesting and aliases apply while the tree is built, so that hostile files (`[[[[…`,
//! aliases of aliases) are rejected before they exhaust memory. Also handles duplicate keys, tags,
//! and merge keys (`<<`).
//!
//! Not here: the types of plain scalars (`scalar`), the keys of a policy (`keywords`).

pub(crate) mod errors;
mod input;
pub(crate) mod scalar;
pub(crate) mod template;
pub(crate) mod tree;
pub(crate) mod writer;

pub(crate) use self::tree::{Children, DEPTH_MAX, Node, Style, Tree, Value, YamlError};

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use self::errors::{alias_error, bracket_error, depth_error, empty_error, syntax_error};
use self::input::{Input, PunctuationCounter};
use self::scalar::Scalar;
use self::tree::{NodeKind, pairs};
use self::writer::{TooDeep, TreeWriter};
use crate::policy::diagnostic::{
    DIAGNOSTICS_MAX, DiagnosticKind, Path, PathStep, Span, TOO_MANY_ERRORS_MESSAGE, quoted, to_u32,
};
use crate::policy::read_budget::exceeded_message;

/// Maximum number of nodes that aliases may add to the nodes written in the file. This allows
/// 100,000 rules to share one anchored `rate_limit` of eight nodes, but rejects "billion laughs"
/// files.
pub(crate) const ALIASED_NODES_MAX: u64 = 1_000_000;

/// Prefix of the standard YAML tags, which `!!` abbreviates.
const YAML_TAG_PREFIX: &str = "tag:yaml.org,2002:";

/// Maximum number of characters of a tag that a message shows.
const TAG_CHARS_MAX: usize = 64;

/// Converts a span of the parser. A list or map has a width of 0.
fn span_of(span: &saphyr_parser::Span, is_scalar: bool) -> Span {
    let width = match is_scalar {
        false => 0,
        true if span.start.line() == span.end.line() => to_u32(span.len()),
        true => u32::MAX,
    };
    Span { width, ..Span::at(span.start.line(), span.start.col() + 1) }
}

/// Parses the first YAML document of a text that has a value.
///
/// # Errors
///
/// Returns the errors if the text is not YAML, is empty, is nested too deeply, has aliases that
/// expand too far, or contains [`DIAGNOSTICS_MAX`] errors.
pub(crate) fn parse(text: &str, bytes_max: usize) -> Result<Tree, Vec<YamlError>> {
    let mut builder = Builder::default();
    let mut start = None;
    let counter = PunctuationCounter::default();
    let input = Input::new(text);
    let mut last = Span::at(1, 1);
    for event in Parser::new_from_iter(counter.limit_lookahead(input.chars())) {
        if counter.is_exceeded() {
            return Err(vec![bracket_error(last)]);
        }
        counter.restart();
        let (event, mut span) = event.map_err(|error| vec![syntax_error(text, &input, &error)])?;
        input.restore_columns(&mut span);
        last = span_of(&span, false);
        match &event {
            Event::DocumentStart(_) => {
                start = Some(last);
                continue;
            }
            // A document without a value, such as below a trailing `---`, does not count.
            Event::Scalar(text, ScalarStyle::Plain, ..)
                if builder.writer.open.is_empty() && scalar::is_null(text) =>
            {
                start = None;
                continue;
            }
            _ => {}
        }
        if let (Some(start), false) = (start.take(), builder.writer.tree.records.is_empty()) {
            let span = Span { width: 3, ..start };
            let message = "a second YAML document begins here, and a policy file must have exactly \
                           one; move it to its own file";
            builder.report(DiagnosticKind::SecondDocument, message, Path::default(), span);
            break;
        }
        builder.handle_event(event, &span).map_err(|problem| vec![problem])?;
        if builder.writer.tree.bytes() > bytes_max {
            return Err(vec![YamlError::new(DiagnosticKind::TooLarge, exceeded_message(), last)]);
        }
        if builder.writer.tree.problems.len() >= DIAGNOSTICS_MAX {
            let mut problems = builder.writer.tree.problems;
            problems.push(YamlError::new(DiagnosticKind::TooLarge, TOO_MANY_ERRORS_MESSAGE, last));
            return Err(problems);
        }
    }
    let tree = builder.writer.tree;
    if tree.records.is_empty() {
        return Err(vec![empty_error()]);
    }
    Ok(tree)
}

#[derive(Default)]
struct Builder {
    writer: TreeWriter,
    /// Anchor id of each open list or map, and the number of its nodes, including nodes that aliases
    /// add.
    counts: Vec<(usize, u64)>,
    /// For each anchor id, the index of the anchored node and the number of nodes in its subtree,
    /// including the anchored node.
    anchors: HashMap<usize, (u32, u64)>,
    /// Number of nodes read from the file so far, not counting nodes that aliases add.
    parsed_nodes: u64,
}

impl Builder {
    fn handle_event(
        &mut self,
        event: Event<'_>,
        span: &saphyr_parser::Span,
    ) -> Result<(), YamlError> {
        match event {
            Event::SequenceStart(anchor, tag) => {
                self.begin_collection(NodeKind::List, anchor, tag, span)
            }
            Event::MappingStart(anchor, tag) => {
                self.begin_collection(NodeKind::Map, anchor, tag, span)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end_collection(span_of(span, false)),
            Event::Scalar(text, style, anchor, tag) => {
                let span = span_of(span, true);
                let style = self.style(&text, style, tag, span);
                self.parsed_nodes += 1;
                let id = self.writer.write_scalar(&text, style, span);
                self.count_node(id, anchor, 1, span)
            }
            Event::Alias(anchor) => {
                let span = span_of(span, true);
                // The anchor of an open collection is not known yet: the alias would contain
                // itself.
                let Some((id, nodes)) = self.anchors.get(&anchor) else {
                    return Err(alias_error(span));
                };
                let (id, nodes) = (*id, *nodes);
                self.writer.attach(id);
                self.count_node(id, 0, nodes, span)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin_collection(
        &mut self,
        kind: NodeKind,
        anchor: usize,
        tag: Option<Cow<'_, Tag>>,
        span: &saphyr_parser::Span,
    ) -> Result<(), YamlError> {
        let span = span_of(span, false);
        let own_tag = if kind == NodeKind::List { "!!seq" } else { "!!map" };
        if let Some(tag) = tag.map(tag_text).filter(|tag| tag != own_tag) {
            self.report_tag(&tag, "has no meaning in a policy", span);
        }
        self.writer.begin(kind, span).map_err(|TooDeep| depth_error(span))?;
        self.parsed_nodes += 1;
        self.counts.push((anchor, 1));
        Ok(())
    }

    fn end_collection(&mut self, end_span: Span) -> Result<(), YamlError> {
        let (Some((open, mut children)), Some((anchor, nodes))) =
            (self.writer.take_open(), self.counts.pop())
        else {
            return Ok(());
        };
        if open.kind == NodeKind::Map {
            children = self.resolve_entries(&children);
        }
        let id = self.writer.close(&open, children);
        self.count_node(id, anchor, nodes, end_span)
    }

    /// Counts a node that was added to the innermost open list or map.
    fn count_node(
        &mut self,
        id: u32,
        anchor: usize,
        nodes: u64,
        span: Span,
    ) -> Result<(), YamlError> {
        if anchor != 0 {
            self.anchors.insert(anchor, (id, nodes));
        }
        let Some((_, count)) = self.counts.last_mut() else { return Ok(()) };
        *count = count.saturating_add(nodes);
        match *count > self.parsed_nodes.saturating_add(ALIASED_NODES_MAX) {
            true => Err(alias_error(span)),
            false => Ok(()),
        }
    }

    fn node(&self, id: u32) -> Node<'_> {
        self.writer.tree.node(id)
    }

    /// Returns the entries of a complete map with merge keys applied and duplicate keys removed.
    /// The map's own entries take precedence over merged ones. Among merged maps, earlier ones take
    /// precedence.
    fn resolve_entries(&mut self, children: &[u32]) -> Vec<u32> {
        let mut entries: Vec<(u32, u32)> = pairs(children).collect();
        for (first, second) in self.remove_duplicates(&mut entries) {
            let first_line = self.node(first).span().line;
            let key = self.node(second).text();
            let help = match key {
                "<<" => "merge several maps as one list: `<<: [*a, *b]`",
                _ => "remove one of the two",
            };
            let key = quoted(key);
            let message = format!("duplicate key {key}, the first is on line {first_line}; {help}");
            self.report_key(DiagnosticKind::DuplicateKey, message, second);
        }
        if let Some(at) = entries.iter().position(|(key, _)| self.node(*key).text() == "<<") {
            let (key, merged) = entries.remove(at);
            let one = [merged];
            let maps = match self.node(merged).value() {
                Value::List(maps) => maps.ids,
                Value::Scalar(..) | Value::Map(_) => &one,
            };
            let mut is_bad = false;
            for map in maps {
                match self.node(*map).value() {
                    Value::Map(map) => entries.extend(pairs(map.ids)),
                    Value::Scalar(..) | Value::List(_) => is_bad = true,
                }
            }
            self.remove_duplicates(&mut entries);
            if is_bad {
                let message = "`<<` merges maps into this one; give it an alias of a map, or a \
                               list of such aliases";
                self.report_key(DiagnosticKind::WrongType, message, key);
            }
        }
        entries.into_iter().flat_map(|(key, value)| [key, value]).collect()
    }

    /// Removes entries whose key occurs earlier in the map. For each removed entry, returns two key
    /// nodes: the first occurrence of the key, and the removed one.
    fn remove_duplicates(&self, entries: &mut Vec<(u32, u32)>) -> Vec<(u32, u32)> {
        let (mut first_of, mut removed) = (HashMap::new(), Vec::new());
        entries.retain(|(key, _)| match first_of.entry(self.node(*key).text()) {
            Entry::Vacant(vacant) => {
                vacant.insert(*key);
                true
            }
            Entry::Occupied(first) => {
                removed.push((*first.get(), *key));
                false
            }
        });
        removed
    }

    /// Returns the style of a scalar. Reports a tag that does not fit the scalar, because other
    /// programs may interpret the value differently.
    fn style(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<Cow<'_, Tag>>,
        span: Span,
    ) -> Style {
        let written = if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted };
        let Some(tag) = tag.map(tag_text) else { return written };
        match (tag.as_str(), scalar::read(text)) {
            ("!!str", _) => return Style::Quoted,
            ("!!float", Scalar::Int(_) | Scalar::Float(_)) => return Style::Float,
            ("!!int", Scalar::Int(_)) | ("!!bool", Scalar::Bool(_)) | ("!!null", Scalar::Null) => {
                return Style::Plain;
            }
            ("!!int" | "!!bool" | "!!null" | "!!float", _) => {
                self.report_tag(&tag, "does not fit its value", span);
            }
            _ => self.report_tag(&tag, "has no meaning in a policy", span),
        }
        written
    }

    /// Returns the path of the next node to be added.
    fn next_path(&self) -> Path {
        let TreeWriter { open, pending_children, .. } = &self.writer;
        let ends = open.iter().skip(1).map(|open| open.first_child).chain([pending_children.len()]);
        let steps = open.iter().zip(ends).filter_map(|(open, end)| {
            let children = &pending_children[open.first_child..end];
            match (open.kind, children) {
                (NodeKind::List, _) => Some(PathStep::Index(children.len())),
                // The key was read, but not its value.
                (_, [.., key]) if children.len() % 2 == 1 => Some(self.node(*key).as_step()),
                _ => None,
            }
        });
        Path(steps.collect())
    }

    fn report_tag(&mut self, tag: &str, why: &str, span: Span) {
        let tag: String = tag.chars().take(TAG_CHARS_MAX).collect();
        let message = format!("the tag `{tag}` {why}; remove it");
        self.report(DiagnosticKind::WrongType, message, self.next_path(), span);
    }

    /// Reports an error at a key of the map that has just ended.
    fn report_key(&mut self, kind: DiagnosticKind, message: impl Into<String>, key: u32) {
        let mut path = self.next_path();
        path.0.push(self.node(key).as_step());
        self.report(kind, message, path, self.node(key).span());
    }

    fn report(&mut self, kind: DiagnosticKind, message: impl Into<String>, path: Path, span: Span) {
        if self.writer.tree.problems.len() < DIAGNOSTICS_MAX {
            self.writer
                .tree
                .problems
                .push(YamlError { path, ..YamlError::new(kind, message, span) });
        }
    }
}

/// Returns a tag in its short form: `!foo` or `!!foo`.
fn tag_text(tag: Cow<'_, Tag>) -> String {
    match [tag.handle.as_str(), &tag.suffix].concat() {
        whole if whole.starts_with(YAML_TAG_PREFIX) => {
            format!("!!{}", &whole[YAML_TAG_PREFIX.len()..])
        }
        whole => whole,
    }
}

#[cfg(test)]
mod tests;
