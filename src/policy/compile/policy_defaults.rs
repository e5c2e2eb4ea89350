//! Defaults for policy keys that have no field in the messages of a control plane. The operator
//! provides the defaults in a file; the `metadata` of a descriptor overrides them.
//!
//! Not here: writing the defaults into a resource (`syntax::resource`).

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::{compile_resources, metadata};
use crate::policy::diagnostic::{DiagnosticKind, Diagnostics, PathStep, Target, quoted};
use crate::policy::lookup::patterns::NamePattern;
use crate::policy::read_budget::ReadBudget;
use crate::policy::source::{Options, Source};
use crate::policy::syntax::document::Document;
use crate::policy::syntax::keywords::{self, Key};
use crate::policy::syntax::reader::Reader;
use crate::policy::syntax::resource::{
    DOMAIN_KEYS, DefaultsEntry, DomainDefaults, LIMIT_KEYS, ResourceWriter, unit_of_anchor,
};
use crate::policy::syntax::yaml::{Node, Value};

/// Maximum number of entries in a defaults file. Every domain is matched against all entries.
const DEFAULTS_ENTRIES_MAX: usize = 1_000;

/// Defaults for domains that come from a control plane, as read from a defaults file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyDefaults {
    entries: Vec<Arc<DefaultsEntry>>,
}

impl PolicyDefaults {
    /// Reads a defaults file. Its `domains` list has one entry per set of defaults, each with a
    /// domain name or pattern as `domain`. An entry with the path of a rule, or a pattern of paths,
    /// as `rule` is for the limits of these rules only.
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
        let entries = self.entries.iter().filter(|entry| entry.domain.matches(domain.as_bytes()));
        DomainDefaults(entries.cloned().collect())
    }
}

fn read_entries(reader: &mut Reader<'_>, root: Node<'_>) -> Vec<Arc<DefaultsEntry>> {
    let (target, kind) = (Target::Value, DiagnosticKind::WrongType);
    let list = match root.value() {
        Value::Map(map) => map.entries().map(|(key, value)| (key.text(), value.value())).collect(),
        Value::Scalar(..) | Value::List(_) => Vec::new(),
    };
    let [(DOMAINS_KEY, Value::List(list))] = list[..] else {
        reader.report(
            target,
            kind,
            "a defaults file must have exactly one key, the list `domains`",
        );
        return Vec::new();
    };
    let mut entries = Vec::new();
    reader.descend(PathStep::Key(DOMAINS_KEY.into()), |reader| {
        for (at, node) in list.nodes().enumerate() {
            if at == DEFAULTS_ENTRIES_MAX {
                let message = format!(
                    "a defaults file can have at most {DEFAULTS_ENTRIES_MAX} \
                                       entries; use patterns"
                );
                reader.report(target, DiagnosticKind::TooLarge, message);
                break;
            }
            let entry = reader.descend(PathStep::Index(at), |reader| read_entry(reader, node));
            entries.extend(entry.map(Arc::new));
        }
    });
    entries
}

/// Top-level key of a defaults file, which contains the list of entries.
const DOMAINS_KEY: &str = "domains";

/// Key of an entry that names rules by their configured path, or a pattern of it.
const RULE_KEY: &str = "rule";

/// Reads an entry of a defaults file and reports its errors. Returns `None` if the entry has no
/// `domain`.
fn read_entry(reader: &mut Reader<'_>, node: Node<'_>) -> Option<DefaultsEntry> {
    let mut keys = metadata::read(reader, node).ok()?;
    let Some(Json::String(domain)) = keys.remove(keywords::DOMAIN.name) else {
        let message = "an entry must have `domain: NAME`, in which `*` matches any characters";
        reader.report(Target::Value, DiagnosticKind::Missing, message);
        return None;
    };
    let rule = keys.remove(RULE_KEY);
    if rule.as_ref().is_some_and(|rule| !rule.is_string()) {
        let message = "`rule` must be the path of a rule, as `/rlconfig` prints it";
        reader.report(Target::Value, DiagnosticKind::WrongType, message);
        return None;
    }
    let rule = rule.as_ref().and_then(Json::as_str).map(NamePattern::new);
    let domain_keys: &[Key] = if rule.is_none() { &DOMAIN_KEYS } else { &[] };
    for key in keys.keys() {
        let known = domain_keys.iter().chain(&LIMIT_KEYS);
        let names: Vec<&str> = known.map(|key| key.name).collect();
        if !names.contains(&key.as_str()) {
            let place = if rule.is_some() { " in an entry with `rule`" } else { "" };
            let message =
                format!("unknown key {}{place}; use one of: {}", quoted(key), names.join(", "));
            reader.descend(PathStep::Key(key.clone().into()), |reader| {
                reader.report(Target::Key, DiagnosticKind::UnknownKey, message)
            });
        }
    }
    let (mut others, mut calendar) = (keys.clone(), keys.clone());
    if others.contains_key(keywords::BURST.name) {
        // Without a bucket, the burst would not be written.
        others.entry(keywords::ALGORITHM.name).or_insert_with(|| Json::from("token_bucket"));
    }
    // Seconds have no calendar, so each key is written in one of the two samples.
    report_invalid(reader, "second", others);
    calendar.retain(|key, _| LIMIT_KEYS[2..].iter().any(|known| known.name == key));
    calendar.entry(keywords::ALIGN.name).or_insert_with(|| Json::from("calendar"));
    let unit = calendar.get(keywords::ANCHOR.name).map_or("month", unit_of_anchor);
    report_invalid(reader, unit, calendar);
    Some(DefaultsEntry { domain: NamePattern::new(&domain), rule, keys })
}

