//! One policy file, parsed.
//!
//! Not here: what the values mean (`reader` and its callers).

use super::diagnostic::{At, Diagnostic, DiagnosticKind, Path, PendingDiagnostic, Step, shown};
use super::excerpt::Lines;
use super::suggestions::file_kind;
use super::yaml::{
    self, ALIASED_NODES_MAX, DEPTH_MAX, Node, ParseError, ProblemKind, Span, Tree, Value,
};
use crate::policy::source::{Options, Source, fault_at};

/// Longest part of a tag that a message repeats: enough to recognise it.
const SHOWN_TAG_CHARS: usize = 64;

/// A file whose YAML could be parsed.
#[derive(Debug)]
pub(crate) struct Document<'s> {
    name: &'s str,
    lines: Lines<'s>,
    tree: Tree,
}

impl<'s> Document<'s> {
    /// Parses a file. Returns the document together with the faults that leave it readable.
    ///
    /// # Errors
    ///
    /// The one fault that leaves nothing to read: not UTF-8, too large, too deep, not YAML, empty,
    /// or a file of another program.
    pub(crate) fn read(
        source: &'s Source,
        options: &Options,
    ) -> Result<(Self, Vec<Diagnostic>), Box<Diagnostic>> {
        let text = source.decode(options)?;
        let (name, lines) = (source.name.as_str(), Lines::new(text));
        let tree = match yaml::parse(text) {
            Ok(tree) => tree,
            Err((error, span)) => {
                return Err(Box::new(parse_fault(name, &lines, text, error, span)));
            }
        };
        let mut document = Document { name, lines, tree };
        if let Some(message) = file_kind(document.root()) {
            let (span, kind) = (document.root().span(), DiagnosticKind::ForeignFile);
            return Err(Box::new(document.fault(&Path::default(), span, kind, message.to_owned())));
        }
        let problems = std::mem::take(&mut document.tree.problems);
        let faults = problems.into_iter().map(|problem| {
            let (kind, message) = explain(problem.kind);
            document.fault(&problem.path, problem.span, kind, message)
        });
        let faults = faults.collect();
        Ok((document, faults))
    }

    /// The file's name.
    pub(crate) fn name(&self) -> &'s str {
        self.name
    }

    /// The file's top value.
    pub(crate) fn root(&self) -> Node<'_> {
        self.tree.root()
    }

    /// Where a path leads, or as far as it leads.
    pub(crate) fn span(&self, path: &Path, at: At) -> Span {
        let mut node = self.root();
        let mut key = node.span();
        for step in &path.0 {
            let next = match (node.value(), step) {
                (Value::List(list), Step::Index(index)) => {
                    list.get(*index).map(|entry| (entry, entry))
                }
                (Value::Map(map), Step::Key(key)) => map.get(key),
                _ => None,
            };
            let Some((found, value)) = next else {
                return key;
            };
            (key, node) = (found.span(), value);
        }
        if at == At::Key { key } else { node.span() }
    }

    fn fault(&self, path: &Path, span: Span, kind: DiagnosticKind, message: String) -> Diagnostic {
        let excerpt = self.lines.excerpt(span);
        Diagnostic { path: path.to_string(), excerpt, ..fault_at(self.name, span, kind, message) }
    }
}

