//! Walks a document by the keyword table. Reports every unknown, misplaced or mistyped key and
//! continues.
//!
//! Not here: single values (`values`), what keys mean together (`compile`).

use std::borrow::Cow;

use super::diagnostic::{At, DIAGNOSTICS_MAX, Diagnostic, DiagnosticKind, Path, Step, quoted};
use super::document::Document;
use super::keywords::{Key, Level, NAME_BYTES_MAX, Shape};
use super::scalar::Scalar;
use super::suggestions::{type_name, unknown_key};
use super::yaml::{Children, Node, Style, Value};
use crate::domain::needs_escape;
use crate::policy::compile::spec::SourceLocation;

/// Proof that the error in a value has been reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorReported;

/// Value of a key; `None` where the key is absent or null.
pub(crate) type ReadResult<T> = Result<Option<T>, ErrorReported>;

/// Position in a document, and the diagnostics so far.
#[derive(Debug)]
pub(crate) struct Reader<'d> {
    document: &'d Document<'d>,
    path: Path,
    diagnostics: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
}

/// A map whose keys have been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'d> {
    map: Children<'d>,
}

impl Fields<'_> {
    /// Returns whether the key is present, even with null.
    pub(crate) fn mentions(&self, key: &Key) -> bool {
        self.map.entry(key.name).is_some()
    }

    /// Returns whether the key is present with anything but null.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.map.entry(key.name).is_some_and(|(_, value)| !value.is_null())
    }
}

impl<'d> Reader<'d> {
    pub(crate) fn new(document: &'d Document<'d>) -> Self {
        let (path, diagnostics) = (Path::default(), Vec::new());
        Reader { document, path, diagnostics, errors: 0, warnings: 0 }
    }

    /// Returns everything reported.
    pub(crate) fn into_diagnostics(mut self) -> Vec<Diagnostic> {
        let more = self.errors.saturating_sub(DIAGNOSTICS_MAX);
        if more > 0 {
            let message = format!("{more} more errors in this file are not shown");
            let (path, kind) = (Path::default(), DiagnosticKind::TooLarge);
            self.diagnostics.push(self.document.diagnostic(&path, At::Value, kind, message));
        }
        self.diagnostics
    }

    /// Reports an error or a warning at the current path.
    pub(crate) fn report(
        &mut self,
        at: At,
        kind: DiagnosticKind,
        message: impl Into<String>,
    ) -> ErrorReported {
        let count = if kind.is_warning() { &mut self.warnings } else { &mut self.errors };
        *count += 1;
        if *count <= DIAGNOSTICS_MAX {
            self.diagnostics.push(self.document.diagnostic(&self.path, at, kind, message));
        }
        ErrorReported
    }

    /// Reports an error or a warning at a key of the current map.
    pub(crate) fn report_key(
        &mut self,
        key: &Key,
        kind: DiagnosticKind,
        message: impl Into<String>,
    ) -> ErrorReported {
        self.within(key.into(), |reader| reader.report(At::Value, kind, message))
    }

    /// Reports that the current path repeats or contradicts an earlier one.
    pub(crate) fn report_duplicate(
        &mut self,
        message: &str,
        first: &SourceLocation,
    ) -> ErrorReported {
        let SourceLocation { file, line } = first;
        let message = if *file == self.here().file {
            format!("{message}; the first is on line {line}")
        } else {
            format!("{message}; the first is in {file}:{line}")
        };
        self.report(At::Value, DiagnosticKind::Duplicate, message)
    }

    /// Returns the file and line of the current value.
    pub(crate) fn here(&self) -> SourceLocation {
        self.document.written_at(&self.path)
    }