/// Reports invalid values with the compiler's messages, by compiling a sample domain that has one
/// limit of this unit and these defaults.
fn report_invalid(reader: &mut Reader<'_>, unit: &str, keys: Map<String, Json>) {
    let limit = json!({"unit": unit, "requests_per_unit": 1});
    let sample = Map::from_iter([("key".into(), "client".into()), ("rate_limit".into(), limit)]);
    let entry = DefaultsEntry { domain: NamePattern::new("*"), rule: None, keys };
    let mut writer = ResourceWriter::new("defaults", "sample", DomainDefaults(vec![entry.into()]));
    if writer.begin_descriptor(sample) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Accounting, Bounds, Charge, OnStoreFailure};
    use crate::policy::compiled_policy::DomainSpec;
    use crate::policy::syntax::resource::Resource;

    fn read_defaults(keys: &str) -> DomainDefaults {
        let text = format!("domains: [{{domain: '*', {keys}}}]").into_bytes();
        let source = Source { name: "defaults.yaml".to_owned(), text };
        PolicyDefaults::read(&source, &Options::default()).unwrap().for_domain("d")
    }

    fn hourly(key: &str, requests_per_unit: u32) -> Json {
        json!({"key": key, "rate_limit": {"unit": "hour", "requests_per_unit": requests_per_unit}})
    }

    fn with_metadata(key: &str, metadata: Json) -> Json {
        let mut descriptor = hourly(key, 5);
        descriptor["metadata"] = metadata;
        descriptor
    }

    fn begin(writer: &mut ResourceWriter, descriptor: &Json) {
        assert!(writer.begin_descriptor(descriptor.as_object().unwrap().clone()));
    }

    fn write(defaults: DomainDefaults, descriptors: &[Json]) -> Vec<Resource> {
        let mut writer = ResourceWriter::new("r", "d", defaults);
        for descriptor in descriptors {
            begin(&mut writer, descriptor);
            writer.end_descriptor();
        }
        vec![writer.finish()]
    }

    fn compile(defaults: DomainDefaults, descriptors: &[Json]) -> Result<DomainSpec, Diagnostics> {
        compile_resources(write(defaults, descriptors), &Options::default(), &ReadBudget::default())
    }

    #[test]
    fn defaults_of_a_limit_apply_only_where_they_are_valid() {
        let unlimited = json!({"key": "unlimited", "rate_limit": {"unlimited": true}});
        let defaults = read_defaults("algorithm: token_bucket, burst: 20");
        let descriptors = [
            unlimited,
            hourly("zero", 0),
            with_metadata("log", json!({"algorithm": "sliding_log"})),
            hourly("bucket", 5),
        ];
        let domain = compile(defaults, &descriptors).unwrap();
        let rules = domain.nodes.iter().map(|node| node.rule.as_ref().unwrap());
        let capacity = rules.map(|rule| rule.limits.first().map(|spec| spec.limit.capacity().0));
        assert_eq!(capacity.collect::<Vec<_>>(), [None, Some(0), Some(5), Some(20)]);
    }

    #[test]
    fn metadata_sets_the_keys_of_the_limit_and_the_body() {
        let metadata = json!({
            "algorithm": "token_bucket", "burst": 7, "charge": "always",
            "on_store_failure": "deny", "body": {"text": "{}"},
        });
        let mut domain =
            compile(DomainDefaults::default(), &[with_metadata("a", metadata)]).unwrap();
        let rule = domain.nodes.remove(0).rule.unwrap();
        let limit = &rule.limits[0].limit;
        assert_eq!(limit.capacity().0, 7);
        let modes = (limit.charge, limit.on_store_failure);
        assert_eq!(modes, (Charge::Always, OnStoreFailure::Deny));
        assert_eq!(&*rule.body.unwrap().text, "{}");
    }

    #[test]
    fn metadata_of_first_level_descriptors_overrides_the_defaults_of_the_domain() {
        let independent = |key| with_metadata(key, json!({"accounting": "independent"}));
        let defaults = || read_defaults("accounting: all_or_nothing, hash_tag: [a]");
        let domain = compile(defaults(), &[independent("a")]).unwrap();
        assert_eq!((domain.accounting, domain.hash_tag.len()), (Accounting::Independent, 1));
        let other = with_metadata("b", json!({"accounting": "all_or_nothing"}));
        let errors = compile(defaults(), &[independent("a"), other]).unwrap_err().0;
        assert_eq!(
            (errors[0].kind, &*errors[0].path),
            (DiagnosticKind::Conflict, "descriptors[1]")
        );
        let mut nested = ResourceWriter::new("r", "d", defaults());
        begin(&mut nested, &hourly("a", 1));
        begin(&mut nested, &independent("b"));
        nested.end_descriptor();
        nested.end_descriptor();
        let domain =
            compile_resources(vec![nested.finish()], &Options::default(), &ReadBudget::default())
                .unwrap();
        assert_eq!(domain.accounting, Accounting::AllOrNothing);
    }

    #[test]
    fn a_resource_is_rejected_if_a_call_could_need_too_many_checks() {
        let compile = |checks_max| {
            let bounds = Bounds { checks_max, ..Bounds::DEFAULT };
            let resources = write(DomainDefaults::default(), &[hourly("a", 1), hourly("b", 1)]);
            let compiled = compile_resources(
                resources,
                &Options { bounds, ..Options::default() },
                &ReadBudget::default(),
            );
            compiled.map(drop).map_err(|errors| errors.0[0].kind)
        };
        assert_eq!(compile(2), Ok(()));
        assert_eq!(compile(1), Err(DiagnosticKind::TooLarge));
    }
}
