//! Reads maps, lists, and text of a document as the keyword table defines them. Unknown, misplaced,
//! and mistyped keys are reported, and reading continues.
//!
//! Not here: other scalar values (`values`), checks that involve several keys (`compile`).

use std::fmt;

use super::document::Document;
use super::keywords::{self, Key, Level, NAME_BYTES_MAX, ValueType};
use super::suggestions::{
    intended_key, list_hint, map_hint, misplaced_limit_keys_message, spelling, type_name,
    unknown_key,
};
use super::yaml::scalar::Scalar;
use super::yaml::template::{TEMPLATE_ADVICE, is_template};
use super::yaml::{Children, Node, Value};
use crate::policy::compiled_policy::SourceLocation;
use crate::policy::diagnostic::{
    DIAGNOSTICS_MAX, Diagnostic, DiagnosticKind, Path, PathStep, TOO_MANY_ERRORS_MESSAGE, Target,
    quoted,
};

/// Error for an invalid value whose diagnostic has already been reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorReported;

/// Result of reading a key; `None` if the key is absent or null.
pub(crate) type ReadResult<T> = Result<Option<T>, ErrorReported>;

/// Cursor that moves through a document and collects diagnostics. Keys are read from the map that was
/// entered last.
#[derive(Debug)]
pub(crate) struct Reader<'d> {
    document: &'d Document<'d>,
    path: Path,
    fields: Option<Fields<'d>>,
    diagnostics: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
    /// Whether reading stopped early because of [`DIAGNOSTICS_MAX`] errors.
    stopped: bool,
}

/// Fields of a map whose keys have been checked against the keyword table.
#[derive(Debug)]
struct Fields<'d> {
    map: Children<'d>,
    /// Unknown keys that are probably misspellings of known ones, each with the known key and its
    /// value. They are read like the known keys, so that errors below them are reported, too.
    misspelt: Vec<(&'static str, Node<'d>, Node<'d>)>,
}

impl<'d> Reader<'d> {
    pub(crate) fn new(document: &'d Document<'d>) -> Self {
        let (path, fields, diagnostics) = (Path::default(), None, Vec::new());
        Reader { document, path, fields, diagnostics, errors: 0, warnings: 0, stopped: false }
    }

    /// Returns the key and value nodes of a key of the current map.
    fn entry(&self, key: &Key) -> Option<(Node<'d>, Node<'d>)> {
        let fields = self.fields.as_ref()?;
        fields.map.entry(key.name).or_else(|| {
            let meant = fields.misspelt.iter().find(|(meant, ..)| *meant == key.name);
            meant.map(|(_, key, value)| (*key, *value))
        })
    }

    /// Returns whether the current map has the key, even if the value is null.
    pub(crate) fn contains_key(&self, key: &Key) -> bool {
        self.entry(key).is_some()
    }

    /// Returns whether the current map has the key and the value is not null.
    pub(crate) fn is_set(&self, key: &Key) -> bool {
        self.entry(key).is_some_and(|(_, value)| !value.is_null())
    }

    /// Returns the length of all text in the value of the key, in bytes; 0 if the key is absent.
    pub(crate) fn text_bytes(&self, key: &Key) -> usize {
        self.entry(key).map_or(0, |(_, value)| value.text_bytes())
    }

    /// Returns the collected errors and warnings.
    pub(crate) fn into_diagnostics(mut self) -> Vec<Diagnostic> {
        if self.stopped {
            let (path, kind) = (Path::default(), DiagnosticKind::TooLarge);
            self.diagnostics.push(self.document.diagnostic(
                &path,
                Target::Value,
                kind,
                TOO_MANY_ERRORS_MESSAGE,
            ));
        }
        self.diagnostics
    }

    /// Returns whether reading must stop, because the file has [`DIAGNOSTICS_MAX`] errors. Stores
    /// the result for [`into_diagnostics`](Self::into_diagnostics).
    fn should_stop(&mut self) -> bool {
        self.stopped |= self.errors >= DIAGNOSTICS_MAX;
        self.stopped
    }

