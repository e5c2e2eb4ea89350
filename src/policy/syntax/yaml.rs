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
pub(crate) mod writer;

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use self::errors::{alias_error, bracket_error, depth_error, empty_error, syntax_error};
use self::input::{Input, PunctuationCounter};
use self::scalar::Scalar;
use crate::policy::diagnostic::{
    DIAGNOSTICS_MAX, DiagnosticKind, Path, PathStep, Span, TOO_MANY_ERRORS_MESSAGE, quoted, to_u32,
};
use crate::policy::read_budget::exceeded_message;

/// Maximum nesting depth. A map counts as one level; a list counts only if it is directly inside
/// another list, so `descriptors` and its maps are one level. A descriptor has at most 160 entries,
/// and a policy from a control plane has one level per entry. In flow style (`{…}`), the parser
/// allows only 127 levels.
pub const DEPTH_MAX: usize = 160;

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

/// Error in a YAML file, without the file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct YamlError {
    pub(crate) kind: DiagnosticKind,
    pub(crate) message: String,
    /// Path of the faulty node. If the tag of a key is faulty, this is the path of the map that
    /// contains the key.
    pub(crate) path: Path,
    pub(crate) span: Span,
}

impl YamlError {
    fn new(kind: DiagnosticKind, message: impl Into<String>, span: Span) -> Self {
        YamlError { kind, message: message.into(), path: Path::default(), span }
    }
}

/// Style of a scalar, which determines how its text is interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Unquoted: may be null, a boolean, a number, or text.
    Plain,
    /// Quoted, block scalar, or tagged `!!str`: always text.
    Quoted,
    /// Tagged `!!float`: a whole number is interpreted as a float.
    Float,
}

/// Compact form of one node (24 bytes). The size matters, because a file can have a node for every
/// two bytes. Children and text are in buffers that all nodes of the tree share.
#[derive(Debug)]
struct NodeRecord {
    span: Span,
    /// Start of the node's text or children: a byte offset in [`Tree::text`] for a scalar, or an
    /// index in [`Tree::children`] for a list or map.
    start: u32,
    end: u32,
    kind: NodeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeKind {
    Scalar(Style),
    List,
    Map,
}

/// Parsed YAML document.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    records: Vec<NodeRecord>,
    /// Node indices: the items of each list, and the alternating keys and values of each map. With
    /// aliases and merge keys, several nodes can share a child.
    children: Vec<u32>,
    text: String,
    root: u32,
    /// Errors that did not stop parsing, at most [`DIAGNOSTICS_MAX`].
    pub(crate) problems: Vec<YamlError>,
}

/// Node of a parsed document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'t> {
    tree: &'t Tree,
    record: &'t NodeRecord,
}

/// Value of a node: a scalar, a list, or a map.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'t> {
    Scalar(&'t str, Style),
    List(Children<'t>),
    Map(Children<'t>),
}

/// Items of a list, or alternating keys and values of a map, in file order. Entries from merge keys
/// come last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Children<'t> {
    tree: &'t Tree,
    ids: &'t [u32],
}

impl Tree {
    pub(crate) fn root(&self) -> Node<'_> {
        self.node(self.root)
    }

    /// Returns the memory that the tree takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.records.len() * size_of::<NodeRecord>()
            + self.children.len() * size_of::<u32>()
            + self.text.len()
    }

    fn node(&self, id: u32) -> Node<'_> {
        Node { tree: self, record: &self.records[id as usize] }
    }
}

impl<'t> Node<'t> {
    pub(crate) fn span(self) -> Span {
        self.record.span
    }

