//! Logs rejected calls, at most one line per second. Each line describes one rejected call and the
//! rule that rejected it. It also states how many calls were rejected since the previous line, and
//! how many checks of that rule were refused since the last line that named it.
//!
//! On the request path, the call's data is only recorded. A background task writes the line, so
//! that standard error never delays a decision.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::rule_counters::{RuleCounters, RuleTables};
use crate::domain::{LimitedBy, Lock, RuleId, Source};

/// Data about a rejected call for the log. Contains nothing that the caller sent.
#[derive(Debug)]
struct LoggedRefusal {
    /// Rule of the limit that rejected the call; `None` for a request override.
    rule: Option<RuleId>,
    limit: String,
    source: Source,
    /// Time until a retry can succeed, in milliseconds; `None` if waiting does not help.
    retry_after_ms: Option<u64>,
}

/// Log of rejected calls. Holds one rejected call for the next log line.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// Whether a rejected call has been recorded since the last log line.
    has_recorded: AtomicBool,
    pending: Lock<Option<LoggedRefusal>>,
    /// Total number of rejected calls when the last log line was written.
    refused_when_written: AtomicU64,
}

impl RefusalLog {
    /// Records a rejected call for the next log line, unless a call is already recorded. Costs one
    /// atomic load per call, and once per second an allocation and a lock that only the background
    /// task shares.
    pub(super) fn record(&self, limited: Option<&LimitedBy<'_>>, source: Source) {
        if self.has_recorded.load(Ordering::Relaxed)
            || self.has_recorded.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let refusal = LoggedRefusal {
            rule: limited.and_then(|limited| limited.rule),
            limit: limited.map_or(String::new(), |limited| limited.name.to_owned()),
            source,
            retry_after_ms: limited.and_then(|l| l.retry_after).map(|wait| wait.ceil_millis()),
        };
        *self.pending.lock() = Some(refusal);
    }

    /// Logs the recorded call, if any, and lets the next rejected call be recorded. `refused` is
    /// the total number of rejected calls since the process started.
    pub(super) fn write(&self, refused: u64, rules: &RuleTables) {
        let Some((refusal, rejections)) = self.take(refused) else { return };
        let LoggedRefusal { rule, limit, source, retry_after_ms } = refusal;
        let counters = rule.and_then(|rule| rules.get(rule));
        // A rule with `detailed_metric` is counted by its values, and has no count of its own.
        let rule_rejections =
            counters.map(RuleCounters::refused_since_logged).filter(|refused| *refused > 0);
        let name = rule.and_then(|rule| rules.name(rule));
        let (domain, rule) = name.map(|name| (&*name.domain, &*name.path)).unzip();
        let rule = rule.unwrap_or("request override");
        let source = source.as_str();
        tracing::info!(
            domain,
            rule,
            limit,
            source,
            retry_after_ms,
            rule_rejections,
            rejections,
            "a call was rejected"
        );
    }

    /// Does the same for calls that passed only because of shadow mode. `calls` is their total
    /// number since the process started.
    pub(super) fn write_shadow(&self, calls: u64, rules: &RuleTables) {
        let Some((refusal, calls)) = self.take(calls) else { return };
        let LoggedRefusal { rule, limit, source, .. } = refusal;
        let name = rule.and_then(|rule| rules.name(rule));
        let (domain, rule) = name.map(|name| (&*name.domain, &*name.path)).unzip();
        let source = source.as_str();
        tracing::info!(
            domain,
            rule,
            limit,
            source,
            calls,
            "a call would be rejected, but shadow mode let it pass"
        );
    }

    /// Takes the recorded call, if any, with the number of calls since the last line, and lets the
    /// next call be recorded. `total` is the number of calls since the process started.
    fn take(&self, total: u64) -> Option<(LoggedRefusal, u64)> {
        let pending = self.pending.lock().take();
        self.has_recorded.store(false, Ordering::Relaxed);
        let refusal = pending?;
        let written = self.refused_when_written.swap(total, Ordering::Relaxed);
        Some((refusal, total.saturating_sub(written)))
    }
}
