//! One YAML document as a tree of values with their positions, built from `saphyr_parser`'s events.
//!
//! A file is parsed once. The bounds on nesting and aliases apply while the tree is built, so that a
//! file written to exhaust memory (`[[[[…`, aliases of aliases) is rejected before it does.
//! Duplicate keys, tags and merge keys (`<<`) are handled here too. Not here: what a plain scalar
//! means (`scalar`), which keys a policy has (`keywords`).

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};

use super::diagnostic::{NOTES_MAX, Path, Step};
use super::scalar::{self, Scalar};

/// Deepest allowed nesting. Maps count, and lists that stand directly in lists (`descriptors` and
/// the map below it are one level). A request has at most 16 entries, so 32 levels leave room for
/// `rate_limit` and for metadata.
pub(crate) const DEPTH_MAX: usize = 32;

/// Most nodes that aliases may add to those written out. A policy of 100,000 rules that share one
/// anchored `rate_limit` of eight nodes stays below it; a "billion laughs" file does not.
pub(crate) const ALIASED_NODES_MAX: u64 = 1_000_000;

/// The parser's error for 256 open brackets. It reads ahead, so the error comes before the events
/// of the brackets. A test notices if the wording changes.
const PARSER_DEPTH_ERROR: &str = "recursion limit exceeded";

/// Namespace of YAML's own tags, for which `!!` is the shorthand.
const YAML_TAGS: &str = "tag:yaml.org,2002:";

/// Where a node stands. The tree keeps one for every node, hence 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Line, from 1.
    pub(crate) line: u32,
    /// Column in characters, from 1.
    pub(crate) column: u32,
    /// Characters on that line; 0 for lists, maps and empty scalars, `u32::MAX` up to the line's end.
    pub(crate) width: u32,
}

impl Span {
    /// One character.
    pub(crate) fn at(line: usize, column: usize) -> Self {
        Span { line: narrow(line), column: narrow(column), width: 1 }
    }

    fn of(span: &saphyr_parser::Span, is_scalar: bool) -> Self {
        let width = match is_scalar {
            false => 0,
            true if span.start.line() == span.end.line() => narrow(span.len()),
            true => u32::MAX,
        };
        Span { width, ..Span::at(span.start.line(), span.start.col() + 1) }
    }
}

/// Longest text that the tree's 32-bit positions can describe; an escape such as `\L` has two bytes
/// and stands for three. Settings allow no larger file either.
pub(crate) const BYTES_MAX: usize = 1 << 30;

/// Saturates, which no text of at most [`BYTES_MAX`] does.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Why a text has no tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParseError {
    /// Not YAML, in the parser's words.
    Syntax(String),
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// Aliases add more than [`ALIASED_NODES_MAX`] nodes, or contain themselves.
    AliasBomb,
    /// No node, or null.
    Empty,
}

/// A mistake that leaves the rest of the document readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: ProblemKind,
    /// Path of the node; for a tag of a key, of the key's map.
    pub(crate) path: Path,
    pub(crate) span: Span,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    /// A key stands twice in one map. The first one counts.
    DuplicateKey { key: String, first_line: u32 },
    /// A tag other than YAML's own for this kind of node, as it is usually written: `!foo`.
    UnknownTag(String),
    /// A tag of YAML's own whose scalar is of another type: `!!int abc`.
    WrongTag(String),
    /// `<<` with something other than maps.
    BadMerge,
    /// A second document begins.
    SecondDocument,
}

/// How a scalar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Without quotes: its text decides what it is.
    Plain,
    /// In quotes, as a block, or with `!!str`: always text.
    Quoted,
    /// With `!!float`.
    Float,
}

/// One node without its children and text, which stand in the tree's common buffers: policies have
/// up to one node for each byte, so that every byte counts here.
#[derive(Debug)]
struct Slot {
    span: Span,
    /// Into the text buffer for scalars, else into the children.
    from: u32,
    to: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Scalar(Style),
    List,
    Map,
}

/// A parsed document.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    slots: Vec<Slot>,
    /// Entries of lists; of maps, keys and values by turns. Aliases and merge keys make several
    /// nodes share a child.
    children: Vec<u32>,
    text: String,
    root: u32,
    /// What is wrong, by kind at most as much as is reported of one file.
    pub(crate) problems: Vec<Problem>,
}

/// A node of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'t> {
    tree: &'t Tree,
    slot: &'t Slot,
}

