//! One policy file, read: its tree of values, and the places of what is in it on demand.
//!
//! Not here: what the values mean (`reader` and those who use it).

use std::cell::OnceCell;

use serde_yaml::Value;

use super::diagnostic::{
    At, Diagnostic, DiagnosticKind, NOTES_MAX, Path, PendingDiagnostic, shown,
};
use super::layout;
use super::layout::{ALIASED_NODES_MAX, DEPTH_MAX, Obstacle, Place};
use super::places::Places;
use super::yaml;
use crate::policy::source::{Options, Source, fault_at};

/// The longest piece of a tag that is shown: enough to recognise it.
const SHOWN_TAG_CHARS: usize = 64;

/// A file whose YAML could be read.
#[derive(Debug)]
pub(crate) struct Document<'s> {
    name: &'s str,
    text: &'s str,
    pub(crate) root: Value,
    places: OnceCell<Option<Places>>,
}

impl<'s> Document<'s> {
    /// Reads a file. Beside the document come the faults that do not keep it from being read.
    ///
    /// # Errors
    ///
    /// The one fault that stands alone for its file: not UTF-8, too large, too deep, not YAML,
    /// empty.
    pub(crate) fn read(
        source: &'s Source,
        options: &Options,
    ) -> Result<(Self, Vec<Diagnostic>), Box<Diagnostic>> {
        let text = source.decode(options)?;
        let mut faults = Vec::new();
        if let Some((obstacle, place)) = layout::survey(text) {
            let fault = obstacle.fault(&source.name, place);
            if obstacle != Obstacle::SecondDocument {
                return Err(Box::new(fault));
            }
            faults.push(fault);
        }
        let tree = yaml::read(text).map_err(|error| syntax_fault(&source.name, text, &error))?;
        if tree.root.is_null() {
            let message = "the file is empty; a policy needs at least `domain: NAME`";
            return Err(
                fault_at(&source.name, (1, 1), DiagnosticKind::Empty, message.to_owned()).into()
            );
        }
        let (name, places) = (source.name.as_str(), OnceCell::new());
        let mut document = Document { name, text, root: tree.root, places };
        let mut bad = Vec::new();
        yaml::merge(&mut document.root, &mut Path::default(), &mut bad);
        faults.extend(bad.into_iter().map(|path| {
            let message = "`<<` merges maps into this one; give it an alias of a map, or a list of \
                           such aliases";
            document.fault(&path, At::Key, DiagnosticKind::WrongType, message.to_owned())
        }));
        if tree.has_repeated_keys {
            document.repeated_keys(&mut faults);
        }
        if tree.has_tags || text.contains('!') {
            document.tags(tree.has_tags, &mut faults);
        }
        Ok((document, faults))
    }

    fn repeated_keys(&self, faults: &mut Vec<Diagnostic>) {
        let repeated = self.places().into_iter().flat_map(|places| &places.repeated);
        for repeated in repeated.take(NOTES_MAX) {
            let way_out = if repeated.key == "<<" {
                "merge several maps as one list: `<<: [*a, *b]`"
            } else {
                "keep one of the two"
            };
            let message = format!(
                "the key {} stands here a second time, the first is in line {}; {way_out}",
                shown(&repeated.key),
                repeated.first_line
            );
            let mut fault =
                fault_at(self.name, repeated.place, DiagnosticKind::DuplicateKey, message);
            fault.path = repeated.path.to_string();
            faults.push(fault);
        }
    }

    /// Tags are refused, but for the types that YAML itself knows: what they would change, if only
    /// for another reader, nobody sees.
    fn tags(&self, some: bool, faults: &mut Vec<Diagnostic>) {
        let before = faults.len();
        for tagged in self.places().into_iter().flat_map(|places| &places.tags) {
            let tag: String = tagged.tag.chars().take(SHOWN_TAG_CHARS).collect();
            let message = format!("the tag `{tag}` means nothing in a policy; remove it");
            let mut fault = fault_at(self.name, tagged.place, DiagnosticKind::WrongType, message);
            fault.path = tagged.path.to_string();
            faults.push(fault);
        }
        if some && faults.len() == before {
            // The two parsers do not agree on where a tag is.
            let message = "a tag such as `!name` means nothing in a policy; remove it".to_owned();
            faults.push(fault_at(self.name, (1, 1), DiagnosticKind::WrongType, message));
        }
    }

    /// The file's name.
    pub(crate) fn name(&self) -> &'s str {
        self.name
    }

    fn places(&self) -> Option<&Places> {
        self.places.get_or_init(|| Places::read(self.text)).as_ref()
    }

    /// The source text of a scalar, and whether it stands there without quotes. `None` where the
    /// path leads nowhere.
    pub(crate) fn scalar(&self, path: &Path) -> Option<(&str, bool)> {
        self.places()?.scalar(path)
    }

    /// Line and column, from 1, of a path; 1:1 where the places cannot be read.
    pub(crate) fn place(&self, path: &Path, at: At) -> Place {
        self.places().map_or((1, 1), |places| places.of(path, at))
    }

    fn fault(&self, path: &Path, at: At, kind: DiagnosticKind, message: String) -> Diagnostic {
        let mut fault = fault_at(self.name, self.place(path, at), kind, message);
        fault.path = path.to_string();
        fault
    }
}

/// Gives a draft its place.
pub(crate) fn placed(draft: &PendingDiagnostic, documents: &[Document<'_>]) -> Option<Diagnostic> {
    let document = documents.get(draft.file)?;
    let mut fault = document.fault(&draft.path, draft.at, draft.kind, draft.message.clone());
    if let Some((file, path)) = &draft.first {
        let other = documents.get(*file)?;
        let (line, _) = other.place(path, At::Value);
        let place = if *file == draft.file {
            format!("; the first is in line {line}")
        } else {
            format!("; the first is in {}:{line}", other.name)
        };
        fault.message.push_str(&place);
    }
    Some(fault)
}

impl Obstacle {
    fn fault(self, file: &str, place: Place) -> Diagnostic {
        let (kind, message) = match self {
            Obstacle::TooDeep => (
                DiagnosticKind::TooLarge,
                format!("nested deeper than {DEPTH_MAX} levels; no request has that many entries"),
            ),
            Obstacle::AliasBomb => (
                DiagnosticKind::TooLarge,
                format!(
                    "aliases contain themselves or add more than {ALIASED_NODES_MAX} nodes to the \
                     file; write out what is meant"
                ),
            ),
            Obstacle::SecondDocument => (
                DiagnosticKind::SecondDocument,
                "a second YAML document begins here, and a policy file has only one; move it into \
                 a file of its own"
                    .to_owned(),
            ),
        };
        fault_at(file, place, kind, message)
    }
}

fn syntax_fault(file: &str, text: &str, error: &serde_yaml::Error) -> Box<Diagnostic> {
    let place = error.location().map_or((1, 1), |at| (at.line(), at.column()));
    let line = text.lines().nth(place.0 - 1).unwrap_or_default();
    let indentation = &line[..line.len() - line.trim_start_matches([' ', '\t']).len()];
    if let Some(tab) = indentation.find('\t') {
        let message = "a tab in the indentation; YAML takes blanks only";
        let place = (place.0, tab + 1);
        return Box::new(fault_at(file, place, DiagnosticKind::Syntax, message.to_owned()));
    }
    let message = error.to_string();
    let own_place = format!(" at line {} column {}", place.0, place.1);
    let message = format!("this is not YAML: {}", message.replacen(&own_place, "", 1));
    Box::new(fault_at(file, place, DiagnosticKind::Syntax, message))
}
