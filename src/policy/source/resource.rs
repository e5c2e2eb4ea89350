//! Resource of a control plane, converted to the syntax tree that a policy file with the same
//! content would have. Policy files and resources thus share one compiler.
//!
//! Not here: decoding protobuf messages (`control_plane`), the meaning of keys (`compile`).

use serde_json::{Map, Value as Json};

use super::domain_defaults::{
    DOMAIN_KEYS, DOMAIN_METADATA_KEYS, DomainDefaults, LIMIT_KEYS, LIMIT_METADATA_KEYS,
};
use crate::policy::syntax::diagnostic::{DIAGNOSTICS_MAX, DiagnosticKind, Path};
use crate::policy::syntax::keywords::{self, Key};
use crate::policy::syntax::yaml::writer::{TooDeep, TreeWriter};
use crate::policy::syntax::yaml::{DEPTH_MAX, Span, Tree, YamlError};

/// Policy of one domain, as sent by a control plane.
#[derive(Debug)]
pub struct Resource {
    /// Name of the resource, shown in diagnostics.
    pub(crate) name: String,
    /// Content of the resource as a syntax tree. Its `problems` are errors found before
    /// compilation.
    pub(crate) tree: Tree,
}

/// Fields of a descriptor from a control plane, without its child descriptors.
#[derive(Clone, Debug, Default)]
pub struct DescriptorFields<'a> {
    /// Key of the entry.
    pub key: &'a str,
    /// Value of the entry; empty if the descriptor matches any value.
    pub value: &'a str,
    /// Limit for requests whose descriptor ends at this entry; `None` if there is none.
    pub limit: Option<LimitFields<'a>>,
    /// Shadow mode: requests over the limit are counted but admitted.
    pub shadow_mode: bool,
    /// Quota mode: a request is rejected only if all of its quota groups are over a limit.
    pub quota_mode: bool,
    /// Whether metrics show the request's values on all levels of the path.
    pub detailed_metric: bool,
    /// JSON object that is returned as dynamic metadata if the descriptor passes. Its members also
    /// set policy keys for which control-plane messages have no field.
    pub metadata: Option<Json>,
}

