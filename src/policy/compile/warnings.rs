//! What works in a policy, but perhaps not as it was meant.
//!
//! Each warning is a function over one domain; a new one is a line in [`ALL`]. They look at a
//! policy without faults, so that a node's position in its list is the one in the file. Not here:
//! faults.

use std::collections::HashSet;

use super::colocation;
use super::colocation::Colocation;
use super::spec::{DomainSpec, LimitSpec, NodeSpec, ValueSpec};
use crate::domain::Bounds;
use crate::policy::syntax::diagnostic::{
    At, DIAGNOSTICS_MAX, Diagnostic, DiagnosticKind, Path, quoted,
};
use crate::policy::syntax::document::Document;

/// Every warning.
const ALL: [fn(&mut Look<'_>); 5] =
    [keys_and_depth, unreachable_siblings, replaces_nobody, no_limit_when_absent, split_over_slots];

/// A request's descriptors have at most this many entries (longer ones are refused on arrival), so
/// that a deeper rule is never reached.
const ENTRIES_MAX: usize = Bounds::DEFAULT.entries_max;

/// How many pairs of sibling patterns are compared on one level: all of 2,000 patterns. Beyond it a
/// level's shadowed patterns go unnoticed, rather than hold up a reload.
const PATTERN_PAIRS_MAX: usize = 2_000_000;

/// Keys that say where a request goes, not who sends it.
const DESTINATION_KEYS: [&str; 8] = [
    "generic_key",
    "header_match",
    "query_parameter_value_match",
    "destination_cluster",
    ":path",
    ":method",
    ":authority",
    ":scheme",
];

/// Keys that Envoy has a value for on every request.
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

/// Returns the warnings of a domain. `origins` has the document and position of each node of its
/// first level.
pub(crate) fn of(
    domain: &DomainSpec,
    origins: &[(usize, usize)],
    documents: &[Document<'_>],
) -> Vec<Diagnostic> {
    let mut look = Look { domain, origins, documents, found: Vec::new() };
    for warning in ALL {
        warning(&mut look);
    }
    look.found
}

/// A domain under inspection.
struct Look<'a> {
    domain: &'a DomainSpec,
    origins: &'a [(usize, usize)],
    documents: &'a [Document<'a>],
    found: Vec<Diagnostic>,
}

/// A node with its way from the first level: positions and nodes, itself the last.
struct Spot<'a> {
    at: Vec<usize>,
    nodes: Vec<&'a NodeSpec>,
}

impl<'a> Look<'a> {
    /// Calls `see` for every node.
    fn each(&mut self, mut see: impl FnMut(&mut Self, &Spot<'a>, &'a NodeSpec)) {
        let mut spot = Spot { at: Vec::new(), nodes: Vec::new() };
        let domain = self.domain;
        self.walk(&domain.nodes, &mut spot, &mut see);
    }

    fn walk(
        &mut self,
        nodes: &'a [NodeSpec],
        spot: &mut Spot<'a>,
        see: &mut impl FnMut(&mut Self, &Spot<'a>, &'a NodeSpec),
    ) {
        for (at, node) in nodes.iter().enumerate() {
            spot.at.push(at);
            spot.nodes.push(node);
            see(self, spot, node);
            self.walk(&node.children, spot, see);
            spot.at.pop();
            spot.nodes.pop();
        }
    }

    /// Notes a warning at what `path` leads to from the node at `at`.
    fn note(
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
        let path = path(Path::of_descriptor(&positions));
        self.found.push(self.documents[*file].diagnostic(&path, At::Value, kind, message));
    }
}

