//! Reads maps of the policy language by its table: every unknown, misplaced or mistyped key is
//! noted with its path, and reading goes on.
//!
//! Not here: what a key means (`descriptor`, `rule`, `body`), lines and columns (`document`).

use std::sync::Arc;

use serde_yaml::{Mapping, Value};

use super::diagnostic::{At, DiagnosticKind, NOTES_MAX, Path, PendingDiagnostic, Step, shown};
use super::document::Document;
use super::keywords::NAME_BYTES_MAX;
use super::keywords::find;
use super::language::{Key, Level, Shape};
use super::suggestions::{kind_of, stranger};
use super::yaml::key_text;
use crate::policy::compile::spec::WrittenAt;

/// The value is faulty, and the fault is noted already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reported;

/// What a key has: its value, nothing (absent or null), or a fault that is noted already.
pub(crate) type Got<T> = Result<Option<T>, Reported>;

/// Walks one file's tree.
#[derive(Debug)]
pub(crate) struct Reader<'d> {
    file: usize,
    name: Arc<str>,
    pub(crate) document: &'d Document<'d>,
    pub(crate) path: Path,
    drafts: Vec<PendingDiagnostic>,
    faults: usize,
    warnings: usize,
}

/// A map whose keys are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'d> {
    map: &'d Mapping,
}

impl Fields<'_> {
    /// Whether the key stands there, be it with null.
    pub(crate) fn mentions(&self, key: &Key) -> bool {
        self.map.contains_key(key.name)
    }

    /// Whether the key stands there with anything but null.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.map.get(key.name).is_some_and(|value| !value.is_null())
    }
}

impl<'d> Reader<'d> {
    pub(crate) fn new(file: usize, document: &'d Document<'d>) -> Self {
        Reader {
            file,
            name: document.name().into(),
            document,
            path: Path::default(),
            drafts: Vec::new(),
            faults: 0,
            warnings: 0,
        }
    }

    /// What was noted.
    pub(crate) fn into_drafts(mut self) -> Vec<PendingDiagnostic> {
        let more = self.faults.saturating_sub(NOTES_MAX);
        if more > 0 {
            let message = format!("this file has {more} more faults than are shown here");
            let (file, kind) = (self.file, DiagnosticKind::TooLarge);
            let path = Path::default();
            self.drafts.push(PendingDiagnostic {
                file,
                path,
                at: At::Value,
                kind,
                message,
                first: None,
            });
        }
        self.drafts
    }

    /// Notes a fault or a warning at the present path.
    pub(crate) fn note(&mut self, at: At, kind: DiagnosticKind, message: String) -> Reported {
        let (file, path) = (self.file, self.path.clone());
        self.keep(PendingDiagnostic { file, path, at, kind, message, first: None })
    }

    fn keep(&mut self, draft: PendingDiagnostic) -> Reported {
        let count = if draft.kind.is_warning() { &mut self.warnings } else { &mut self.faults };
        *count += 1;
        if *count <= NOTES_MAX {
            self.drafts.push(draft);
        }
        Reported
    }

    /// Notes a fault or a warning at a key of the present map.
    pub(crate) fn note_at(&mut self, key: &Key, kind: DiagnosticKind, message: String) -> Reported {
        self.within(Step::Key(key.name.into()), |reader| reader.note(At::Value, kind, message))
    }

    /// Notes that the present path must not stand beside an earlier one, its file and path.
    pub(crate) fn note_same(
        &mut self,
        kind: DiagnosticKind,
        message: String,
        first: (usize, Path),
    ) {
        let (file, path) = (self.file, self.path.clone());
        self.keep(PendingDiagnostic {
            file,
            path,
            at: At::Value,
            kind,
            message,
            first: Some(first),
        });
    }

    /// An entry of the list whose entry the present path is.
    pub(crate) fn beside(&self, index: usize) -> (usize, Path) {
        let mut path = self.path.clone();
        path.0.pop();
        (self.file, path.index(index))
    }

    /// Where the value of the present path is written. The first call reads the file's places, which
    /// costs about as much as reading its values.
    pub(crate) fn written(&self) -> WrittenAt {
        let (line, _) = self.document.place(&self.path, At::Value);
        // A file is at most a few GiB long, so it has fewer lines than a u32 counts.
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        WrittenAt { file: Arc::clone(&self.name), line }
    }