    pub(crate) fn value(self) -> Value<'t> {
        let Node { tree, record } = self;
        let range = record.start as usize..record.end as usize;
        match record.kind {
            NodeKind::Scalar(style) => Value::Scalar(&tree.text[range], style),
            NodeKind::List => Value::List(Children { tree, ids: &tree.children[range] }),
            NodeKind::Map => Value::Map(Children { tree, ids: &tree.children[range] }),
        }
    }

    /// Returns the step from a map to the value of the key that this node is.
    pub(crate) fn as_step(self) -> PathStep {
        PathStep::Key(self.text().to_owned().into())
    }

    pub(crate) fn is_null(self) -> bool {
        matches!(self.value(), Value::Scalar(text, Style::Plain) if scalar::is_null(text))
    }

    pub(crate) fn is_collection(self) -> bool {
        !matches!(self.record.kind, NodeKind::Scalar(_))
    }

    /// Returns the value of a key; `None` if the key is absent or the node is not a map.
    pub(crate) fn get(self, key: &str) -> Option<Node<'t>> {
        match self.value() {
            Value::Map(entries) => entries.entry(key).map(|(_, value)| value),
            Value::Scalar(..) | Value::List(_) => None,
        }
    }

    /// Returns the text of a scalar, unquoted; empty for lists and maps.
    pub(crate) fn text(self) -> &'t str {
        match self.value() {
            Value::Scalar(text, _) => text,
            Value::List(_) | Value::Map(_) => "",
        }
    }

    /// Returns the length of the text in this node and in the nodes below, in bytes.
    pub(crate) fn text_bytes(self) -> usize {
        match self.value() {
            Value::Scalar(text, _) => text.len(),
            Value::List(children) | Value::Map(children) => {
                children.nodes().map(Node::text_bytes).sum()
            }
        }
    }

    /// Interprets the scalar according to YAML 1.1. Lists and maps yield [`Scalar::Text`].
    pub(crate) fn scalar(self) -> Scalar {
        self.read_scalar(scalar::read)
    }

    /// Interprets the scalar according to the core schema of YAML 1.2, for keys and text. Lists
    /// and maps yield [`Scalar::Text`].
    pub(crate) fn core_scalar(self) -> Scalar {
        self.read_scalar(scalar::read_core_schema)
    }

    fn read_scalar(self, read: fn(&str) -> Scalar) -> Scalar {
        match self.value() {
            Value::Scalar(text, Style::Plain) => read(text),
            Value::Scalar(text, Style::Float) => match scalar::read(text) {
                Scalar::Int(number) => Scalar::Float(number as f64),
                other => other,
            },
            Value::Scalar(_, Style::Quoted) | Value::List(_) | Value::Map(_) => Scalar::Text,
        }
    }
}

impl<'t> Children<'t> {
    pub(crate) fn nodes(self) -> impl Iterator<Item = Node<'t>> {
        self.ids.iter().map(move |id| self.tree.node(*id))
    }

    pub(crate) fn node(self, index: usize) -> Option<Node<'t>> {
        self.ids.get(index).map(|id| self.tree.node(*id))
    }

    /// Returns the entries of a map as pairs of key and value nodes.
    pub(crate) fn entries(self) -> impl Iterator<Item = (Node<'t>, Node<'t>)> {
        pairs(self.ids).map(move |(key, value)| (self.tree.node(key), self.tree.node(value)))
    }

    /// Returns the key and value nodes of the map entry with this key; `None` if the key is absent.
    pub(crate) fn entry(self, key: &str) -> Option<(Node<'t>, Node<'t>)> {
        self.entries().find(|(found, _)| found.text() == key)
    }
}

fn pairs(ids: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    ids.chunks_exact(2).map(|pair| (pair[0], pair[1]))
}

/// Parses the first YAML document of a text.
///
/// # Errors
///
/// Returns the errors if the text is not YAML, is empty, is nested too deeply, has aliases that
/// expand too far, or contains [`DIAGNOSTICS_MAX`] errors.
pub(crate) fn parse(text: &str, bytes_max: usize) -> Result<Tree, Vec<YamlError>> {
    let mut builder = Builder::default();
    let mut documents = 0;
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
        if let Event::DocumentStart(_) = event {
            documents += 1;
        }
        if documents > 1 {
            let span = Span { width: 3, ..span_of(&span, false) };
            let message = "a second YAML document begins here, and a policy file has only one; \
                           move it into a file of its own";
            builder.report(DiagnosticKind::SecondDocument, message, Path::default(), span);
            break;
        }
        builder.handle_event(event, &span).map_err(|problem| vec![problem])?;
        if builder.tree.bytes() > bytes_max {
            return Err(vec![YamlError::new(DiagnosticKind::TooLarge, exceeded_message(), last)]);
        }
        if builder.tree.problems.len() >= DIAGNOSTICS_MAX {
            let mut problems = builder.tree.problems;
            problems.push(YamlError::new(DiagnosticKind::TooLarge, TOO_MANY_ERRORS_MESSAGE, last));
            return Err(problems);
        }
    }
    match builder.root {
        Some(root) if !builder.tree.node(root).is_null() => Ok(Tree { root, ..builder.tree }),
        Some(_) | None => Err(vec![empty_error()]),
    }
}

/// List or map that the parser has not finished reading.
struct OpenCollection {
    span: Span,
    anchor_id: usize,
    kind: NodeKind,
    depth: usize,
    /// Number of nodes in the collection, including nodes that aliases add.
    node_count: u64,
    /// Index of the first child in [`Builder::pending_children`].
    first_child: usize,
}