/// What a node holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'t> {
    Scalar(&'t str, Style),
    List(List<'t>),
    Map(Map<'t>),
}

/// The entries of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<'t> {
    tree: &'t Tree,
    children: &'t [u32],
}

/// The entries of a map, in the order of the file; those of merge keys come last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map<'t> {
    tree: &'t Tree,
    children: &'t [u32],
}

impl Tree {
    pub(crate) fn root(&self) -> Node<'_> {
        self.node(self.root)
    }

    fn node(&self, id: u32) -> Node<'_> {
        Node { tree: self, slot: &self.slots[id as usize] }
    }
}

impl<'t> Node<'t> {
    pub(crate) fn span(self) -> Span {
        self.slot.span
    }

    pub(crate) fn value(self) -> Value<'t> {
        let Node { tree, slot } = self;
        let range = slot.from as usize..slot.to as usize;
        match slot.kind {
            Kind::Scalar(style) => Value::Scalar(&tree.text[range], style),
            Kind::List => Value::List(List { tree, children: &tree.children[range] }),
            Kind::Map => Value::Map(Map { tree, children: &tree.children[range] }),
        }
    }

    pub(crate) fn is_null(self) -> bool {
        matches!(self.value(), Value::Scalar(text, Style::Plain) if scalar::is_null(text))
    }

    pub(crate) fn is_collection(self) -> bool {
        !matches!(self.slot.kind, Kind::Scalar(_))
    }

    /// Value of a key; `None` where this is no map, too.
    pub(crate) fn get(self, key: &str) -> Option<Node<'t>> {
        match self.value() {
            Value::Map(map) => map.get(key).map(|(_, value)| value),
            Value::Scalar(..) | Value::List(_) => None,
        }
    }

    /// The scalar as it is written, without quotes; empty for lists and maps.
    pub(crate) fn text(self) -> &'t str {
        match self.value() {
            Value::Scalar(text, _) => text,
            Value::List(_) | Value::Map(_) => "",
        }
    }

    /// What the scalar means in YAML 1.1. Lists and maps are text.
    pub(crate) fn scalar(self) -> Scalar {
        self.scalar_by(scalar::read)
    }

    /// What the scalar means where a key or text is expected.
    pub(crate) fn core_scalar(self) -> Scalar {
        self.scalar_by(scalar::read_core)
    }

    fn scalar_by(self, read: fn(&str) -> Scalar) -> Scalar {
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

impl<'t> List<'t> {
    pub(crate) fn iter(self) -> impl Iterator<Item = Node<'t>> {
        self.children.iter().map(move |id| self.tree.node(*id))
    }

    pub(crate) fn get(self, index: usize) -> Option<Node<'t>> {
        self.children.get(index).map(|id| self.tree.node(*id))
    }
}

impl<'t> Map<'t> {
    /// Keys and values.
    pub(crate) fn iter(self) -> impl Iterator<Item = (Node<'t>, Node<'t>)> {
        let pairs = self.children.chunks_exact(2);
        pairs.map(move |pair| (self.tree.node(pair[0]), self.tree.node(pair[1])))
    }

    /// Key and value of that key.
    pub(crate) fn get(self, key: &str) -> Option<(Node<'t>, Node<'t>)> {
        self.iter().find(|(found, _)| found.text() == key)
    }
}

/// Parses the first document of a text.
///
/// # Errors
///
/// The first position from which no tree can be built.
pub(crate) fn parse(text: &str) -> Result<Tree, (ParseError, Span)> {
    let mut builder = Builder::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax_error(&error))?;
        if let Event::DocumentStart(_) = event {
            documents += 1;
        }
        if documents > 1 {
            let (path, span) = (Path::default(), Span { width: 3, ..Span::of(&span, false) });
            builder.report(ProblemKind::SecondDocument, path, span);
            break;
        }
        builder.take(event, &span)?;
    }
    builder.tree.root = builder.root.ok_or((ParseError::Empty, Span::at(1, 1)))?;
    match builder.tree.root().is_null() {
        false => Ok(builder.tree),
        true => Err((ParseError::Empty, Span::at(1, 1))),
    }
}

fn syntax_error(error: &ScanError) -> (ParseError, Span) {
    let span = Span::at(error.marker().line(), error.marker().col() + 1);
    match error.info() {
        PARSER_DEPTH_ERROR => (ParseError::TooDeep, span),
        info => (ParseError::Syntax(info.to_owned()), span),
    }
}

