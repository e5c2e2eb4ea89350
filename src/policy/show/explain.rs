//! Explains a match: the steps of the matcher, the rule they lead to, and its counters.
//!
//! Not here: the current state of the counters (`decide`), the command that prints it (`cli`).

use std::fmt;

use super::listing;
use crate::domain::{Algorithm, CounterKey, Entry, RuleId, escaped};
use crate::policy::compile::spec::ValueSpec;
use crate::policy::lookup::counter_key::{Identity, key_text};
use crate::policy::lookup::tree::{Domain, MatchKind, NodeId, Policy, Rule};

/// Keys of a level listed when an entry's key is none of them.
const KEYS_NAMED_MAX: usize = 8;

/// How a descriptor is matched. `Display` prints one line per step, then the rule with its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Domain of the request.
    pub domain: String,
    /// Steps, one per entry up to the first miss.
    pub steps: Vec<Step>,
    /// Result of the last step.
    pub ending: MatchEnd,
}

/// One step down the tree, for one entry. Control characters are escaped; bytes that are not UTF-8 are
/// shown as `\xff`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Key of the entry.
    pub key: String,
    /// Value of the entry.
    pub value: String,
    /// How the node was found, or why not.
    pub how: StepResult,
}

/// How a node was found, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// Exact key and value.
    Exact,
    /// Pattern.
    Pattern {
        /// Position among the patterns of that key, in file order, from 1.
        number: usize,
        /// Text of the pattern.
        text: String,
        /// Whether all matching values share one counter.
        shared: bool,
    },
    /// Key without a value.
    Default,
    /// The node is a leaf: the descriptor has more entries than the path.
    BelowALeaf,
    /// Unknown key at this level.
    NoSuchKey {
        /// Some keys of the level, in file order.
        keys: Vec<String>,
    },
    /// Known key, but no exact value, pattern or default matches.
    NoSuchValue,
}

/// Result of the last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchEnd {
    /// Unknown domain.
    UnknownDomain,
    /// Descriptor without entries.
    NoEntries,
    /// The last step found no node.
    Missed,
    /// The last node has no rule.
    NoRule {
        /// Whether longer paths continue below the node.
        goes_on: bool,
    },
    /// The node has a rule.
    Rule(Box<RuleExplanation>),
}

/// The matched rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleExplanation {
    /// Number of the rule.
    pub rule: RuleId,
    /// Path as written in the policy, which is its name in metrics.
    pub path: String,
    /// Path with the request's values where the policy asks for them.
    pub printed_path: String,
    /// Unlimited: no counter.
    pub unlimited: bool,
    /// Limits in file order.
    pub limits: Vec<LimitExplanation>,
    /// Names of limits that the rule replaces.
    pub replaces: Vec<String>,
}

/// A limit of the matched rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitExplanation {
    /// Name; empty if it has none.
    pub name: String,
    /// Consumer class, for a limit with classes.
    pub class: Option<String>,
    /// Capacity in hits, of the class if there is one.
    pub capacity: u64,
    /// The limit as printed in the listing.
    pub says: String,
    /// Key of the counter: `{tag}` or `{tag}:identity`. Redis keys start with the prefix and the
    /// letter of the algorithm.
    pub key: String,
    /// Identity of the counter, 32 hexadecimal digits.
    pub identity: String,
    /// Key of the counter, for a store.
    pub counter: CounterKey,
    /// The compiled limit.
    pub algorithm: Algorithm,
    /// `key=value` of each entry in the counter key.
    pub counter_of: Vec<String>,
}

