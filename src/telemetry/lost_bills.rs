//! Lost bills: bills that were not charged in full, and the warning about them.
//!
//! A bill is a descriptor that reports hits that the caller has already used. If a limit rejects a
//! bill, these hits are never counted. As a result, a limit that is charged only by bills hardly
//! ever rejects a call. Envoy ignores the response to a bill, so only these counters show the loss.
//!
//! Not here: which hits of a check are lost (`decide`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::rule_counters::RuleTable;
use crate::domain::{LossCause, LostBill};

/// Counters of lost bills, by cause. A bill is a descriptor that reports hits already used. It is
/// lost if these hits are not charged in full.
#[derive(Debug, Default)]
pub(super) struct LostBills {
    /// Number of bills that were not charged in full, in the order of [`LossCause::ALL`].
    bills: [AtomicU64; LossCause::ALL.len()],
    /// Number of hits of lost bills that were not charged, in the order of [`LossCause::ALL`].
    hits: [AtomicU64; LossCause::ALL.len()],
    has_warned: AtomicBool,
}

impl LostBills {
    /// Counts a bill that was not charged in full.
    pub(super) fn add(&self, lost: LostBill) {
        self.bills[lost.cause as usize].fetch_add(1, Ordering::Relaxed);
        self.hits[lost.cause as usize].fetch_add(lost.hits.0, Ordering::Relaxed);
    }

    /// Returns the numbers of lost bills, then the numbers of their uncharged hits, each in the order of
    /// [`LossCause::ALL`].
    pub(super) fn totals(&self) -> [[u64; LossCause::ALL.len()]; 2] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [&self.bills, &self.hits].map(|each| each.each_ref().map(read))
    }

    /// Logs a warning if any bills have been rejected. Logs at most once per process, because the
    /// advice does not change and a metric counts the rejected bills.
    pub(super) fn warn_once(&self, rules: &RuleTable) {
        let rejected = self.bills[LossCause::Rejected as usize].load(Ordering::Relaxed);
        if rejected == 0 || self.has_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let rule = find_rule_with_lost_bills(rules);
        tracing::warn!(rule, "a bill was rejected and its hits are lost: set charge: billed");
    }
}

/// Returns the path of a rule that has rejected a bill (a report of hits already used) after a peek
/// (a check with 0 hits). Of several rules, returns the first by domain and path. Returns `request
/// override` if there is no such rule.
pub(super) fn find_rule_with_lost_bills(rules: &RuleTable) -> &str {
    let mut lossy = rules.by_name.iter().filter(|(_, counters)| counters.to_read().has_lost_bill());
    lossy.next().map_or("request override", |(name, _)| &name.path)
}

#[cfg(test)]
mod tests {
    use super::super::{RuleName, Telemetry};
    use super::*;
    use crate::domain::fixtures::check_event;
    use crate::domain::{CheckEvent, Hits, Micros, Observer, Outcome, RuleId};

    fn rejection_event(rule: u32) -> CheckEvent {
        CheckEvent { admitted: false, ..check_event(rule, 10, Outcome::refuse_for(Micros::SECOND)) }
    }

    fn lost_bill_event(rule: u32, cause: LossCause) -> CheckEvent {
        CheckEvent { lost_bill: Some(LostBill { hits: Hits(7), cause }), ..rejection_event(rule) }
    }

    fn telemetry() -> Telemetry {
        let telemetry = Telemetry::new(0.8);
        let name = |path: &str| RuleName { domain: "d".into(), path: path.into() };
        telemetry.record_policy_load(RuleId(0), [name("d.a"), name("d.b")], "1", Micros(1));
        telemetry
    }

    #[test]
    fn a_rejected_bill_is_lost_only_after_a_peek_at_the_same_rule() {
        let telemetry = telemetry();
        telemetry.on_check(&lost_bill_event(1, LossCause::Rejected));
        telemetry.on_check(&CheckEvent { is_peek: true, ..rejection_event(0) });
        telemetry.on_check(&lost_bill_event(1, LossCause::Rejected));
        assert_eq!(telemetry.rejected_bills(), None, "several hits at once are no bill");
        telemetry.on_check(&CheckEvent { is_peek: true, ..rejection_event(1) });
        telemetry.on_check(&lost_bill_event(1, LossCause::Rejected));
        let rejected = telemetry.rejected_bills().unwrap();
        assert_eq!((rejected.bills, &*rejected.rule), (1, "d.b"));
        assert_eq!(telemetry.lost_bills.totals(), [[1, 0], [7, 0]]);
    }

    #[test]
    fn hits_beyond_the_bound_on_debt_are_always_lost() {
        let telemetry = telemetry();
        telemetry.on_check(&lost_bill_event(0, LossCause::DebtBound));
        assert_eq!(telemetry.lost_bills.totals(), [[0, 1], [0, 7]]);
        assert_eq!(telemetry.rejected_bills(), None);
    }
}
