//! Where everything stands in a file: line, column and source text of each path.
//!
//! Made where a file has a rule, whose line listings show, or something to report, or where the
//! source text of a scalar matters (`value: 0x1F` means the text "0x1F"; quoted `"yes"` is no truth
//! value). Not here: values.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::diagnostic::{At, NOTES_MAX, Path, Step};
use super::layout::{Place, place};

/// The places of one file's first document.
#[derive(Debug)]
pub(crate) struct Places {
    root: Rc<Mark>,
    /// Keys that stand twice in one map.
    pub(crate) repeated: Vec<Repeated>,
    /// Tags that are no type of YAML's, or another than that of what they stand before.
    pub(crate) tags: Vec<Tagged>,
}

/// A key that stands twice in one map.
#[derive(Debug)]
pub(crate) struct Repeated {
    /// The path, the key included.
    pub(crate) path: Path,
    pub(crate) key: String,
    /// Of the second one.
    pub(crate) place: Place,
    pub(crate) first_line: usize,
}

/// A tag that means nothing.
#[derive(Debug)]
pub(crate) struct Tagged {
    /// The path of what has it; of a key that of its map.
    pub(crate) path: Path,
    /// As it is mostly written: `!foo`, `!!foo`.
    pub(crate) tag: String,
    pub(crate) place: Place,
}

/// What a shorthand such as `!!str` stands for begins so.
const OF_YAML: &str = "tag:yaml.org,2002:";

/// The types of scalars that YAML itself knows.
const SCALARS: [&str; 5] = [TEXT, "int", "bool", "float", "null"];
const TEXT: &str = "str";

#[derive(Debug)]
struct Mark {
    place: Place,
    inside: Inside,
}

#[derive(Debug)]
enum Inside {
    Scalar { text: Box<str>, plain: bool },
    List(Vec<Rc<Mark>>),
    Map(HashMap<Box<str>, Entry>),
}

#[derive(Debug)]
struct Entry {
    key_place: Place,
    value: Rc<Mark>,
}

/// A list or map whose end has not come yet.
struct Open {
    place: Place,
    anchor: usize,
    inside: Inside,
    /// In a map: the key whose value comes next.
    key: Option<(Box<str>, Place)>,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Mark>>,
    repeated: Vec<Repeated>,
    tags: Vec<Tagged>,
    root: Option<Rc<Mark>>,
}

impl Places {
    /// Reads the first document; `None` if this parser does not take it for YAML.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parser = Parser::new_from_str(text);
        let mut builder = Builder::default();
        while let Some(event) = parser.next_event() {
            let (event, span) = event.ok()?;
            if matches!(event, Event::DocumentEnd) {
                break;
            }
            builder.take(event, &span);
        }
        let (repeated, tags) = (builder.repeated, builder.tags);
        builder.root.map(|root| Places { root, repeated, tags })
    }

    /// The place of a path; where the path leads out of the file, of its last step inside.
    pub(crate) fn of(&self, path: &Path, at: At) -> Place {
        let (mut mark, mut key_place) = (&self.root, self.root.place);
        for step in &path.0 {
            match mark.step(step) {
                None => return key_place,
                Some((place, value)) => {
                    mark = value;
                    key_place = place;
                }
            }
        }
        if at == At::Key { key_place } else { mark.place }
    }

    /// The source text of a scalar, and whether it stands there without quotes.
    pub(crate) fn scalar(&self, path: &Path) -> Option<(&str, bool)> {
        let mut mark = &self.root;
        for step in &path.0 {
            mark = mark.step(step)?.1;
        }
        match &mark.inside {
            Inside::Scalar { text, plain } => Some((text, *plain)),
            Inside::List(_) | Inside::Map(_) => None,
        }
    }
}

impl Mark {
    fn step(&self, step: &Step) -> Option<(Place, &Rc<Mark>)> {
        match (&self.inside, step) {
            (Inside::List(list), Step::Index(index)) => {
                list.get(*index).map(|mark| (mark.place, mark))
            }
            (Inside::Map(_), Step::Key(key)) => {
                self.entry(key).map(|entry| (entry.key_place, &entry.value))
            }
            _ => None,
        }
    }

