//! Resource of a control plane, converted to the syntax tree that a policy file with the same
//! content would have. Policy files and resources thus share one compiler.
//!
//! Not here: decoding protobuf messages (`control_plane`), the meaning of keys (`compile`).

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::keywords::{self, Key};
use super::yaml::writer::{TooDeep, TreeWriter};
use super::yaml::{DEPTH_MAX, Tree, YamlError};
use crate::policy::diagnostic::{DIAGNOSTICS_MAX, DiagnosticKind, Path, Span};
use crate::policy::lookup::patterns::NamePattern;
use crate::policy::lookup::tree::push_segment;

/// Keys of a domain that a defaults file can set.
pub(crate) const DOMAIN_KEYS: [Key; 7] = [
    keywords::ACCOUNTING,
    keywords::HASH_TAG,
    keywords::QUOTA_GROUP,
    keywords::DOMAIN_CHARGE,
    keywords::DOMAIN_FAILURE,
    keywords::DOMAIN_BODY,
    keywords::DOMAIN_HTTP,
];

/// Keys of a limit that a defaults file can set for all limits of a domain, or for those of the
/// rules that an entry names.
pub(crate) const LIMIT_KEYS: [Key; 5] =
    [keywords::ALGORITHM, keywords::BURST, keywords::ALIGN, keywords::TIME_ZONE, keywords::ANCHOR];

/// Keys of a domain that the `metadata` of its first-level descriptors can set.
pub(crate) const DOMAIN_METADATA_KEYS: [Key; 2] = [keywords::ACCOUNTING, keywords::HASH_TAG];

/// Keys of a limit that the `metadata` of its descriptor can set in addition to [`LIMIT_KEYS`].
pub(crate) const LIMIT_METADATA_KEYS: [Key; 2] = [keywords::CHARGE, keywords::RULE_FAILURE];

/// Policy of one domain, as sent by a control plane.
#[derive(Debug)]
pub struct Resource {
    /// Name of the resource, shown in diagnostics.
    pub(crate) name: String,
    /// Content of the resource as a syntax tree. Its `problems` are errors found before
    /// compilation.
    pub(crate) tree: Tree,
}

/// Defaults of one domain: the entries of the defaults file that match it, in file order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainDefaults(pub(crate) Vec<Arc<DefaultsEntry>>);

#[derive(Debug, PartialEq)]
pub(crate) struct DefaultsEntry {
    pub(crate) domain: NamePattern,
    /// Configured paths of the rules whose limits the entry is for; `None` if it is for all of the
    /// domain.
    pub(crate) rule: Option<NamePattern>,
    pub(crate) keys: Map<String, Json>,
}

impl DomainDefaults {
    /// Returns the value of a key in the first entry that has the key and matches the configured
    /// path of a rule, or the name of the domain.
    fn get(&self, key: &Key, path: &str) -> Option<&Json> {
        let is_for = |rule: &NamePattern| rule.matches(path.as_bytes());
        let mut values = self.0.iter().filter_map(|entry| Some((entry, entry.keys.get(key.name)?)));
        values.find(|(entry, _)| entry.rule.as_ref().is_none_or(is_for)).map(|(_, value)| value)
    }
}

/// Returns the unit of the limits that an `anchor` applies to: year for a date, month for a day.
pub(crate) fn unit_of_anchor(anchor: &Json) -> &'static str {
    if anchor.as_str().is_some_and(|text| text.contains('-')) { "year" } else { "month" }
}

/// Builder of a [`Resource`] that takes one descriptor at a time, parents before children.
#[derive(Debug)]
pub struct ResourceWriter {
    name: String,
    tree: TreeWriter,
    defaults: DomainDefaults,
    /// Values of domain keys, as set by the `metadata` of first-level descriptors.
    domain_metadata: Map<String, Json>,
    /// Position of the next descriptor at each level, from 0, outermost level first.
    positions: Vec<usize>,
    /// Configured path of the open descriptor, as `lookup` formats it. Starts as the domain's name.
    path: String,
    /// Length of `path` without the descriptor, for each open descriptor.
    path_lengths: Vec<usize>,
    problems: Vec<YamlError>,
}