impl Policy {
    /// Explains how a descriptor with these entries is matched.
    ///
    /// Takes the same steps as a request. Request overrides and replacements by other descriptors are
    /// not considered.
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
        steps: &mut Vec<Step>,
    ) -> MatchEnd {
        let mut at = domain.root;
        for entry in entries {
            let step = self.tree.step(at, entry);
            let how = match step {
                None => self.why_not(at, entry),
                Some((_, MatchKind::Exact)) => StepResult::Exact,
                Some((_, MatchKind::Default)) => StepResult::Default,
                Some((node, MatchKind::Pattern(position))) => self.by_pattern(node, position),
            };
            steps.push(Step { key: shown(entry.key), value: shown(entry.value), how });
            match step {
                None => return MatchEnd::Missed,
                Some((node, _)) => at = node,
            }
        }
        let node = self.tree.node(at);
        match node.rule.and_then(|id| self.rule(id)) {
            None => MatchEnd::NoRule { goes_on: !node.is_leaf },
            Some(rule) => MatchEnd::Rule(Box::new(self.explain_rule(rule, entries))),
        }
    }

    fn by_pattern(&self, node: NodeId, position: usize) -> StepResult {
        let node = self.tree.node(node);
        let text = match &node.value {
            ValueSpec::Pattern(text) | ValueSpec::Exact(text) => text.to_string(),
            ValueSpec::Any => String::new(),
        };
        StepResult::Pattern { number: position + 1, text, shared: node.share_threshold }
    }

    fn why_not(&self, at: NodeId, entry: &Entry<'_>) -> StepResult {
        if self.tree.node(at).is_leaf {
            return StepResult::BelowALeaf;
        }
        if self.tree.group(at, entry.key).is_some() {
            return StepResult::NoSuchValue;
        }
        let siblings = self.tree.groups.iter().filter(|group| group.parent == at);
        let keys = siblings.take(KEYS_NAMED_MAX).map(|group| group.key.to_string()).collect();
        StepResult::NoSuchKey { keys }
    }

    fn explain_rule(&self, rule: &Rule, entries: &[Entry<'_>]) -> RuleExplanation {
        let mut identity = Identity::default();
        let limits = rule.limits.iter().zip(rule.plans.iter()).filter_map(|(spec, plan)| {
            // A value in no class is not limited, so there is no limit to show.
            let (limit, prefix) = plan.of(spec, entries)?;
            let key = self.key(&mut identity, prefix, plan, entries);
            let class = spec.tiers.as_ref().and_then(|tiers| {
                let (class, _) = spec.class(entries.last()?.value)?;
                Some(tiers.classes[class].name.to_string())
            });
            let counter_of = plan.parts.iter().filter_map(|part| {
                let entry = entries.get(part.at)?;
                let value =
                    part.shared.as_deref().map_or_else(|| shown(entry.value), str::to_owned);
                Some(format!("{}={value}", shown(entry.key)))
            });
            Some(LimitExplanation {
                class,
                capacity: limit.capacity().0,
                name: spec.name.as_deref().unwrap_or("").to_owned(),
                says: listing::line(rule, spec),
                key: key_text(key),
                identity: format!("{:032x}", key.identity),
                counter: key,
                algorithm: spec.limit.algorithm.clone(),
                counter_of: counter_of.collect(),
            })
        });
        RuleExplanation {
            rule: rule.id,
            path: rule.path.to_string(),
            printed_path: self.printed_path(rule, entries),
            unlimited: rule.limits.is_empty(),
            limits: limits.collect(),
            replaces: rule.replaces.iter().filter_map(|name| self.replaced_name(*name)).collect(),
        }
    }
}

/// Formats bytes for display.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(&escaped(chunk.valid()));
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "domain {}", shown(self.domain.as_bytes()))?;
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
            StepResult::BelowALeaf => f.write_str("no match: the path ends above this entry"),
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
            MatchEnd::Missed => f.write_str("no limit: nothing matches"),
            MatchEnd::NoRule { goes_on: false } => f.write_str("no limit: the node has none"),
            MatchEnd::NoRule { goes_on: true } => {
                f.write_str("no limit: the node has none; longer descriptors go on from here")
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
        for limit in &self.limits {
            write!(f, "\n  limit {}", limit.says)?;
            if let Some(class) = &limit.class {
                write!(f, "\n    class {class}, at most {} hits at once", limit.capacity)?;
            }
            match limit.counter_of.as_slice() {
                [] => f.write_str("\n    one counter for all")?,
                entries => write!(f, "\n    counter of {}", entries.join(", "))?,
            }
            write!(f, "\n    key {} ({})", limit.key, limit.identity)?;
        }
        if !self.replaces.is_empty() {
            write!(f, "\n  replaces {}", self.replaces.join(", "))?;
        }
        Ok(())
    }
}
