//! A snapshot of the counters as plain numbers, from which the live page computes rates.
//!
//! Not here: counting (`counters`), the rates (`app::rates`).

use std::time::Duration;

use super::counters::Telemetry;
use super::rule_counters::RuleName;

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Admitted calls.
    pub admitted: u64,
    /// Rejected calls.
    pub refused: u64,
    /// Every rule of the policy in force, by name.
    pub rules: Vec<(RuleName, RuleSnapshot)>,
}

/// Counts of a rule, in hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleSnapshot {
    /// Requested.
    pub asked: u64,
    /// Rejected.
    pub refused: u64,
}

/// Percentiles of the time from receiving a call to its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The 99.9th percentile.
    pub p999: Duration,
}

impl Telemetry {
    /// The counts so far.
    pub fn snapshot(&self) -> Snapshot {
        let totals = self.totals();
        let tables = self.tables();
        let rules = tables.present.by_name.iter().map(|(name, counters)| {
            let hits = counters.hits();
            (name.clone(), RuleSnapshot { asked: hits.total, refused: hits.over })
        });
        Snapshot {
            admitted: totals.decided[0].iter().sum(),
            refused: totals.decided[1].iter().sum(),
            rules: rules.collect(),
        }
    }

    /// Latencies since the start; `None` before the first call.
    pub fn latency(&self) -> Option<Latency> {
        let durations = self.totals().durations;
        let percentile = |share| durations.quantile(share).map(Duration::from_micros);
        Some(Latency { p50: percentile(0.5)?, p99: percentile(0.99)?, p999: percentile(0.999)? })
    }
}
