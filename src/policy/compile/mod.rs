//! Policy files to domains: reads every file, joins those of one domain, and returns either the
//! meaning or every fault of every file.
//!
//! Not here: what single keys mean (`descriptor`, `rule`, `body`), lookup (`tree`).

pub(crate) mod body;
pub(crate) mod class_limits;
pub(crate) mod colocation;
pub(crate) mod descriptor;
pub(crate) mod limit_context;
pub(crate) mod limit_numbers;
pub(crate) mod metadata;
pub(crate) mod rate_limit;
pub mod spec;
pub(crate) mod tiers;
pub(crate) mod time_zone;
pub(crate) mod warnings;

use std::collections::HashMap;
use std::sync::Arc;

use self::colocation::LimitPair;
use self::descriptor::value_text;
use self::limit_context::DomainDefaults;
use self::limit_numbers::stable_hash;
use self::rate_limit::on_store_failure;
use self::spec::{Body, DomainSpec, NodeSpec, WrittenAt};
use super::lookup::matcher::CHECKS_MAX;
use super::source::{Options, Source};
use super::syntax::diagnostic::{At, Diagnostic, DiagnosticKind, Diagnostics, Path, Step};
use super::syntax::document::Document;
use super::syntax::keywords::{self, Key};
use super::syntax::reader::{Fields, Reader};
use super::syntax::yaml::Span;
use crate::domain::{Accounting, OnStoreFailure};

/// What a policy says.
#[derive(Debug)]
pub struct Compiled {
    /// The domains, in the order in which the files, by name, first mention them.
    pub domains: Vec<DomainSpec>,
    /// What works, but perhaps not as meant; by file, then by place.
    pub warnings: Vec<Diagnostic>,
    /// Every pair of limits that can meet in a call, and whether a Redis Cluster keeps their
    /// counters together.
    pub colocation: Vec<LimitPair>,
    /// The same number for the same files, names included, under the same options, and for hardly
    /// any others.
    pub fingerprint: u64,
}

/// Reads policy files.
///
/// # Errors
///
/// Every fault of every file, each with its place; a file that is not YAML has just that one.
///
/// ```
/// use tidegate::policy::{Options, Source, compile};
/// let text = b"domain: edge\ndescriptors: [{key: remote_address, rate_limit: {unit: hours}}]\n";
/// let source = Source { name: "edge.yaml".into(), text: text.to_vec() };
/// let faults = compile(&[source], &Options::default()).unwrap_err();
/// assert!(faults.to_string().starts_with("edge.yaml:2:56: descriptors[0].rate_limit.unit: "));
/// ```
pub fn compile(sources: &[Source], options: &Options) -> Result<Compiled, Diagnostics> {
    let mut faults = Vec::new();
    let mut sources: Vec<&Source> = sources.iter().collect();
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    bound_the_sum(&sources, options, &mut faults);
    let mut documents = Vec::new();
    for source in &sources {
        match Document::read(source, options) {
            Ok((document, more)) => {
                documents.push(document);
                faults.extend(more);
            }
            Err(fault) => faults.push(*fault),
        }
    }
    let (mut domains, found) = read_files(&documents, options);
    let (mut warnings, more): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|diagnostic| diagnostic.kind.is_warning());
    faults.extend(more);
    if faults.is_empty() {
        faults.extend(domains.iter().filter_map(|domain| too_many_checks(domain, &documents)));
    }
    if !faults.is_empty() {
        return Err(Diagnostics(sorted(faults)));
    }
    for domain in &domains {
        warnings.extend(warnings::of(&domain.spec, &domain.origins, &documents));
    }
    Ok(Compiled {
        colocation: domains.iter().flat_map(|domain| colocation::told(&domain.spec)).collect(),
        domains: domains.drain(..).map(|domain| domain.spec).collect(),
        warnings: sorted(warnings),
        fingerprint: fingerprint(&sources, options),
    })
}

