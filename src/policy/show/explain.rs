//! Explains which rule a descriptor matches, step by step, and which counters the rule uses.
//!
//! Not here: the current state of the counters (`decide`), the `explain` command (`cli`).

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use super::listing;
use crate::domain::{CounterKey, Entry, Limit, escaped_bytes};
use crate::policy::lookup::counter_key::{Identity, key_text};
use crate::policy::lookup::tree::{Domain, MatchKind, NodeId, Policy, Rule};

/// Maximum number of known keys listed for an entry whose key is unknown.
const LISTED_KEYS_MAX: usize = 8;

/// Explanation of how a descriptor was matched. `Display` prints one line per step, then the
/// matched rule and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Domain of the request.
    pub domain: String,
    /// Steps, one per entry, up to the first entry without a match.
    pub steps: Vec<ExplainedStep>,
    /// Result of matching the whole descriptor.
    pub ending: MatchEnd,
}

/// Step down the descriptor tree for one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedStep {
    /// The entry as `key=value`. Control characters are escaped, and invalid bytes are shown in the
    /// form `\xff`.
    pub entry: String,
    /// How the entry matched, or why no node matches it.
    pub how: String,
}

/// Result of matching a whole descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchEnd {
    /// The policy does not contain the domain.
    UnknownDomain,
    /// The descriptor has no entries.
    NoEntries,
    /// An entry matches no node.
    NoMatch,
    /// The descriptor leads to a node that has no rule.
    NoRule {
        /// Whether the node has children, so that longer descriptors may match.
        has_children: bool,
    },
    /// The descriptor matches this rule.
    Rule(Box<RuleExplanation>),
}

/// Matched rule in an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleExplanation {
    /// Path of the rule with the request's values where `value_to_metric` or `detailed_metric` is
    /// set.
    pub printed_path: String,
    /// Whether the rule allows every request without counting.
    pub unlimited: bool,
    /// Limits of the rule that apply to the descriptor, in file order, with the numbers in force.
    pub limits: Vec<LimitExplanation>,
    /// All that the explanation prints of the rule.
    text: String,
}

/// Limit of the matched rule in an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitExplanation {
    /// Compiled limit; with `tiers`, that of the request's consumer class.
    pub limit: Arc<Limit>,
    /// Counter key as passed to stores.
    pub counter: CounterKey,
}

