//! Compiles policy files, or resources of a control plane, to domains. Reads every file, merges
//! the files of each domain, and returns either the compiled policy or all errors of all files.
//!
//! Not here: the meaning of individual keys (`descriptor`, `rate_limit`, `tiers`, `response_body`,
//! `metadata`), the lookup tree (`lookup::build`).

mod check_count;
pub(crate) mod class_limits;
pub(crate) mod descriptor;
pub(crate) mod http_request;
pub(crate) mod limit_context;
pub(crate) mod limit_parameters;
pub(crate) mod metadata;
pub(crate) mod policy_defaults;
pub(crate) mod quota_group;
pub(crate) mod rate_limit;
pub(crate) mod response_body;
pub(crate) mod soft_limit;
pub(crate) mod tiers;
mod unmatched_values;
mod warnings;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::Arc;

use self::descriptor::NodeIdentity;
use self::limit_context::LimitDefaults;
use crate::domain::OnStoreFailure;
use crate::policy::compiled_policy::{DomainSpec, NodeSpec};
use crate::policy::diagnostic::{
    DIAGNOSTICS_MAX, Diagnostic, DiagnosticKind, Diagnostics, Path, PathStep, Span, Target,
};
use crate::policy::read_budget::ReadBudget;
use crate::policy::source::{Options, Source};
use crate::policy::syntax::document::Document;
use crate::policy::syntax::keywords::{self, Key};
use crate::policy::syntax::reader::{ReadResult, Reader};
use crate::policy::syntax::resource::Resource;

/// Result of compiling policy files.
#[derive(Debug)]
pub struct CompiledPolicy {
    /// Domains, in the order in which they first appear when the files are sorted by name.
    pub domains: Vec<DomainSpec>,
    /// Warnings about valid but probably mistaken configuration, sorted by file, then by position.
    pub warnings: Vec<Diagnostic>,
    /// Notes: advice about valid configuration, such as a counter that all callers share.
    pub notes: Vec<Diagnostic>,
}

/// Compiles policy files.
///
/// # Errors
///
/// Returns the errors of all files, each with its position. A file that is not valid YAML
/// contributes only its syntax error. After more than 1,000 parse errors, reads no further files.
///
/// ```
/// use tidegate::policy::{Options, Source, compile};
/// let text = b"domain: edge\ndescriptors: [{key: remote_address, rate_limit: {unit: hours}}]\n";
/// let source = Source { name: "edge.yaml".into(), text: text.to_vec() };
/// let errors = compile(&[source], &Options::default()).unwrap_err();
/// assert!(errors.to_string().starts_with("edge.yaml:2:56: descriptors[0].rate_limit.unit: "));
/// ```
pub fn compile(
    sources: &[impl Borrow<Source>],
    options: &Options,
) -> Result<CompiledPolicy, Diagnostics> {
    let mut errors = Vec::new();
    let mut sources: Vec<&Source> = sources.iter().map(Borrow::borrow).collect();
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    check_total_size(&sources, options, &mut errors);
    let mut documents = Vec::new();
    let budget = ReadBudget::default();
    for source in &sources {
        match Document::read(source, options, &budget) {
            Ok((document, more)) => {
                documents.push(document);
                errors.extend(more);
            }
            Err(more) => errors.extend(more),
        }
        if errors.len() > DIAGNOSTICS_MAX {
            break;
        }
    }
    let compiled = compile_files(&documents, options, &budget, errors);
    let (domains, mut found) = compiled.map_err(|errors| Diagnostics(sort_by_position(errors)))?;
    for domain in &domains {
        found.extend(warnings::find_warnings(domain, &documents));
    }
    let (notes, warnings) =
        sort_by_position(found).into_iter().partition(|found| found.kind.is_note());
    let domains = domains.into_iter().map(|domain| domain.spec).collect();
    Ok(CompiledPolicy { domains, warnings, notes })
}

/// Compiles the control-plane resources of one domain, within `budget`. Does not return warnings, because they are
/// meant for the author of a policy file.
///
/// # Errors
///
/// Returns the errors of all resources, each with its path. If any resource cannot be converted,
/// returns only the conversion errors.
pub fn compile_resources(
    resources: Vec<Resource>,
    options: &Options,
    budget: &ReadBudget,
) -> Result<DomainSpec, Diagnostics> {
    let (mut documents, mut errors) = (Vec::new(), Vec::new());
    for resource in resources {
        let (document, more) = Document::from_resource(resource);
        documents.push(document);
        errors.extend(more);
    }
    if !errors.is_empty() {
        return Err(Diagnostics(errors));
    }
    let options = Options { merge_domains: true, ..*options };
    let (domains, _) =
        compile_files(&documents, &options, budget, Vec::new()).map_err(Diagnostics)?;
    domains.into_iter().next().map(|domain| domain.spec).ok_or(Diagnostics(Vec::new()))
}

