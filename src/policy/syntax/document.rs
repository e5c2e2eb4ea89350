//! Parsed policy file or control-plane resource. In a file, every value has a source position. In a
//! resource, every value has only a path.
//!
//! Not here: reading values from the document (`reader`, `values`).

use std::sync::Arc;

use super::foreign_file::foreign_file_message;
use super::yaml::{self, Node, Tree, Value, YamlError};
use crate::policy::compiled_policy::SourceLocation;
use crate::policy::diagnostic::{Diagnostic, DiagnosticKind, Path, PathStep, Span, Target};
use crate::policy::excerpt::LineIndex;
use crate::policy::read_budget::{READ_BYTES_MAX, ReadBudget, exceeded_message};
use crate::policy::source::{Options, Source};
use crate::policy::syntax::resource::Resource;

/// Parsed policy file or control-plane resource.
#[derive(Debug)]
pub(crate) struct Document<'s> {
    file: Arc<str>,
    lines: LineIndex<'s>,
    tree: Tree,
}

impl<'s> Document<'s> {
    /// Parses a file. Returns the document and the errors that did not stop parsing, such as
    /// duplicate keys.
    ///
    /// # Errors
    ///
    /// Returns the diagnostics if parsing stopped. This happens if the file is too large, is not
    /// UTF-8 or YAML, is empty, is nested too deeply, is written for another program, or has too
    /// many errors.
    pub(crate) fn read(
        source: &'s Source,
        options: &Options,
        budget: &ReadBudget,
    ) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        let text = source.decode(options).map_err(|diagnostic| vec![*diagnostic])?;
        let (file, lines) = (source.name.as_str(), LineIndex::new(text));
        let mut tree = match yaml::parse(text, budget.bytes_left()) {
            Ok(tree) => tree,
            Err(problems) => {
                let problems = problems.into_iter();
                return Err(problems.map(|problem| diagnostic(file, &lines, problem)).collect());
            }
        };
        // Within the budget, because the parser stops beyond it.
        budget.take(0, tree.bytes());
        if let Some(message) = foreign_file_message(tree.root()) {
            let (kind, message) = (DiagnosticKind::ForeignFile, message.to_owned());
            let (path, span) = (Path::default(), tree.root().span());
            let problem = YamlError { kind, message, path, span };
            return Err(vec![diagnostic(file, &lines, problem)]);
        }
        let problems = std::mem::take(&mut tree.problems).into_iter();
        let errors = problems.map(|problem| diagnostic(file, &lines, problem)).collect();
        Ok((Document { file: file.into(), lines, tree }, errors))
    }

    /// Creates the document of a control-plane resource. Also returns the errors found when the
    /// resource was converted.
    pub(crate) fn from_resource(resource: Resource) -> (Self, Vec<Diagnostic>) {
        let Resource { name, mut tree } = resource;
        let lines = LineIndex::new("");
        if tree.bytes() > READ_BYTES_MAX {
            let (path, span) = (Path::default(), Span::NONE);
            let kind = DiagnosticKind::TooLarge;
            tree.problems.push(YamlError { kind, message: exceeded_message(), path, span });
        }
        let problems = std::mem::take(&mut tree.problems).into_iter();
        let errors = problems.map(|problem| diagnostic(&name, &lines, problem)).collect();
        (Document { file: name.into(), lines, tree }, errors)
    }

    /// Returns the top-level value of the file.
    pub(crate) fn root(&self) -> Node<'_> {
        self.tree.root()
    }

    /// Returns the source location of the value at a path: file and line or, in a control-plane
    /// resource, the resource's name and the path.
    pub(crate) fn location(&self, path: &Path) -> SourceLocation {
        let line = self.span(path, Target::Value).line;
        let path = (line == 0).then(|| path.to_string().into());
        SourceLocation { file: Arc::clone(&self.file), line, path }
    }

    /// Creates a diagnostic about the key or value at a path.
    pub(crate) fn diagnostic(
        &self,
        path: &Path,
        at: Target,
        kind: DiagnosticKind,
        message: impl Into<String>,
    ) -> Diagnostic {
        let (message, span) = (message.into(), self.span(path, at));
        diagnostic(&self.file, &self.lines, YamlError { kind, message, path: path.clone(), span })
    }

    /// Returns the position of the key or value at a path. If the path does not exist, returns the
    /// position of its longest existing prefix.
    fn span(&self, path: &Path, at: Target) -> Span {
        let mut node = self.root();
        let mut key = node.span();
        for step in &path.0 {
            let next = match (node.value(), step) {
                (Value::List(list), PathStep::Index(index)) => {
                    list.node(*index).map(|node| (node, node))
                }
                (Value::Map(map), PathStep::Key(key)) => map.entry(key),
                _ => None,
            };
            let Some((found, value)) = next else { return key };
            (key, node) = (found.span(), value);
        }
        if at == Target::Key { key } else { node.span() }
    }
}

fn diagnostic(file: &str, lines: &LineIndex<'_>, problem: YamlError) -> Diagnostic {
    // An empty file has no source line to show.
    let is_empty = problem.kind == DiagnosticKind::Empty;
    let excerpt = if is_empty { None } else { lines.excerpt(problem.span) };
    let diagnostic = Diagnostic::new(file, problem.span, problem.kind, problem.message);
    Diagnostic { path: problem.path.to_string(), excerpt, ..diagnostic }
}