    /// The entry of a map, its own or one that `<<` brings in.
    fn entry(&self, key: &str) -> Option<&Entry> {
        let Inside::Map(entries) = &self.inside else { return None };
        if let Some(own) = entries.get(key) {
            return Some(own);
        }
        let merged = &entries.get("<<")?.value;
        match &merged.inside {
            Inside::Map(_) => merged.entry(key),
            Inside::List(list) => list.iter().find_map(|mark| mark.entry(key)),
            Inside::Scalar { .. } => None,
        }
    }
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: &Span) {
        let place = place(span);
        match event {
            Event::SequenceStart(anchor, tag) => {
                self.look_at(tag.as_deref(), &["seq"], place);
                let inside = Inside::List(Vec::new());
                self.open.push(Open { place, anchor, inside, key: None });
            }
            Event::MappingStart(anchor, tag) => {
                self.look_at(tag.as_deref(), &["map"], place);
                let inside = Inside::Map(HashMap::new());
                self.open.push(Open { place, anchor, inside, key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    let mark = Mark { place: open.place, inside: open.inside };
                    self.put(open.anchor, Rc::new(mark));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let known = self.look_at(tag.as_deref(), &SCALARS, place);
                // `!!str` is as good as quotes.
                let plain = style == ScalarStyle::Plain && known != Some(TEXT);
                let inside = Inside::Scalar { text: text.into(), plain };
                self.put(anchor, Rc::new(Mark { place, inside }));
            }
            Event::Alias(anchor) => {
                if let Some(mark) = self.anchors.get(&anchor).cloned() {
                    self.put(0, mark);
                }
            }
            _ => {}
        }
    }

    /// Notes a tag that is none of the types that may stand here; else says which one it is.
    fn look_at<'k>(
        &mut self,
        tag: Option<&Tag>,
        types: &[&'k str],
        place: Place,
    ) -> Option<&'k str> {
        let tag = tag.map(|tag| [tag.handle.as_str(), &tag.suffix].concat())?;
        let of_yaml = tag.strip_prefix(OF_YAML);
        let known = types.iter().copied().find(|known| of_yaml == Some(*known));
        if known.is_none() && self.tags.len() < NOTES_MAX {
            let path = self.path();
            let tag = of_yaml.map_or_else(|| tag.clone(), |suffix| format!("!!{suffix}"));
            self.tags.push(Tagged { path, tag, place });
        }
        known
    }

    /// A complete node: the root, an entry of a list, a map's key or the value after it.
    fn put(&mut self, anchor: usize, mark: Rc<Mark>) {
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&mark));
        }
        let Some(open) = self.open.last_mut() else {
            self.root.get_or_insert(mark);
            return;
        };
        match (&mut open.inside, open.key.take()) {
            (Inside::List(list), _) => list.push(mark),
            (Inside::Map(entries), Some((key, key_place))) => {
                entries.entry(key).or_insert(Entry { key_place, value: mark });
            }
            (Inside::Map(entries), None) => {
                let key = match &mark.inside {
                    Inside::Scalar { text, .. } => text.clone(),
                    Inside::List(_) | Inside::Map(_) => Box::default(),
                };
                let first_line = entries.get(&key).map(|entry| entry.key_place.0);
                open.key = Some((key.clone(), mark.place));
                if let Some(first_line) = first_line {
                    let path = self.path();
                    let (key, place) = (key.into_string(), mark.place);
                    self.repeated.push(Repeated { path, key, place, first_line });
                }
            }
            (Inside::Scalar { .. }, _) => {}
        }
    }

    /// The path of what is being read.
    fn path(&self) -> Path {
        let steps = self.open.iter().filter_map(|open| match &open.inside {
            Inside::List(list) => Some(Step::Index(list.len())),
            Inside::Map(_) => {
                open.key.as_ref().map(|(key, _)| Step::Key(Cow::Owned(key.to_string())))
            }
            Inside::Scalar { .. } => None,
        });
        Path(steps.collect())
    }
}