impl ResourceWriter {
    /// Creates a writer, and begins the resource and the list of its first-level descriptors.
    pub fn new(name: &str, domain: &str, defaults: DomainDefaults) -> Self {
        let mut writer = ResourceWriter {
            name: name.to_owned(),
            tree: TreeWriter::default(),
            defaults,
            domain_metadata: Map::new(),
            positions: vec![0],
            path: domain.to_owned(),
            path_lengths: Vec::new(),
            problems: Vec::new(),
        };
        // A map and a list inside it are never too deep.
        let _ = writer.tree.begin_map();
        writer.tree.write_text(keywords::DOMAIN.name);
        writer.tree.write_text(domain);
        writer.tree.write_text(keywords::DESCRIPTORS.name);
        let _ = writer.tree.begin_list();
        writer
    }

    /// Reserves memory for descriptors with this number of nodes and of encoded bytes. Growing step
    /// by step would take twice as much, because a step copies everything before it.
    pub fn reserve(&mut self, nodes: usize, bytes: usize) {
        // A descriptor with a limit is two nodes and at least 11 values. A value, a name, and two
        // flags are 8 more. Memory that is reserved but never written is not resident.
        const VALUES_PER_NODE: usize = 10;
        const KEY_BYTES_PER_NODE: usize = 32;
        self.tree.reserve(nodes * VALUES_PER_NODE, bytes + nodes * KEY_BYTES_PER_NODE);
    }

    /// Begins a descriptor with these keys, as in a policy file, whose children follow. Its `metadata`
    /// also sets policy keys for which control-plane messages have no field. If the descriptor is
    /// nested too deeply, reports it and returns false. In that case, the caller must skip its children
    /// and must not call [`end_descriptor`](Self::end_descriptor).
    pub fn begin_descriptor(&mut self, mut fields: Map<String, Json>) -> bool {
        let metadata = fields.remove(keywords::METADATA.name).unwrap_or_default();
        if let [_] = *self.positions {
            self.read_domain_metadata(&metadata);
        }
        let start = self.tree.position();
        let path_length = self.path.len();
        let text = |key: &Key| fields.get(key.name).and_then(Json::as_str).unwrap_or_default();
        push_segment(&mut self.path, text(&keywords::KEY), text(&keywords::VALUE));
        if let Some(Json::Object(limit)) = fields.get_mut(keywords::RATE_LIMIT.name) {
            self.complete_limit(limit, &metadata);
            copy_keys(&[keywords::RULE_BODY], &metadata, &mut fields);
        }
        if !metadata.is_null() {
            fields.insert(keywords::METADATA.name.to_owned(), metadata);
        }
        match self.write_descriptor(&fields) {
            Ok(()) => {
                self.positions.push(0);
                self.path_lengths.push(path_length);
                true
            }
            Err(TooDeep) => {
                self.tree.rewind(start);
                self.path.truncate(path_length);
                let message = format!("nested deeper than {DEPTH_MAX} levels; flatten it");
                self.report(DiagnosticKind::TooLarge, message);
                self.advance_position();
                false
            }
        }
    }

    /// Ends the descriptor that was begun most recently.
    pub fn end_descriptor(&mut self) {
        self.positions.pop();
        self.path.truncate(self.path_lengths.pop().unwrap_or_default());
        // The list of children and the descriptor.
        self.tree.end();
        self.tree.end();
        self.advance_position();
    }

    /// Reports the next descriptor as malformed and skips it.
    pub fn skip_malformed(&mut self, reason: impl Into<String>) {
        self.report(DiagnosticKind::Syntax, reason.into());
        self.advance_position();
    }