/// A call could need more checks than one may have.
fn too_many_checks(domain: &Domain, documents: &[Document<'_>]) -> Option<Diagnostic> {
    let worst = colocation::too_many_checks(&domain.spec)?;
    let message = format!(
        "a call that meets a rule for each sequence of keys of this domain needs {worst} checks, \
         and may have {CHECKS_MAX}; remove some limits, or part them over several domains"
    );
    let (file, _) = domain.origins.first()?;
    let path = Path::default().key(keywords::DESCRIPTORS.name);
    Some(documents[*file].diagnostic(&path, At::Key, DiagnosticKind::TooLarge, message))
}

fn bound_the_sum(sources: &[&Source], options: &Options, faults: &mut Vec<Diagnostic>) {
    if sources.is_empty() {
        let message = "there is no policy file; put at least one file with `domain: NAME` there";
        faults.push(Diagnostic::new("policy", Span::at(1, 1), DiagnosticKind::Empty, message));
    }
    let mut sum = 0_usize;
    for source in sources {
        let before = sum;
        sum = sum.saturating_add(source.text.len());
        if before <= options.all_bytes_max && sum > options.all_bytes_max {
            let message = format!(
                "with this file all policy files together have more than {} bytes; remove some",
                options.all_bytes_max
            );
            faults.push(Diagnostic::new(
                &source.name,
                Span::at(1, 1),
                DiagnosticKind::TooLarge,
                message,
            ));
        }
    }
}

fn sorted(mut faults: Vec<Diagnostic>) -> Vec<Diagnostic> {
    faults.sort_by(|a, b| {
        let place = |fault: &Diagnostic| (fault.line, fault.column);
        a.file.cmp(&b.file).then(place(a).cmp(&place(b))).then_with(|| a.message.cmp(&b.message))
    });
    faults
}

fn fingerprint(sources: &[&Source], options: &Options) -> u64 {
    let merge = [u8::from(options.merge_domains)];
    let mut parts: Vec<&[u8]> = vec![&merge];
    for source in sources {
        parts.extend([source.name.as_bytes(), source.text.as_slice()]);
    }
    stable_hash(&parts)
}

/// A domain, and where each node of its first level stands: file and position.
struct Domain {
    spec: DomainSpec,
    origins: Vec<(usize, usize)>,
}

/// A file under reading.
struct File<'d> {
    reader: Reader<'d>,
    fields: Option<Fields<'d>>,
    domain: Option<String>,
    said: Said,
}

/// What a file says for its whole domain.
#[derive(Clone, Default)]
struct Said {
    accounting: Option<Accounting>,
    hash_tag: Option<Vec<String>>,
    on_store_failure: Option<OnStoreFailure>,
    body: Option<Arc<Body>>,
}

