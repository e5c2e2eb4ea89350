//! Defaults for policy keys that have no field in the messages of a control plane. The operator
//! provides the defaults in a file; the `metadata` of a descriptor overrides them.
//!
//! Not here: writing the defaults into a resource (`resource`), their meaning (`compile`).

use serde_json::{Map, Value as Json};

use super::resource::{DescriptorFields, LimitFields, ResourceWriter};
use super::{Options, Source};
use crate::policy::compile::{compile_resources, metadata};
use crate::policy::lookup::patterns::Patterns;
use crate::policy::source::read_budget::ReadBudget;
use crate::policy::syntax::diagnostic::{DiagnosticKind, Diagnostics, PathStep, Target, quoted};
use crate::policy::syntax::document::Document;
use crate::policy::syntax::keywords::{self, Key};
use crate::policy::syntax::reader::Reader;
use crate::policy::syntax::yaml::{Node, Value};

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

/// Keys of a limit that a defaults file can set for all limits of a domain.
pub(crate) const LIMIT_KEYS: [Key; 2] = [keywords::ALGORITHM, keywords::BURST];

/// Keys of a domain that the `metadata` of its first-level descriptors can set.
pub(crate) const DOMAIN_METADATA_KEYS: [Key; 2] = [keywords::ACCOUNTING, keywords::HASH_TAG];

/// Keys of a limit that the `metadata` of its descriptor can set.
pub(crate) const LIMIT_METADATA_KEYS: [Key; 4] =
    [keywords::ALGORITHM, keywords::BURST, keywords::CHARGE, keywords::RULE_FAILURE];

/// Maximum number of entries in a defaults file. Every domain is matched against all entries.
const DEFAULTS_ENTRIES_MAX: usize = 1_000;

/// Defaults for domains that come from a control plane, as read from a defaults file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyDefaults {
    entries: Vec<DefaultsEntry>,
}

/// Defaults for all domains that match one name or pattern.
#[derive(Clone, Debug, PartialEq)]
struct DefaultsEntry {
    /// Domain name, or a pattern in which each `*` matches zero or more characters.
    domain: String,
    keys: Map<String, Json>,
}

impl DefaultsEntry {
    fn matches(&self, domain: &str) -> bool {
        match self.domain.contains('*') {
            true => {
                Patterns::new(vec![self.domain.as_str()]).first_match(domain.as_bytes()).is_some()
            }
            false => self.domain == domain,
        }
    }
}

/// Defaults of one domain, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainDefaults(Map<String, Json>);

impl PolicyDefaults {
    /// Reads a defaults file. Its `domains` list has one entry per set of defaults, each with a
    /// domain name or pattern as `domain`.
    ///
    /// # Errors
    ///
    /// Returns all errors, each with its position.
    ///
    /// ```
    /// use tidegate::policy::{Options, PolicyDefaults, Source};
    /// let text = b"domains: [{domain: 'edge/*', acounting: independent}]".to_vec();
    /// let source = Source { name: "defaults.yaml".into(), text };
    /// let errors = PolicyDefaults::read(&source, &Options::default()).unwrap_err();
    /// assert!(errors.to_string().contains("unknown key \"acounting\""), "{errors}");
    /// ```
    pub fn read(source: &Source, options: &Options) -> Result<Self, Diagnostics> {
        let (document, mut errors) =
            Document::read(source, options, &ReadBudget::default()).map_err(Diagnostics)?;
        let mut reader = Reader::new(&document);
        let entries = read_entries(&mut reader, document.root());
        errors.extend(reader.into_diagnostics());
        match errors.is_empty() {
            true => Ok(PolicyDefaults { entries }),
            false => Err(Diagnostics(errors)),
        }
    }

    /// Returns the defaults of a domain. Each key has the value of the first matching entry that
    /// sets it.
    pub fn for_domain(&self, domain: &str) -> DomainDefaults {
        let mut defaults = DomainDefaults::default();
        for entry in self.entries.iter().rev().filter(|entry| entry.matches(domain)) {
            defaults.0.extend(entry.keys.clone());
        }
        defaults
    }
}