    /// The file's top map.
    pub(crate) fn root(&mut self) -> Result<Fields<'d>, Reported> {
        self.open(Level::File, &self.document.root)
    }

    /// A map below the present one.
    pub(crate) fn map<T>(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        read: impl FnOnce(&mut Self, &Fields<'d>) -> Result<T, Reported>,
    ) -> Got<T> {
        let Shape::Map(level) = key.shape else { return Ok(None) };
        self.at(fields, key, |reader, value| {
            let fields = reader.open(level, value)?;
            read(reader, &fields).map(Some)
        })
    }

    /// The maps of a map below the present one, by name. `read` is called for each that is a map.
    pub(crate) fn each_named(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        mut read: impl FnMut(&mut Self, &'d str, &Fields<'d>),
    ) -> Got<()> {
        let Shape::MapOf(level) = key.shape else { return Ok(None) };
        self.at(fields, key, |reader, value| {
            let Value::Mapping(map) = value else {
                let (name, kind) = (key.name, kind_of(value));
                let message = format!("`{name}` is a map of names, not {kind}");
                return Err(reader.note(At::Value, DiagnosticKind::WrongType, message));
            };
            for (name, value) in map {
                let text = key_text(name);
                reader.within(Step::Key(text.into()), |reader| match name {
                    Value::String(name) if !name.is_empty() => {
                        if let Ok(fields) = reader.open(level, value) {
                            read(reader, name, &fields);
                        }
                    }
                    _ => {
                        let message = format!("a name in `{}` is text; quote it", key.name);
                        reader.note(At::Key, DiagnosticKind::WrongType, message);
                    }
                });
            }
            Ok(Some(()))
        })
    }

    /// The maps of a list below the present map. `read` is called for each entry that is a map.
    pub(crate) fn each(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        mut read: impl FnMut(&mut Self, usize, &Fields<'d>),
    ) -> Got<()> {
        let Shape::List(level) = key.shape else { return Ok(None) };
        self.at(fields, key, |reader, value| {
            for (at, entry) in reader.list(key, value)?.iter().enumerate() {
                reader.within(Step::Index(at), |reader| {
                    if let Ok(fields) = reader.open(level, entry) {
                        read(reader, at, &fields);
                    }
                });
            }
            Ok(Some(()))
        })
    }

    /// A map of anything, as it is.
    pub(crate) fn free<T>(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        read: impl FnOnce(&mut Self, &'d Value) -> Result<T, Reported>,
    ) -> Got<T> {
        self.at(fields, key, |reader, value| read(reader, value).map(Some))
    }

    /// Text, or a name.
    pub(crate) fn text(&mut self, fields: &Fields<'d>, key: &Key) -> Got<String> {
        self.at(fields, key, |reader, value| reader.read_text(key, value).map(Some))
    }

    /// A list of names, none of them empty.
    pub(crate) fn names(&mut self, fields: &Fields<'d>, key: &Key) -> Got<Vec<String>> {
        self.at(fields, key, |reader, value| {
            let (mut names, mut reported) = (Vec::new(), None);
            for (at, entry) in reader.list(key, value)?.iter().enumerate() {
                let name = reader.within(Step::Index(at), |reader| {
                    let name = reader.read_text(key, entry)?;
                    if name.is_empty() {
                        let message = format!("an entry of `{}` is empty; remove it", key.name);
                        return Err(reader.note(At::Value, DiagnosticKind::Missing, message));
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

    /// Goes a step down for as long as `read` runs.
    pub(crate) fn within<T>(&mut self, step: Step, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.0.push(step);
        let result = read(self);
        self.path.0.pop();
        result
    }

    /// Reads the value of a key, unless there is none.
    pub(crate) fn at<T>(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        read: impl FnOnce(&mut Self, &'d Value) -> Got<T>,
    ) -> Got<T> {
        match fields.map.get(key.name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.within(Step::Key(key.name.into()), |reader| read(reader, value)),
        }
    }

    fn list(&mut self, key: &Key, value: &'d Value) -> Result<&'d [Value], Reported> {
        match value {
            Value::Sequence(list) => Ok(list),
            other => {
                let message = format!(
                    "`{}` is a list, not {}; begin each entry with `- `",
                    key.name,
                    kind_of(other)
                );
                Err(self.note(At::Value, DiagnosticKind::WrongType, message))
            }
        }
    }

    /// Checks that a value is a map and that every key of it belongs there.
    fn open(&mut self, level: Level, value: &'d Value) -> Result<Fields<'d>, Reported> {
        let Value::Mapping(map) = value else {
            let message = format!("{} is a map of keys, not {}", level.words(), kind_of(value));
            return Err(self.note(At::Value, DiagnosticKind::WrongType, message));
        };
        for key in map.keys() {
            let text = key_text(key);
            let Value::String(name) = key else {
                let message = format!("a key is text, not {}; quote it", kind_of(key));
                self.within(Step::Key(text.into()), |reader| {
                    reader.note(At::Key, DiagnosticKind::WrongType, message)
                });
                continue;
            };
            if find(level, name).is_some() {
                continue;
            }
            let (kind, message) = stranger(level, name);
            self.within(Step::Key(text.into()), |reader| reader.note(At::Key, kind, message));
        }
        Ok(Fields { map })
    }

    /// The text that a value stands for.
    pub(crate) fn read_text(&mut self, key: &Key, value: &Value) -> Result<String, Reported> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Bool(_) => self.source(value),
            Value::Number(number) if number.as_i64().is_some() => self.source(value),
            Value::Number(_) => {
                let message = format!(
                    "{} is a number that `{}` cannot keep exactly; put it in quotes",
                    self.source(value),
                    key.name
                );
                return Err(self.note(At::Value, DiagnosticKind::WrongType, message));
            }
            other => {
                let message = format!("`{}` is text, not {}", key.name, kind_of(other));
                return Err(self.note(At::Value, DiagnosticKind::WrongType, message));
            }
        };
        let (bytes_max, is_name) = match key.shape {
            Shape::Text { bytes_max } => (bytes_max, false),
            _ => (NAME_BYTES_MAX, true),
        };
        if text.len() > bytes_max {
            let message = format!(
                "`{}` has {} bytes, and may have at most {bytes_max}; shorten it",
                key.name,
                text.len()
            );
            return Err(self.note(At::Value, DiagnosticKind::TooLarge, message));
        }
        if is_name && text.chars().any(char::is_control) {
            let message =
                format!("`{}` has a control character: {}; remove it", key.name, shown(&text));
            return Err(self.note(At::Value, DiagnosticKind::BadValue, message));
        }
        Ok(text)
    }

    /// A scalar as it stands in the file, for other values their kind.
    pub(crate) fn source(&self, value: &Value) -> String {
        match value {
            Value::String(_) | Value::Bool(_) | Value::Number(_) => {
                match self.document.scalar(&self.path) {
                    Some((text, true)) => text.to_owned(),
                    Some((text, false)) => shown(text),
                    None => key_text(value),
                }
            }
            other => kind_of(other).to_owned(),
        }
    }
}
