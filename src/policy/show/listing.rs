//! Printed paths of rules, and the listing of a policy.
//!
//! A rule's path has two forms. The configured path (`Rule::path`) names the rule in metrics. The
//! printed path can contain values of the request (`value_to_metric`, `detailed_metric`). It is
//! used in explanations and logs, but never in metrics, where callers could create any number of
//! series.
//!
//! Everything here allocates and is not called on the request path.

use std::fmt::Write as _;

use crate::domain::{Algorithm, Charge, Entry, Limit, Window};
use crate::policy::compile::spec::{LimitSpec, ValueSpec};
use crate::policy::lookup::tree::{Policy, Rule, TreeNode};

/// Formats the configured path: the domain, then one part per level. The part is `key_value`,
/// `key_a*` for a pattern, or `key` if the level has no value.
pub(crate) fn configured_path(domain: &str, path: &[&TreeNode]) -> String {
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
    /// Formats the path of a rule with values from the request. The request's value replaces a
    /// pattern or a missing value, either at levels with `value_to_metric` or, if the rule has
    /// `detailed_metric`, at all levels. A level with `share_threshold` shows its pattern instead.
    ///
    /// Invalid UTF-8 becomes U+FFFD. Do not use the result as a metric label.
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

    /// Returns one line per limit, in file order and without newlines, in the format of
    /// `/rlconfig` in envoyproxy/ratelimit. Settings that only Tidegate supports are appended,
    /// separated by commas.
    pub fn listing(&self) -> impl Iterator<Item = String> {
        self.rules.iter().flat_map(|rule| {
            let limits = rule
                .limits
                .iter()
                .map(|limit| format!("{}: {}", rule.path, format_limit(rule, limit)));
            let unlimited = (rule.unlimited || rule.limits.is_empty()).then(|| {
                let modes = format_modes(rule);
                format!("{}: unit=UNKNOWN requests_per_unit=0, {modes}, unlimited: true", rule.path)
            });
            limits.chain(unlimited)
        })
    }

    /// Returns the name of the domain of a rule of this policy.
    pub fn domain_name(&self, rule: &Rule) -> &str {
        let mut at = rule.node;
        while let Some(parent) = self.tree.node(at).parent {
            at = parent;
        }
        self.tree.domains.iter().find(|domain| domain.root == at).map_or("", |domain| &domain.name)
    }
}

/// Formats a limit for the listing; the caller adds the rule's path.
pub(crate) fn format_limit(rule: &Rule, spec: &LimitSpec) -> String {
    let limit = &spec.limit;
    let unit = limit.rate.unit.map_or("unknown", |unit| unit.as_str()).to_ascii_uppercase();
    let number = limit.rate.requests_per_unit;
    let mut text = format!("unit={unit} requests_per_unit={number}, {}", format_modes(rule));
    // Writing into a string cannot fail.
    if limit.rate.unit_multiplier != 1 {
        let _ = write!(text, ", unit_multiplier: {}", limit.rate.unit_multiplier);
    }
    if let Some(name) = &spec.name {
        let _ = write!(text, ", name: {name}");
    }
    push_algorithm(&mut text, limit);
    if let Some(tiers) = &spec.tiers {
        let names: Vec<&str> = tiers.classes.iter().map(|class| &*class.name).collect();
        let _ = write!(text, ", tiers: {} {}", tiers.method.as_str(), names.join(" "));
    }
    if spec.cost != 1 {
        let _ = write!(text, ", cost: {}", spec.cost);
    }
    if limit.charge == Charge::Always {
        text.push_str(", charge: always");
    }
    text
}

/// Appends the algorithm and its parameters. Appends nothing for `fixed_window` without calendar
/// windows.
fn push_algorithm(text: &mut String, limit: &Limit) {
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

fn format_modes(rule: &Rule) -> String {
    format!("shadow_mode: {}, quota_mode: {}", rule.shadow_mode, rule.quota_mode)
}

fn push_value(text: &mut String, value: &str) {
    text.push('_');
    text.push_str(value);
}

/// Converts a path to a statsd name: `:`, `|`, and the dots of IPv4 addresses become `_`. Other
/// dots separate levels and are kept.
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

/// Returns the length in bytes of the IPv4 address at the start of a text, or `None` if the text
/// does not start with one.
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