    /// Adds the domain keys, as set by `metadata` or by the defaults, and returns the resource.
    pub fn finish(mut self) -> Resource {
        // The list of descriptors. The map of the domain is still open.
        self.tree.end();
        for key in &DOMAIN_KEYS {
            let value = self.domain_metadata.remove(key.name);
            if let Some(value) = value.or_else(|| self.defaults.get(key, &self.path).cloned()) {
                self.tree.write_text(key.name);
                // A list of names or the map of a body is not nested deeply.
                let _ = self.tree.write_json(&value);
            }
        }
        let mut tree = self.tree.finish();
        tree.problems = self.problems;
        Resource { name: self.name, tree }
    }

    fn write_descriptor(&mut self, fields: &Map<String, Json>) -> Result<(), TooDeep> {
        self.tree.begin_map()?;
        for (key, value) in fields {
            self.tree.write_text(key);
            self.tree.write_json(value)?;
        }
        self.tree.write_text(keywords::CHILDREN.name);
        self.tree.begin_list()
    }

    /// Adds the keys of a limit that the `metadata` of its descriptor or the defaults set.
    fn complete_limit(&self, limit: &mut Map<String, Json>, metadata: &Json) {
        copy_keys(&LIMIT_METADATA_KEYS, metadata, limit);
        copy_keys(&LIMIT_KEYS, metadata, limit);
        if limit.contains_key(keywords::UNLIMITED.name) {
            return;
        }
        let defaults = LIMIT_KEYS.map(|key| (key.name, self.default_for(&key, limit)));
        for (name, value) in defaults {
            if let Some(value) = value
                && !limit.contains_key(name)
            {
                limit.insert(name.to_owned(), value);
            }
        }
    }

    /// Returns the default of a key for a limit with these keys. Returns `None` where the key would be
    /// an error: `burst` without a bucket or with 0 requests, calendar windows of another algorithm or
    /// unit, and an `anchor` of another unit.
    fn default_for(&self, key: &Key, limit: &Map<String, Json>) -> Option<Json> {
        let default = |key: &Key| self.defaults.get(key, &self.path);
        let in_force = |key: &Key| {
            let own = limit.get(key.name).or_else(|| default(key));
            own.and_then(Json::as_str).unwrap_or_default()
        };
        let (value, unit) = (default(key)?, in_force(&keywords::UNIT));
        let algorithm = in_force(&keywords::ALGORITHM);
        let can_align = ["", "fixed_window"].contains(&algorithm)
            && ["day", "week", "month", "year"].contains(&unit);
        let is_calendar = can_align && in_force(&keywords::ALIGN) == "calendar";
        let is_zero = limit.get(keywords::REQUESTS_PER_UNIT.name).is_none_or(|number| *number == 0);
        let applies = match key.name {
            "burst" => !is_zero && algorithm.ends_with("_bucket"),
            "align" => can_align,
            "time_zone" => is_calendar,
            "anchor" => is_calendar && unit == unit_of_anchor(value),
            _ => true,
        };
        applies.then(|| value.clone())
    }

    /// Reads domain keys from the `metadata` of a first-level descriptor. Reports values that
    /// contradict those of an earlier descriptor.
    fn read_domain_metadata(&mut self, metadata: &Json) {
        for key in &DOMAIN_METADATA_KEYS {
            let Some(value) = metadata.get(key.name) else { continue };
            let first = self.domain_metadata.entry(key.name).or_insert_with(|| value.clone());
            if first != value {
                let message = format!(
                    "`{}` must be the same in the `metadata` of all descriptors of this domain; \
                     make them equal",
                    key.name
                );
                self.report(DiagnosticKind::Conflict, message);
            }
        }
    }

    fn report(&mut self, kind: DiagnosticKind, message: String) {
        if self.problems.len() < DIAGNOSTICS_MAX {
            let path = Path::for_descriptor(&self.positions);
            self.problems.push(YamlError { kind, message, path, span: Span::NONE });
        }
    }

    fn advance_position(&mut self) {
        if let Some(position) = self.positions.last_mut() {
            *position += 1;
        }
    }
}

/// Copies keys that `metadata` has.
fn copy_keys(keys: &[Key], metadata: &Json, to: &mut Map<String, Json>) {
    for key in keys {
        if let Some(value) = metadata.get(key.name) {
            to.insert(key.name.to_owned(), value.clone());
        }
    }
}
