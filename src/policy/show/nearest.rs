//! Why no limit applies to a call, and what the policy has that is nearest to it: a domain or a
//! sequence of keys that the caller probably meant.
//!
//! Not here: which calls are logged, and how often (`telemetry`).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::domain::{NoLimitReason, Request, escaped_prefix, nearest_word};
use crate::policy::lookup::tree::Policy;

/// Maximum length of a name from a caller or a policy in a log line, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Maximum number of domains or sequences of keys that advice lists.
const LISTED_MAX: usize = 3;
/// Maximum number of sequences of keys that are compared with a call. Policies have fewer than ten;
/// comparing this many takes a few milliseconds.
const COMPARED_MAX: usize = 1_024;
/// Maximum number of descriptors of a call that are explained, and of entries of each.
const EXPLAINED_MAX: usize = 8;

impl Policy {
    /// Returns the reason why a request matches no rule.
    pub fn no_limit_reason(&self, request: &Request<'_>) -> NoLimitReason {
        let Some(domain) = self.tree.domain(request.domain) else {
            return NoLimitReason::UnknownDomain;
        };
        let has_rule = request.descriptors.iter().any(|descriptor| {
            let keys = descriptor.entries.iter().map(|entry| entry.key);
            self.tree.rule_keys.contains(&self.tree.hash_of_keys(domain.root, keys))
        });
        if has_rule { NoLimitReason::UnlistedValue } else { NoLimitReason::UnknownKeys }
    }

    /// Describes what a caller sent, with a hash instead of each value, and how far each descriptor
    /// matches.
    pub fn explain_no_limit(&self, request: &Request<'_>) -> String {
        let mut text = String::new();
        for descriptor in request.descriptors.iter().take(EXPLAINED_MAX) {
            let explanation = self.explain(request.domain, descriptor.entries);
            for (at, entry) in descriptor.entries.iter().take(EXPLAINED_MAX).enumerate() {
                let key = escaped_prefix(entry.key, NAME_BYTES_MAX);
                let hash = self.hash_holder(entry.value).0 >> 80;
                // Writing into a String cannot fail.
                let _ = write!(text, "{key}=#{hash:012x} ");
                if let Some(step) = explanation.steps.get(at) {
                    let _ = write!(text, "({}) ", step.how);
                }
            }
            let _ = write!(text, "-> {}; ", explanation.ending);
        }
        text.truncate(text.trim_end_matches("; ").len());
        text
    }

    fn advise_on_domain(&self, domain: &str) -> String {
        let problem = "the policy does not have this domain";
        let change = "in the caller (with Envoy, `domain` of its rate limit filter)";
        let name = |name: &str| escaped_prefix(name.as_bytes(), NAME_BYTES_MAX);
        if let Some(near) = nearest_word(domain, self.domain_names()) {
            let near = name(near);
            return format!("{problem}: did you mean {near}? set the domain {near} {change}");
        }
        match list(self.domain_names().map(name)) {
            None => "the policy has no domain: is it the policy that you meant to load?".to_owned(),
            Some(names) => format!("{problem}, but {names}: set one of them {change}"),
        }
    }

    /// Returns advice on calls in a domain whose descriptors have these keys, although the policy does
    /// not have the domain or no rule for the keys.
    pub fn advise_without_limit<'k>(
        &self,
        domain: &str,
        descriptors: impl Iterator<Item = Vec<&'k str>>,
    ) -> String {
        if !self.has_domain(domain) {
            return self.advise_on_domain(domain);
        }
        let mut sequences: BTreeSet<Vec<&str>> = BTreeSet::new();
        for rule in self.rules().iter().filter(|rule| self.domain_name(rule) == domain) {
            let path = self.tree.path_to(rule.node);
            sequences.insert(path.iter().map(|node| &*node.key).collect());
            if sequences.len() == COMPARED_MAX {
                break;
            }
        }
        let differences = descriptors.flat_map(|sent| {
            sequences.iter().filter_map(|has| compare(&sent, has)).collect::<Vec<_>>()
        });
        if let Some((_, advice)) = differences.min_by_key(|(size, _)| *size) {
            return format!("no rule has these keys: {advice}");
        }
        match list(sequences.iter().map(|keys| join(keys))) {
            None => "the policy has no limit in this domain: add one".to_owned(),
            Some(all) => {
                format!(
                    "no rule has one of these keys: the policy has {all}; send such keys, or add a rule"
                )
            }
        }
    }
}

/// Size of the difference between two sequences of keys: keys that are missing or too many, keys
/// with another spelling, and whether the order differs.
type DifferenceSize = (usize, usize, bool);

/// Compares the keys that a caller sent with those of a rule. Returns the size of the difference and
/// advice, or `None` if they have no key in common.
fn compare(sent: &[&str], has: &[&str]) -> Option<(DifferenceSize, String)> {
    let mut missing: Vec<usize> = (0..has.len()).collect();
    let mut take = |is_same: &dyn Fn(&str) -> bool| {
        let at = missing.iter().position(|at| is_same(has[*at]))?;
        Some(missing.remove(at))
    };
    // Equal keys first, so that a similar key does not take their place.
    let equal: Vec<_> = sent.iter().map(|key| take(&|has| has == *key)).collect();
    let similar = |(key, equal): (&&str, Option<usize>)| {
        equal.or_else(|| take(&|has| nearest_word(key, [has]).is_some()))
    };
    let found: Vec<_> = sent.iter().zip(equal).map(similar).collect();
    let is_in_order = found.iter().flatten().is_sorted();
    let pairs = || sent.iter().zip(&found);
    let extra: Vec<_> = pairs().filter(|(_, at)| at.is_none()).map(|(key, _)| *key).collect();
    let named = pairs().filter_map(|(key, at)| Some((*key, has[(*at)?])));
    let misspelled: Vec<_> = named.filter(|(sent, has)| sent != has).collect();
    if missing.len() == has.len() {
        return None;
    }
    let mut text = format!("the policy has {}", join(has));
    if !is_in_order {
        text += ", in another order: send the entries in this order";
    }
    for (sent, has) in &misspelled {
        // Writing into a String cannot fail.
        let _ = write!(text, "; did you mean {}? it was sent as {}", join(&[has]), join(&[sent]));
    }
    let size = (missing.len() + extra.len(), misspelled.len(), !is_in_order);
    let missing: Vec<_> = missing.into_iter().map(|at| has[at]).collect();
    for (keys, advice) in [
        (missing, ["too short: send", " in it, or add a rule without"]),
        (extra, ["too long: leave out", ", or add a rule with"]),
    ] {
        let (keys, [problem, other]) = (join(&keys), advice);
        if !keys.is_empty() {
            let _ = write!(text, "; the descriptor is {problem} {keys}{other} {keys}");
        }
    }
    Some((size, text))
}

fn join(keys: &[&str]) -> String {
    let keys = keys.iter().map(|key| escaped_prefix(key.as_bytes(), NAME_BYTES_MAX));
    keys.collect::<Vec<_>>().join(", ")
}

/// Lists the first of `names`, and says how many more there are. Returns `None` if there are none.
fn list(mut names: impl Iterator<Item = String>) -> Option<String> {
    let first: Vec<String> = names.by_ref().take(LISTED_MAX).collect();
    let text = first.join("; ");
    match names.count() {
        0 => (!first.is_empty()).then_some(text),
        more => Some(format!("{text}; and {more} more")),
    }
}
