//! The sums so far as plain numbers, for the page: from their differences it makes rates.
//!
//! Not here: counting (`cells`), the rates (`app`).

use std::time::Duration;

use super::counters::Telemetry;
use super::rule_counters::RuleName;

/// What was counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Calls that were admitted.
    pub admitted: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Every rule of the policy in force, by name.
    pub rules: Vec<(RuleName, RuleSnapshot)>,
}

/// What was counted of a rule, in hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleSnapshot {
    /// Asked for.
    pub asked: u64,
    /// Of them refused.
    pub refused: u64,
}

/// How long decisions take: so long at most, for half of them, for 99 % and for 99.9 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The median.
    pub p50: Duration,
    /// Exceeded by one in a hundred.
    pub p99: Duration,
    /// Exceeded by one in a thousand.
    pub p999: Duration,
}

impl Telemetry {
    /// The sums so far.
    pub fn sums(&self) -> Snapshot {
        let totals = self.totals();
        let tables = self.tables();
        let rules = tables.present.by_name.iter().map(|(name, cell)| {
            let tally = cell.read();
            (name.clone(), RuleSnapshot { asked: tally.total, refused: tally.over })
        });
        Snapshot {
            admitted: totals.decided[0].iter().sum(),
            refused: totals.decided[1].iter().sum(),
            rules: rules.collect(),
        }
    }

    /// How long decisions took since the start; `None` before the first one.
    pub fn latency(&self) -> Option<Latency> {
        let took = self.totals().took;
        let at = |share| took.below(share).map(Duration::from_micros);
        Some(Latency { p50: at(0.5)?, p99: at(0.99)?, p999: at(0.999)? })
    }
}
