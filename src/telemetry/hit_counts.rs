//! Classifies the hits of a check as within, over or near the limit.
//!
//! envoyproxy/ratelimit divides the hits of a rejected check, because it charges them: those that
//! still fit are at most near the limit, and only the others are over it. Here, a rejected check
//! charges nothing, so all of its hits are over the limit. An alert on them then never misses a
//! rejection.
//!
//! `rule_counters` adds up the hits of each rule.

use crate::domain::{CheckEvent, Verdict};

/// Hits of one check by category, or the sums over all checks of a rule. Each hit that is not
/// refunded is in `total` and in one of `within`, `over`, and `uncharged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HitCounts {
    /// Hits of all checks except refunds.
    pub(super) total: u64,
    /// Hits of checks that passed, except those in `uncharged`.
    pub(super) within: u64,
    /// Hits of rejected checks.
    pub(super) over: u64,
    /// Those of the hits in `within` that are above the near-limit threshold.
    pub(super) near: u64,
    /// Those of the hits in `over` that belong to a rule in shadow mode, which rejects no calls.
    pub(super) shadow: u64,
    /// Hits that passed but were not charged, because another check rejected the call.
    pub(super) uncharged: u64,
    /// Hits that callers refunded.
    pub(super) refunded: u64,
}

impl HitCounts {
    /// Adds the hits of another check, category by category.
    pub(super) fn add(&mut self, other: &HitCounts) {
        self.total += other.total;
        self.within += other.within;
        self.over += other.over;
        self.near += other.near;
        self.shadow += other.shadow;
        self.uncharged += other.uncharged;
        self.refunded += other.refunded;
    }
}

/// Classifies the hits of a check. The near-limit threshold is `near_ratio` (0 to 1) of the
/// capacity, rounded down.
///
/// - If the check is a refund, all hits are `refunded`.
/// - If the check passes, all hits are `within`, and those above the threshold are also `near`. If
///   the check charged nothing because another check rejected the call, all hits are `uncharged`
///   instead.
/// - If the check is rejected, all hits are `over`, and if the rule is in shadow mode, also `shadow`.
pub(super) fn count_hits(check: &CheckEvent, near_ratio: f64) -> HitCounts {
    let hits = check.hits.0;
    if check.is_refund {
        return HitCounts { refunded: hits, ..HitCounts::default() };
    }
    let capacity = check.capacity.0;
    let mut counts = HitCounts { total: hits, ..HitCounts::default() };
    match check.outcome.verdict {
        Verdict::Pass if check.outcome.charged.0 == 0 && !check.admitted => counts.uncharged = hits,
        Verdict::Pass => {
            // The ratio is at most 1, so the product fits into u64. The cast rounds down.
            let threshold = (capacity as f64 * near_ratio) as u64;
            let in_use = capacity.saturating_sub(check.outcome.available.0);
            let before = in_use.saturating_sub(check.outcome.charged.0);
            counts.within = hits;
            if in_use > threshold {
                counts.near = if before >= threshold { hits } else { in_use - threshold };
            }
        }
        Verdict::Refuse => {
            counts.over = hits;
            counts.shadow = if check.shadow { hits } else { 0 };
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Hits, Micros, Outcome, RuleId, Source};

    /// Returns a check on a limit with a capacity of 10 hits.
    fn check(verdict: Verdict, hits: u64, charged: u64, available: u64) -> CheckEvent {
        CheckEvent {
            rule: Some(RuleId(0)),
            hits: Hits(hits),
            capacity: Hits(10),
            outcome: Outcome {
                verdict,
                charged: Hits(charged),
                available: Hits(available),
                held: Hits::ZERO,
                retry_after: None,
                reset_after: Micros::ZERO,
                taken: None,
            },
            decided: true,
            shadow: false,
            admitted: verdict == Verdict::Pass,
            is_refund: false,
            is_peek: false,
            lost_bill: None,
            is_blocked: false,
            source: Source::Memory,
        }
    }

    fn counts(check: CheckEvent) -> HitCounts {
        count_hits(&check, 0.8)
    }

    #[test]
    fn a_pass_below_the_threshold_is_within_and_not_near() {
        let expected = HitCounts { total: 3, within: 3, ..HitCounts::default() };
        assert_eq!(counts(check(Verdict::Pass, 3, 3, 2)), expected);
    }

    #[test]
    fn only_the_passed_hits_above_the_threshold_are_near() {
        // 6 before, 9 after: the ninth is above 8.
        let expected = HitCounts { total: 3, within: 3, near: 1, ..HitCounts::default() };
        assert_eq!(counts(check(Verdict::Pass, 3, 3, 1)), expected);
        // 8 before, 10 after: both.
        let expected = HitCounts { total: 2, within: 2, near: 2, ..HitCounts::default() };
        assert_eq!(counts(check(Verdict::Pass, 2, 2, 0)), expected);
    }

    #[test]
    fn all_hits_of_a_rejection_at_the_limit_are_over() {
        let expected = HitCounts { total: 2, over: 2, ..HitCounts::default() };
        assert_eq!(counts(check(Verdict::Refuse, 2, 0, 0)), expected);
    }

    #[test]
    fn all_hits_of_a_rejection_that_partly_fits_are_over() {
        // 7 in use, 5 requested: nothing is charged, so no hit is near the limit.
        let expected = HitCounts { total: 5, over: 5, ..HitCounts::default() };
        assert_eq!(counts(check(Verdict::Refuse, 5, 0, 3)), expected);
        // Another check of the call had taken the last hit, and its charge was undone.
        let expected = HitCounts { total: 1, over: 1, ..HitCounts::default() };
        assert_eq!(counts(check(Verdict::Refuse, 1, 0, 1)), expected);
    }

    #[test]
    fn hits_over_a_limit_in_shadow_mode_also_count_as_shadow() {
        let shadowed = CheckEvent { shadow: true, ..check(Verdict::Refuse, 5, 0, 3) };
        assert_eq!(counts(shadowed).shadow, 5);
    }

    #[test]
    fn hits_of_a_call_that_another_check_rejected_are_uncharged_and_neither_within_nor_over() {
        let refused = CheckEvent { admitted: false, ..check(Verdict::Pass, 4, 0, 10) };
        let expected = HitCounts { total: 4, uncharged: 4, ..HitCounts::default() };
        assert_eq!(counts(refused), expected);
    }

    #[test]
    fn independent_charges_of_a_rejected_call_are_within() {
        let charged = CheckEvent { admitted: false, ..check(Verdict::Pass, 4, 4, 6) };
        assert_eq!(counts(charged).within, 4);
    }

    #[test]
    fn refunded_hits_have_their_own_counter() {
        let back = CheckEvent { is_refund: true, ..check(Verdict::Pass, 4, 0, 10) };
        assert_eq!(counts(back), HitCounts { refunded: 4, ..HitCounts::default() });
    }

    #[test]
    fn a_peek_counts_nothing_and_a_limit_of_zero_does_not_underflow() {
        assert_eq!(counts(check(Verdict::Pass, 0, 0, 5)), HitCounts::default());
        let zero = CheckEvent { capacity: Hits(0), ..check(Verdict::Refuse, 1, 0, 0) };
        assert_eq!(counts(zero).over, 1);
    }
}
