//! Errors, warnings and notes about policy files: message, position, and kind.
//!
//! Not here: the checks that report them (`reader`, `compile`).

use std::borrow::Cow;
use std::fmt;

use super::excerpt::Excerpt;
use crate::domain::{escaped, named_enum};

/// Error, warning or note about a policy file, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Name of the policy file, as passed to `compile`, or of the control-plane resource.
    pub file: String,
    /// Line number, from 1; 0 for a control-plane resource, in which only `path` gives the
    /// position.
    pub line: u32,
    /// Column in characters, from 1; 0 for a control-plane resource.
    pub column: u32,
    /// Path to the key or value in the file, such as `descriptors[0].rate_limit.unit`; empty at the
    /// top level.
    pub path: String,
    /// Description of the problem, usually followed by `; ` and a fix.
    pub message: String,
    /// Machine-readable kind of the problem.
    pub kind: DiagnosticKind,
    /// Excerpt of the source line; `None` if the diagnostic is about the whole file or about a
    /// control-plane resource.
    pub excerpt: Option<Excerpt>,
}

impl Diagnostic {
    /// Creates a diagnostic with an empty path and no excerpt.
    pub(crate) fn new(
        file: &str,
        span: Span,
        kind: DiagnosticKind,
        message: impl Into<String>,
    ) -> Self {
        Diagnostic {
            file: file.to_owned(),
            line: span.line,
            column: span.column,
            path: String::new(),
            message: message.into(),
            kind,
            excerpt: None,
        }
    }

    /// Returns the diagnostic with its column and excerpt shifted right by `blanks` spaces, for a
    /// policy that is embedded in another file with every line indented by that many spaces.
    #[must_use]
    pub fn indented_by(mut self, blanks: u32) -> Self {
        self.column = self.column.saturating_add(blanks);
        self.excerpt = self.excerpt.map(|excerpt| excerpt.indented_by(blanks as usize));
        self
    }

    /// Formats the diagnostic with its source line, as rustc does. `severity` is the first word of
    /// the output, such as `error`. Text from the file is escaped. To get one line of text without
    /// the source line, use `Display`.
    ///
    /// ```
    /// use tidegate::policy::{Options, Source, compile};
    /// let text = b"domain: edge\ndescriptors:\n  - key: a\n    valu: b\n".to_vec();
    /// let source = Source { name: "edge.yaml".into(), text };
    /// let errors = compile(&[source], &Options::default()).unwrap_err();
    /// assert_eq!(errors.0[0].report("error"), "\
    /// error: unknown key \"valu\"
    ///  --> edge.yaml:4:5
    ///   |
    /// 4 |     valu: b
    ///   |     ^^^^ did you mean `value`?
    ///   = at descriptors[0].valu
    /// ");
    /// ```
    pub fn report(&self, severity: &str) -> String {
        let (what, help) = split_help(&self.message);
        let (what, help, file) = (escaped(what), escaped(help), escaped(&self.file));
        let Diagnostic { line, column, .. } = self;
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let mut report = format!("{severity}: {what}\n{margin}--> {file}:{line}:{column}\n");
        if let Some(excerpt) = &self.excerpt {
            let Excerpt { text, underline } = excerpt;
            let marked = format!("{margin} | {underline} {help}");
            let lines = format!("{margin} |\n{number} | {text}\n{}\n", marked.trim_end());
            report.push_str(&lines);
        } else if !help.is_empty() {
            report.push_str(&format!("{margin} = {help}\n"));
        }
        if !self.path.is_empty() {
            report.push_str(&format!("{margin} = at {}\n", escaped(&self.path)));
        }
        report
    }
}

/// Splits a message at the first `; ` outside quotes into the description and the fix.
fn split_help(message: &str) -> (&str, &str) {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, c) in message.char_indices() {
        match quote {
            None if message[at..].starts_with("; ") => return (&message[..at], &message[at + 2..]),
            None if matches!(c, '"' | '`') => quote = Some(c),
            Some('"') if c == '\\' && !is_escaped => {
                is_escaped = true;
                continue;
            }
            Some(open) if c == open && !is_escaped => quote = None,
            Some(_) | None => {}
        }
        is_escaped = false;
    }
    (message, "")
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "resource {}: ", quoted(&self.file))?,
            line => write!(f, "{}:{line}:{}: ", self.file, self.column)?,
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Errors found in policy files (sorted by file and position), in the control-plane resources of a
/// domain, or in a file of domain defaults. `Display` prints one error per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

