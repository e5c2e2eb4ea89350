//! Logs limits with `log_near` that are nearly used up, at most ten lines per second.
//!
//! On the request path, the event is only recorded, by the one call that brings a counter near its
//! limit. A background task writes the lines.

use std::mem;

use super::rule_counters::RuleTables;
use super::top_keys::{KeyRecord, KeyResult};
use crate::domain::{Hits, KeyEvent, Lock, NearEvent, RuleId, ValueDisplay};

/// Maximum number of lines that are written at a time, about once a second.
const LINES_MAX: usize = 10;

/// Log of limits that are nearly used up. Holds the next lines, and the number of events for which
/// there was no line.
#[derive(Debug, Default)]
pub(super) struct NearLog(Lock<(Vec<NearLine>, u64)>);

/// Data of a line. Contains the keys of the counter, but no values that the caller sent.
#[derive(Debug)]
struct NearLine {
    rule: RuleId,
    limit: String,
    key: KeyRecord,
    used: Hits,
    usable: Hits,
}

impl NearLog {
    /// Records an event for the next lines. Allocates and locks, because only the call that brings a
    /// counter near its limit is recorded.
    pub(super) fn record(&self, event: &NearEvent<'_>) {
        let (lines, suppressed) = &mut *self.0.lock();
        if lines.len() >= LINES_MAX {
            *suppressed += 1;
            return;
        }
        let NearEvent { rule, limit, counter, entries, used, usable } = *event;
        let key = KeyEvent { rule: None, limit: 0, counter, entries, shadow: false };
        let key = KeyRecord::new(&key, KeyResult::Refused, ValueDisplay::Hashed);
        lines.push(NearLine { rule, limit: limit.to_owned(), key, used, usable });
    }

    /// Takes the recorded events, and the number of those without a line.
    fn take(&self) -> (Vec<NearLine>, u64) {
        mem::take(&mut *self.0.lock())
    }

    /// Logs the recorded events. The last line has the number of those without a line.
    pub(super) fn write(&self, rules: &RuleTables) {
        let (lines, suppressed) = self.take();
        let last = lines.len();
        for (at, NearLine { rule, limit, key, used, usable }) in (1..).zip(lines) {
            let (domain, rule) = rules.name(rule).map(|name| (&*name.domain, &*name.path)).unzip();
            let suppressed = (at == last && suppressed > 0).then_some(suppressed);
            let (keys, counter) = (key.display(), format!("{:032x}", key.counter));
            let (used, hits) = (used.0, usable.0);
            tracing::info!(
                domain,
                rule,
                limit,
                keys,
                counter,
                used,
                hits,
                suppressed,
                "limit nearly used up"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{CounterKey, Entry};

    #[test]
    fn ten_lines_are_written_at_a_time_and_the_others_counted() {
        let log = NearLog::default();
        let entries = [Entry { key: b"token", value: b"secret" }];
        for identity in 0..13 {
            let counter = CounterKey { identity, tag: None };
            let (rule, limit, entries) = (RuleId(0), "daily", &entries[..]);
            let (used, usable) = (Hits(8), Hits(10));
            log.record(&NearEvent { rule, limit, counter, entries, used, usable });
        }
        let (lines, suppressed) = log.take();
        assert_eq!((lines.len(), suppressed), (10, 3));
        assert_eq!((lines[9].key.display(), lines[9].key.counter), ("token".to_owned(), 9));
        assert!(log.take().0.is_empty());
    }
}
