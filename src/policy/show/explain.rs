//! Which rule a descriptor meets, by which step of the matching, and which counters it has: the
//! matcher's own walk, told in words.
//!
//! Not here: what the limits would answer now (a store knows), the command that prints it.

use std::fmt;

use super::listing;
use crate::domain::{Algorithm, Entry, Key, RuleId, escaped};
use crate::policy::compile::spec::ValueSpec;
use crate::policy::lookup::counter_key::{Identity, key_text};
use crate::policy::lookup::tree::{By, Domain, NodeId, Policy, Rule};

/// So many keys of a level are named where an entry's key is none of them; more do not help.
const KEYS_NAMED_MAX: usize = 8;

/// How a descriptor is matched. Printed with `{}`: one line per step, then the rule with its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The domain that was asked for.
    pub domain: String,
    /// One per entry, up to the one that missed.
    pub steps: Vec<Step>,
    /// Where that led.
    pub ending: MatchEnd,
}

/// One entry's step down the tree. Control characters are escaped, bytes that are not UTF-8 are
/// shown as `\xff`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The entry's key.
    pub key: String,
    /// The entry's value.
    pub value: String,
    /// By what it was found, or why not.
    pub how: How,
}

/// By what an entry was found, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// By the node with exactly that key and value.
    Exact,
    /// By a pattern.
    Pattern {
        /// Its place among the level's patterns for that key, in file order; the first is 1.
        number: usize,
        /// The pattern.
        text: String,
        /// All values that match it share one counter.
        shared: bool,
    },
    /// By the key's node without a value.
    Default,
    /// Nothing below the node: the descriptor has more entries than the path has levels.
    BelowALeaf,
    /// No node of this level has that key.
    NoSuchKey {
        /// Some keys that the level has, in file order.
        keys: Vec<String>,
    },
    /// The key has neither that value, nor a pattern for it, nor a node without value.
    NoSuchValue,
}

/// Where the steps led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchEnd {
    /// The policy has no such domain.
    UnknownDomain,
    /// The descriptor has no entries.
    NoEntries,
    /// The last step missed.
    Missed,
    /// The last node has no rule.
    NoRule {
        /// Longer paths go on from here.
        goes_on: bool,
    },
    /// A rule.
    Rule(Box<Explained>),
}

/// The rule that was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Its number.
    pub rule: RuleId,
    /// Its path as the policy writes it: its name in metrics.
    pub path: String,
    /// Its path with the request's values where the policy asks for them.
    pub printed_path: String,
    /// No counter at all.
    pub unlimited: bool,
    /// Its limits, in file order.
    pub limits: Vec<ExplainedLimit>,
    /// Names of limits that it takes out of a request.
    pub replaces: Vec<String>,
}

/// One limit of the rule that was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedLimit {
    /// Its name; empty where it has none.
    pub name: String,
    /// The consumer class that it was found for.
    pub class: Option<String>,
    /// The most hits that can ever be there, for that class.
    pub capacity: u64,
    /// What it says, as a line of the listing has it.
    pub says: String,
    /// The counter's key: `{tag}` or `{tag}:identity`. In Redis the prefix and the letter of the
    /// algorithm precede it.
    pub key: String,
    /// The counter's identity, 32 hexadecimal digits.
    pub identity: String,
    /// The counter: a store makes its own name for it out of this.
    pub counter: Key,
    /// How it counts.
    pub algorithm: Algorithm,
    /// What the key stands for: `key=value` of each entry that makes the counter.
    pub counter_of: Vec<String>,
}

impl Policy {
    /// How a descriptor with these entries is matched.
    ///
    /// Takes the steps that a request takes. Limits that callers bring along, and what other
    /// descriptors of a request replace, are not considered.
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
                Some((_, By::Exact)) => How::Exact,
                Some((_, By::Default)) => How::Default,
                Some((node, By::Pattern(position))) => self.by_pattern(node, position),
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

    fn by_pattern(&self, node: NodeId, position: usize) -> How {
        let node = self.tree.node(node);
        let text = match &node.value {
            ValueSpec::Pattern(text) | ValueSpec::Exact(text) => text.to_string(),
            ValueSpec::Any => String::new(),
        };
        How::Pattern { number: position + 1, text, shared: node.share_threshold }
    }

    fn why_not(&self, at: NodeId, entry: &Entry<'_>) -> How {
        if self.tree.node(at).is_leaf {
            return How::BelowALeaf;
        }
        if self.tree.group(at, entry.key).is_some() {
            return How::NoSuchValue;
        }
        let siblings = self.tree.groups.iter().filter(|group| group.parent == at);
        let keys = siblings.take(KEYS_NAMED_MAX).map(|group| group.key.to_string()).collect();
        How::NoSuchKey { keys }
    }

    fn explain_rule(&self, rule: &Rule, entries: &[Entry<'_>]) -> Explained {
        let mut identity = Identity::default();
        let limits = rule.limits.iter().zip(rule.plans.iter()).filter_map(|(spec, plan)| {
            // A value that is in no class is not limited, so there is nothing to tell.
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
            Some(ExplainedLimit {
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
        Explained {
            rule: rule.id,
            path: rule.path.to_string(),
            printed_path: self.printed_path(rule, entries),
            unlimited: rule.limits.is_empty(),
            limits: limits.collect(),
            replaces: rule.replaces.iter().filter_map(|name| self.replaced_name(*name)).collect(),
        }
    }
}

/// Bytes as a person reads them.
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

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Exact => f.write_str("exact"),
            How::Pattern { number, text, shared: false } => write!(f, "pattern {number} `{text}`"),
            How::Pattern { number, text, shared: true } => {
                write!(f, "pattern {number} `{text}`, one counter for all its values")
            }
            How::Default => f.write_str("default"),
            How::BelowALeaf => f.write_str("no match: the path ends above this entry"),
            How::NoSuchKey { keys } => {
                write!(f, "no match: no such key here; there are: {}", keys.join(", "))
            }
            How::NoSuchValue => {
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

impl fmt::Display for Explained {
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
