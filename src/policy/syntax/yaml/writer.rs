//! Builds a syntax tree from values in document order: those that the parser reads, and those of the
//! messages of a control plane.
//!
//! Not here: the keys to write (`resource`), parsing YAML (`yaml`).

use serde_json::Value as Json;

use super::tree::{DEPTH_MAX, NodeKind, NodeRecord, Style, Tree};
use crate::policy::diagnostic::{Span, to_u32};

/// Error for a value that is nested deeper than [`DEPTH_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooDeep;

/// Builder of a syntax tree that takes one value at a time.
#[derive(Debug, Default)]
pub(crate) struct TreeWriter {
    pub(super) tree: Tree,
    pub(super) open: Vec<OpenCollection>,
    /// Children of the open lists and maps, as node indices.
    pub(super) pending_children: Vec<u32>,
}

/// List or map whose end has not been written yet.
#[derive(Debug)]
pub(super) struct OpenCollection {
    pub(super) kind: NodeKind,
    /// Index of the first child in [`TreeWriter::pending_children`].
    pub(super) first_child: usize,
    span: Span,
    depth: usize,
}

impl TreeWriter {
    /// Reserves memory for this number of values with this number of bytes of text.
    pub(crate) fn reserve(&mut self, values: usize, text_bytes: usize) {
        self.tree.records.reserve_exact(values);
        self.tree.children.reserve_exact(values);
        self.tree.text.reserve_exact(text_bytes);
    }

    /// Begins a map. The caller then writes keys and values alternately, and ends the map.
    ///
    /// # Errors
    ///
    /// Returns [`TooDeep`] if the value would be nested deeper than [`DEPTH_MAX`].
    pub(crate) fn begin_map(&mut self) -> Result<(), TooDeep> {
        self.begin(NodeKind::Map, Span::NONE)
    }

    /// Begins a list. The caller then writes its items and ends the list.
    ///
    /// # Errors
    ///
    /// Returns [`TooDeep`] if the value would be nested deeper than [`DEPTH_MAX`].
    pub(crate) fn begin_list(&mut self) -> Result<(), TooDeep> {
        self.begin(NodeKind::List, Span::NONE)
    }

    pub(super) fn begin(&mut self, kind: NodeKind, span: Span) -> Result<(), TooDeep> {
        let above = self.open.last();
        let counts =
            kind == NodeKind::Map || above.is_some_and(|above| above.kind == NodeKind::List);
        let depth = above.map_or(0, |above| above.depth) + usize::from(counts);
        if depth > DEPTH_MAX {
            return Err(TooDeep);
        }
        let first_child = self.pending_children.len();
        self.open.push(OpenCollection { kind, first_child, span, depth });
        Ok(())
    }

    /// Ends the innermost list or map.
    pub(crate) fn end(&mut self) {
        if let Some((open, children)) = self.take_open() {
            self.close(&open, children);
        }
    }

    /// Removes the innermost open list or map, and returns it with its children.
    pub(super) fn take_open(&mut self) -> Option<(OpenCollection, Vec<u32>)> {
        let open = self.open.pop()?;
        let children = self.pending_children.split_off(open.first_child);
        Some((open, children))
    }

    /// Adds a complete list or map, and returns its node index.
    pub(super) fn close(&mut self, open: &OpenCollection, children: Vec<u32>) -> u32 {
        let start = to_u32(self.tree.children.len());
        self.tree.children.extend(children);
        let end = to_u32(self.tree.children.len());
        self.add_node(NodeRecord { span: open.span, start, end, kind: open.kind })
    }

    /// Returns the current position, to which [`rewind`](Self::rewind) can return.
    pub(crate) fn position(&self) -> (usize, usize) {
        (self.open.len(), self.pending_children.len())
    }

    /// Removes everything that was written after the given [`position`](Self::position).
    pub(crate) fn rewind(&mut self, (open, pending_children): (usize, usize)) {
        self.open.truncate(open);
        self.pending_children.truncate(pending_children);
    }

    /// Writes a text value, which is never interpreted as a number or a boolean.
    pub(crate) fn write_text(&mut self, text: &str) {
        self.write_scalar(text, Style::Quoted, Span::NONE);
    }

    /// Writes a JSON value.
    ///
    /// # Errors
    ///
    /// Returns [`TooDeep`] if the value would be nested deeper than [`DEPTH_MAX`].
    pub(crate) fn write_json(&mut self, value: &Json) -> Result<(), TooDeep> {
        match value {
            Json::Null | Json::Bool(_) | Json::Number(_) => {
                self.write_scalar(&value.to_string(), Style::Plain, Span::NONE);
            }
            Json::String(text) => self.write_text(text),
            Json::Array(list) => {
                self.begin_list()?;
                list.iter().try_for_each(|value| self.write_json(value))?;
                self.end();
            }
            Json::Object(map) => {
                self.begin_map()?;
                for (key, value) in map {
                    self.write_text(key);
                    self.write_json(value)?;
                }
                self.end();
            }
        }
        Ok(())
    }

    /// Writes a scalar, and returns its node index.
    pub(super) fn write_scalar(&mut self, text: &str, style: Style, span: Span) -> u32 {
        let start = to_u32(self.tree.text.len());
        self.tree.text.push_str(text);
        let end = to_u32(self.tree.text.len());
        self.add_node(NodeRecord { span, start, end, kind: NodeKind::Scalar(style) })
    }

    fn add_node(&mut self, record: NodeRecord) -> u32 {
        let id = to_u32(self.tree.records.len());
        self.tree.records.push(record);
        self.attach(id);
        id
    }

    /// Adds a complete node to the innermost open list or map.
    pub(super) fn attach(&mut self, id: u32) {
        if self.open.is_empty() {
            self.tree.root = id;
        } else {
            self.pending_children.push(id);
        }
    }

    /// Ends all open lists and maps, and returns the tree.
    pub(crate) fn finish(mut self) -> Tree {
        while !self.open.is_empty() {
            self.end();
        }
        self.tree
    }
}
