//! Syntax tree of a policy file or resource: scalars, lists, and maps with their source positions.
//!
//! Not here: building the tree (`yaml`, `writer`), the types of plain scalars (`scalar`).

use super::scalar::{self, Scalar};
use crate::policy::diagnostic::{DiagnosticKind, Path, PathStep, Span};

/// Maximum nesting depth. A map counts as one level; a list counts only if it is directly inside
/// another list, so `descriptors` and its maps are one level. A descriptor has at most 160 entries,
/// and a policy from a control plane has one level per entry. In flow style (`{…}`), the parser
/// allows only 127 levels.
pub const DEPTH_MAX: usize = 160;

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
    pub(super) fn new(kind: DiagnosticKind, message: impl Into<String>, span: Span) -> Self {
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
pub(super) struct NodeRecord {
    pub(super) span: Span,
    /// Start of the node's text or children: a byte offset in [`Tree::text`] for a scalar, or an
    /// index in [`Tree::children`] for a list or map.
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) kind: NodeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    Scalar(Style),
    List,
    Map,
}

/// Parsed YAML document.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(super) records: Vec<NodeRecord>,
    /// Node indices: the items of each list, and the alternating keys and values of each map. With
    /// aliases and merge keys, several nodes can share a child.
    pub(super) children: Vec<u32>,
    pub(super) text: String,
    pub(super) root: u32,
    /// Errors that did not stop parsing, at most
    /// [`DIAGNOSTICS_MAX`](crate::policy::diagnostic::DIAGNOSTICS_MAX).
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
    pub(super) ids: &'t [u32],
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

    pub(super) fn node(&self, id: u32) -> Node<'_> {
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

pub(super) fn pairs(ids: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    ids.chunks_exact(2).map(|pair| (pair[0], pair[1]))
}