/// A list or map that has not ended.
struct Open {
    span: Span,
    anchor: usize,
    kind: Kind,
    depth: usize,
    /// Nodes in it, those behind aliases included.
    nodes: u64,
    /// Where its children begin in [`Builder::pending`].
    children: usize,
}

#[derive(Default)]
struct Builder {
    tree: Tree,
    open: Vec<Open>,
    /// Children of the open lists and maps.
    pending: Vec<u32>,
    /// By anchor: the node, and how many nodes it has.
    anchors: HashMap<usize, (u32, u64)>,
    /// Nodes written out so far.
    written: u64,
    root: Option<u32>,
}

impl Builder {
    fn take(
        &mut self,
        event: Event<'_>,
        span: &saphyr_parser::Span,
    ) -> Result<(), (ParseError, Span)> {
        match event {
            Event::SequenceStart(anchor, tag) => {
                self.begin(Kind::List, anchor, tag.as_deref(), Span::of(span, false))
            }
            Event::MappingStart(anchor, tag) => {
                self.begin(Kind::Map, anchor, tag.as_deref(), Span::of(span, false))
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(Span::of(span, false)),
            Event::Scalar(text, style, anchor, tag) => {
                let span = Span::of(span, true);
                let style = self.style(&text, style, tag.as_deref(), span);
                let from = narrow(self.tree.text.len());
                self.tree.text.push_str(&text);
                let to = narrow(self.tree.text.len());
                self.written += 1;
                let id = self.add(Slot { span, from, to, kind: Kind::Scalar(style) });
                self.put(id, anchor, 1, span)
            }
            Event::Alias(anchor) => {
                let span = Span::of(span, true);
                // An anchor that is still open would contain itself.
                let (id, nodes) =
                    *self.anchors.get(&anchor).ok_or((ParseError::AliasBomb, span))?;
                self.put(id, 0, nodes, span)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin(
        &mut self,
        kind: Kind,
        anchor: usize,
        tag: Option<&Tag>,
        span: Span,
    ) -> Result<(), (ParseError, Span)> {
        let own_tag = if kind == Kind::List { "seq" } else { "map" };
        if let Some(tag) = tag.map(tag_text).filter(|tag| tag.strip_prefix("!!") != Some(own_tag)) {
            self.report(ProblemKind::UnknownTag(tag), self.path(), span);
        }
        let above = self.open.last();
        let counts = kind == Kind::Map || above.is_some_and(|above| above.kind == Kind::List);
        let depth = above.map_or(0, |above| above.depth) + usize::from(counts);
        if depth > DEPTH_MAX {
            return Err((ParseError::TooDeep, span));
        }
        self.written += 1;
        let children = self.pending.len();
        self.open.push(Open { span, anchor, kind, depth, nodes: 1, children });
        Ok(())
    }

    fn end(&mut self, end: Span) -> Result<(), (ParseError, Span)> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let mut children = self.pending.split_off(open.children);
        if open.kind == Kind::Map {
            children = self.entries(&children);
        }
        let from = narrow(self.tree.children.len());
        self.tree.children.extend(children);
        let to = narrow(self.tree.children.len());
        let id = self.add(Slot { span: open.span, from, to, kind: open.kind });
        self.put(id, open.anchor, open.nodes, end)
    }

    fn add(&mut self, slot: Slot) -> u32 {
        self.tree.slots.push(slot);
        narrow(self.tree.slots.len() - 1)
    }

    /// Adds a complete node to the list or map that it stands in.
    fn put(
        &mut self,
        id: u32,
        anchor: usize,
        nodes: u64,
        span: Span,
    ) -> Result<(), (ParseError, Span)> {
        if anchor != 0 {
            self.anchors.insert(anchor, (id, nodes));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(id);
            return Ok(());
        };
        self.pending.push(id);
        open.nodes = open.nodes.saturating_add(nodes);
        if open.nodes > self.written.saturating_add(ALIASED_NODES_MAX) {
            return Err((ParseError::AliasBomb, span));
        }
        Ok(())
    }

    /// The entries of a complete map: keys and values by turns, each key once, merge keys applied. A
    /// map's own entries take precedence, then the earlier of several merged maps.
    fn entries(&mut self, children: &[u32]) -> Vec<u32> {
        let pairs = children.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let (mut pairs, duplicates) = self.without_duplicates(pairs);
        for (first, second) in duplicates {
            let key = self.key(second).to_owned();
            let first_line = self.tree.node(first).span().line;
            self.report_key(ProblemKind::DuplicateKey { key, first_line }, second);
        }
        if let Some(at) = pairs.iter().position(|(key, _)| self.key(*key) == "<<") {
            let (key, merged) = pairs.remove(at);
            if self.append_merged(merged, &mut pairs).is_err() {
                self.report_key(ProblemKind::BadMerge, key);
            }
            (pairs, _) = self.without_duplicates(pairs);
        }
        pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()
    }

    /// Splits off the pairs whose key stands earlier already: the earlier key and the later one.
    fn without_duplicates(&self, pairs: Vec<(u32, u32)>) -> (Vec<(u32, u32)>, Vec<(u32, u32)>) {
        let mut by_key: Vec<usize> = (0..pairs.len()).collect();
        by_key.sort_by_key(|at| self.key(pairs[*at].0));
        let mut first_of: Vec<usize> = (0..pairs.len()).collect();
        for two in by_key.windows(2) {
            if self.key(pairs[two[0]].0) == self.key(pairs[two[1]].0) {
                first_of[two[1]] = first_of[two[0]];
            }
        }
        let (mut kept, mut duplicates) = (Vec::with_capacity(pairs.len()), Vec::new());
        for (at, pair) in pairs.iter().enumerate() {
            if first_of[at] == at {
                kept.push(*pair);
            } else {
                duplicates.push((pairs[first_of[at]].0, pair.0));
            }
        }
        (kept, duplicates)
    }

    /// Appends the entries of a map, or of each map of a list.
    fn append_merged(&self, merged: u32, pairs: &mut Vec<(u32, u32)>) -> Result<(), ()> {
        let one = [merged];
        let maps = match self.tree.node(merged).value() {
            Value::List(list) => list.children,
            Value::Scalar(..) | Value::Map(_) => &one,
        };
        let mut result = Ok(());
        for id in maps {
            match self.tree.node(*id).value() {
                Value::Map(map) => {
                    pairs.extend(map.children.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                }
                Value::Scalar(..) | Value::List(_) => result = Err(()),
            }
        }
        result
    }

    fn key(&self, id: u32) -> &str {
        self.tree.node(id).text()
    }

    /// How to read a scalar; reports a tag that does not belong to it.
    fn style(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Style {
        let written = if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted };
        let Some(tag) = tag.map(tag_text) else {
            return written;
        };
        let value = scalar::read(text);
        match (tag.as_str(), value) {
            ("!!str", _) => return Style::Quoted,
            ("!!float", Scalar::Int(_) | Scalar::Float(_)) => return Style::Float,
            ("!!int", Scalar::Int(_)) | ("!!bool", Scalar::Bool(_)) | ("!!null", Scalar::Null) => {
                return Style::Plain;
            }
            ("!!int" | "!!bool" | "!!null" | "!!float", _) => {
                self.report(ProblemKind::WrongTag(tag), self.path(), span);
            }
            _ => self.report(ProblemKind::UnknownTag(tag), self.path(), span),
        }
        written
    }

    /// The path of the node that comes next.
    fn path(&self) -> Path {
        let ends = self.open.iter().skip(1).map(|open| open.children).chain([self.pending.len()]);
        let steps = self.open.iter().zip(ends).filter_map(|(open, end)| {
            let children = &self.pending[open.children..end];
            match open.kind {
                Kind::List => Some(Step::Index(children.len())),
                // A key without its value.
                _ if children.len() % 2 == 1 => {
                    children.last().map(|key| Step::of(self.tree.node(*key)))
                }
                _ => None,
            }
        });
        Path(steps.collect())
    }

    /// Reports a key of the map that has just ended.
    fn report_key(&mut self, kind: ProblemKind, key: u32) {
        let mut path = self.path();
        path.0.push(Step::of(self.tree.node(key)));
        let span = self.tree.node(key).span();
        self.report(kind, path, span);
    }

    fn report(&mut self, kind: ProblemKind, path: Path, span: Span) {
        if self.tree.problems.len() < NOTES_MAX {
            self.tree.problems.push(Problem { kind, path, span });
        }
    }
}

/// A tag as it is usually written: `!foo`, `!!foo`.
fn tag_text(tag: &Tag) -> String {
    match [tag.handle.as_str(), &tag.suffix].concat() {
        whole if whole.starts_with(YAML_TAGS) => format!("!!{}", &whole[YAML_TAGS.len()..]),
        whole => whole,
    }
}

#[cfg(test)]
mod tests;
