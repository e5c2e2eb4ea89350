//! Snapshot of the counters as plain numbers, from which `app::request_rates` computes the rates on the
//! live page.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

use super::counters::Telemetry;
use super::history::{Baseline, HISTORY_RULES_MAX, History, HistoryReport, INTERVAL};
use super::lost_bills;
use super::recent_latency::percentile_ms;
use super::rule_counters::{RuleCounters, RuleName, RuleTables};
use crate::domain::Micros;

/// Decision counts since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of admitted calls.
    pub admitted: u64,
    /// Number of rejected calls.
    pub refused: u64,
    /// Number of admitted calls that would have been rejected without shadow mode.
    pub would_be_rejected: u64,
    /// Check counts of each rule of the active policy, by rule name.
    pub rules: Vec<(RuleName, RuleSnapshot)>,
}

/// Check counts of one rule since the process started. A call checks a rule once for each
/// descriptor that matches the rule. Nearly always, only one descriptor matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleSnapshot {
    /// Number of checks, whether passed or refused.
    pub checks: u64,
    /// Number of checks over the limit that rejected their call.
    pub refused: u64,
    /// Number of checks over the limit whose call passed, because of shadow mode or of another quota
    /// group.
    pub would_refuse: u64,
}

impl RuleSnapshot {
    fn merge(&mut self, other: RuleSnapshot) {
        self.checks += other.checks;
        self.refused += other.refused;
        self.would_refuse += other.would_refuse;
    }

    fn counts(&self) -> [u64; 3] {
        [self.checks, self.refused, self.would_refuse]
    }

    /// Returns the checks of a rule or a detailed path.
    fn new(counters: &RuleCounters, global_shadow: bool) -> RuleSnapshot {
        let [passed, over] = counters.checks().map(|by_source| by_source.iter().sum::<u64>());
        // The two counts are not read at the same moment.
        let would_refuse = if global_shadow { over } else { counters.would_refuse().min(over) };
        RuleSnapshot { checks: passed + over, refused: over - would_refuse, would_refuse }
    }

    /// Returns the checks since the previous call of this method for the same counters.
    fn take_recent(counters: &RuleCounters, global_shadow: bool) -> RuleSnapshot {
        let counts = RuleSnapshot::new(counters, global_shadow).counts();
        let [checks, refused, would_refuse] = counters.take_increase(counts);
        RuleSnapshot { checks, refused, would_refuse }
    }
}

/// Latency percentiles of the last minute. Latency is the time from receiving a call to
/// sending its response. A percentile above the histogram's last bound, 1 s, is reported as that
/// bound.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Latency {
    /// Number of calls in the last minute.
    pub calls: u64,
    /// 50th percentile (median), in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile, in milliseconds.
    pub p99_ms: f64,
    /// 99.9th percentile, in milliseconds.
    pub p999_ms: f64,
}

/// Bills (reports of hits already used) that limits rejected since the process started. A rejected
/// bill is counted only if its rule had been checked with 0 hits before.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RejectedBills {
    /// Number of rejected bills (reports of hits already used).
    pub bills: u64,
    /// Path of a rule that rejected at least one of these bills (reports of hits already used), or
    /// `request override`.
    pub rule: String,
}

impl Telemetry {
    /// Returns the number of rejected bills (reports of hits already used) and a rule that rejected
    /// at least one of them; `None` if no bill was rejected.
    pub fn rejected_bills(&self) -> Option<RejectedBills> {
        let [[bills, _], _] = self.lost_bills.totals();
        let rule = || lost_bills::find_rule_with_lost_bills(&self.rule_tables().current).to_owned();
        (bills > 0).then(|| RejectedBills { bills, rule: rule() })
    }