fn read_files(documents: &[Document<'_>], options: &Options) -> (Vec<Domain>, Vec<Diagnostic>) {
    let mut files: Vec<File<'_>> = documents.iter().map(head).collect();
    let mut domains = Vec::new();
    for group in groups(&mut files, options) {
        let said = settle(&mut files, &group);
        let name = files[group[0]].domain.clone().unwrap_or_default();
        let on_store_failure = said.on_store_failure.unwrap_or_default();
        let ground = DomainDefaults { domain: &name, on_store_failure };
        let (nodes, origins) = join(&mut files, &group, ground);
        let spec = DomainSpec {
            name: name.into(),
            accounting: said.accounting.unwrap_or_default(),
            hash_tag: said.hash_tag.unwrap_or_default().into_iter().map(Into::into).collect(),
            body: said.body,
            nodes,
        };
        domains.push(Domain { spec, origins });
    }
    let found = files.into_iter().flat_map(|file| file.reader.into_diagnostics()).collect();
    (domains, found)
}

/// Reads what a file says for its whole domain.
fn head<'d>(document: &'d Document<'d>) -> File<'d> {
    let mut reader = Reader::new(document);
    let Ok(fields) = reader.root() else {
        return File { reader, fields: None, domain: None, said: Said::default() };
    };
    let domain = match reader.text(&fields, &keywords::DOMAIN) {
        Ok(Some(domain)) if !domain.is_empty() => Some(domain),
        Ok(_) => {
            let message = "a policy file needs `domain: NAME`, the domain that callers name";
            if fields.mentions(&keywords::DOMAIN) {
                reader.report_key(&keywords::DOMAIN, DiagnosticKind::Missing, message);
            } else {
                reader.report(At::Value, DiagnosticKind::Missing, message);
            }
            None
        }
        Err(_) => None,
    };
    let accounting = reader.one_of(&fields, &keywords::ACCOUNTING).ok().flatten();
    let said = Said {
        accounting: accounting.map(|word| match word {
            "independent" => Accounting::Independent,
            _ => Accounting::AllOrNothing,
        }),
        hash_tag: reader.names(&fields, &keywords::HASH_TAG).ok().flatten(),
        on_store_failure: on_store_failure(&mut reader, &fields, &keywords::DOMAIN_FAILURE)
            .ok()
            .flatten(),
        body: reader.map(&fields, &keywords::DOMAIN_BODY, body::read).ok().flatten(),
    };
    File { reader, fields: Some(fields), domain, said }
}

/// Which files are one domain. Files without a domain stand alone, so that their other faults are
/// found, too.
fn groups(files: &mut [File<'_>], options: &Options) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    let names: Vec<Option<String>> = files.iter().map(|file| file.domain.clone()).collect();
    for (at, domain) in names.into_iter().enumerate() {
        let Some(domain) = domain else {
            groups.push(vec![at]);
            continue;
        };
        match known.get(&domain) {
            Some(group) => {
                if !options.merge_domains {
                    let message = "another file has this domain already; join the two files, or \
                                   set MERGE_DOMAIN_CONFIG=true";
                    report_difference(files, at, groups[*group][0], &keywords::DOMAIN, message);
                }
                groups[*group].push(at);
            }
            None => {
                known.insert(domain, groups.len());
                groups.push(vec![at]);
            }
        }
    }
    groups
}

/// Reports a key at the top of a file that contradicts the one of an earlier file.
fn report_difference(files: &mut [File<'_>], at: usize, first: usize, key: &Key, message: &str) {
    let first = files[first].reader.within(key.into(), |reader| reader.here());
    files[at].reader.within(key.into(), |reader| reader.report_duplicate(message, &first));
}

/// What the files of one domain say for all of it. A file that does not mention a key agrees.
fn settle(files: &mut [File<'_>], group: &[usize]) -> Said {
    Said {
        accounting: agreed(files, group, &keywords::ACCOUNTING, |said| &said.accounting),
        hash_tag: agreed(files, group, &keywords::HASH_TAG, |said| &said.hash_tag),
        on_store_failure: agreed(files, group, &keywords::DOMAIN_FAILURE, |said| {
            &said.on_store_failure
        }),
        body: agreed(files, group, &keywords::DOMAIN_BODY, |said| &said.body),
    }
}

fn agreed<T: Clone + PartialEq>(
    files: &mut [File<'_>],
    group: &[usize],
    key: &Key,
    of: impl Fn(&Said) -> &Option<T>,
) -> Option<T> {
    let mut agreed: Option<(usize, T)> = None;
    for at in group {
        let Some(here) = of(&files[*at].said).clone() else {
            continue;
        };
        match &agreed {
            None => agreed = Some((*at, here)),
            Some((first, there)) if *there != here => {
                let message = format!(
                    "`{}` is not the same in all files of this domain; let them agree",
                    key.name
                );
                report_difference(files, *at, *first, key, &message);
            }
            Some(_) => {}
        }
    }
    agreed.map(|(_, value)| value)
}

/// The first level of a domain, of all its files, and where each node comes from.
fn join(
    files: &mut [File<'_>],
    group: &[usize],
    ground: DomainDefaults<'_>,
) -> (Vec<NodeSpec>, Vec<(usize, usize)>) {
    let (mut nodes, mut origins) = (Vec::new(), Vec::new());
    let mut seen: HashMap<(String, String), (usize, WrittenAt)> = HashMap::new();
    for at in group {
        let File { reader, fields: Some(fields), .. } = &mut files[*at] else { continue };
        let key = &keywords::DESCRIPTORS;
        let list = descriptor::read_list(reader, fields, key, ground, &mut Vec::new());
        for (position, node) in list {
            let identity = (node.key.to_string(), value_text(&node.value).to_owned());
            reader.within(key.into(), |reader| {
                reader.within(Step::Index(position), |reader| match seen.get(&identity) {
                    Some((file, first)) if file != at => {
                        let message = descriptor::duplicate(&identity.0, &identity.1);
                        reader.report_duplicate(&message, first);
                    }
                    Some(_) => {}
                    None => {
                        seen.insert(identity, (*at, reader.here()));
                    }
                });
            });
            nodes.push(node);
            origins.push((*at, position));
        }
    }
    (nodes, origins)
}