    /// Opens the top map of the file.
    pub(crate) fn root(&mut self) -> Result<Fields<'d>, ErrorReported> {
        self.open(Level::File, self.document.root())
    }

    /// Reads the map of a key.
    pub(crate) fn map<T>(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        read: impl FnOnce(&mut Self, &Fields<'d>) -> Result<T, ErrorReported>,
    ) -> ReadResult<T> {
        let Shape::Map(level) = key.shape else { return Ok(None) };
        self.value(fields, key, |reader, value| {
            let fields = reader.open(level, value)?;
            read(reader, &fields).map(Some)
        })
    }

    /// Reads a map of maps: calls `read` with the name and the keys of each that is a map.
    pub(crate) fn each_named(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        mut read: impl FnMut(&mut Self, &'d str, &Fields<'d>),
    ) -> ReadResult<()> {
        let Shape::MapOf(level) = key.shape else { return Ok(None) };
        self.value(fields, key, |reader, value| {
            let Value::Map(map) = value.value() else {
                let message =
                    format!("`{}` must be a map of names, not {}", key.name, type_name(value));
                return Err(reader.report(At::Value, DiagnosticKind::WrongType, message));
            };
            for (name, value) in map.entries() {
                reader.within(Step::of(name), |reader| {
                    if name.core_scalar() != Scalar::Text || name.text().is_empty() {
                        let message = format!("a name in `{}` must be text; quote it", key.name);
                        reader.report(At::Key, DiagnosticKind::WrongType, message);
                    } else if let Ok(fields) = reader.open(level, value) {
                        read(reader, name.text(), &fields);
                    }
                });
            }
            Ok(Some(()))
        })
    }

    /// Reads a list of maps: calls `read` with the index and the keys of each that is a map.
    pub(crate) fn each(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        mut read: impl FnMut(&mut Self, usize, &Fields<'d>),
    ) -> ReadResult<()> {
        let Shape::List(level) = key.shape else { return Ok(None) };
        self.value(fields, key, |reader, value| {
            for (at, entry) in reader.list(key, value)?.nodes().enumerate() {
                reader.within(Step::Index(at), |reader| {
                    if let Ok(fields) = reader.open(level, entry) {
                        read(reader, at, &fields);
                    }
                });
            }
            Ok(Some(()))
        })
    }

    /// Reads a map of anything.
    pub(crate) fn any_map<T>(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        read: impl FnOnce(&mut Self, Node<'d>) -> Result<T, ErrorReported>,
    ) -> ReadResult<T> {
        self.value(fields, key, |reader, value| read(reader, value).map(Some))
    }

    /// Reads text or a name.
    pub(crate) fn text(&mut self, fields: &Fields<'d>, key: &Key) -> ReadResult<String> {
        self.value(fields, key, |reader, value| reader.read_text(key, value).map(Some))
    }

    /// Reads a list of names, none of them empty.
    pub(crate) fn names(&mut self, fields: &Fields<'d>, key: &Key) -> ReadResult<Vec<String>> {
        self.value(fields, key, |reader, value| {
            let (mut names, mut reported) = (Vec::new(), None);
            for (at, entry) in reader.list(key, value)?.nodes().enumerate() {
                let name = reader.within(Step::Index(at), |reader| {
                    let name = reader.read_text(key, entry)?;
                    if name.is_empty() {
                        let message = format!("an entry of `{}` is empty; remove it", key.name);
                        return Err(reader.report(At::Value, DiagnosticKind::Missing, message));
                    }
                    Ok(name)
                });
                match name {
                    Ok(name) => names.push(name),
                    Err(fault) => reported = Some(fault),
                }
            }
            reported.map_or(Ok(Some(names)), Err)
        })
    }

    /// Runs `read` one step further down.
    pub(crate) fn within<T>(&mut self, step: Step, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.0.push(step);
        let result = read(self);
        self.path.0.pop();
        result
    }

    /// Runs `read` on the value of a key, unless there is none.
    pub(crate) fn value<T>(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        read: impl FnOnce(&mut Self, Node<'d>) -> ReadResult<T>,
    ) -> ReadResult<T> {
        match fields.map.entry(key.name) {
            Some((_, value)) if !value.is_null() => {
                self.within(key.into(), |reader| read(reader, value))
            }
            Some(_) | None => Ok(None),
        }
    }

    fn list(&mut self, key: &Key, value: Node<'d>) -> Result<Children<'d>, ErrorReported> {
        match value.value() {
            Value::List(list) => Ok(list),
            Value::Scalar(..) | Value::Map(_) => {
                let message = format!(
                    "`{}` must be a list, not {}; begin each entry with `- `",
                    key.name,
                    type_name(value)
                );
                Err(self.report(At::Value, DiagnosticKind::WrongType, message))
            }
        }
    }

    /// Checks that a value is a map, and reports keys that do not belong there.
    fn open(&mut self, level: Level, value: Node<'d>) -> Result<Fields<'d>, ErrorReported> {
        let Value::Map(map) = value.value() else {
            let message =
                format!("{} must be a map of keys, not {}", level.title(), type_name(value));
            return Err(self.report(At::Value, DiagnosticKind::WrongType, message));
        };
        for (key, _) in map.entries() {
            let (kind, message) = match key.core_scalar() {
                Scalar::Text if level.key(key.text()).is_some() => continue,
                Scalar::Text if !key.is_collection() => unknown_key(level, key.text()),
                _ => {
                    let message = format!("a key must be text, not {}; quote it", type_name(key));
                    (DiagnosticKind::WrongType, message)
                }
            };
            self.within(Step::of(key), |reader| reader.report(At::Key, kind, message));
        }
        Ok(Fields { map })
    }

    /// Reads a scalar as text. Integers and booleans are text too, as they are written.
    pub(crate) fn read_text(
        &mut self,
        key: &Key,
        value: Node<'_>,
    ) -> Result<String, ErrorReported> {
        if value.is_collection() {
            let message = format!("`{}` must be text, not {}", key.name, type_name(value));
            return Err(self.report(At::Value, DiagnosticKind::WrongType, message));
        }
        let text = match value.core_scalar() {
            Scalar::Null => String::new(),
            Scalar::Text | Scalar::Bool(_) => value.text().to_owned(),
            Scalar::Int(number) if i64::try_from(number).is_ok() => value.text().to_owned(),
            Scalar::Int(_) | Scalar::Float(_) => {
                let message = format!(
                    "{} is a number that `{}` cannot keep exactly; put it in quotes",
                    as_written(value),
                    key.name
                );
                return Err(self.report(At::Value, DiagnosticKind::WrongType, message));
            }
        };
        let (bytes_max, is_name) = match key.shape {
            Shape::Text { bytes_max } => (bytes_max, false),
            _ => (NAME_BYTES_MAX, true),
        };
        if text.len() > bytes_max {
            let message = format!(
                "`{}` has {} bytes, more than the maximum of {bytes_max}; shorten it",
                key.name,
                text.len()
            );
            return Err(self.report(At::Value, DiagnosticKind::TooLarge, message));
        }
        if is_name && text.chars().any(char::is_control) {
            let message =
                format!("`{}` has a control character: {}; remove it", key.name, quoted(&text));
            return Err(self.report(At::Value, DiagnosticKind::BadValue, message));
        }
        Ok(text)
    }
}

/// Longest scalar that a message repeats without quotes, in characters.
const UNQUOTED_CHARS_MAX: usize = 64;

/// Returns a scalar as it is written, or the type of any other value.
pub(crate) fn as_written(value: Node<'_>) -> Cow<'_, str> {
    let needs_quotes = |c| needs_escape(c) || matches!(c, '"' | '`' | ';');
    match value.value() {
        Value::Scalar("", Style::Plain) => type_name(value).into(),
        Value::Scalar(text, Style::Plain | Style::Float)
            if text.chars().nth(UNQUOTED_CHARS_MAX).is_none() && !text.contains(needs_quotes) =>
        {
            text.into()
        }
        Value::Scalar(text, _) => quoted(text).into(),
        Value::List(_) | Value::Map(_) => type_name(value).into(),
    }
}