/// Returns an error if a request could need more than `checks_max` checks; otherwise `None`.
/// Assumes that the request has one descriptor for each sequence of keys in the domain's tree.
fn too_many_checks_error(
    domain: &MergedDomain,
    documents: &[Document<'_>],
    options: &Options,
) -> Option<Diagnostic> {
    let worst = check_count::excessive_check_count(&domain.spec, &options.bounds)?;
    let checks_max = options.bounds.checks_max;
    let message = format!(
        "a call that matches one rule for each sequence of keys of this domain would need {worst} \
         checks, and a call can have at most {checks_max}; remove some limits, or divide them \
         among several domains"
    );
    let (file, _) = domain.origins.first()?;
    let path = Path::default().key(keywords::DESCRIPTORS.name);
    Some(documents[*file].diagnostic(&path, Target::Key, DiagnosticKind::TooLarge, message))
}

/// Reports an empty policy, and files that together exceed `total_bytes_max`.
fn check_total_size(sources: &[&Source], options: &Options, errors: &mut Vec<Diagnostic>) {
    if sources.is_empty() {
        let message = "no policy file found; add at least one file with `domain: NAME`";
        errors.push(Diagnostic::new("policy", Span::at(1, 1), DiagnosticKind::Empty, message));
    }
    let mut sum = 0_usize;
    for source in sources {
        let before = sum;
        sum = sum.saturating_add(source.text.len());
        if before <= options.total_bytes_max && sum > options.total_bytes_max {
            let message = format!(
                "all policy files together, including this one, have more than {} bytes; remove \
                 some",
                options.total_bytes_max
            );
            errors.push(Diagnostic::new(
                &source.name,
                Span::at(1, 1),
                DiagnosticKind::TooLarge,
                message,
            ));
        }
    }
}

fn sort_by_position(mut errors: Vec<Diagnostic>) -> Vec<Diagnostic> {
    errors.sort_by(|a, b| {
        let (former, latter) = ((a.line, a.column, &a.message), (b.line, b.column, &b.message));
        a.file.cmp(&b.file).then_with(|| former.cmp(&latter))
    });
    errors
}

/// Compiled domain, with the files that define its first-level nodes.
struct MergedDomain {
    spec: DomainSpec,
    /// Indexes of the domain's files in the list of parsed documents.
    files: Vec<usize>,
    /// File index of each first-level node, and the node's position in that file's `descriptors`.
    origins: Vec<(usize, usize)>,
}

/// Policy file whose domain has been read, with the reader for the rest of it.
struct PolicyFile<'d> {
    reader: Reader<'d>,
    domain: Option<String>,
}