/// Gives a draft its place.
pub(crate) fn placed(draft: &PendingDiagnostic, documents: &[Document<'_>]) -> Option<Diagnostic> {
    let document = documents.get(draft.file)?;
    let span = document.span(&draft.path, draft.at);
    let mut fault = document.fault(&draft.path, span, draft.kind, draft.message.clone());
    if let Some((file, path)) = &draft.first {
        let other = documents.get(*file)?;
        let line = other.span(path, At::Value).line;
        let place = if *file == draft.file {
            format!("; the first is in line {line}")
        } else {
            format!("; the first is in {}:{line}", other.name)
        };
        fault.message.push_str(&place);
    }
    Some(fault)
}

/// The fault of a text that has no tree.
fn parse_fault(
    name: &str,
    lines: &Lines<'_>,
    text: &str,
    error: ParseError,
    span: Span,
) -> Diagnostic {
    let (kind, message) = match error {
        ParseError::Empty => {
            let message = "the file is empty; a policy needs at least `domain: NAME`";
            return fault_at(name, span, DiagnosticKind::Empty, message.to_owned());
        }
        ParseError::TooDeep => (
            DiagnosticKind::TooLarge,
            format!("nested deeper than {DEPTH_MAX} levels; no request has that many entries"),
        ),
        ParseError::AliasBomb => (
            DiagnosticKind::TooLarge,
            format!(
                "aliases contain themselves or add more than {ALIASED_NODES_MAX} nodes to the \
                 file; write out what is meant"
            ),
        ),
        ParseError::Syntax(info) => {
            let line = text.lines().nth(span.line.saturating_sub(1) as usize).unwrap_or_default();
            let indentation = &line[..line.len() - line.trim_start_matches([' ', '\t']).len()];
            if let Some(tab) = indentation.find('\t') {
                let span = Span::at(span.line as usize, tab + 1);
                let message = "a tab in the indentation; YAML takes blanks only".to_owned();
                let fault = fault_at(name, span, DiagnosticKind::Syntax, message);
                return Diagnostic { excerpt: lines.excerpt(span), ..fault };
            }
            (DiagnosticKind::Syntax, format!("this is not YAML: {}", syntax_message(&info)))
        }
    };
    Diagnostic { excerpt: lines.excerpt(span), ..fault_at(name, span, kind, message) }
}

/// The parser's error with its context last, or in plainer words where that shows what to do.
fn syntax_message(info: &str) -> String {
    match info {
        "invalid indentation"
        | "invalid indentation in flow construct"
        | "invalid indentation in quoted scalar" => {
            "text in brackets or quotes goes on with too little indentation; indent it more than \
             the key that it belongs to"
                .to_owned()
        }
        "simple key expected" | "simple key expect ':'" => {
            "the key above has no `:` after it; write `key: value`".to_owned()
        }
        "did not find expected <document start>" => {
            "this belongs neither to the document above nor to a list or map in it; check the \
             indentation"
                .to_owned()
        }
        "while parsing node, found unknown anchor" => "unknown anchor".to_owned(),
        _ => match info.strip_prefix("while ").and_then(|rest| rest.split_once(", ")) {
            Some((context, error)) => format!("{error}, while {context}"),
            None => info.to_owned(),
        },
    }
}

/// What to say of a problem in the document's structure.
fn explain(problem: ProblemKind) -> (DiagnosticKind, String) {
    match problem {
        ProblemKind::DuplicateKey { key, first_line } => {
            let way_out = if key == "<<" {
                "merge several maps as one list: `<<: [*a, *b]`"
            } else {
                "keep one of the two"
            };
            let key = shown(&key);
            let message = format!(
                "the key {key} stands here a second time, the first is in line {first_line}; \
                 {way_out}"
            );
            (DiagnosticKind::DuplicateKey, message)
        }
        // Nobody sees what a tag would change, if only for another reader of the file.
        ProblemKind::UnknownTag(tag) => {
            let tag: String = tag.chars().take(SHOWN_TAG_CHARS).collect();
            (
                DiagnosticKind::WrongType,
                format!("the tag `{tag}` means nothing in a policy; remove it"),
            )
        }
        ProblemKind::WrongTag(tag) => (
            DiagnosticKind::WrongType,
            format!("the tag `{tag}` does not fit its value; remove it"),
        ),
        ProblemKind::BadMerge => {
            let message = "`<<` merges maps into this one; give it an alias of a map, or a list of \
                           such aliases";
            (DiagnosticKind::WrongType, message.to_owned())
        }
        ProblemKind::SecondDocument => {
            let message = "a second YAML document begins here, and a policy file has only one; \
                           move it into a file of its own";
            (DiagnosticKind::SecondDocument, message.to_owned())
        }
    }
}