/// `*` and `:path` as keys, rules out of reach, and limits that are one counter for all.
fn keys_and_depth(look: &mut Look<'_>) {
    look.each(|look, spot, node| {
        if node.key.contains('*') {
            let message = "`*` in a key is a plain character; patterns go into `value`";
            look.note(&spot.at, |p| p.key("key"), DiagnosticKind::StarInKey, message);
        }
        if &*node.key == ":path" {
            let message = "`:path` carries the query string, so that a client gets a new counter \
                           with every `?`; send the route's name, or the path without its query";
            look.note(&spot.at, |p| p.key("key"), DiagnosticKind::PathAsKey, message);
        }
        let Some(rule) = &node.rule else { return };
        if spot.at.len() > ENTRIES_MAX {
            let message = format!(
                "this rule never matches: it is {} entries deep, and a request has at most \
                 {ENTRIES_MAX}",
                spot.at.len()
            );
            look.note(&spot.at, |p| p, DiagnosticKind::NeverMatches, message);
        }
        for (nth, limit) in rule.limits.iter().enumerate() {
            if limit.limit.capacity().0 > 0 && !is_tied_to_a_client(limit, &spot.nodes) {
                let message = "one counter for all callers: no entry of its key names a client; \
                               add one such as remote_address, unless that is meant";
                let path = |p| of_limit(p, nth, limit.in_list);
                look.note(&spot.at, path, DiagnosticKind::OneCounterForAll, message);
            }
        }
    });
}

/// Where a limit stands in its descriptor.
fn of_limit(path: Path, nth: usize, in_list: bool) -> Path {
    if in_list { path.key("rate_limits").index(nth) } else { path.key("rate_limit") }
}

/// Whether an entry of its counters' keys tells clients apart; a consumer class does not.
fn is_tied_to_a_client(limit: &LimitSpec, path: &[&NodeSpec]) -> bool {
    let levels = path.len() - usize::from(limit.tiers.is_some());
    let is_own = |at: &usize| limit.per.as_ref().is_none_or(|per| per.contains(at));
    (0..levels).filter(is_own).any(|at| names_a_client(path[at]))
}

/// Whether different clients get different counters by this entry.
fn names_a_client(node: &NodeSpec) -> bool {
    let varies = match node.value {
        ValueSpec::Any => true,
        ValueSpec::Exact(_) => false,
        ValueSpec::Pattern(_) => !node.share_threshold,
    };
    varies && !DESTINATION_KEYS.contains(&&*node.key)
}

/// Patterns and default nodes that an earlier pattern of the same level and key takes every value
/// from.
fn unreachable_siblings(look: &mut Look<'_>) {
    let domain = look.domain;
    unreachable_on_level(look, &domain.nodes, &[]);
    look.each(|look, spot, node| unreachable_on_level(look, &node.children, &spot.at));
}

fn unreachable_on_level(look: &mut Look<'_>, nodes: &[NodeSpec], above: &[usize]) {
    let patterns: Vec<(&str, &str)> = nodes
        .iter()
        .filter_map(|node| match &node.value {
            ValueSpec::Pattern(pattern) => Some((&*node.key, &**pattern)),
            ValueSpec::Any | ValueSpec::Exact(_) => None,
        })
        .collect();
    let (mut earlier, mut pairs) = (0, 0);
    for (at, node) in nodes.iter().enumerate() {
        let (before, wanted) = match &node.value {
            ValueSpec::Exact(_) => continue,
            ValueSpec::Pattern(pattern) => {
                earlier += 1;
                (&patterns[..earlier - 1], &**pattern)
            }
            // A default node comes after all patterns, wherever it stands.
            ValueSpec::Any => (&patterns[..], "*"),
        };
        pairs += before.len();
        if pairs > PATTERN_PAIRS_MAX {
            return;
        }
        let covers = |(key, pattern): &&(&str, &str)| *key == &*node.key && fits(pattern, wanted);
        if let Some((_, pattern)) = before.iter().find(covers) {
            let message = format!(
                "this descriptor never matches: the pattern {} takes every value from it",
                quoted(pattern)
            );
            let at: Vec<usize> = above.iter().copied().chain([at]).collect();
            look.note(&at, |p| p, DiagnosticKind::NeverMatches, message);
        }
    }
}

