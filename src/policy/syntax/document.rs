//! One policy file, parsed.
//!
//! Not here: what the values mean (`reader`, `compile`).

use std::sync::Arc;

use super::diagnostic::{At, Diagnostic, DiagnosticKind, Path, Step};
use super::excerpt::Lines;
use super::suggestions::foreign_file;
use super::yaml::{self, Node, Problem, Span, Tree, Value};
use crate::policy::compile::spec::SourceLocation;
use crate::policy::source::{Options, Source};

/// A file whose YAML could be parsed.
#[derive(Debug)]
pub(crate) struct Document<'s> {
    file: Arc<str>,
    lines: Lines<'s>,
    tree: Tree,
}

impl<'s> Document<'s> {
    /// Parses a file. Returns the document with the diagnostics that leave it readable.
    ///
    /// # Errors
    ///
    /// The one diagnostic that leaves nothing to read: not UTF-8, too large, nested too deeply, not
    /// YAML, empty, or a file of another program.
    pub(crate) fn read(
        source: &'s Source,
        options: &Options,
    ) -> Result<(Self, Vec<Diagnostic>), Box<Diagnostic>> {
        let text = source.decode(options)?;
        let (file, lines) = (source.name.as_str(), Lines::new(text));
        let mut tree = match yaml::parse(text) {
            Ok(tree) => tree,
            Err(problem) => return Err(Box::new(diagnostic(file, &lines, problem))),
        };
        if let Some(message) = foreign_file(tree.root()) {
            let (kind, message) = (DiagnosticKind::ForeignFile, message.to_owned());
            let (path, span) = (Path::default(), tree.root().span());
            let problem = Problem { kind, message, path, span };
            return Err(Box::new(diagnostic(file, &lines, problem)));
        }
        let problems = std::mem::take(&mut tree.problems).into_iter();
        let errors = problems.map(|problem| diagnostic(file, &lines, problem)).collect();
        Ok((Document { file: file.into(), lines, tree }, errors))
    }

    /// Returns the file's top value.
    pub(crate) fn root(&self) -> Node<'_> {
        self.tree.root()
    }

    /// Returns the file and line of the value at a path.
    pub(crate) fn written_at(&self, path: &Path) -> SourceLocation {
        SourceLocation { file: Arc::clone(&self.file), line: self.span(path, At::Value).line }
    }

    /// Returns a diagnostic about what is at a path.
    pub(crate) fn diagnostic(
        &self,
        path: &Path,
        at: At,
        kind: DiagnosticKind,
        message: impl Into<String>,
    ) -> Diagnostic {
        let (message, span) = (message.into(), self.span(path, at));
        diagnostic(&self.file, &self.lines, Problem { kind, message, path: path.clone(), span })
    }

    /// Returns the position of a path, or of its last step that exists.
    fn span(&self, path: &Path, at: At) -> Span {
        let mut node = self.root();
        let mut key = node.span();
        for step in &path.0 {
            let next = match (node.value(), step) {
                (Value::List(list), Step::Index(index)) => {
                    list.node(*index).map(|node| (node, node))
                }
                (Value::Map(map), Step::Key(key)) => map.entry(key),
                _ => None,
            };
            let Some((found, value)) = next else { return key };
            (key, node) = (found.span(), value);
        }
        if at == At::Key { key } else { node.span() }
    }
}

fn diagnostic(file: &str, lines: &Lines<'_>, problem: Problem) -> Diagnostic {
    // An empty file has no line worth showing.
    let is_empty = problem.kind == DiagnosticKind::Empty;
    let excerpt = if is_empty { None } else { lines.excerpt(problem.span) };
    let diagnostic = Diagnostic::new(file, problem.span, problem.kind, problem.message);
    Diagnostic { path: problem.path.to_string(), excerpt, ..diagnostic }
}
