//! Reads maps of the policy language by its table: every unknown, misplaced or mistyped key is
//! noted with its path, and reading goes on.
//!
//! Not here: what a key means (`descriptor`, `rule`, `body`), lines and columns (`document`).

use std::borrow::Cow;
use std::sync::Arc;

use super::diagnostic::{At, DiagnosticKind, NOTES_MAX, Path, PendingDiagnostic, Step, shown};
use super::document::Document;
use super::keywords::{Key, Level, NAME_BYTES_MAX, Shape};
use super::scalar::Scalar;
use super::suggestions::{kind_of, unknown_key};
use super::yaml::{List, Map, Node, Style, Value};
use crate::domain::needs_escape;
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
    map: Map<'d>,
}

impl Fields<'_> {
    /// Whether the key is present, be it with null.
    pub(crate) fn mentions(&self, key: &Key) -> bool {
        self.map.get(key.name).is_some()
    }

    /// Whether the key is present with anything but null.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.map.get(key.name).is_some_and(|(_, value)| !value.is_null())
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

    /// Where the value of the present path is written.
    pub(crate) fn written(&self) -> WrittenAt {
        let line = self.document.span(&self.path, At::Value).line;
        WrittenAt { file: Arc::clone(&self.name), line }
    }

    /// The file's top map.
    pub(crate) fn root(&mut self) -> Result<Fields<'d>, Reported> {
        self.open(Level::File, self.document.root())
    }

    /// A map below the present one.
    pub(crate) fn map<T>(
        &mut self,
        fields: &Fields<'d>,
        key: &Key,
        read: impl FnOnce(&mut Self, &Fields<'d>) -> Result<T, Reported>,
    ) -> Got<T> {
        let Shape::Map(level) = key.shape else {
            return Ok(None);
        };
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
        let Shape::MapOf(level) = key.shape else {
            return Ok(None);
        };
        self.at(fields, key, |reader, value| {
            let Value::Map(map) = value.value() else {
                let (name, kind) = (key.name, kind_of(value));
                let message = format!("`{name}` is a map of names, not {kind}");
                return Err(reader.note(At::Value, DiagnosticKind::WrongType, message));
            };
            for (name, value) in map.iter() {
                reader.within(Step::of(name), |reader| {
                    if name.core_scalar() != Scalar::Text || name.text().is_empty() {
                        let message = format!("a name in `{}` is text; quote it", key.name);
                        reader.note(At::Key, DiagnosticKind::WrongType, message);
                    } else if let Ok(fields) = reader.open(level, value) {
                        read(reader, name.text(), &fields);
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
        let Shape::List(level) = key.shape else {
            return Ok(None);
        };
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
        read: impl FnOnce(&mut Self, Node<'d>) -> Result<T, Reported>,
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
        read: impl FnOnce(&mut Self, Node<'d>) -> Got<T>,
    ) -> Got<T> {
        match fields.map.get(key.name) {
            Some((_, value)) if !value.is_null() => {
                self.within(Step::Key(key.name.into()), |reader| read(reader, value))
            }
            Some(_) | None => Ok(None),
        }
    }

    fn list(&mut self, key: &Key, value: Node<'d>) -> Result<List<'d>, Reported> {
        match value.value() {
            Value::List(list) => Ok(list),
            Value::Scalar(..) | Value::Map(_) => {
                let message = format!(
                    "`{}` is a list, not {}; begin each entry with `- `",
                    key.name,
                    kind_of(value)
                );
                Err(self.note(At::Value, DiagnosticKind::WrongType, message))
            }
        }
    }

    /// Checks that a value is a map and that every key of it belongs there.
    fn open(&mut self, level: Level, value: Node<'d>) -> Result<Fields<'d>, Reported> {
        let Value::Map(map) = value.value() else {
            let message = format!("{} is a map of keys, not {}", level.title(), kind_of(value));
            return Err(self.note(At::Value, DiagnosticKind::WrongType, message));
        };
        for (key, _) in map.iter() {
            let (kind, message) = match key.core_scalar() {
                Scalar::Text if level.key(key.text()).is_some() => continue,
                Scalar::Text if !key.is_collection() => unknown_key(level, key.text()),
                _ => {
                    let message = format!("a key is text, not {}; quote it", kind_of(key));
                    (DiagnosticKind::WrongType, message)
                }
            };
            self.within(Step::of(key), |reader| reader.note(At::Key, kind, message));
        }
        Ok(Fields { map })
    }

    /// The text that a value stands for.
    pub(crate) fn read_text(&mut self, key: &Key, value: Node<'_>) -> Result<String, Reported> {
        if value.is_collection() {
            let message = format!("`{}` is text, not {}", key.name, kind_of(value));
            return Err(self.note(At::Value, DiagnosticKind::WrongType, message));
        }
        let text = match value.core_scalar() {
            Scalar::Null => String::new(),
            Scalar::Text | Scalar::Bool(_) => value.text().to_owned(),
            Scalar::Int(number) if i64::try_from(number).is_ok() => value.text().to_owned(),
            Scalar::Int(_) | Scalar::Float(_) => {
                let message = format!(
                    "{} is a number that `{}` cannot keep exactly; put it in quotes",
                    source(value),
                    key.name
                );
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
}

/// The longest scalar that a message repeats without quotes.
const SOURCE_CHARS_MAX: usize = 64;

/// A scalar as it stands in the file, or the kind of any other value.
pub(crate) fn source(value: Node<'_>) -> Cow<'_, str> {
    match value.value() {
        Value::Scalar("", Style::Plain) => kind_of(value).into(),
        Value::Scalar(text, Style::Plain | Style::Float)
            if text.chars().nth(SOURCE_CHARS_MAX).is_none() && !text.contains(needs_escape) =>
        {
            text.into()
        }
        Value::Scalar(text, _) => shown(text).into(),
        Value::List(_) | Value::Map(_) => kind_of(value).into(),
    }
}
