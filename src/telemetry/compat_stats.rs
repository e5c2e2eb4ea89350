//! How one check is counted: the arithmetic of envoyproxy/ratelimit's statistics, from numbers.
//!
//! Not here: where the sums are kept (`cells`).

use crate::domain::{CheckEvent, Verdict};

/// What one check adds to its rule's counters, in hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Asked for.
    pub(super) total: u64,
    /// Passed.
    pub(super) within: u64,
    /// Refused.
    pub(super) over: u64,
    /// Passed, or fitted, above the near threshold.
    pub(super) near: u64,
    /// Refused, and had no say.
    pub(super) shadow: u64,
    /// Would have passed, but another check refused the call, so they were not charged.
    pub(super) uncharged: u64,
    /// Returned by the caller.
    pub(super) refunded: u64,
}

impl Tally {
    /// Adds another's sums.
    pub(super) fn add(&mut self, other: &Tally) {
        self.total += other.total;
        self.within += other.within;
        self.over += other.over;
        self.near += other.near;
        self.shadow += other.shadow;
        self.uncharged += other.uncharged;
        self.refunded += other.refunded;
    }
}

/// Counts a check. With *before* and *after* the hits in use around the call, n the hits asked
/// for, L the capacity and N = floor(L · ratio):
///
/// - passed: n within; of them near are those above N;
/// - refused with nothing left: n over; refused with a part left: what exceeds L is over, what
///   would have fitted above N is near. A refusal is not charged here, so *after* is before + n
///   only as a thought.
pub(super) fn tally(facts: &CheckEvent, near_ratio: f64) -> Tally {
    let hits = facts.hits.0;
    if facts.is_refund {
        return Tally { refunded: hits, ..Tally::default() };
    }
    let capacity = facts.capacity.0;
    let in_use = capacity.saturating_sub(facts.outcome.available.0);
    // A product of a ratio of at most 1 and a whole number: the cast cuts off the fraction.
    let threshold = (capacity as f64 * near_ratio) as u64;
    let mut tally = Tally { total: hits, ..Tally::default() };
    match facts.outcome.verdict {
        Verdict::Pass if facts.outcome.charged.0 == 0 && !facts.admitted => tally.uncharged = hits,
        Verdict::Pass => {
            let before = in_use.saturating_sub(facts.outcome.charged.0);
            tally.within = hits;
            if in_use > threshold {
                tally.near = if before >= threshold { hits } else { in_use - threshold };
            }
        }
        Verdict::Refuse => {
            let after = in_use.saturating_add(hits);
            if in_use >= capacity {
                tally.over = hits;
            } else {
                tally.over = after.saturating_sub(capacity);
                tally.near = capacity - threshold.max(in_use).min(capacity);
            }
            if facts.shadow {
                tally.shadow = tally.over;
            }
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Hits, Micros, Outcome, RuleId, Source};

    /// A check on a limit of 10 with a near threshold of 8.
    fn facts(verdict: Verdict, hits: u64, charged: u64, available: u64) -> CheckEvent {
        CheckEvent {
            rule: Some(RuleId(0)),
            hits: Hits(hits),
            capacity: Hits(10),
            outcome: Outcome {
                verdict,
                charged: Hits(charged),
                available: Hits(available),
                retry_after: None,
                reset_after: Micros::ZERO,
                taken: None,
            },
            shadow: false,
            admitted: verdict == Verdict::Pass,
            is_refund: false,
            source: Source::Memory,
        }
    }

    fn of(facts: CheckEvent) -> Tally {
        tally(&facts, 0.8)
    }

    #[test]
    fn a_pass_below_the_threshold_is_within_and_not_near() {
        let expected = Tally { total: 3, within: 3, ..Tally::default() };
        assert_eq!(of(facts(Verdict::Pass, 3, 3, 2)), expected);
    }

    #[test]
    fn a_pass_across_the_threshold_is_near_for_the_part_above_it() {
        // 6 before, 9 after: the ninth is above 8.
        let expected = Tally { total: 3, within: 3, near: 1, ..Tally::default() };
        assert_eq!(of(facts(Verdict::Pass, 3, 3, 1)), expected);
        // 8 before, 10 after: both.
        let expected = Tally { total: 2, within: 2, near: 2, ..Tally::default() };
        assert_eq!(of(facts(Verdict::Pass, 2, 2, 0)), expected);
    }

    #[test]
    fn a_refusal_at_the_limit_is_over_with_all_its_hits() {
        let expected = Tally { total: 2, over: 2, ..Tally::default() };
        assert_eq!(of(facts(Verdict::Refuse, 2, 0, 0)), expected);
    }

    #[test]
    fn a_refusal_that_would_partly_fit_is_over_by_what_exceeds_the_limit() {
        // 7 in use, 5 asked: 2 exceed the limit, and of what fitted 2 are above the threshold.
        let expected = Tally { total: 5, over: 2, near: 2, ..Tally::default() };
        assert_eq!(of(facts(Verdict::Refuse, 5, 0, 3)), expected);
    }

    #[test]
    fn a_shadowed_refusal_counts_in_shadow_mode_as_much_as_in_over() {
        let shadowed = CheckEvent { shadow: true, ..facts(Verdict::Refuse, 5, 0, 3) };
        assert_eq!(of(shadowed).shadow, 2);
    }

    #[test]
    fn hits_of_a_call_that_another_check_refused_are_uncharged_and_neither_within_nor_over() {
        let refused = CheckEvent { admitted: false, ..facts(Verdict::Pass, 4, 0, 10) };
        let expected = Tally { total: 4, uncharged: 4, ..Tally::default() };
        assert_eq!(of(refused), expected);
    }

    #[test]
    fn independent_charges_of_a_refused_call_are_within() {
        let charged = CheckEvent { admitted: false, ..facts(Verdict::Pass, 4, 4, 6) };
        assert_eq!(of(charged).within, 4);
    }

    #[test]
    fn returned_hits_are_a_counter_of_their_own() {
        let back = CheckEvent { is_refund: true, ..facts(Verdict::Pass, 4, 0, 10) };
        assert_eq!(of(back), Tally { refunded: 4, ..Tally::default() });
    }

    #[test]
    fn a_peek_counts_nothing_but_a_limit_of_zero_does_not_underflow() {
        assert_eq!(of(facts(Verdict::Pass, 0, 0, 5)), Tally::default());
        let zero = CheckEvent { capacity: Hits(0), ..facts(Verdict::Refuse, 1, 0, 0) };
        assert_eq!(of(zero).over, 1);
    }
}
