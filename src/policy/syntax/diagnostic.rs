//! Diagnostics and warnings: what is wrong in a policy, where, and the way out.
//!
//! A fault is first a [`PendingDiagnostic`] that knows its path in the YAML tree; `document` turns the path
//! into a line and a column once there is something to report. Not here: what counts as a fault.

use std::borrow::Cow;
use std::fmt;

use super::excerpt::Excerpt;
use super::yaml::Node;
use crate::domain::escaped;

/// One fault or warning, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file's name, as it was given to `compile`.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Path in the file's YAML, such as `descriptors[0].rate_limit.unit`; empty at the top.
    pub path: String,
    /// What is wrong and the way out, in one sentence or two.
    pub message: String,
    /// What sort of fault it is.
    pub kind: DiagnosticKind,
    /// The source line; absent where no single line is at fault.
    pub excerpt: Option<Excerpt>,
}

impl Diagnostic {
    /// Formats the fault over several lines, as rustc does: the message below `severity` (such as
    /// `error`), the place, and the source line with a caret. Text from the file is escaped.
    ///
    /// ```
    /// use tidegate::policy::{Options, Source, compile};
    /// let text = b"domain: edge\ndescriptor: []\n".to_vec();
    /// let source = Source { name: "edge.yaml".into(), text };
    /// let faults = compile(&[source], &Options::default()).unwrap_err();
    /// assert_eq!(faults.0[0].report("error"), "\
    /// error: unknown key \"descriptor\"; did you mean `descriptors`?
    ///  --> edge.yaml:2:1
    ///   |
    /// 2 | descriptor: []
    ///   | ^^^^^^^^^^ at descriptor
    /// ");
    /// ```
    pub fn report(&self, severity: &str) -> String {
        let Diagnostic { file, line, column, path, message, .. } = self;
        let file = escaped(file);
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let mut report =
            format!("{severity}: {}\n{margin}--> {file}:{line}:{column}\n", escaped(message));
        let path = if path.is_empty() { String::new() } else { format!(" at {}", escaped(path)) };
        match &self.excerpt {
            Some(excerpt) => {
                let (text, underline) = (excerpt.text(), excerpt.underline());
                report.push_str(&format!(
                    "{margin} |\n{number} | {text}\n{margin} | {underline}{path}\n"
                ));
            }
            None if path.is_empty() => {}
            None => report.push_str(&format!("{margin} ={path}\n")),
        }
        report
    }
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

/// Every fault of every file, by file, then by place; never empty. Prints one fault a line.
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

/// What sort of fault. The last group are warnings: the policy works, but perhaps not as meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiagnosticKind {
    /// No file, an empty file.
    Empty,
    /// Not UTF-8, or a character that YAML does not allow.
    Encoding,
    /// Too large, nested too deep, or aliases that expand too far.
    TooLarge,
    /// Not YAML.
    Syntax,
    /// A second YAML document in one file.
    SecondDocument,
    /// A file of another program, such as a Kubernetes manifest.
    ForeignFile,
    /// A key that stands twice in one map.
    DuplicateKey,
    /// A key that the language does not know.
    UnknownKey,
    /// A key of the language in the wrong place.
    MisplacedKey,
    /// Not the kind of value that the key takes.
    WrongType,
    /// A value that the key does not take.
    BadValue,
    /// A number outside its bounds.
    OutOfRange,
    /// Something required is absent.
    Missing,
    /// Two settings that exclude each other.
    Conflict,
    /// Two descriptors or domains that are the same.
    Duplicate,

    /// Warning: one counter for all callers.
    OneCounterForAll,
    /// Warning: without this entry a request meets no limit at all.
    NoLimitWhenAbsent,
    /// Warning: `:path` carries the query string.
    PathAsKey,
    /// Warning: a rule that can never match, or a setting that never has an effect.
    NeverMatches,
    /// Warning: `*` in a key is a plain character.
    StarInKey,
    /// Warning: `replaces` names a limit that does not exist.
    ReplacesNobody,
    /// Warning: `requests_per_unit` is absent, which refuses everything.
    DeniesAll,
    /// Warning: limits of one call that a cluster may hold in several slots.
    SplitOverSlots,
}

impl DiagnosticKind {
    /// Whether the policy works all the same.
    pub const fn is_warning(self) -> bool {
        matches!(
            self,
            DiagnosticKind::OneCounterForAll
                | DiagnosticKind::NoLimitWhenAbsent
                | DiagnosticKind::PathAsKey
                | DiagnosticKind::NeverMatches
                | DiagnosticKind::StarInKey
                | DiagnosticKind::ReplacesNobody
                | DiagnosticKind::DeniesAll
                | DiagnosticKind::SplitOverSlots
        )
    }
}

/// The most faults, and the most warnings, that one file (for warnings: one domain) is told of. A
/// file that is no policy at all has one in every line; nobody reads beyond the first hundreds.
pub(crate) const NOTES_MAX: usize = 1_000;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Into a map, by key.
    Key(Cow<'static, str>),
    /// Into a list, by position.
    Index(usize),
}

impl Step {
    /// The step to the value of a key.
    pub(crate) fn of(key: Node<'_>) -> Self {
        Step::Key(key.text().to_owned().into())
    }
}

/// A path in a file's YAML tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(pub(crate) Vec<Step>);

/// The longest piece of a strange key that is shown: enough to recognise it.
const SHOWN_KEY_CHARS: usize = 64;

impl Path {
    pub(crate) fn key(mut self, key: &'static str) -> Self {
        self.0.push(Step::Key(Cow::Borrowed(key)));
        self
    }

    pub(crate) fn index(mut self, index: usize) -> Self {
        self.0.push(Step::Index(index));
        self
    }

    /// The path of a descriptor, by its position on each level.
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
                    if !key.is_empty() && key.len() <= SHOWN_KEY_CHARS && key.chars().all(plain) {
                        f.write_str(key)?;
                    } else {
                        f.write_str(&shown(key))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A text as messages show it: quoted, escaped, cut off where it is long.
pub(crate) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_KEY_CHARS).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}

/// Which end of a path's last step a fault points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The key (in a list: the entry).
    Key,
    /// The value.
    Value,
}

/// A fault that knows its path but not its line yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingDiagnostic {
    /// Which file, by its position among the documents.
    pub(crate) file: usize,
    pub(crate) path: Path,
    pub(crate) at: At,
    pub(crate) kind: DiagnosticKind,
    pub(crate) message: String,
    /// The first of two things that must not stand twice: its file and path, told at the end of
    /// the message.
    pub(crate) first: Option<(usize, Path)>,
}
