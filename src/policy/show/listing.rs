//! Printed paths of rules, and the listing of a policy.
//!
//! A rule's path has two forms. The configured path (`Rule::path`) contains only text from the
//! policy. The printed path can contain values of the request (`value_to_metric`,
//! `detailed_metric`). Explanations show both. Metrics of rules with these keys are labeled with
//! the printed path; `telemetry` calls it the detailed path and bounds the number of series.
//!
//! Functions of this module allocate. On the request path, only `printed_path` is called, and only
//! for rules with `value_to_metric` or `detailed_metric`.

use std::fmt::Write as _;

use crate::domain::{
    Algorithm, Bucket, Calendar, Charge, Entry, FixedWindow, Hybrid, Limit, Window,
};
use crate::policy::compiled_policy::{LimitSpec, SoftLimit, ValueSpec};
use crate::policy::lookup::tree::{Policy, Rule, push_value};
use crate::policy::words::AlgorithmName;

impl Policy {
    /// Formats the path of a rule with values from the request. The request's value replaces a
    /// pattern or a missing value, either at levels with `value_to_metric` or, if the rule has
    /// `detailed_metric`, at all levels. A level with `share_threshold` shows its pattern instead.
    ///
    /// Invalid UTF-8 becomes U+FFFD. Callers choose the values, so a metric that uses the result as
    /// a label must bound the number of its series.
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

    /// Returns one line per limit or unlimited rule, in file order and without newlines, as
    /// `/rlconfig` of envoyproxy/ratelimit prints it. Settings that only Tidegate supports are
    /// appended, separated by commas. As in envoyproxy/ratelimit, the name of a `rate_limit` is
    /// omitted.
    pub fn listing(&self) -> impl Iterator<Item = String> {
        self.rules.iter().flat_map(Rule::listing)
    }

    /// Returns the name of the domain that contains the rule.
    pub fn domain_name(&self, rule: &Rule) -> &str {
        &self.tree.domains[rule.domain as usize].name
    }
}

impl Rule {
    /// Returns the rule's lines of [`Policy::listing`].
    pub fn listing(&self) -> impl Iterator<Item = String> {
        let limits = self.limits.iter().map(|limit| {
            // A name in `rate_limit` is one of envoyproxy/ratelimit, which does not print it.
            format!("{}: {}", self.path, format_limit(self, limit, limit.in_list))
        });
        let unlimited = self
            .limits
            .is_empty()
            .then(|| format!("{}: {}", self.path, format_rate("UNKNOWN", 0, self)));
        limits.chain(unlimited)
    }
}

/// Formats a limit for the listing, without the rule's path.
pub(crate) fn format_limit(rule: &Rule, spec: &LimitSpec, with_name: bool) -> String {
    let limit = &spec.limit;
    let unit = limit.rate.unit.map_or("unknown", |unit| unit.as_str()).to_ascii_uppercase();
    let mut text = format_rate(&unit, limit.rate.requests_per_unit, rule);
    // Writing into a string cannot fail.
    if limit.rate.unit_multiplier != 1 {
        let _ = write!(text, ", unit_multiplier: {}", limit.rate.unit_multiplier);
    }
    if let Some(name) = spec.name.as_ref().filter(|_| with_name) {
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
    if limit.prepay {
        text.push_str(", prepay: auto");
    }
    if let Some(reserve) = limit.reserve {
        let _ = write!(text, ", reserve: {} s", reserve.ttl_secs());
    }
    if let Some(seconds) = limit.block_seconds {
        let _ = write!(text, ", block: {seconds} s");
    }
    if let Some(soft) = &spec.soft {
        text.push_str(", mark: ");
        text.push_str(&format_soft_limit(soft));
    }
    text
}

/// Formats `mark` and `log_near`, such as `near at 80%: x-quota: near, over: x-quota: over, logged`.
pub(crate) fn format_soft_limit(soft: &SoftLimit) -> String {
    let mut text = format!("near at {}%", f64::from(soft.near_at) / 1e4);
    let near = soft.near.iter().map(|mark| (": ", mark));
    for (sign, mark) in near.chain(soft.over.iter().map(|mark| (", over: ", mark))) {
        text.push_str(&[sign, &mark.name, ": ", &mark.value].concat());
    }
    text.push_str(if soft.log_near { ", logged" } else { "" });
    text
}

/// Appends the algorithm and its parameters. Appends nothing for `fixed_window` without calendar
/// windows.
fn push_algorithm(text: &mut String, limit: &Limit) {
    if let Some(calendar) = calendar_of(&limit.algorithm) {
        let _ = write!(text, ", align: calendar, time_zone: {}", calendar.time_zone());
        if let Some(anchor) = calendar.anchor() {
            let _ = write!(text, ", anchor: {anchor}");
        }
    } else if !matches!(limit.algorithm, Algorithm::FixedWindow(_)) {
        let _ = write!(text, ", algorithm: {}", algorithm_name(&limit.algorithm));
    }
    // Writing into a string cannot fail.
    let _ = match &limit.algorithm {
        Algorithm::Bucket(Bucket { burst, .. }) | Algorithm::Hybrid(Hybrid { burst, .. }) => {
            write!(text, ", burst: {burst}")
        }
        Algorithm::Concurrency(slots) => write!(text, ", lease: {} s", slots.lease.ceil_secs()),
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) => {
            Ok(())
        }
    };
}

/// Returns the algorithm, as spelled in policy files.
pub(crate) fn algorithm_name(algorithm: &Algorithm) -> &'static str {
    let name = match algorithm {
        Algorithm::FixedWindow(_) => AlgorithmName::FixedWindow,
        Algorithm::SlidingWindow(_) => AlgorithmName::SlidingWindow,
        Algorithm::SlidingLog(_) => AlgorithmName::SlidingLog,
        Algorithm::Bucket(bucket) if bucket.leaky => AlgorithmName::LeakyBucket,
        Algorithm::Bucket(_) | Algorithm::Hybrid(_) => AlgorithmName::TokenBucket,
        Algorithm::Concurrency(_) => AlgorithmName::Concurrency,
    };
    name.as_str()
}

/// Returns the calendar of a limit; `None` if its windows are not aligned to one.
pub(crate) fn calendar_of(algorithm: &Algorithm) -> Option<&Calendar> {
    match algorithm {
        Algorithm::FixedWindow(FixedWindow { window: Window::Calendar(calendar), .. }) => {
            Some(calendar)
        }
        _ => None,
    }
}

/// Formats the rate of a limit as envoyproxy/ratelimit prints it.
fn format_rate(unit: &str, requests_per_unit: u32, rule: &Rule) -> String {
    let Rule { shadow_mode, quota_mode, .. } = rule;
    format!(
        "unit={unit} requests_per_unit={requests_per_unit}, shadow_mode: {shadow_mode}, \
         quota_mode: {quota_mode}"
    )
}