    /// Returns the counts of decisions and of checks per rule since the process started.
    pub fn snapshot(&self) -> Snapshot {
        let totals = self.sum_workers();
        let tables = self.rule_tables();
        let rules = self.read_rules(&tables, RuleSnapshot::new);
        Snapshot {
            admitted: totals.decided[0].iter().sum(),
            refused: totals.decided[1].iter().sum(),
            would_be_rejected: totals.would_be_rejected,
            rules: rules.map(|(name, counts)| (name.clone(), counts)).collect(),
        }
    }

    /// Returns the checks of each rule of the active policy, with those of its detailed paths.
    fn read_rules<'t>(
        &self,
        tables: &'t RuleTables,
        read: fn(&RuleCounters, bool) -> RuleSnapshot,
    ) -> impl Iterator<Item = (&'t RuleName, RuleSnapshot)> {
        let global_shadow = self.global_shadow;
        let mut detailed: HashMap<RuleName, RuleSnapshot> = HashMap::new();
        for row in self.detailed_counters.rows() {
            detailed.entry(row.rule).or_default().merge(read(&row.counters, global_shadow));
        }
        tables.current.by_name.iter().map(move |(name, counters)| {
            let mut sums = read(counters.to_read(), global_shadow);
            sums.merge(detailed.get(name).copied().unwrap_or_default());
            (name, sums)
        })
    }

    /// Adds a point to the history if one is due. `now` is the wall clock's time, and `at` the
    /// monotonic clock's. Call this about once a second.
    pub fn keep_history(&self, now: Micros, at: Instant) {
        let (mut history, interval) = (self.history.lock(), now.0 / INTERVAL.0);
        let last = history.baseline.as_ref().map(|baseline| baseline.interval);
        // The wall clock was set back.
        if last.is_some_and(|last| interval + 1 < last) {
            *history = History::default();
        } else if last.is_some_and(|last| interval <= last) {
            return;
        }
        let baseline = Baseline { interval, at, totals: self.sum_workers() };
        history.add(baseline, self.take_recent_checks());
    }

    /// Returns the history of the last hour, with at most `rules_max` rules.
    pub fn history(&self, rules_max: usize) -> HistoryReport {
        self.history.lock().report(rules_max)
    }

    /// Returns the checks since the previous call of this method, of the rules with the most
    /// rejections, then of the busiest. Copies only the names of these, while a
    /// [`snapshot`](Telemetry::snapshot) copies those of all rules, of which there may be 100,000.
    fn take_recent_checks(&self) -> Vec<(RuleName, [u64; 3])> {
        let tables = self.rule_tables();
        let recent = self.read_rules(&tables, RuleSnapshot::take_recent);
        let mut recent: Vec<_> = recent.filter(|(_, recent)| recent.checks > 0).collect();
        recent.sort_unstable_by_key(|(_, RuleSnapshot { checks, refused, would_refuse })| {
            Reverse((refused + would_refuse, *checks))
        });
        recent.truncate(HISTORY_RULES_MAX);
        recent.into_iter().map(|(name, recent)| (name.clone(), recent.counts())).collect()
    }

    /// Keeps the latencies so far, from which those of the last minute follow. Call this about once
    /// a second.
    pub fn keep_latency(&self, now: Instant) {
        self.recent_latency.keep(now, || self.sum_workers().durations);
    }

    /// Returns latency percentiles of the last minute; `None` if it had no call.
    pub fn latency(&self, now: Instant) -> Option<Latency> {
        let durations = self.recent_latency.last_minute(now, self.sum_workers().durations);
        let percentile = |fraction| percentile_ms(&durations, fraction);
        let calls = durations.count();
        (calls > 0).then(|| Latency {
            calls,
            p50_ms: percentile(0.5),
            p99_ms: percentile(0.99),
            p999_ms: percentile(0.999),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::fixtures::check_event;
    use crate::domain::{
        CheckEvent, Code, Decision, DetailedCheck, Hits, Micros, Observer, Outcome, RpcOutcome,
        RuleId, Source,
    };

    #[allow(clippy::disallowed_methods, reason = "any instant serves as the start")]
    fn any_instant() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_snapshot_adds_the_checks_of_detailed_paths_to_those_of_their_rule() {
        let telemetry = Telemetry::new(0.8);
        let name = RuleName { domain: "d".into(), path: "d.a".into() };
        telemetry.record_policy_load(RuleId(0), [name.clone()], "1", Micros(1));
        for code in [Code::Ok, Code::Ok, Code::OverLimit] {
            telemetry.on_decision(&Decision {
                code,
                statuses: Vec::new(),
                limited_by: None,
                source: Source::Memory,
                shadowed: false,
                domain_known: true,
                slot: None,
                marks: Vec::new(),
                hold: None,
            });
        }
        let passed = check_event(0, 1, Outcome::pass(Hits(9)));
        let would_refuse = check_event(0, 1, Outcome::refuse_for(Micros::SECOND));
        let refused = CheckEvent { admitted: false, ..would_refuse };
        telemetry.on_check(&passed);
        telemetry.on_check(&refused);
        let detailed_path = || "d.a_x".to_owned();
        let detailed =
            DetailedCheck { domain: "d", rule_path: "d.a", detailed_path: &detailed_path };
        for event in [passed, refused, would_refuse] {
            telemetry.on_detailed_check(&event, &detailed);
        }
        let mut expected = Snapshot {
            admitted: 2,
            refused: 1,
            would_be_rejected: 0,
            rules: vec![(name, RuleSnapshot { checks: 5, refused: 2, would_refuse: 1 })],
        };
        assert_eq!(telemetry.snapshot(), expected);
        expected.rules[0].1 = RuleSnapshot { checks: 5, refused: 0, would_refuse: 3 };
        assert_eq!(telemetry.with_global_shadow(true).snapshot(), expected);
    }

    #[test]
    fn latency_is_reported_as_three_percentiles() {
        let (telemetry, now) = (Telemetry::new(0.8), any_instant());
        assert_eq!(telemetry.latency(now), None);
        for (calls, took_us) in [(400, 25), (560, 100), (38, 1_000), (2, 10_000)] {
            for _ in 0..calls {
                telemetry.on_response(RpcOutcome::Decided, Duration::from_micros(took_us));
            }
        }
        let expected = Latency { calls: 1_000, p50_ms: 0.1, p99_ms: 1.0, p999_ms: 10.0 };
        assert_eq!(telemetry.latency(now), Some(expected));
        for _ in 0..10 {
            telemetry.on_response(RpcOutcome::Decided, Duration::from_secs(2));
        }
        let slow = telemetry.latency(now).map(|latency| latency.p999_ms);
        assert_eq!(slow, Some(1_000.0), "the last bound");
    }

    /// Each row: seconds at which a call takes as long as the row says, and what is then seen.
    #[test]
    fn a_freeze_leaves_the_latency_after_a_minute() {
        let (telemetry, start) = (Telemetry::new(0.8), any_instant());
        let rows: [(u64, Option<u64>, Option<u64>); 8] = [
            (0, Some(1_000_000), Some(1_000_000)),
            (1, Some(100), Some(1_000_000)),
            (59, Some(100), Some(1_000_000)),
            (61, Some(100), Some(100)),
            (62, None, Some(100)),
            (119, None, Some(100)),
            (122, None, None),
            // The process was frozen: no snapshot is from the last minute.
            (999, Some(25), Some(25)),
        ];
        for (second, took_us, seen_us) in rows {
            let now = start + Duration::from_secs(second);
            if second > 0 {
                // Several at a time, as after a freeze.
                (0..100).for_each(|_| telemetry.keep_latency(now));
            }
            if let Some(took_us) = took_us {
                telemetry.on_response(RpcOutcome::Decided, Duration::from_micros(took_us));
            }
            let seen = telemetry.latency(now).map(|latency| latency.p999_ms);
            let seen_ms = seen_us.map(|us| Duration::from_micros(us).as_secs_f64() * 1e3);
            assert_eq!(seen, seen_ms, "at {second} s");
        }
    }
}
