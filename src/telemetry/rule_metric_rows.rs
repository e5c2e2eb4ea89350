//! Rows of the per-rule metrics: one row for each rule, one for the request overrides of each
//! domain, and one for each detailed path. A detailed path is a rule's path with descriptor values.

use std::collections::BTreeMap;

use super::counters::Telemetry;
use super::detailed_counters::DetailedRow;
use super::hit_counts::HitCounts;
use super::rule_counters::{CountsByCode, RuleCounters, RuleTables};

/// Rule path under which metrics list request overrides.
pub(super) const OVERRIDES_PATH: &str = "(override)";

/// Hits and checks counted in one row of the per-rule metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowCounts {
    pub(super) hits: HitCounts,
    pub(super) checks: CountsByCode,
}

impl RowCounts {
    fn add(&mut self, counters: &RuleCounters) {
        self.hits.add(&counters.hits());
        let sums = self.checks.as_flattened_mut().iter_mut();
        sums.zip(counters.checks().as_flattened()).for_each(|(sum, count)| *sum += count);
    }
}

impl Telemetry {
    /// Returns the counts of each row, by domain and path. If a detailed path (a rule's path with
    /// descriptor values) equals the path of another rule, both share one row.
    pub(super) fn rows<'t>(
        &'t self,
        RuleTables { current, .. }: &'t RuleTables,
        detailed: &'t [DetailedRow],
    ) -> BTreeMap<(&'t str, &'t str), RowCounts> {
        let rules = current.by_name.iter().map(|(name, counters)| {
            let name: (&str, &str) = (&name.domain, &name.path);
            (name, counters.to_read())
        });
        let overrides = current
            .overrides
            .iter()
            .map(|(domain, counters)| ((&**domain, OVERRIDES_PATH), &**counters))
            .filter(|(_, counters)| counters.hits().total > 0);
        let other_overrides = [(("", OVERRIDES_PATH), &self.overrides)];
        let detailed = detailed.iter().map(|row| {
            let name: (&str, &str) = (&row.rule.domain, &row.path);
            (name, &*row.counters)
        });
        let mut rows: BTreeMap<(&str, &str), RowCounts> = BTreeMap::new();
        for (name, counters) in rules.chain(overrides).chain(other_overrides).chain(detailed) {
            rows.entry(name).or_default().add(counters);
        }
        rows
    }
}