#[derive(Default)]
struct Builder {
    tree: Tree,
    open: Vec<OpenCollection>,
    /// Children of the open lists and maps, as node indices.
    pending_children: Vec<u32>,
    /// For each anchor id, the index of the anchored node and the number of nodes in its subtree,
    /// including the anchored node.
    anchors: HashMap<usize, (u32, u64)>,
    /// Number of nodes read from the file so far, not counting nodes that aliases add.
    parsed_nodes: u64,
    root: Option<u32>,
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
                let start = to_u32(self.tree.text.len());
                self.tree.text.push_str(&text);
                let end = to_u32(self.tree.text.len());
                self.parsed_nodes += 1;
                let id =
                    self.add_record(NodeRecord { span, start, end, kind: NodeKind::Scalar(style) });
                self.attach_node(id, anchor, 1, span)
            }
            Event::Alias(anchor) => {
                let span = span_of(span, true);
                // The anchor of an open collection is not known yet: the alias would contain
                // itself.
                let Some((id, nodes)) = self.anchors.get(&anchor) else {
                    return Err(alias_error(span));
                };
                self.attach_node(*id, 0, *nodes, span)
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
            self.report_tag(&tag, "means nothing in a policy", span);
        }
        let above = self.open.last();
        let counts =
            kind == NodeKind::Map || above.is_some_and(|above| above.kind == NodeKind::List);
        let depth = above.map_or(0, |above| above.depth) + usize::from(counts);
        if depth > DEPTH_MAX {
            return Err(depth_error(span));
        }
        self.parsed_nodes += 1;
        let first_child = self.pending_children.len();
        self.open.push(OpenCollection {
            span,
            anchor_id: anchor,
            kind,
            depth,
            node_count: 1,
            first_child,
        });
        Ok(())
    }

    fn end_collection(&mut self, end_span: Span) -> Result<(), YamlError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let mut children = self.pending_children.split_off(open.first_child);
        if open.kind == NodeKind::Map {
            children = self.resolve_entries(&children);
        }
        let start = to_u32(self.tree.children.len());
        self.tree.children.extend(children);
        let end = to_u32(self.tree.children.len());
        let id = self.add_record(NodeRecord { span: open.span, start, end, kind: open.kind });
        self.attach_node(id, open.anchor_id, open.node_count, end_span)
    }

    fn add_record(&mut self, record: NodeRecord) -> u32 {
        self.tree.records.push(record);
        to_u32(self.tree.records.len() - 1)
    }

    /// Adds a complete node to the innermost open list or map.
    fn attach_node(
        &mut self,
        id: u32,
        anchor: usize,
        nodes: u64,
        span: Span,
    ) -> Result<(), YamlError> {
        if anchor != 0 {
            self.anchors.insert(anchor, (id, nodes));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(id);
            return Ok(());
        };
        self.pending_children.push(id);
        open.node_count = open.node_count.saturating_add(nodes);
        if open.node_count > self.parsed_nodes.saturating_add(ALIASED_NODES_MAX) {
            return Err(alias_error(span));
        }
        Ok(())
    }

    /// Returns the entries of a complete map with merge keys applied and duplicate keys removed.
    /// The map's own entries take precedence over merged ones. Among merged maps, earlier ones take
    /// precedence.
    fn resolve_entries(&mut self, children: &[u32]) -> Vec<u32> {
        let mut entries: Vec<(u32, u32)> = pairs(children).collect();
        for (first, second) in self.remove_duplicates(&mut entries) {
            let first_line = self.tree.node(first).span().line;
            let key = self.tree.node(second).text();
            let help = match key {
                "<<" => "merge several maps as one list: `<<: [*a, *b]`",
                _ => "keep one of the two",
            };
            let key = quoted(key);
            let message = format!("duplicate key {key}, the first is on line {first_line}; {help}");
            self.report_key(DiagnosticKind::DuplicateKey, message, second);
        }
        if let Some(at) = entries.iter().position(|(key, _)| self.tree.node(*key).text() == "<<") {
            let (key, merged) = entries.remove(at);
            let one = [merged];
            let maps = match self.tree.node(merged).value() {
                Value::List(maps) => maps.ids,
                Value::Scalar(..) | Value::Map(_) => &one,
            };
            let mut is_bad = false;
            for map in maps {
                match self.tree.node(*map).value() {
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
        entries.retain(|(key, _)| match first_of.entry(self.tree.node(*key).text()) {
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
            _ => self.report_tag(&tag, "means nothing in a policy", span),
        }
        written
    }

    /// Returns the path of the next node to be added.
    fn next_path(&self) -> Path {
        let ends = self
            .open
            .iter()
            .skip(1)
            .map(|open| open.first_child)
            .chain([self.pending_children.len()]);
        let steps = self.open.iter().zip(ends).filter_map(|(open, end)| {
            let children = &self.pending_children[open.first_child..end];
            match (open.kind, children) {
                (NodeKind::List, _) => Some(PathStep::Index(children.len())),
                // The key was read, but not its value.
                (_, [.., key]) if children.len() % 2 == 1 => Some(self.tree.node(*key).as_step()),
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
        path.0.push(self.tree.node(key).as_step());
        self.report(kind, message, path, self.tree.node(key).span());
    }

    fn report(&mut self, kind: DiagnosticKind, message: impl Into<String>, path: Path, span: Span) {
        if self.tree.problems.len() < DIAGNOSTICS_MAX {
            self.tree.problems.push(YamlError { path, ..YamlError::new(kind, message, span) });
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