named_enum! {
    /// Kind of an error, a warning, or a note. Kinds from `StarInKey` to `NoRules` are warnings: the
    /// policy is valid, but a part of it contradicts another or has no effect. Kinds from
    /// `NoLimitWhenAbsent` on are notes: advice about configuration that works as written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum DiagnosticKind {
        /// There is no policy file, or a file is empty.
        Empty => "empty",
        /// The file is not UTF-8, or contains a character that YAML forbids.
        Encoding => "encoding",
        /// A file, all files together, a value, or a list is too large, the nesting is too deep,
        /// aliases expand too far, a request could need too many checks, or there are too many errors.
        TooLarge => "too-large",
        /// The file is not valid YAML.
        Syntax => "syntax",
        /// The file contains a second YAML document.
        SecondDocument => "second-document",
        /// The file is input for another program, such as a Kubernetes manifest.
        ForeignFile => "foreign-file",
        /// A map contains the same key twice.
        DuplicateKey => "duplicate-key",
        /// The key does not exist in the policy language.
        UnknownKey => "unknown-key",
        /// The key exists, but not at this level.
        MisplacedKey => "misplaced-key",
        /// The value has the wrong type for its key.
        WrongType => "wrong-type",
        /// The value has the right type but is invalid for its key.
        BadValue => "bad-value",
        /// The number is outside the range that its key allows.
        OutOfRange => "out-of-range",
        /// A required key is absent.
        Missing => "missing",
        /// Two mutually exclusive keys are set.
        Conflict => "conflict",
        /// A descriptor or domain occurs twice.
        Duplicate => "duplicate",

        /// Warning: the key contains `*`, which is a wildcard only in values.
        StarInKey => "star-in-key",
        /// Warning: `replaces` names a limit that does not exist.
        UnknownReplaces => "unknown-replaces",
        /// Warning: `hash_tag` names an entry that no counter key contains, so it has no effect.
        UnknownHashTag => "unknown-hash-tag",
        /// Warning: `requests_per_unit` is absent, so the limit is 0 and rejects every request.
        DeniesAll => "denies-all",
        /// Warning: the descriptor has no effect. It has neither a limit nor children, and does not
        /// exempt its values from a sibling's limit.
        NoLimit => "no-limit",
        /// Warning: no request has this key, value, or domain, so that its limits never apply.
        NeverMatches => "never-matches",
        /// Warning: the domain has no rules.
        NoRules => "no-rules",

        /// Note: Envoy omits the descriptor if a request lacks one of the descriptor's entries, so that
        /// the request is not limited.
        NoLimitWhenAbsent => "no-limit-when-absent",
        /// Note: `:path` includes the query string, so every query gets its own counter.
        PathAsKey => "path-as-key",
    }
}

impl DiagnosticKind {
    /// Returns whether the kind is a warning. A policy with warnings is still valid.
    pub fn is_warning(self) -> bool {
        (DiagnosticKind::StarInKey..DiagnosticKind::NoLimitWhenAbsent).contains(&self)
    }

    /// Returns whether the kind is a note. `check --strict` accepts notes.
    pub fn is_note(self) -> bool {
        self >= DiagnosticKind::NoLimitWhenAbsent
    }
}

/// Maximum number of errors reported per file, and of warnings per file or domain. If a file is not
/// a policy, nearly every line has an error, and nobody reads more than a few hundred errors.
pub(crate) const DIAGNOSTICS_MAX: usize = 1_000;

/// Message of the final diagnostic of a file that has [`DIAGNOSTICS_MAX`] errors.
pub(crate) const TOO_MANY_ERRORS_MESSAGE: &str =
    "reading stopped here after 1,000 errors; correct those first";

/// Source position of a node. Its fields have 32 bits to save memory, because the tree stores one
/// span per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Line number. The first line is 1.
    pub(crate) line: u32,
    /// Column in characters. The first column is 1.
    pub(crate) column: u32,
    /// Length in characters. It is 0 for lists, maps, and empty scalars, and `u32::MAX` if the
    /// span extends to the end of the line.
    pub(crate) width: u32,
}

impl Span {
    /// Span of a value that is not from a file.
    pub(crate) const NONE: Span = Span { line: 0, column: 0, width: 0 };

    /// Returns the span of a single character. `line` and `column` count from 1.
    pub(crate) fn at(line: usize, column: usize) -> Self {
        Span { line: to_u32(line), column: to_u32(column), width: 1 }
    }
}

/// Converts a number to 32 bits, saturating. A policy has at most 64 MiB, so its offsets, positions,
/// and numbers of nodes never reach the maximum.
pub(crate) fn to_u32(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

/// One step in the path to a value in a document: a map key or a list position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathStep {
    /// Step from a map to the value of this key.
    Key(Cow<'static, str>),
    /// Step from a list to the item at this position, from 0.
    Index(usize),
}

/// Path from the top level of a policy file to a key or value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(pub(crate) Vec<PathStep>);

/// Maximum number of characters quoted from a text in a message.
const QUOTED_CHARS_MAX: usize = 64;

impl Path {
    pub(crate) fn key(mut self, key: &'static str) -> Self {
        self.0.push(PathStep::Key(Cow::Borrowed(key)));
        self
    }

    pub(crate) fn index(mut self, index: usize) -> Self {
        self.0.push(PathStep::Index(index));
        self
    }

    /// Returns the path of a descriptor. `positions` contains the list positions, from 0, of its
    /// ancestors and of the descriptor itself, outermost first.
    pub(crate) fn for_descriptor(positions: &[usize]) -> Self {
        positions.iter().fold(Path::default(), |path, at| path.key("descriptors").index(*at))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Index(index) => write!(f, "[{index}]")?,
                PathStep::Key(key) => {
                    if at > 0 {
                        f.write_str(".")?;
                    }
                    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '<');
                    if !key.is_empty() && key.len() <= QUOTED_CHARS_MAX && key.chars().all(plain) {
                        f.write_str(key)?;
                    } else {
                        f.write_str(&quoted(key))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Quotes text for a message. The text is escaped and truncated to a maximum length.
pub(crate) fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}

/// Part of a map entry that a diagnostic points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Key,
    Value,
}
