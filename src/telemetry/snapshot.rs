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
/// sending its response.
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
            let (sums, more) =
                (RuleSnapshot::new(counters), detailed.get(name).copied().unwrap_or_default());
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
        let percentile = |fraction| durations.quantile(fraction).map(Duration::from_micros);
        Some(Latency { p50: percentile(0.5)?, p99: percentile(0.99)?, p999: percentile(0.999)? })
    }
}