/// Whether `pattern` fits `text`. A `*` in `text` is a character that only a `*` of the pattern
/// takes, so that between two patterns this says: whatever the second one takes, the first one
/// does, too.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(byte) if *byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match &mut star {
                Some((star_at, taken)) => {
                    *taken += 1;
                    p = *star_at + 1;
                    t = *taken;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// `replaces` that names no limit of the domain.
fn replaces_nobody(look: &mut Look<'_>) {
    let mut names: HashSet<&str> = HashSet::new();
    look.each(|_, _, node| {
        let Some(rule) = &node.rule else { return };
        names.extend(rule.name.as_deref());
        names.extend(rule.limits.iter().filter_map(|limit| limit.name.as_deref()));
    });
    look.each(|look, spot, node| {
        let replaced = node.rule.iter().flat_map(|rule| rule.replaces.iter()).enumerate();
        for (at, name) in replaced.filter(|(_, name)| !names.contains(&***name)) {
            let message = format!("no limit of this domain has the name {}", quoted(name));
            let path = |p: Path| p.key("rate_limit").key("replaces").index(at).key("name");
            look.note(&spot.at, path, DiagnosticKind::ReplacesNobody, message);
        }
    });
}

/// Entries that Envoy leaves out for some requests, and its whole descriptor with them, in a domain
/// where no limit holds without such an entry. One warning for each key.
fn no_limit_when_absent(look: &mut Look<'_>) {
    let can_be_absent = |node: &NodeSpec| !ALWAYS_PRESENT_KEYS.contains(&&*node.key);
    let mut is_safe = false;
    let mut keys: HashSet<&str> = HashSet::new();
    let mut found: Vec<(Vec<usize>, &str)> = Vec::new();
    look.each(|_, spot, node| {
        if node.rule.as_ref().is_none_or(|rule| rule.limits.is_empty()) {
            return;
        }
        match spot.nodes.iter().position(|node| can_be_absent(node)) {
            None => is_safe = true,
            Some(depth) => {
                let key = &*spot.nodes[depth].key;
                if keys.insert(key) {
                    found.push((spot.at[..=depth].to_vec(), key));
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
        look.note(&at, |p| p.key("key"), DiagnosticKind::NoLimitWhenAbsent, message);
    }
}

/// Limits that meet in a call, and whose counters a Redis Cluster may hold in several slots although
/// an entry of theirs could join them: one warning at each, with the first other one.
///
/// Not of those that nothing could join: there would be no way out but to do without a limit. And not
/// where `hash_tag` joins some: its author has chosen, and what it leaves apart another entry would
/// join only instead. Of both `check` tells as colocation.
fn split_over_slots(look: &mut Look<'_>) {
    let limits = colocation::limits(look.domain);
    let pairs: Vec<_> = colocation::pairs(&look.domain.hash_tag, &limits).collect();
    if pairs.iter().any(|(.., joint)| *joint == Colocation::Joined) {
        return;
    }
    let mut warned = HashSet::new();
    for (one, other, joint) in pairs {
        let Colocation::JoinableBy(keys) = joint else { continue };
        if !warned.insert(other) {
            continue;
        }
        let met = &limits[other];
        let message = format!(
            "a Redis Cluster may keep this limit and {} in two slots, so that a call over both \
             takes up to two rounds; `hash_tag: [{}]` joins them",
            colocation::label(&limits[one]),
            keys.join(", ")
        );
        let path = |p| of_limit(p, met.nth, met.in_list);
        look.note(&met.at, path, DiagnosticKind::SplitOverSlots, message);
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_pattern_covers_another_iff_it_takes_all_its_values() {
        for (general, specific) in
            [("*", "*"), ("**", "*"), ("*", "a*"), ("a*", "ab*"), ("*b*", "ab*"), ("a*c", "a*bc")]
        {
            assert!(fits(general, specific), "{general} {specific}");
        }
        for (general, specific) in
            [("a*", "*"), ("ab*", "a*"), ("a*b", "a*"), ("*a", "*ab"), ("a*a", "a"), ("*b*", "a*")]
        {
            assert!(!fits(general, specific), "{general} {specific}");
        }
    }
}