impl Policy {
    /// Explains how a descriptor with the given entries is matched.
    ///
    /// Takes the same steps as the matcher, but ignores request overrides and the `replaces` of
    /// other descriptors' rules.
    pub fn explain(&self, domain: &str, entries: &[Entry<'_>]) -> Explanation {
        let mut steps = Vec::new();
        let ending = match self.tree.domain(domain) {
            None => MatchEnd::UnknownDomain,
            Some(_) if entries.is_empty() => MatchEnd::NoEntries,
            Some(found) => self.explain_steps(found, entries, &mut steps),
        };
        Explanation { domain: domain.to_owned(), steps, ending }
    }

    fn explain_steps(
        &self,
        domain: &Domain,
        entries: &[Entry<'_>],
        steps: &mut Vec<ExplainedStep>,
    ) -> MatchEnd {
        let mut at = domain.root;
        for entry in entries {
            let step = self.tree.find_child(at, entry);
            let how = match step {
                None => self.explain_mismatch(at, entry),
                Some((_, MatchKind::Exact)) => "exact".to_owned(),
                Some((_, MatchKind::Default)) => "default".to_owned(),
                Some((node, MatchKind::Pattern(position))) => {
                    let node = self.tree.node(node);
                    let (number, text) = (position + 1, node.value.text());
                    let shared =
                        if node.share_threshold { ", one counter for all its values" } else { "" };
                    format!("pattern {number} `{text}`{shared}")
                }
            };
            steps.push(ExplainedStep { entry: format_entry(entry), how });
            match step {
                None => return MatchEnd::NoMatch,
                Some((node, _)) => at = node,
            }
        }
        let node = self.tree.node(at);
        match node.rule.and_then(|id| self.rule(id)) {
            None => MatchEnd::NoRule { has_children: !node.is_leaf },
            Some(rule) => {
                let rule = self.rule_in_force(rule, entries);
                MatchEnd::Rule(Box::new(self.explain_rule(domain, rule, entries)))
            }
        }
    }

    fn explain_mismatch(&self, at: NodeId, entry: &Entry<'_>) -> String {
        if self.tree.node(at).is_leaf {
            return "no match: the path ends above this entry".to_owned();
        }
        if self.tree.find_group(at, entry.key).is_some() {
            return "no match: neither this value, nor a pattern for it, nor a default".to_owned();
        }
        let siblings = self.tree.groups.iter().filter(|group| group.parent == at);
        let keys: Vec<&str> = siblings.take(LISTED_KEYS_MAX).map(|group| &*group.key).collect();
        format!("no match: no such key here; there are: {}", keys.join(", "))
    }

    fn explain_rule(&self, domain: &Domain, rule: &Rule, entries: &[Entry<'_>]) -> RuleExplanation {
        let (mut identity, mut limits) = (Identity::default(), Vec::new());
        let (printed_path, unlimited) = (self.printed_path(rule, entries), rule.limits.is_empty());
        let mut text = format!("rule {}: {}", rule.id.0, rule.path);
        // Writing into a String cannot fail.
        if printed_path != *rule.path {
            let _ = write!(text, "\n  printed as {printed_path}");
        }
        if unlimited {
            text.push_str("\n  unlimited");
        }
        for entry in rule.overrides() {
            let _ = write!(text, "\n  override {entry}");
        }
        for (at, spec) in rule.limits.iter().enumerate() {
            let template = &rule.key_templates[at];
            // A value without a consumer class is not limited, so there is no limit to show.
            let Some(selected) = template.select_limit(spec, entries) else { continue };
            let (limit, prefix) = (selected.limit, selected.prefix);
            let _ = write!(text, "\n  limit {}", listing::format_limit(rule, spec, true));
            if let Some(class) = selected.class {
                let capacity = limit.capacity().0;
                let _ = write!(text, "\n    class {}, capacity {capacity} hits", class.name);
            }
            let counted: Vec<String> =
                rule.counter_entries(at, entries).iter().map(format_entry).collect();
            let _ = match &*counted {
                [] => text.write_str("\n    one counter for all"),
                counted => write!(text, "\n    counter of {}", counted.join(", ")),
            };
            let _ = write!(text, "\n    charge {}", limit.charge.as_str());
            let counter = self.counter_key(&mut identity, prefix, template, entries);
            let _ = write!(text, "\n    key {} ({:032x})", key_text(counter), counter.identity);
            limits.push(LimitExplanation { limit: Arc::clone(limit), counter });
        }
        if !rule.replaces.is_empty() {
            let _ = write!(text, "\n  replaces {}", rule.replaces.join(", "));
        }
        let quota_group = explain_quota_group(domain, rule, entries);
        // Without a limit, the descriptor has no effect on a group.
        if !quota_group.is_empty() && !limits.is_empty() {
            let _ = write!(text, "\n  quota group of {}", quota_group.join(", "));
        }
        RuleExplanation { printed_path, unlimited, limits, text }
    }
}

/// Returns the entries that determine the quota group of a descriptor with this rule, each as
/// `key=value`, or as `no KEY` if the descriptor has no entry with this key. Returns an empty list if
/// the descriptor forms its own group, or is not a quota descriptor.
fn explain_quota_group(domain: &Domain, rule: &Rule, entries: &[Entry<'_>]) -> Vec<String> {
    let group = domain.quota_group.iter().map(|key| &**key);
    let has = |key: &str| entries.iter().any(|entry| entry.key == key.as_bytes());
    if !rule.quota_mode || !group.clone().any(has) {
        return Vec::new();
    }
    let member = |key: &str| match entries.iter().find(|entry| entry.key == key.as_bytes()) {
        Some(entry) => format_entry(entry),
        None => format!("no {key}"),
    };
    group.map(member).collect()
}

fn format_entry(Entry { key, value }: &Entry<'_>) -> String {
    format!("{}={}", escaped_bytes(key), escaped_bytes(value))
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "domain {}", escaped_bytes(self.domain.as_bytes()))?;
        for step in &self.steps {
            writeln!(f, "  {}: {}", step.entry, step.how)?;
        }
        self.ending.fmt(f)
    }
}

impl fmt::Display for MatchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MatchEnd::UnknownDomain => f.write_str("no limit: the policy has no such domain"),
            MatchEnd::NoEntries => f.write_str("no limit: a descriptor without entries"),
            MatchEnd::NoMatch => f.write_str("no limit: nothing matches"),
            MatchEnd::NoRule { has_children: false } => f.write_str("no limit: this rule has none"),
            MatchEnd::NoRule { has_children: true } => {
                f.write_str("no limit: this rule has none; longer descriptors continue below it")
            }
            MatchEnd::Rule(rule) => f.write_str(&rule.text),
        }
    }
}