/// Compiles parsed files. Returns the domains and the warnings, or `errors` and all further errors.
fn compile_files(
    documents: &[Document<'_>],
    options: &Options,
    budget: &ReadBudget,
    mut errors: Vec<Diagnostic>,
) -> Result<(Vec<MergedDomain>, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut files: Vec<PolicyFile<'_>> = documents.iter().map(read_domain).collect();
    let mut domains = Vec::new();
    for group in group_by_domain(&mut files, options) {
        let name = files[group[0]].domain.clone().unwrap_or_default();
        let accounting = read_setting(&mut files, &group, &keywords::ACCOUNTING, Reader::read_word);
        let on_store_failure: Option<OnStoreFailure> =
            read_setting(&mut files, &group, &keywords::DOMAIN_FAILURE, Reader::read_word);
        let charge = read_setting(&mut files, &group, &keywords::DOMAIN_CHARGE, Reader::read_word);
        let hash_tag = read_setting(&mut files, &group, &keywords::HASH_TAG, Reader::read_names);
        let quota_group =
            read_setting(&mut files, &group, &keywords::QUOTA_GROUP, quota_group::read);
        let body = read_setting(&mut files, &group, &keywords::DOMAIN_BODY, |reader, key| {
            reader.read_map(key, response_body::read)
        });
        let http = read_setting(&mut files, &group, &keywords::DOMAIN_HTTP, |reader, key| {
            reader.read_map(key, http_request::read)
        });
        let charge = charge.unwrap_or(options.charge);
        let on_store_failure = on_store_failure.unwrap_or_default();
        let near_at = options.near_at;
        let defaults = LimitDefaults { domain: &name, on_store_failure, charge, near_at, budget };
        let (nodes, origins) = merge_nodes(&mut files, &group, defaults);
        let spec = DomainSpec {
            quota_group: quota_group::group_keys_or_default(&name, quota_group),
            name: name.into(),
            accounting: accounting.unwrap_or_default(),
            charge,
            hash_tag: hash_tag.unwrap_or_default().into_iter().map(Into::into).collect(),
            body,
            http: http.map(Arc::new),
            nodes,
        };
        domains.push(MergedDomain { spec, files: group, origins });
    }
    let diagnostics = files.into_iter().flat_map(|file| file.reader.into_diagnostics());
    let (warnings, more): (Vec<_>, Vec<_>) =
        diagnostics.partition(|diagnostic| diagnostic.kind.is_warning());
    errors.extend(more);
    if errors.is_empty() {
        let too_many = |domain| too_many_checks_error(domain, documents, options);
        errors.extend(domains.iter().filter_map(too_many));
    }
    if errors.is_empty() { Ok((domains, warnings)) } else { Err(errors) }
}

fn read_domain<'d>(document: &'d Document<'d>) -> PolicyFile<'d> {
    let mut reader = Reader::new(document);
    if reader.enter_root().is_err() {
        return PolicyFile { reader, domain: None };
    }
    let domain = match reader.read_string(&keywords::DOMAIN) {
        Ok(Some(domain)) if !domain.is_empty() => Some(domain),
        Ok(_) => {
            let name = "the `domain` in Envoy's rate limit filter, or in the calls";
            if reader.contains_key(&keywords::DOMAIN) {
                let message = format!("`domain` is empty; write {name}");
                reader.report_key(&keywords::DOMAIN, DiagnosticKind::Missing, message);
            } else {
                let message = format!(
                    "a policy must have a `domain`; add `domain: NAME` above, where NAME is \
                             {name}"
                );
                reader.report(Target::Value, DiagnosticKind::Missing, message);
            }
            None
        }
        Err(_) => None,
    };
    PolicyFile { reader, domain }
}

/// Groups files by domain, and returns the file indexes of each group. A file without a domain
/// forms its own group, so that its other errors are also reported.
fn group_by_domain(files: &mut [PolicyFile<'_>], options: &Options) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for at in 0..files.len() {
        let (domain, next) = (files[at].domain.clone(), groups.len());
        let group = domain.map_or(next, |domain| *known.entry(domain).or_insert(next));
        if group == next {
            groups.push(Vec::new());
        } else if !options.merge_domains {
            let message = "another file already has this domain; merge the two files, or set \
                           MERGE_DOMAIN_CONFIG=true";
            report_conflict(files, at, groups[group][0], &keywords::DOMAIN, message);
        }
        groups[group].push(at);
    }
    groups
}

/// Reports a conflict between two files over a top-level key. The files are given by their indexes.
/// The error is reported in `file` and refers to the earlier file `first`.
fn report_conflict(
    files: &mut [PolicyFile<'_>],
    file: usize,
    first: usize,
    key: &Key,
    message: &str,
) {
    let first = files[first].reader.descend(key.into(), |reader| reader.current_location());
    files[file].reader.descend(key.into(), |reader| reader.report_duplicate(message, &first));
}

/// Reads a domain-wide setting from the files of a domain. Returns the value in the first file that
/// sets it, or `None` if no file does. Reports later files that set a different value.
fn read_setting<'d, T: PartialEq>(
    files: &mut [PolicyFile<'d>],
    group: &[usize],
    key: &Key,
    read: impl Fn(&mut Reader<'d>, &Key) -> ReadResult<T>,
) -> Option<T> {
    let mut first_value: Option<(usize, T)> = None;
    for at in group {
        let Ok(Some(value)) = read(&mut files[*at].reader, key) else { continue };
        match &first_value {
            None => first_value = Some((*at, value)),
            Some((first, expected)) if *expected != value => {
                let message = format!(
                    "`{}` must be the same in all files of this domain; make them equal",
                    key.name
                );
                report_conflict(files, *at, *first, key, &message);
            }
            Some(_) => {}
        }
    }
    first_value.map(|(_, value)| value)
}

/// Calls `read` with the reader at a first-level descriptor, given by its file and position.
fn in_list<'d, T>(
    files: &mut [PolicyFile<'d>],
    (file, position): (usize, usize),
    read: impl FnOnce(&mut Reader<'d>) -> T,
) -> T {
    files[file].reader.descend((&keywords::DESCRIPTORS).into(), |reader| {
        reader.descend(PathStep::Index(position), read)
    })
}

/// Merges the first-level nodes of all files of a domain. Returns the nodes, and the file index and
/// position of each.
fn merge_nodes(
    files: &mut [PolicyFile<'_>],
    group: &[usize],
    defaults: LimitDefaults<'_>,
) -> (Vec<NodeSpec>, Vec<(usize, usize)>) {
    let key = &keywords::DESCRIPTORS;
    let (mut nodes, mut origins) = (Vec::new(), Vec::new());
    let mut seen: HashMap<NodeIdentity, (usize, usize)> = HashMap::new();
    for at in group {
        let reader = &mut files[*at].reader;
        let list = descriptor::read_list(reader, key, defaults, &mut Vec::new());
        origins.extend(list.iter().map(|(position, _)| (*at, *position)));
        let compared = if group.len() > 1 { &*list } else { &[] };
        for (position, node) in compared {
            let (key_text, value) = (&*node.key, node.value.text());
            let first = seen.entry(NodeIdentity::of(key_text, value)).or_insert((*at, *position));
            if first.0 != *at {
                let message = descriptor::duplicate_message(key_text, value);
                let first = in_list(files, *first, |reader| reader.current_location());
                let here = (*at, *position);
                in_list(files, here, |reader| reader.report_duplicate(&message, &first));
            }
        }
        // If there is nothing to add to, the list is converted in place.
        match nodes.is_empty() {
            true => nodes = list.into_iter().map(|(_, node)| node).collect(),
            false => nodes.extend(list.into_iter().map(|(_, node)| node)),
        }
    }
    (nodes, origins)
}
