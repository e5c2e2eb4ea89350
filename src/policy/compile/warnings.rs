//! Warns about configuration that is valid but contradicts itself or has no effect. Also adds
//! notes, which give advice about configuration that works as written.
//!
//! Each check is a function over one domain; add one to [`CHECKS`] only for a mistake that somebody
//! has reported or that `tests/mistakes` shows. Checks only run on a
//! policy without errors, so a node's position in its list is its position in the file.

use std::collections::HashSet;

use crate::domain::nearest_word;
use crate::policy::diagnostic::{
    DIAGNOSTICS_MAX, Diagnostic, DiagnosticKind, Path, Target, quoted,
};
use crate::policy::spec::{DomainSpec, NodeSpec};
use crate::policy::syntax::document::Document;
use crate::policy::syntax::keywords;

/// Checks that produce the warnings and notes of a domain, in the order in which they run.
const CHECKS: [fn(&mut Linter<'_>); 4] =
    [check_keys, check_replaces, check_leaves, check_absent_entries];

/// Descriptor keys whose value Envoy can determine for every request.
const ALWAYS_PRESENT_KEYS: [&str; 9] = [
    "remote_address",
    "masked_remote_address",
    "generic_key",
    "destination_cluster",
    "source_cluster",
    ":path",
    ":method",
    ":authority",
    ":scheme",
];

/// Warnings and notes about a domain.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) warnings: Vec<Diagnostic>,
    pub(crate) notes: Vec<Diagnostic>,
}

/// Returns the warnings and notes about a domain: at most [`DIAGNOSTICS_MAX`] notes, as many
/// warnings about descriptors, and as many warnings about `hash_tag` for each file.
///
/// `files` contains the document index of each of the domain's files. `origins` contains the
/// document index and the position of each first-level node.
pub(crate) fn find_warnings(
    domain: &DomainSpec,
    files: &[usize],
    origins: &[(usize, usize)],
    documents: &[Document<'_>],
) -> Findings {
    let found = Findings::default();
    let mut linter = Linter { domain, origins, documents, found };
    for check in CHECKS {
        check(&mut linter);
    }
    for document in files.iter().filter_map(|file| documents.get(*file)) {
        if document.root().get(keywords::HASH_TAG.name).is_some() {
            check_hash_tags(&mut linter, document);
        }
    }
    if let (Some(file), true) = (files.first(), !has_rule(&domain.nodes)) {
        let message = "this domain has no limit, so every request passes; add `rate_limit`";
        let path = Path::default().key(keywords::DOMAIN.name);
        let kind = DiagnosticKind::NoRules;
        let diagnostic = documents[*file].diagnostic(&path, Target::Value, kind, message);
        linter.found.warnings.push(diagnostic);
    }
    linter.found
}

fn has_rule(nodes: &[NodeSpec]) -> bool {
    nodes.iter().any(|node| node.rule.is_some() || has_rule(&node.children))
}

/// Domain being checked, with the warnings and notes found so far.
struct Linter<'a> {
    domain: &'a DomainSpec,
    origins: &'a [(usize, usize)],
    documents: &'a [Document<'a>],
    found: Findings,
}

/// Path from the root of the policy tree to a node. Contains the nodes on the path and the index
/// of each among its siblings.
struct NodePath<'a> {
    indices: Vec<usize>,
    nodes: Vec<&'a NodeSpec>,
}

impl<'a> Linter<'a> {
    /// Calls `visit` for every node, parents first.
    fn visit_nodes(&mut self, mut visit: impl FnMut(&mut Self, &NodePath<'a>, &'a NodeSpec)) {
        let mut node_path = NodePath { indices: Vec::new(), nodes: Vec::new() };
        let domain = self.domain;
        self.visit_subtrees(&domain.nodes, &mut node_path, &mut visit);
    }

    fn visit_subtrees(
        &mut self,
        nodes: &'a [NodeSpec],
        node_path: &mut NodePath<'a>,
        visit: &mut impl FnMut(&mut Self, &NodePath<'a>, &'a NodeSpec),
    ) {
        for (at, node) in nodes.iter().enumerate() {
            node_path.indices.push(at);
            node_path.nodes.push(node);
            visit(self, node_path, node);
            self.visit_subtrees(&node.children, node_path, visit);
            node_path.indices.pop();
            node_path.nodes.pop();
        }
    }

    /// Adds a warning or a note about a descriptor, depending on `kind`. `at` contains the list
    /// positions of the descriptor's ancestors and of the descriptor itself, outermost first.
    /// `path` extends the descriptor's path to the reported key.
    fn add_finding(
        &mut self,
        at: &[usize],
        path: impl FnOnce(Path) -> Path,
        kind: DiagnosticKind,
        message: impl Into<String>,
    ) {
        let found = match kind.is_note() {
            true => &mut self.found.notes,
            false => &mut self.found.warnings,
        };
        if found.len() >= DIAGNOSTICS_MAX {
            return;
        }
        let Some((first, rest)) = at.split_first() else { return };
        let Some((file, position)) = self.origins.get(*first) else { return };
        let positions: Vec<usize> =
            std::iter::once(*position).chain(rest.iter().copied()).collect();
        let path = path(Path::for_descriptor(&positions));
        found.push(self.documents[*file].diagnostic(&path, Target::Value, kind, message));
    }
}

