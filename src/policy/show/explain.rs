//! Explains which rule a descriptor matches, step by step, and which counters the rule uses.
//!
//! Not here: the current state of the counters (`decide`), the `explain` command (`cli`).

use std::fmt;
use std::sync::Arc;

use super::listing;
use crate::domain::{CounterKey, Entry, Limit, RuleId, escaped_bytes};
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

/// Step down the descriptor tree for one entry. In the key and value, control characters are
/// escaped, and invalid bytes are shown in the form `\xff`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedStep {
    /// Key of the entry.
    pub key: String,
    /// Value of the entry.
    pub value: String,
    /// Result of the step: how the entry matched, or why it did not.
    pub how: StepResult,
}

/// Result of a step: how an entry matched, or why no node matches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// A node has the entry's key and exactly the entry's value.
    Exact,
    /// A pattern of the key matches the value.
    Pattern {
        /// Position of the pattern among the patterns of the key, in file order. The first is 1.
        number: usize,
        /// Pattern as written in the policy.
        text: String,
        /// Whether all values that match the pattern share one counter.
        shared: bool,
    },
    /// No value or pattern of the key matches, but the key has a default node, which matches any
    /// value.
    Default,
    /// No match: the previous node has no children.
    NoChildren,
    /// No match: the key is unknown at this level.
    NoSuchKey {
        /// Keys that the policy has at this level, in file order; at most eight.
        keys: Vec<String>,
    },
    /// No match: the key is known but has no matching value or pattern, and no default node.
    NoSuchValue,
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
    /// Identifier of the rule.
    pub rule: RuleId,
    /// Path of the rule as configured, without values from the request.
    pub path: String,
    /// Path of the rule with the request's values where `value_to_metric` or `detailed_metric` is
    /// set.
    pub printed_path: String,
    /// Whether the rule allows every request without counting.
    pub unlimited: bool,
    /// Operators' overrides in force on the rule, one line each.
    pub overrides: Vec<String>,
    /// Limits of the rule, in file order, with the numbers in force.
    pub limits: Vec<LimitExplanation>,
    /// Names of the limits that this rule replaces for the whole request.
    pub replaces: Vec<String>,
    /// Entries that determine the descriptor's quota group, each as `key=value`, or as `no KEY` if
    /// the descriptor has no entry with this key. Empty if the descriptor forms its own group, is
    /// not a quota descriptor, or has no limit.
    pub quota_group: Vec<String>,
}

/// Limit of the matched rule in an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitExplanation {
    /// Consumer class of the request; `None` if the limit has no `tiers`.
    pub class: Option<String>,
    /// Compiled limit; with `tiers`, that of the request's consumer class.
    pub limit: Arc<Limit>,
    /// Limit in the format of `/rlconfig`, without the rule's path.
    pub listing: String,
    /// Counter key as passed to stores.
    pub counter: CounterKey,
    /// Entries that the counter key contains, each as `key=value`.
    pub counter_of: Vec<String>,
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
                Some((_, MatchKind::Exact)) => StepResult::Exact,
                Some((_, MatchKind::Default)) => StepResult::Default,
                Some((node, MatchKind::Pattern(position))) => self.explain_pattern(node, position),
            };
            steps.push(ExplainedStep {
                key: escaped_bytes(entry.key),
                value: escaped_bytes(entry.value),
                how,
            });
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

    fn explain_pattern(&self, node: NodeId, position: usize) -> StepResult {
        let node = self.tree.node(node);
        let text = node.value.text().to_owned();
        StepResult::Pattern { number: position + 1, text, shared: node.share_threshold }
    }

    fn explain_mismatch(&self, at: NodeId, entry: &Entry<'_>) -> StepResult {
        if self.tree.node(at).is_leaf {
            return StepResult::NoChildren;
        }
        if self.tree.find_group(at, entry.key).is_some() {
            return StepResult::NoSuchValue;
        }
        let siblings = self.tree.groups.iter().filter(|group| group.parent == at);
        let keys = siblings.take(LISTED_KEYS_MAX).map(|group| group.key.to_string()).collect();
        StepResult::NoSuchKey { keys }
    }

    fn explain_rule(&self, domain: &Domain, rule: &Rule, entries: &[Entry<'_>]) -> RuleExplanation {
        let mut identity = Identity::default();
        let limits = rule.limits.iter().zip(rule.key_templates.iter()).enumerate();
        let limits: Vec<LimitExplanation> = limits
            .filter_map(|(at, (spec, template))| {
                // A value without a consumer class is not limited, so there is no limit to show.
                let selected = template.select_limit(spec, entries)?;
                let counted = rule.counter_entries(at, entries);
                let member = |Entry { key, value }: &Entry<'_>| {
                    format!("{}={}", escaped_bytes(key), escaped_bytes(value))
                };
                Some(LimitExplanation {
                    class: selected.class.map(|class| class.name.to_string()),
                    limit: Arc::clone(selected.limit),
                    listing: listing::format_limit(rule, spec, true),
                    counter: self.counter_key(&mut identity, selected.prefix, template, entries),
                    counter_of: counted.iter().map(member).collect(),
                })
            })
            .collect();
        RuleExplanation {
            rule: rule.id,
            path: rule.path.to_string(),
            printed_path: self.printed_path(rule, entries),
            unlimited: rule.limits.is_empty(),
            overrides: rule.overrides().iter().map(ToString::to_string).collect(),
            replaces: rule.replaces.iter().map(ToString::to_string).collect(),
            quota_group: match limits.as_slice() {
                // Without a limit, the descriptor has no effect on a group.
                [] => Vec::new(),
                [_, ..] => explain_quota_group(domain, rule, entries),
            },
            limits,
        }
    }
}