impl DomainDefaults {
    pub(crate) fn get(&self, key: &Key) -> Option<&Json> {
        self.0.get(key.name)
    }
}

fn read_entries(reader: &mut Reader<'_>, root: Node<'_>) -> Vec<DefaultsEntry> {
    let (target, kind) = (Target::Value, DiagnosticKind::WrongType);
    let list = match root.value() {
        Value::Map(map) => map.entries().map(|(key, value)| (key.text(), value.value())).collect(),
        Value::Scalar(..) | Value::List(_) => Vec::new(),
    };
    let [(DOMAINS_KEY, Value::List(list))] = list[..] else {
        reader.report(target, kind, "a defaults file has one key, the list `domains`");
        return Vec::new();
    };
    let mut entries = Vec::new();
    reader.descend(PathStep::Key(DOMAINS_KEY.into()), |reader| {
        for (at, node) in list.nodes().enumerate() {
            if at == DEFAULTS_ENTRIES_MAX {
                let message = format!("more than {DEFAULTS_ENTRIES_MAX} entries; use patterns");
                reader.report(target, DiagnosticKind::TooLarge, message);
                break;
            }
            entries.extend(reader.descend(PathStep::Index(at), |reader| read_entry(reader, node)));
        }
    });
    entries
}

/// Top-level key of a defaults file, which contains the list of entries.
const DOMAINS_KEY: &str = "domains";

/// Reads an entry of a defaults file and reports its errors. Returns `None` if the entry has no
/// `domain`.
fn read_entry(reader: &mut Reader<'_>, node: Node<'_>) -> Option<DefaultsEntry> {
    let mut keys = metadata::read(reader, node).ok()?;
    let Some(Json::String(domain)) = keys.remove(keywords::DOMAIN.name) else {
        let message = "an entry needs `domain: NAME`, in which `*` matches any characters";
        reader.report(Target::Value, DiagnosticKind::Missing, message);
        return None;
    };
    for key in keys.keys() {
        let known = DOMAIN_KEYS.iter().chain(&LIMIT_KEYS);
        let names: Vec<&str> = known.map(|key| key.name).collect();
        if !names.contains(&key.as_str()) {
            let message = format!("unknown key {}; there are: {}", quoted(key), names.join(", "));
            reader.descend(PathStep::Key(key.clone().into()), |reader| {
                reader.report(Target::Key, DiagnosticKind::UnknownKey, message)
            });
        }
    }
    report_invalid(reader, &keys);
    Some(DefaultsEntry { domain, keys })
}

/// Reports invalid values with the compiler's messages, by compiling a sample domain that has one
/// limit and these defaults.
fn report_invalid(reader: &mut Reader<'_>, keys: &Map<String, Json>) {
    let limit = LimitFields { unit: Some("second"), requests_per_unit: 1, ..Default::default() };
    let sample = DescriptorFields { key: "client", limit: Some(limit), ..Default::default() };
    let mut keys = keys.clone();
    if keys.contains_key(keywords::BURST.name) {
        // Without a bucket, the burst would not be written.
        keys.entry(keywords::ALGORITHM.name).or_insert_with(|| Json::from("token_bucket"));
    }
    let mut writer = ResourceWriter::new("defaults", "sample", DomainDefaults(keys));
    if writer.begin_descriptor(&sample) {
        writer.end_descriptor();
    }
    let Err(errors) =
        compile_resources(vec![writer.finish()], &Options::default(), &ReadBudget::default())
    else {
        return;
    };
    for error in errors.0 {
        let names = DOMAIN_KEYS.iter().chain(&LIMIT_KEYS).map(|key| key.name);
        // The path of a limit's key starts at the sample's descriptor.
        let path = error.path.trim_start_matches("descriptors[0].rate_limit.");
        let name = names.into_iter().find(|name| path.split(['.', '[']).next() == Some(*name));
        match name {
            Some(name) => reader.descend(PathStep::Key(name.into()), |reader| {
                reader.report(Target::Value, error.kind, error.message)
            }),
            None => reader.report(Target::Value, error.kind, error.message),
        };
    }
}
