//! Snapshot of the counters as plain numbers, from which `app::rates` computes the rates on the
//! live page.

use std::collections::HashMap;
use std::time::Duration;

use super::counters::Telemetry;
use super::lost_bills;
use super::rule_counters::{RuleCounters, RuleName};

/// Decision counts since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of admitted calls.
    pub admitted: u64,
    /// Number of rejected calls.
    pub refused: u64,
    /// Check counts of each rule of the active policy, by rule name.
    pub rules: Vec<(RuleName, RuleSnapshot)>,
}

/// Check counts of one rule since the process started. A call checks a rule once for each
/// descriptor that matches the rule. Nearly always, only one descriptor matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleSnapshot {
    /// Number of checks, whether passed or refused.
    pub checks: u64,
    /// Number of checks over the limit, whether the limit is enforced or in shadow mode.
    pub refused: u64,
}

impl RuleSnapshot {
    fn new(counters: &RuleCounters) -> RuleSnapshot {
        let [passed, refused] = counters.checks().map(|by_source| by_source.iter().sum::<u64>());
        RuleSnapshot { checks: passed + refused, refused }
    }
}

/// Latency percentiles since the process started. Latency is the time from receiving a call to
/// sending its response. A percentile above the histogram's last bound, 1 s, is reported as that
/// bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// 50th percentile (median).
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// 99.9th percentile.
    pub p999: Duration,
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
        let [(_, bills, _), _] = self.lost_bills.totals();
        let rule = || lost_bills::find_rule_with_lost_bills(&self.rule_tables().current).to_owned();
        (bills > 0).then(|| RejectedBills { bills, rule: rule() })
    }

    /// Returns the counts of decisions and of checks per rule since the process started.
    pub fn snapshot(&self) -> Snapshot {
        let totals = self.sum_workers();
        let tables = self.rule_tables();
        let mut detailed: HashMap<RuleName, RuleSnapshot> = HashMap::new();
        for row in self.detailed_counters().rows() {
            let (sums, more) =
                (detailed.entry(row.rule).or_default(), RuleSnapshot::new(&row.counters));
            sums.checks += more.checks;
            sums.refused += more.refused;
        }
        let rules = tables.current.by_name.iter().map(|(name, counters)| {
            let (sums, more) = (
                RuleSnapshot::new(counters.to_read()),
                detailed.get(name).copied().unwrap_or_default(),
            );
            let (checks, refused) = (sums.checks + more.checks, sums.refused + more.refused);
            (name.clone(), RuleSnapshot { checks, refused })
        });
        Snapshot {
            admitted: totals.decided[0].iter().sum(),
            refused: totals.decided[1].iter().sum(),
            rules: rules.collect(),
        }
    }

    /// Returns latency percentiles since the process started; `None` before the first call.
    pub fn latency(&self) -> Option<Latency> {
        let durations = self.sum_workers().durations;
        let bound_max = durations.bounds.last().copied().unwrap_or_default();
        let percentile =
            |fraction| Duration::from_micros(durations.quantile(fraction).unwrap_or(bound_max));
        (durations.count() > 0).then(|| Latency {
            p50: percentile(0.5),
            p99: percentile(0.99),
            p999: percentile(0.999),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::check_event;
    use crate::domain::{
        Code, Decision, DetailedCheck, Hits, Micros, Observer, Outcome, RpcOutcome, RuleId, Source,
    };

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
            });
        }
        let passed = check_event(0, 1, Outcome::pass(Hits(9)));
        let refused = check_event(0, 1, Outcome::refuse_for(Micros::SECOND));
        telemetry.on_check(&passed);
        telemetry.on_check(&refused);
        let detailed_path = || "d.a_x".to_owned();
        let detailed =
            DetailedCheck { domain: "d", rule_path: "d.a", detailed_path: &detailed_path };
        for event in [passed, refused, refused] {
            telemetry.on_detailed_check(&event, &detailed);
        }
        let rules = vec![(name, RuleSnapshot { checks: 5, refused: 3 })];
        assert_eq!(telemetry.snapshot(), Snapshot { admitted: 2, refused: 1, rules });
    }

    #[test]
    fn latency_is_reported_as_three_percentiles() {
        let telemetry = Telemetry::new(0.8);
        assert_eq!(telemetry.latency(), None);
        for (calls, took_us) in [(400, 25), (560, 100), (38, 1_000), (2, 10_000)] {
            for _ in 0..calls {
                telemetry.on_response(RpcOutcome::Decided, Duration::from_micros(took_us));
            }
        }
        let expected = Latency {
            p50: Duration::from_micros(100),
            p99: Duration::from_millis(1),
            p999: Duration::from_millis(10),
        };
        assert_eq!(telemetry.latency(), Some(expected));
        for _ in 0..10 {
            telemetry.on_response(RpcOutcome::Decided, Duration::from_secs(2));
        }
        let slow = telemetry.latency().map(|latency| latency.p999);
        assert_eq!(slow, Some(Duration::from_secs(1)), "the last bound");
    }
}
