//! How a rule is printed: its path, and the lines that list a policy.
//!
//! A path has two forms. The written one (`Rule::path`) is made of what the policy says and names
//! the rule in metrics. The printed one may hold a request's values, where the policy asks for it
//! (`value_to_metric`, `detailed_metric`): it is for explanations and logs, never for metrics, whose
//! number of series callers could then choose.
//!
//! Not here: anything on a request's way; everything here allocates.

use std::fmt::Write as _;

use crate::domain::{Algorithm, Charge, Entry, Limit, Window};
use crate::policy::compile::spec::{LimitSpec, ValueSpec};
use crate::policy::lookup::tree::{Node, Policy, Rule};

/// The path as the policy writes it: `domain`, then per level `key_value` for a value, `key_a*` for
/// a pattern, `key` for a node without either.
pub(crate) fn written(domain: &str, path: &[&Node]) -> String {
    let mut text = String::from(domain);
    for node in path {
        text.push('.');
        text.push_str(&node.key);
        match &node.value {
            ValueSpec::Exact(value) | ValueSpec::Pattern(value) => push_value(&mut text, value),
            ValueSpec::Any => {}
        }
    }
    text
}

impl Policy {
    /// The path of a rule as it matched a request: `value_to_metric` puts the request's value in the
    /// place of a pattern or of no value at all, `detailed_metric` puts it on every level; the text
    /// of a pattern stays where `share_threshold` makes all its values one counter.
    ///
    /// Bytes that are not UTF-8 are printed as the replacement character. Not for metric labels.
    pub fn printed_path(&self, rule: &Rule, entries: &[Entry<'_>]) -> String {
        let path = self.tree.path_to(rule.node);
        let mut text = self.domain_name(rule).to_owned();
        for (node, entry) in path.iter().zip(entries) {
            text.push('.');
            text.push_str(&node.key);
            let sent = String::from_utf8_lossy(entry.value);
            match &node.value {
                ValueSpec::Pattern(shared) if node.share_threshold => push_value(&mut text, shared),
                _ if rule.detailed_metric => push_value(&mut text, &sent),
                ValueSpec::Exact(value) => push_value(&mut text, value),
                ValueSpec::Any | ValueSpec::Pattern(_) if node.value_to_metric => {
                    if !sent.is_empty() {
                        push_value(&mut text, &sent);
                    }
                }
                ValueSpec::Pattern(pattern) => push_value(&mut text, pattern),
                ValueSpec::Any => {}
            }
        }
        text
    }

    /// One line per limit, in file order, as envoyproxy/ratelimit's `/rlconfig` prints them; what
    /// the policy says beyond its language follows, comma-separated. No line ends in a newline.
    pub fn listing(&self) -> impl Iterator<Item = String> {
        self.rules.iter().flat_map(|rule| {
            let limits =
                rule.limits.iter().map(|limit| format!("{}: {}", rule.path, line(rule, limit)));
            let unlimited = (rule.unlimited || rule.limits.is_empty()).then(|| {
                let modes = modes(rule);
                format!("{}: unit=UNKNOWN requests_per_unit=0, {modes}, unlimited: true", rule.path)
            });
            limits.chain(unlimited)
        })
    }

    /// The name of the domain that a rule of this policy stands in.
    pub fn domain_name(&self, rule: &Rule) -> &str {
        let mut at = rule.node;
        while let Some(parent) = self.tree.node(at).parent {
            at = parent;
        }
        self.tree.domains.iter().find(|domain| domain.root == at).map_or("", |domain| &domain.name)
    }
}

/// A limit as a line of the listing has it, after the path.
pub(crate) fn line(rule: &Rule, spec: &LimitSpec) -> String {
    let limit = &spec.limit;
    let unit = limit.rate.unit.map_or("unknown", |unit| unit.word()).to_ascii_uppercase();
    let number = limit.rate.requests_per_unit;
    let mut text = format!("unit={unit} requests_per_unit={number}, {}", modes(rule));
    // Writing into a string cannot fail.
    if limit.rate.unit_multiplier != 1 {
        let _ = write!(text, ", unit_multiplier: {}", limit.rate.unit_multiplier);
    }
    if let Some(name) = &spec.name {
        let _ = write!(text, ", name: {name}");
    }
    algorithm(&mut text, limit);
    if let Some(tiers) = &spec.tiers {
        let names: Vec<&str> = tiers.classes.iter().map(|class| &*class.name).collect();
        let _ = write!(text, ", tiers: {} {}", tiers.method.word(), names.join(" "));
    }
    if spec.cost != 1 {
        let _ = write!(text, ", cost: {}", spec.cost);
    }
    if limit.charge == Charge::Always {
        text.push_str(", charge: always");
    }
    text
}

/// The algorithm with its own numbers; nothing for the one that needs no word.
fn algorithm(text: &mut String, limit: &Limit) {
    // Writing into a string cannot fail.
    let _ = match &limit.algorithm {
        Algorithm::FixedWindow(fixed) => match &fixed.window {
            Window::Epoch { .. } => Ok(()),
            Window::Calendar(calendar) => {
                write!(text, ", align: calendar, time_zone: {}", calendar.zone())
            }
        },
        Algorithm::SlidingWindow(_) => write!(text, ", algorithm: sliding_window"),
        Algorithm::SlidingLog(_) => write!(text, ", algorithm: sliding_log"),
        Algorithm::Bucket(bucket) => {
            let word = if bucket.leaky { "leaky_bucket" } else { "token_bucket" };
            write!(text, ", algorithm: {word}, burst: {}", bucket.burst)
        }
        Algorithm::Hybrid(hybrid) => {
            write!(text, ", algorithm: token_bucket, burst: {}", hybrid.burst)
        }
        Algorithm::Concurrency(slots) => {
            write!(text, ", algorithm: concurrency, lease: {} s", slots.lease.ceil_secs())
        }
    };
}

fn modes(rule: &Rule) -> String {
    format!("shadow_mode: {}, quota_mode: {}", rule.shadow_mode, rule.quota_mode)
}

fn push_value(text: &mut String, value: &str) {
    text.push('_');
    text.push_str(value);
}

/// A path as a statistic's name: `:` and `|` become `_`, and so do the dots of IPv4 addresses; other
/// dots separate levels and stay.
///
/// ```
/// use tidegate::policy::statistic_name;
/// assert_eq!(statistic_name("edge.ip_10.0.0.1|x.path"), "edge.ip_10_0_0_1_x.path");
/// assert_eq!(statistic_name("edge.v_1.2.3"), "edge.v_1.2.3");
/// ```
pub fn statistic_name(path: &str) -> String {
    let mut name = String::with_capacity(path.len());
    let mut rest = path;
    let mut after_digit = false;
    while let Some(first) = rest.chars().next() {
        let taken = if after_digit { None } else { ipv4_length(rest) };
        let length = taken.unwrap_or(first.len_utf8());
        let (piece, tail) = rest.split_at(length);
        let is_dot = |c| c == '.' && taken.is_some();
        name.extend(
            piece.chars().map(|c| if matches!(c, ':' | '|') || is_dot(c) { '_' } else { c }),
        );
        after_digit = piece.ends_with(|c: char| c.is_ascii_digit());
        rest = tail;
    }
    name
}

/// The length of the IPv4 address that a text begins with.
fn ipv4_length(text: &str) -> Option<usize> {
    let mut length = 0;
    for part in 0..4 {
        let rest = &text[length..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<u8>().ok()?;
        length += digits;
        if part < 3 {
            length += text[length..].starts_with('.').then_some(1)?;
        }
    }
    Some(length)
}