/// Warns about `*` in keys, which is a wildcard in envoyproxy/ratelimit. Adds a note about `:path` as
/// a key: clients can evade such a limit (envoyproxy/envoy#22584).
fn check_keys(linter: &mut Linter<'_>) {
    linter.visit_nodes(|linter, node_path, node| {
        if node.key.contains('*') {
            let message = "`*` in a key is a plain character; patterns go into `value`";
            linter.add_finding(
                &node_path.indices,
                |p| p.key("key"),
                DiagnosticKind::StarInKey,
                message,
            );
        }
        if &*node.key == ":path" {
            let message = "`:path` carries the query string, so that a client gets a new counter \
                           with every `?`; send the route's name, or the path without its query";
            linter.add_finding(
                &node_path.indices,
                |p| p.key("key"),
                DiagnosticKind::PathAsKey,
                message,
            );
        }
    });
}

/// Warns about descriptors that have no effect because they have neither a limit nor children. Does
/// not report a descriptor if a sibling with the same key leads to a limit, because the descriptor
/// exempts its values from that limit.
fn check_leaves(linter: &mut Linter<'_>) {
    let domain = linter.domain;
    check_sibling_leaves(linter, &domain.nodes, &[]);
    linter.visit_nodes(|linter, node_path, node| {
        check_sibling_leaves(linter, &node.children, &node_path.indices)
    });
}

fn check_sibling_leaves(linter: &mut Linter<'_>, nodes: &[NodeSpec], above: &[usize]) {
    let is_limited = |node: &&NodeSpec| node.rule.is_some() || has_rule(&node.children);
    let limited: HashSet<&str> = nodes.iter().filter(is_limited).map(|node| &*node.key).collect();
    for (at, node) in nodes.iter().enumerate() {
        let is_leaf = node.rule.is_none() && node.children.is_empty();
        if is_leaf && !limited.contains(&*node.key) {
            let message = "this descriptor has no limit and is no exception to one, so it has no \
                           effect; add `rate_limit`, or remove it";
            let at: Vec<usize> = above.iter().copied().chain([at]).collect();
            linter.add_finding(&at, |p| p, DiagnosticKind::NoLimit, message);
        }
    }
}

/// Warns about `replaces` entries that name no limit of the domain.
fn check_replaces(linter: &mut Linter<'_>) {
    let mut names: HashSet<&str> = HashSet::new();
    linter.visit_nodes(|_, _, node| {
        let Some(rule) = &node.rule else { return };
        names.extend(rule.name.as_deref());
        names.extend(rule.limits.iter().filter_map(|limit| limit.name.as_deref()));
    });
    linter.visit_nodes(|linter, node_path, node| {
        let replaced = node.rule.iter().flat_map(|rule| rule.replaces.iter()).enumerate();
        for (at, name) in replaced.filter(|(_, name)| !names.contains(&***name)) {
            let message = format!("no limit of this domain has the name {}", quoted(name));
            let path = |p: Path| p.key("rate_limit").key("replaces").index(at).key("name");
            linter.add_finding(&node_path.indices, path, DiagnosticKind::UnknownReplaces, message);
        }
    });
}

/// Adds notes if every limit of a domain requires an entry that can be absent. Envoy omits a
/// descriptor if one of its entries is absent, so some requests might not be limited at all
/// (envoyproxy/envoy#10124). Each note is about a key that is the first such entry on the path of a limit. There is one note per
/// distinct key.
fn check_absent_entries(linter: &mut Linter<'_>) {
    let can_be_absent = |node: &NodeSpec| !ALWAYS_PRESENT_KEYS.contains(&&*node.key);
    let mut is_safe = false;
    let mut keys: HashSet<&str> = HashSet::new();
    let mut found: Vec<(Vec<usize>, &str)> = Vec::new();
    linter.visit_nodes(|_, node_path, node| {
        if node.rule.as_ref().is_none_or(|rule| rule.limits.is_empty()) {
            return;
        }
        match node_path.nodes.iter().position(|node| can_be_absent(node)) {
            None => is_safe = true,
            Some(depth) => {
                let key = &*node_path.nodes[depth].key;
                if keys.insert(key) {
                    found.push((node_path.indices[..=depth].to_vec(), key));
                }
            }
        }
    });
    if is_safe {
        return;
    }
    for (at, key) in found {
        let message = format!(
            "a request without {} meets no limit at all, for Envoy then drops the descriptor; add \
             a limit on remote_address beside it",
            quoted(key)
        );
        linter.add_finding(&at, |p| p.key("key"), DiagnosticKind::NoLimitWhenAbsent, message);
    }
}

/// Adds a warning for each key in `hash_tag` that is in no counter key of the domain. With such a
/// key, `hash_tag` has no effect, because a counter has a hash tag only if its key contains every
/// entry in `hash_tag`.
fn check_hash_tags(linter: &mut Linter<'_>, document: &Document<'_>) {
    let mut known = HashSet::new();
    linter.visit_nodes(|_, node_path, node| {
        for limit in node.rule.iter().flat_map(|rule| rule.limits.iter()) {
            let levels = node_path.nodes.len() - usize::from(limit.tiers.is_some());
            let is_counted = |at: &usize| limit.per.as_ref().is_none_or(|per| per.contains(at));
            known.extend((0..levels).filter(is_counted).map(|at| &*node_path.nodes[at].key));
        }
    });
    let keys = linter.domain.hash_tag.iter().map(|key| &**key);
    let unknown = keys.enumerate().filter(|(_, key)| !known.contains(key));
    let warning = |(at, key): (usize, &str)| {
        let way_out = match nearest_word(key, known.iter().copied()) {
            Some(known) => format!("did you mean `{known}`?"),
            None => "name an entry of every limit that should share a slot".to_owned(),
        };
        let message = format!("no limit counts by {}; {way_out}", quoted(key));
        let path = Path::default().key(keywords::HASH_TAG.name).index(at);
        document.diagnostic(&path, Target::Value, DiagnosticKind::UnknownHashTag, message)
    };
    linter.found.warnings.extend(unknown.map(warning).take(DIAGNOSTICS_MAX));
}