/// Returns the entries that determine the quota group of a descriptor with this rule, as described
/// for [`RuleExplanation::quota_group`].
fn explain_quota_group(domain: &Domain, rule: &Rule, entries: &[Entry<'_>]) -> Vec<String> {
    let group = domain.quota_group.iter().map(|key| &**key);
    let has = |key: &str| entries.iter().any(|entry| entry.key == key.as_bytes());
    if !rule.quota_mode || !group.clone().any(has) {
        return Vec::new();
    }
    let member = |key: &str| match entries.iter().find(|entry| entry.key == key.as_bytes()) {
        Some(entry) => format!("{key}={}", escaped_bytes(entry.value)),
        None => format!("no {key}"),
    };
    group.map(member).collect()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "domain {}", escaped_bytes(self.domain.as_bytes()))?;
        for step in &self.steps {
            writeln!(f, "  {}={}: {}", step.key, step.value, step.how)?;
        }
        self.ending.fmt(f)
    }
}

impl fmt::Display for StepResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepResult::Exact => f.write_str("exact"),
            StepResult::Pattern { number, text, shared: false } => {
                write!(f, "pattern {number} `{text}`")
            }
            StepResult::Pattern { number, text, shared: true } => {
                write!(f, "pattern {number} `{text}`, one counter for all its values")
            }
            StepResult::Default => f.write_str("default"),
            StepResult::NoChildren => f.write_str("no match: the path ends above this entry"),
            StepResult::NoSuchKey { keys } => {
                write!(f, "no match: no such key here; there are: {}", keys.join(", "))
            }
            StepResult::NoSuchValue => {
                f.write_str("no match: neither this value, nor a pattern for it, nor a default")
            }
        }
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
            MatchEnd::Rule(rule) => rule.fmt(f),
        }
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {}", self.rule.0, self.path)?;
        if self.printed_path != self.path {
            write!(f, "\n  printed as {}", self.printed_path)?;
        }
        if self.unlimited {
            f.write_str("\n  unlimited")?;
        }
        for entry in &self.overrides {
            write!(f, "\n  override {entry}")?;
        }
        for LimitExplanation { class, limit, listing, counter, counter_of } in &self.limits {
            write!(f, "\n  limit {listing}")?;
            if let Some(class) = class {
                write!(f, "\n    class {class}, capacity {} hits", limit.capacity().0)?;
            }
            match counter_of.as_slice() {
                [] => f.write_str("\n    one counter for all")?,
                entries => write!(f, "\n    counter of {}", entries.join(", "))?,
            }
            write!(f, "\n    charge {}", limit.charge.as_str())?;
            write!(f, "\n    key {} ({:032x})", key_text(*counter), counter.identity)?;
        }
        if !self.replaces.is_empty() {
            write!(f, "\n  replaces {}", self.replaces.join(", "))?;
        }
        if !self.quota_group.is_empty() {
            write!(f, "\n  quota group of {}", self.quota_group.join(", "))?;
        }
        Ok(())
    }
}