    /// Reports an error or a warning about the current value or its key.
    pub(crate) fn report(
        &mut self,
        at: Target,
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

    /// Reports an error or a warning about the value of `key` in the current map.
    pub(crate) fn report_key(
        &mut self,
        key: &Key,
        kind: DiagnosticKind,
        message: impl Into<String>,
    ) -> ErrorReported {
        self.descend(key.into(), |reader| reader.report(Target::Value, kind, message))
    }

    /// Returns the value of a key that the current map must have. Reports `message` if it is absent.
    pub(crate) fn require<T>(
        &mut self,
        value: Option<T>,
        at: Target,
        message: &str,
    ) -> Result<T, ErrorReported> {
        value.ok_or_else(|| self.report(at, DiagnosticKind::Missing, message))
    }

    /// Reports that the current value repeats or contradicts the value at `first`.
    pub(crate) fn report_duplicate(
        &mut self,
        message: &str,
        first: &SourceLocation,
    ) -> ErrorReported {
        let SourceLocation { file, line, path } = first;
        let message = match path {
            _ if *file != self.current_location().file => match path {
                Some(path) => format!("{message}; the first is in {}: {path}", quoted(file)),
                None => format!("{message}; the first is in {file}:{line}"),
            },
            Some(path) => format!("{message}; the first is {path}"),
            None => format!("{message}; the first is on line {line}"),
        };
        self.report(Target::Value, DiagnosticKind::Duplicate, message)
    }

    /// Returns the position of the current value in its file or resource.
    pub(crate) fn current_location(&self) -> SourceLocation {
        self.document.location(&self.path)
    }

    /// Returns the position of another item of the list to which the current value belongs.
    pub(crate) fn location_in_list(&self, at: usize) -> SourceLocation {
        let mut path = self.path.clone();
        path.0.pop();
        path.0.push(PathStep::Index(at));
        self.document.location(&path)
    }

    /// Returns whether the current value belongs to a map that is an item of a list, such as
    /// `rate_limits`.
    pub(crate) fn is_in_list(&self) -> bool {
        matches!(self.path.0.as_slice(), [.., PathStep::Index(_), PathStep::Key(_)])
    }

    /// Enters the top-level map of the file for good.
    pub(crate) fn enter_root(&mut self) -> Result<(), ErrorReported> {
        self.fields = Some(self.check_map(Level::File, self.document.root())?);
        Ok(())
    }

    /// Runs `read` in a map with the keys of this level, then returns to the current map. Fails if the
    /// value is not a map.
    pub(crate) fn in_map<T>(
        &mut self,
        level: Level,
        value: Node<'d>,
        read: impl FnOnce(&mut Self) -> Result<T, ErrorReported>,
    ) -> Result<T, ErrorReported> {
        let fields = self.check_map(level, value)?;
        let current = self.fields.replace(fields);
        let result = read(self);
        self.fields = current;
        result
    }

    /// Runs `read` in the map under `key`. Returns `None` if the key is absent.
    pub(crate) fn read_map<T>(
        &mut self,
        key: &Key,
        read: impl FnOnce(&mut Self) -> Result<T, ErrorReported>,
    ) -> ReadResult<T> {
        let ValueType::Map(level) = key.value_type else { return Ok(None) };
        self.read_value(key, |reader, value| reader.in_map(level, value, read))
    }

    /// Reads a map of names by calling `read` with the name and the value of each entry. Fails after
    /// the last one if any failed. Returns `None` if the key is absent.
    pub(crate) fn for_each_entry<T>(
        &mut self,
        key: &Key,
        mut read: impl FnMut(&mut Self, &'d str, Node<'d>) -> Result<T, ErrorReported>,
    ) -> ReadResult<Vec<T>> {
        self.read_value(key, |reader, value| {
            let Value::Map(map) = value.value() else {
                let message =
                    format!("`{}` must be a map of names, not {}", key.name, type_name(value));
                return Err(reader.report(Target::Value, DiagnosticKind::WrongType, message));
            };
            let entries = map.entries().map(|(name, value)| (name.as_step(), (name, value)));
            reader.read_items(entries, |reader, (name, value)| {
                if name.core_scalar() != Scalar::Text || name.text().is_empty() {
                    let message = format!("a name in `{}` must be text; quote it", key.name);
                    return Err(reader.report(Target::Key, DiagnosticKind::WrongType, message));
                }
                read(reader, name.text(), value)
            })
        })
    }

    /// Reads a list of maps by calling `read` in each map with its position. Fails after the last one
    /// if any failed. Returns `None` if the key is absent.
    pub(crate) fn for_each<T>(
        &mut self,
        key: &Key,
        mut read: impl FnMut(&mut Self, usize) -> Result<T, ErrorReported>,
    ) -> ReadResult<Vec<T>> {
        let ValueType::List(level) = key.value_type else { return Ok(None) };
        self.read_value(key, |reader, value| {
            let entries = reader.check_list(key, value)?.nodes().enumerate();
            let entries = entries.map(|(at, entry)| (PathStep::Index(at), (at, entry)));
            reader.read_items(entries, |reader, (at, entry)| {
                reader.in_map(level, entry, |reader| read(reader, at))
            })
        })
    }

    /// Reads the items of a list or map, each at its step. Reads all of them, so that every error is
    /// reported, unless there are too many errors. Fails if any item failed.
    pub(crate) fn read_items<I, T>(
        &mut self,
        items: impl Iterator<Item = (PathStep, I)>,
        mut read: impl FnMut(&mut Self, I) -> Result<T, ErrorReported>,
    ) -> Result<Vec<T>, ErrorReported> {
        let (mut read_items, mut reported) = (Vec::new(), None);
        for (step, item) in items {
            if self.should_stop() {
                break;
            }
            match self.descend(step, |reader| read(reader, item)) {
                Ok(item) => read_items.push(item),
                Err(error) => reported = Some(error),
            }
        }
        reported.map_or(Ok(read_items), Err)
    }

    /// Reads the text under `key`. Returns `None` if the key is absent.
    pub(crate) fn read_string(&mut self, key: &Key) -> ReadResult<String> {
        self.read_value(key, |reader, value| reader.convert_to_string(key, value))
    }

    /// Reads a list of names. Reports empty names. Returns `None` if the key is absent.
    pub(crate) fn read_names(&mut self, key: &Key) -> ReadResult<Vec<String>> {
        self.read_value(key, |reader, value| {
            let entries = reader.check_list(key, value)?.nodes().enumerate();
            let entries = entries.map(|(at, entry)| (PathStep::Index(at), entry));
            reader.read_items(entries, |reader, entry| {
                reader.check_template(format_args!("an entry of `{}`", key.name), entry)?;
                let name = reader.convert_to_string(key, entry)?;
                if name.is_empty() {
                    let message = format!("an entry of `{}` is empty; remove it", key.name);
                    return Err(reader.report(Target::Value, DiagnosticKind::Missing, message));
                }
                Ok(name)
            })
        })
    }

    /// Runs `read` with the cursor moved by one step, then moves the cursor back.
    pub(crate) fn descend<T>(&mut self, step: PathStep, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.0.push(step);
        let result = read(self);
        self.path.0.pop();
        result
    }

    /// Reads the value of a key by calling `read`, and returns its result. Returns `None` if the
    /// key is absent or null.
    pub(crate) fn read_value<T>(
        &mut self,
        key: &Key,
        read: impl FnOnce(&mut Self, Node<'d>) -> Result<T, ErrorReported>,
    ) -> ReadResult<T> {
        let entry = self.entry(key).filter(|(_, value)| !value.is_null());
        let Some((written, value)) = entry else { return Ok(None) };
        let is_exact = written.text() == key.name;
        let step = if is_exact { key.into() } else { written.as_step() };
        self.descend(step, |reader| {
            // A `value` gets only a warning, and the text of a body may have any braces.
            if ![keywords::VALUE, keywords::BODY_TEXT].contains(key) {
                reader.check_template(format_args!("`{}`", key.name), value)?;
            }
            read(reader, value).map(Some)
        })
    }

    /// Reports a value that is a template which nothing has filled in, such as `${LIMIT}`.
    fn check_template(
        &mut self,
        what: impl fmt::Display,
        value: Node<'_>,
    ) -> Result<(), ErrorReported> {
        if !is_template(value) {
            return Ok(());
        }
        let message = format!("{what} is {}, {TEMPLATE_ADVICE}", spelling(value));
        Err(self.report(Target::Value, DiagnosticKind::BadValue, message))
    }

    fn check_list(&mut self, key: &Key, value: Node<'d>) -> Result<Children<'d>, ErrorReported> {
        match value.value() {
            Value::List(list) => Ok(list),
            Value::Scalar(..) | Value::Map(_) => {
                let (name, found, hint) = (key.name, type_name(value), list_hint(value));
                let message = format!("`{name}` must be a list, not {found}; {hint}");
                Err(self.report(Target::Value, DiagnosticKind::WrongType, message))
            }
        }
    }

    /// Returns the fields of a map, and reports its unknown and misplaced keys. Fails if the value
    /// is not a map.
    fn check_map(&mut self, level: Level, value: Node<'d>) -> Result<Fields<'d>, ErrorReported> {
        let Value::Map(map) = value.value() else {
            let (title, found, hint) = (level.title(), type_name(value), map_hint(level, value));
            let message = format!("{title} must be a map of keys, not {found}{hint}");
            return Err(self.report(Target::Value, DiagnosticKind::WrongType, message));
        };
        self.check_template(level.title(), value)?;
        let mut misspelt = Vec::new();
        let mut limit_keys = Vec::new();
        for (key, value) in map.entries() {
            let (kind, message) = match key.core_scalar() {
                Scalar::Text if level.key(key.text()).is_some() => continue,
                Scalar::Text
                    if level == Level::Descriptor && Level::RateLimit.key(key.text()).is_some() =>
                {
                    limit_keys.push((key, value));
                    continue;
                }
                Scalar::Text if !key.is_collection() => {
                    let meant = intended_key(level, key.text());
                    misspelt.extend(meant.map(|meant| (meant, key, value)));
                    unknown_key(level, key.text(), meant)
                }
                _ => {
                    let message = format!("a key must be text, not {}; quote it", type_name(key));
                    (DiagnosticKind::WrongType, message)
                }
            };
            self.descend(key.as_step(), |reader| reader.report(Target::Key, kind, message));
            if self.should_stop() {
                break;
            }
        }
        // One error for all of them, because they are one mistake.
        if let Some((first, _)) = limit_keys.first() {
            let message = misplaced_limit_keys_message(map, &limit_keys);
            self.descend(first.as_step(), |reader| {
                reader.report(Target::Key, DiagnosticKind::MisplacedKey, message)
            });
        }
        Ok(Fields { map, misspelt })
    }

    /// Converts a scalar to a string. Accepts booleans and numbers, and keeps their spelling; null
    /// becomes an empty string. Fails for a list, a map, or a text that is not valid for the key.
    pub(crate) fn convert_to_string(
        &mut self,
        key: &Key,
        value: Node<'_>,
    ) -> Result<String, ErrorReported> {
        if value.is_collection() {
            let message = format!("`{}` must be text, not {}", key.name, type_name(value));
            return Err(self.report(Target::Value, DiagnosticKind::WrongType, message));
        }
        let text = if value.is_null() { String::new() } else { value.text().to_owned() };
        let (bytes_max, is_name) = match key.value_type {
            ValueType::Text { bytes_max } => (bytes_max, false),
            _ => (NAME_BYTES_MAX, true),
        };
        if text.len() > bytes_max {
            let message = format!(
                "`{}` has {} bytes, more than the maximum of {bytes_max}; shorten it",
                key.name,
                text.len()
            );
            return Err(self.report(Target::Value, DiagnosticKind::TooLarge, message));
        }
        if is_name && text.chars().any(char::is_control) {
            let message =
                format!("`{}` has a control character: {}; remove it", key.name, quoted(&text));
            return Err(self.report(Target::Value, DiagnosticKind::BadValue, message));
        }
        Ok(text)
    }
}