/// Fields of a limit from a control plane.
#[derive(Clone, Debug, Default)]
pub struct LimitFields<'a> {
    /// Unit of the window, spelled as in policy files; `None` if the message sets no unit.
    pub unit: Option<&'a str>,
    /// Hits per window.
    pub requests_per_unit: u32,
    /// Whether the limit allows every request without counting.
    pub unlimited: bool,
    /// Name of the limit; empty if unnamed.
    pub name: &'a str,
    /// Names of the limits that this limit replaces.
    pub replaces: Vec<&'a str>,
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
            problems: Vec::new(),
        };
        // A map and a list inside it are never too deep.
        let _ = writer.tree.begin_map();
        writer.write_text(&keywords::DOMAIN, domain);
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

    /// Begins a descriptor, whose children follow. If it is nested too deeply, reports it and
    /// returns false. In that case, the caller must skip its children and must not call
    /// [`end_descriptor`](Self::end_descriptor).
    pub fn begin_descriptor(&mut self, fields: &DescriptorFields<'_>) -> bool {
        if let ([_], Some(metadata)) = (&*self.positions, &fields.metadata) {
            self.read_domain_metadata(metadata);
        }
        let start = self.tree.position();
        match self.write_descriptor(fields) {
            Ok(()) => {
                self.positions.push(0);
                true
            }
            Err(TooDeep) => {
                self.tree.rewind(start);
                let message = format!("nested more than {DEPTH_MAX} levels deep");
                self.report(DiagnosticKind::TooLarge, message);
                self.advance_position();
                false
            }
        }
    }

    /// Ends the descriptor that was begun most recently.
    pub fn end_descriptor(&mut self) {
        self.positions.pop();
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
            if let Some(value) = value.or_else(|| self.defaults.get(key).cloned()) {
                self.tree.write_text(key.name);
                // A list of names or the map of a body is not nested deeply.
                let _ = self.tree.write_json(&value);
            }
        }
        let mut tree = self.tree.finish();
        tree.problems = self.problems;
        Resource { name: self.name, tree }
    }

    fn write_descriptor(&mut self, fields: &DescriptorFields<'_>) -> Result<(), TooDeep> {
        let metadata = fields.metadata.as_ref();
        self.tree.begin_map()?;
        self.write_text(&keywords::KEY, fields.key);
        if !fields.value.is_empty() {
            self.write_text(&keywords::VALUE, fields.value);
        }
        if let Some(limit) = &fields.limit {
            self.write_limit(limit, metadata)?;
            self.copy_from_metadata(&keywords::RULE_BODY, metadata)?;
        }
        self.write_flag(&keywords::SHADOW_MODE, fields.shadow_mode);
        self.write_flag(&keywords::QUOTA_MODE, fields.quota_mode);
        self.write_flag(&keywords::DETAILED_METRIC, fields.detailed_metric);
        if let Some(metadata) = metadata {
            self.tree.write_text(keywords::METADATA.name);
            self.tree.write_json(metadata)?;
        }
        self.tree.write_text(keywords::CHILDREN.name);
        self.tree.begin_list()
    }

    fn write_limit(
        &mut self,
        limit: &LimitFields<'_>,
        metadata: Option<&Json>,
    ) -> Result<(), TooDeep> {
        self.tree.write_text(keywords::RATE_LIMIT.name);
        self.tree.begin_map()?;
        if let Some(unit) = limit.unit {
            self.write_text(&keywords::UNIT, unit);
        }
        self.tree.write_text(keywords::REQUESTS_PER_UNIT.name);
        self.tree.write_number(u64::from(limit.requests_per_unit));
        self.write_flag(&keywords::UNLIMITED, limit.unlimited);
        if !limit.name.is_empty() {
            self.write_text(&keywords::NAME, limit.name);
        }
        if !limit.replaces.is_empty() {
            self.tree.write_text(keywords::REPLACES.name);
            self.tree.begin_list()?;
            for name in &limit.replaces {
                self.tree.begin_map()?;
                self.write_text(&keywords::REPLACED_NAME, name);
                self.tree.end();
            }
            self.tree.end();
        }
        for key in &LIMIT_METADATA_KEYS {
            self.copy_from_metadata(key, metadata)?;
        }
        for key in &LIMIT_KEYS {
            let is_set = metadata.is_some_and(|metadata| metadata.get(key.name).is_some());
            if let Some(value) = self.defaults.get(key)
                && !is_set
                && (*key != keywords::BURST || self.accepts_default_burst(limit, metadata))
                && !limit.unlimited
            {
                let value = value.clone();
                self.tree.write_text(key.name);
                self.tree.write_json(&value)?;
            }
        }
        self.tree.end();
        Ok(())
    }

    /// Returns whether the default `burst` applies to a limit. It applies only to a `token_bucket`
    /// or `leaky_bucket` with a `requests_per_unit` above 0.
    fn accepts_default_burst(&self, limit: &LimitFields<'_>, metadata: Option<&Json>) -> bool {
        let own = metadata.and_then(|metadata| metadata.get(keywords::ALGORITHM.name));
        let algorithm = own.or_else(|| self.defaults.get(&keywords::ALGORITHM));
        let algorithm = algorithm.and_then(Json::as_str).unwrap_or_default();
        limit.requests_per_unit > 0 && ["token_bucket", "leaky_bucket"].contains(&algorithm)
    }

    /// Copies a key from `metadata`, if present, to the current map. Returns [`TooDeep`] if the
    /// value is nested too deeply.
    fn copy_from_metadata(&mut self, key: &Key, metadata: Option<&Json>) -> Result<(), TooDeep> {
        let Some(value) = metadata.and_then(|metadata| metadata.get(key.name)) else {
            return Ok(());
        };
        self.tree.write_text(key.name);
        self.tree.write_json(value)
    }

    /// Reads domain keys from the `metadata` of a first-level descriptor. Reports values that
    /// contradict those of an earlier descriptor.
    fn read_domain_metadata(&mut self, metadata: &Json) {
        for key in &DOMAIN_METADATA_KEYS {
            let Some(value) = metadata.get(key.name) else { continue };
            let first = self.domain_metadata.entry(key.name).or_insert_with(|| value.clone());
            if first != value {
                let message = format!(
                    "`{}` is not the same in the `metadata` of all descriptors of this domain; \
                     let them agree",
                    key.name
                );
                self.report(DiagnosticKind::Conflict, message);
            }
        }
    }

    fn write_text(&mut self, key: &Key, text: &str) {
        self.tree.write_text(key.name);
        self.tree.write_text(text);
    }

    fn write_flag(&mut self, key: &Key, value: bool) {
        if value {
            self.tree.write_text(key.name);
            self.tree.write_boolean(value);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::{Accounting, Bounds, Charge, OnStoreFailure};
    use crate::policy::compile::compile_resources;
    use crate::policy::compile::spec::DomainSpec;
    use crate::policy::source::domain_defaults::PolicyDefaults;
    use crate::policy::source::read_budget::ReadBudget;
    use crate::policy::source::{Options, Source};
    use crate::policy::syntax::diagnostic::Diagnostics;

    fn read_defaults(keys: &str) -> DomainDefaults {
        let text = format!("domains: [{{domain: '*', {keys}}}]").into_bytes();
        let source = Source { name: "defaults.yaml".to_owned(), text };
        PolicyDefaults::read(&source, &Options::default()).unwrap().for_domain("d")
    }

    fn hourly(key: &str, requests_per_unit: u32) -> DescriptorFields<'_> {
        let limit = LimitFields { unit: Some("hour"), requests_per_unit, ..LimitFields::default() };
        DescriptorFields { key, limit: Some(limit), ..DescriptorFields::default() }
    }

    fn with_metadata(key: &str, metadata: Json) -> DescriptorFields<'_> {
        DescriptorFields { metadata: Some(metadata), ..hourly(key, 5) }
    }

    fn write(defaults: DomainDefaults, descriptors: &[DescriptorFields<'_>]) -> Vec<Resource> {
        let mut writer = ResourceWriter::new("r", "d", defaults);
        for descriptor in descriptors {
            assert!(writer.begin_descriptor(descriptor));
            writer.end_descriptor();
        }
        vec![writer.finish()]
    }

    fn compile(
        defaults: DomainDefaults,
        descriptors: &[DescriptorFields<'_>],
    ) -> Result<DomainSpec, Diagnostics> {
        compile_resources(write(defaults, descriptors), &Options::default(), &ReadBudget::default())
    }

    #[test]
    fn defaults_of_a_limit_apply_only_where_they_are_valid() {
        let unlimited = LimitFields { unlimited: true, ..LimitFields::default() };
        let defaults = read_defaults("algorithm: token_bucket, burst: 20");
        let descriptors = [
            DescriptorFields { limit: Some(unlimited), ..hourly("unlimited", 0) },
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
        assert!(nested.begin_descriptor(&hourly("a", 1)));
        assert!(nested.begin_descriptor(&independent("b")));
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
