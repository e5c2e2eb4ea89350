//! Errors and warnings about a policy: what is wrong, where, and what to do.
//!
//! Not here: what counts as an error.

use std::borrow::Cow;
use std::fmt;

use super::excerpt::Excerpt;
use super::keywords::Key;
use super::yaml::{Node, Span};
use crate::domain::escaped;

/// An error or a warning about a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Name of the file, as given to `compile`.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Path in the file, such as `descriptors[0].rate_limit.unit`; empty at the top.
    pub path: String,
    /// What is wrong, mostly followed by `; ` and what to do.
    pub message: String,
    /// Kind of the error or warning.
    pub kind: DiagnosticKind,
    /// Source line; `None` where the file as a whole is wrong.
    pub excerpt: Option<Excerpt>,
}

impl Diagnostic {
    /// Creates a diagnostic without a path and a source line.
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

    /// Formats the diagnostic as rustc does, with the source line. `severity` is the first word, such
    /// as `error`. Text from the file is escaped. `Display` has everything but the source line on
    /// one line.
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
            let (text, underline) = (excerpt.text(), excerpt.underline());
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

/// Splits a message at the first `; ` outside quotes.
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
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Every error of every file, by file, then by position; never empty. Displays one on each line.
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

/// Kind of an error or, from `OneCounterForAll` on, of a warning: the policy is valid, but probably a
/// mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiagnosticKind {
    /// No file, an empty file.
    Empty,
    /// Not UTF-8, or a character that YAML does not allow.
    Encoding,
    /// Too large, nested too deeply, or aliases that expand too far.
    TooLarge,
    /// Not YAML.
    Syntax,
    /// A second YAML document in one file.
    SecondDocument,
    /// A file of another program, such as a Kubernetes manifest.
    ForeignFile,
    /// The same key twice in one map.
    DuplicateKey,
    /// A key that the language does not have.
    UnknownKey,
    /// A key of the language that belongs elsewhere.
    MisplacedKey,
    /// A value of another type than the key takes.
    WrongType,
    /// A value that the key does not take.
    BadValue,
    /// A number outside its bounds.
    OutOfRange,
    /// Something required is absent.
    Missing,
    /// Two keys that exclude each other.
    Conflict,
    /// The same descriptor or domain twice.
    Duplicate,

    /// Warning: one counter for all callers.
    OneCounterForAll,
    /// Warning: a request without this entry has no limit at all.
    NoLimitWhenAbsent,
    /// Warning: `:path` includes the query string.
    PathAsKey,
    /// Warning: a rule that can never match, or a key without effect.
    NeverMatches,
    /// Warning: `*` in a key is not a wildcard.
    StarInKey,
    /// Warning: `replaces` names a limit that does not exist.
    ReplacesNobody,
    /// Warning: `requests_per_unit` is absent, which refuses everything.
    DeniesAll,
    /// Warning: limits of one call in several slots of a Redis Cluster.
    SplitOverSlots,
}

impl DiagnosticKind {
    /// Returns whether the policy is valid all the same.
    pub fn is_warning(self) -> bool {
        self >= DiagnosticKind::OneCounterForAll
    }
}

/// Most errors reported of one file, and most warnings of one file or domain. A file that is no
/// policy has an error on every line, and nobody reads beyond the first few hundred.
pub(crate) const DIAGNOSTICS_MAX: usize = 1_000;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Into a map, by key.
    Key(Cow<'static, str>),
    /// Into a list, by position.
    Index(usize),
}

impl Step {
    /// Returns the step from a map to the value of a key.
    pub(crate) fn of(key: Node<'_>) -> Self {
        Step::Key(key.text().to_owned().into())
    }
}

impl From<&Key> for Step {
    fn from(key: &Key) -> Self {
        Step::Key(key.name.into())
    }
}

/// A path from the top of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(pub(crate) Vec<Step>);

/// Longest part of a text that a message repeats, in characters.
const QUOTED_CHARS_MAX: usize = 64;

impl Path {
    pub(crate) fn key(mut self, key: &'static str) -> Self {
        self.0.push(Step::Key(Cow::Borrowed(key)));
        self
    }

    pub(crate) fn index(mut self, index: usize) -> Self {
        self.0.push(Step::Index(index));
        self
    }

    /// Returns the path of a descriptor, given its index on each level.
    pub(crate) fn of_descriptor(positions: &[usize]) -> Self {
        positions.iter().fold(Path::default(), |path, at| path.key("descriptors").index(*at))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
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

/// Quotes text for a message: escaped, and cut where it is long.
pub(crate) fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}

/// What a diagnostic points at: the key at the end of its path, or the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Key,
    Value,
}
