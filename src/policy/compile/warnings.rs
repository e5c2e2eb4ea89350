//! Warns about configuration that is valid but contradicts itself or has no effect. Also adds
//! notes, which give advice about configuration that works as written.
//!
//! A check belongs here only for a mistake that somebody has reported or that `tests/mistakes` shows.
//! Checks only run on a policy without errors, so a node's position in its list is its position in
//! the file.

use std::collections::{BTreeMap, HashSet};

use super::MergedDomain;
use super::unmatched_values::{text_problem, value_problem};
use crate::domain::nearest_word;
use crate::policy::compiled_policy::{DomainSpec, NodeSpec, RuleSpec};
use crate::policy::diagnostic::{
    DIAGNOSTICS_MAX, Diagnostic, DiagnosticKind, Path, Target, quoted,
};
use crate::policy::syntax::document::Document;
use crate::policy::syntax::keywords;

/// Entries that Envoy can send for every request. Keys of request headers are often written without
/// the colon, or in upper case.
const ALWAYS_PRESENT_KEYS: [&str; 10] = [
    "remote_address",
    "masked_remote_address",
    "generic_key",
    "destination_cluster",
    "source_cluster",
    "path",
    "method",
    "authority",
    "host",
    "scheme",
];

fn is_always_present(key: &str) -> bool {
    let name = key.strip_prefix(':').unwrap_or(key);
    ALWAYS_PRESENT_KEYS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns the warnings and notes about a domain: at most [`DIAGNOSTICS_MAX`] about descriptors, and as
/// many about `hash_tag` for each file.
pub(super) fn find_warnings(merged: &MergedDomain, documents: &[Document<'_>]) -> Vec<Diagnostic> {
    let MergedDomain { spec: domain, files, origins } = merged;
    let groups_ipv6 = domain.http.is_some();
    let mut linter = Linter { origins, documents, groups_ipv6, ..Linter::default() };
    linter.visit(&domain.nodes, &mut Vec::new(), &mut Vec::new());
    linter.check_replaces();
    linter.check_absent_entries();
    let (mut found, counted) = (linter.found, linter.counted);
    for document in files.iter().filter_map(|file| documents.get(*file)) {
        if document.root().get(keywords::HASH_TAG.name).is_some() {
            found.extend(unknown_hash_tags(domain, &counted, document));
        }
    }
    if let Some(document) = files.first().and_then(|file| documents.get(*file)) {
        let path = Path::default().key(keywords::DOMAIN.name);
        let mut warn = |kind, message| {
            found.push(document.diagnostic(&path, Target::Value, kind, message));
        };
        if !has_rule(&domain.nodes) {
            let message = "this domain has no limit, so every request passes; add `rate_limit`";
            warn(DiagnosticKind::NoRules, message.to_owned());
        }
        if let Some(problem) = text_problem(&domain.name) {
            warn(DiagnosticKind::NeverMatches, format!("this domain {problem}"));
        }
    }
    found
}

fn has_rule(nodes: &[NodeSpec]) -> bool {
    nodes.iter().any(|node| node.rule.is_some() || has_rule(&node.children))
}

/// Warnings and notes found so far, and what a check needs to know of the whole domain. A position in
/// the tree is the list positions of a descriptor's ancestors and of the descriptor itself, outermost
/// first.
#[derive(Default)]
struct Linter<'a> {
    origins: &'a [(usize, usize)],
    documents: &'a [Document<'a>],
    found: Vec<Diagnostic>,
    names: HashSet<&'a str>,
    /// Each name in a `replaces`, with the position of its descriptor and its own in the list.
    replaced: Vec<(Vec<usize>, usize, &'a str)>,
    /// Keys of the entries that counter keys contain.
    counted: HashSet<&'a str>,
    /// Keys of entries that can be absent, each with the position of the first one with this key
    /// that is the first such entry on the path of a limit.
    absent: BTreeMap<&'a str, Vec<usize>>,
    /// Whether a limit has only entries that every request has.
    has_limit_for_all: bool,
    /// Whether `/authz` groups the IPv6 addresses of the domain's requests.
    groups_ipv6: bool,
}

impl<'a> Linter<'a> {
    /// Checks the nodes of one list, and all nodes below. `at` and `path` are the position of the
    /// node that has the list, and the nodes from the first level down to it.
    fn visit(&mut self, nodes: &'a [NodeSpec], at: &mut Vec<usize>, path: &mut Vec<&'a NodeSpec>) {
        let is_limited = |node: &&NodeSpec| node.rule.is_some() || has_rule(&node.children);
        let limited: HashSet<&str> =
            nodes.iter().filter(is_limited).map(|node| &*node.key).collect();
        for (position, node) in nodes.iter().enumerate() {
            at.push(position);
            path.push(node);
            self.check_key(at, &node.key);
            self.check_value(at, node);
            let is_leaf = node.rule.is_none() && node.children.is_empty();
            // With a limited sibling of the same key, the node exempts its values from the limit.
            if is_leaf && !limited.contains(&*node.key) {
                let message = "this descriptor has no limit and exempts nothing from one, so it has \
                               no effect; add `rate_limit`, or remove it";
                self.add_finding(at, |p| p, DiagnosticKind::NoLimit, message);
            }
            if let Some(rule) = &node.rule {
                self.visit_rule(at, path, rule);
            }
            self.visit(&node.children, at, path);
            at.pop();
            path.pop();
        }
    }

    /// Warns about `*` in a key, which is a wildcard in envoyproxy/ratelimit. Adds a note about
    /// `:path` as a key: clients can evade such a limit (envoyproxy/envoy#22584).
    fn check_key(&mut self, at: &[usize], key: &str) {
        if key.contains('*') {
            let message = "`*` in a key is a plain character; patterns go into `value`";
            self.add_finding(at, |p| p.key("key"), DiagnosticKind::StarInKey, message);
        }
        if key == ":path" {
            let message = "`:path` contains the query string, so a client gets a new counter with \
                           every new query; send the route's name, or the path without its query";
            self.add_finding(at, |p| p.key("key"), DiagnosticKind::PathAsKey, message);
        }
    }

    /// Warns about a key or a value that no request has.
    fn check_value(&mut self, at: &[usize], node: &'a NodeSpec) {
        let kind = DiagnosticKind::NeverMatches;
        if let Some(problem) = text_problem(&node.key) {
            self.add_finding(at, |p| p.key("key"), kind, format!("this key {problem}"));
        }
        if let Some(message) = value_problem(&node.key, node.value.text(), self.groups_ipv6) {
            self.add_finding(at, |p| p.key("value"), kind, message);
        }
    }

    fn visit_rule(&mut self, at: &[usize], path: &[&'a NodeSpec], rule: &'a RuleSpec) {
        self.names.extend(rule.name.as_deref());
        let replaced = rule.replaces.iter().enumerate();
        self.replaced.extend(replaced.map(|(nth, name)| (at.to_vec(), nth, &**name)));
        for limit in rule.limits.iter() {
            self.names.extend(limit.name.as_deref());
            let levels = path.len() - usize::from(limit.tiers.is_some());
            let is_counted = |at: &usize| limit.per.as_ref().is_none_or(|per| per.contains(at));
            self.counted.extend((0..levels).filter(is_counted).map(|at| &*path[at].key));
        }
        if rule.limits.is_empty() {
            return;
        }
        match path.iter().position(|node| !is_always_present(&node.key)) {
            None => self.has_limit_for_all = true,
            Some(depth) => {
                self.absent.entry(&path[depth].key).or_insert_with(|| at[..=depth].to_vec());
            }
        }
    }

    /// Warns about `replaces` entries that name no limit of the domain.
    fn check_replaces(&mut self) {
        for (at, nth, name) in std::mem::take(&mut self.replaced) {
            if !self.names.contains(name) {
                let message = format!("no limit of this domain has the name {}", quoted(name));
                let path = |p: Path| p.key("rate_limit").key("replaces").index(nth).key("name");
                self.add_finding(&at, path, DiagnosticKind::UnknownReplaces, message);
            }
        }
    }

    /// Adds notes if every limit of a domain requires an entry that can be absent. Envoy omits a
    /// descriptor if one of its entries is absent, so some requests might not be limited at all
    /// (envoyproxy/envoy#10124).
    fn check_absent_entries(&mut self) {
        for (key, at) in std::mem::take(&mut self.absent) {
            if !self.has_limit_for_all {
                let message = format!(
                    "a request without {} has no limit at all, because Envoy then omits the \
                     descriptor; add a limit on remote_address as well",
                    quoted(key)
                );
                let kind = DiagnosticKind::NoLimitWhenAbsent;
                self.add_finding(&at, |p| p.key("key"), kind, message);
            }
        }
    }

    /// Adds a warning or a note about the descriptor at a position. `path` extends the descriptor's
    /// path to the reported key.
    fn add_finding(
        &mut self,
        at: &[usize],
        path: impl FnOnce(Path) -> Path,
        kind: DiagnosticKind,
        message: impl Into<String>,
    ) {
        if self.found.len() >= DIAGNOSTICS_MAX {
            return;
        }
        let Some((first, rest)) = at.split_first() else { return };
        let Some((file, position)) = self.origins.get(*first) else { return };
        let positions: Vec<usize> =
            std::iter::once(*position).chain(rest.iter().copied()).collect();
        let path = path(Path::for_descriptor(&positions));
        let document = &self.documents[*file];
        self.found.push(document.diagnostic(&path, Target::Value, kind, message));
    }
}

/// Returns a warning for each key in `hash_tag` that is in no counter key of the domain. With such a
/// key, `hash_tag` has no effect, because a counter has a hash tag only if its key contains every
/// entry in `hash_tag`.
fn unknown_hash_tags(
    domain: &DomainSpec,
    counted: &HashSet<&str>,
    document: &Document<'_>,
) -> Vec<Diagnostic> {
    let keys = domain.hash_tag.iter().map(|key| &**key);
    let unknown = keys.enumerate().filter(|(_, key)| !counted.contains(key));
    let warning = |(at, key): (usize, &str)| {
        let way_out = match nearest_word(key, counted.iter().copied()) {
            Some(known) => format!("did you mean `{known}`?"),
            None => "name an entry of every limit that should share a slot".to_owned(),
        };
        let message = format!("no limit counts by {}; {way_out}", quoted(key));
        let path = Path::default().key(keywords::HASH_TAG.name).index(at);
        document.diagnostic(&path, Target::Value, DiagnosticKind::UnknownHashTag, message)
    };
    unknown.map(warning).take(DIAGNOSTICS_MAX).collect()
}
