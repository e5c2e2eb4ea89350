//! Near-limit hints: a table of counters that were last seen near their limit. A call whose keys
//! span several hash slots is sent first to the slot of such a counter, because that counter is
//! the most likely to reject the call.
//!
//! A wrong hint only costs a round trip or a refund. The table therefore has a fixed size and no
//! locks, and counters may overwrite each other's entries.
//!
//! Not here: the order of the slots (`multi_slot`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Check, Micros, Outcome, Verdict};

/// Number of table entries, 16 bytes each. A new hint may overwrite the hint of another counter.
/// The next multi-slot call on the other counter records the lost hint again.
const HINT_COUNT: usize = 4_096;

/// Time after a refusal during which a counter is considered near its limit, in milliseconds.
const REFUSAL_AGE_MAX_MS: u32 = 1_000;

/// Factor for near-limit hints: a counter is near its limit if its available hits are less than
/// this many times the cost of the check.
const NEAR_LIMIT_FACTOR: u64 = 10;

/// Fixed-size table that records the available hits of each counter after its last check and, if
/// that check was refused, the time of the refusal.
#[derive(Debug)]
pub(super) struct NearLimitHints {
    entries: Box<[Hint]>,
}

#[derive(Debug, Default)]
struct Hint {
    /// Low 64 bits of the counter's identity; 0 for an empty entry.
    counter: AtomicU64,
    /// High 32 bits: the available hits, at most 2^32 - 1. Low 32 bits: 0 if the last check passed;
    /// otherwise the time of the refusal in milliseconds, wrapping after 49 days.
    available_and_refusal: AtomicU64,
}

/// Distance of a counter from its limit: 0 after a recent refusal; otherwise, one more than the
/// number of checks of the same cost that could still pass.
pub(super) type LimitDistance = u64;

impl NearLimitHints {
    pub(super) fn new() -> NearLimitHints {
        NearLimitHints { entries: (0..HINT_COUNT).map(|_| Hint::default()).collect() }
    }

    /// Records the outcome of a check as the hint for its counter.
    pub(super) fn record(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let (counter, hint) = self.entry(check);
        let available = outcome.available.0.min(u64::from(u32::MAX));
        let refused = match outcome.verdict {
            Verdict::Refuse => u64::from(millis_u32(now).max(1)),
            Verdict::Pass => 0,
        };
        hint.counter.store(counter, Ordering::Relaxed);
        hint.available_and_refusal.store(available << 32 | refused, Ordering::Relaxed);
    }

    /// Returns the distance of the check's counter from its limit, according to the counter's hint.
    /// Returns `None` if the counter was not near its limit or has no hint, or if the check is a
    /// refund.
    pub(super) fn distance(&self, check: &Check<'_>, now: Micros) -> Option<LimitDistance> {
        let (counter, hint) = self.entry(check);
        if check.is_refund() || hint.counter.load(Ordering::Relaxed) != counter {
            return None;
        }
        let cost = check.hits_needed().0;
        let seen = hint.available_and_refusal.load(Ordering::Relaxed);
        let (available, refused) = (seen >> 32, seen as u32);
        if refused != 0 && millis_u32(now).wrapping_sub(refused) < REFUSAL_AGE_MAX_MS {
            return Some(0);
        }
        (available < cost.saturating_mul(NEAR_LIMIT_FACTOR)).then(|| 1 + available / cost)
    }

    fn entry(&self, check: &Check<'_>) -> (u64, &Hint) {
        let counter = (check.key.identity as u64).max(1);
        (counter, &self.entries[counter as usize % HINT_COUNT])
    }
}

/// Returns the time in milliseconds, truncated to 32 bits.
fn millis_u32(now: Micros) -> u32 {
    (now.0 / 1_000) as u32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::fixtures::{fixed_window, take};
    use crate::domain::{Hits, Limit, Op};

    const NOW: Micros = Micros(1_763_596_800_000_000);

    fn limit() -> Arc<Limit> {
        Arc::new(fixed_window(1_000, Micros::from_secs(60)))
    }

    fn after(millis: u64) -> Micros {
        Micros(NOW.0 + millis * 1_000)
    }

    #[test]
    fn a_counter_is_near_its_limit_if_fewer_than_ten_checks_of_the_same_cost_still_pass() {
        let (hints, limit) = (NearLimitHints::new(), limit());
        let check = take(7, 3, &limit);
        assert_eq!(hints.distance(&check, NOW), None, "nothing is known");
        for (available, distance) in
            [(30, None), (29, Some(10)), (3, Some(2)), (2, Some(1)), (0, Some(1))]
        {
            hints.record(&check, &Outcome::pass(Hits(available)), NOW);
            assert_eq!(hints.distance(&check, NOW), distance, "{available} hits are available");
        }
        let neighbour = take(7 + HINT_COUNT as u128, 3, &limit);
        assert_eq!(hints.distance(&neighbour, NOW), None, "the entry is another counter's");
    }

    #[test]
    fn a_counter_has_distance_zero_for_a_second_after_a_refusal_unless_a_check_passes() {
        let (hints, limit) = (NearLimitHints::new(), limit());
        let check = take(7, 3, &limit);
        let refusal =
            Outcome { available: Hits(500), ..Outcome::refuse_for(Micros::from_secs(60)) };
        hints.record(&check, &refusal, NOW);
        assert_eq!(hints.distance(&check, NOW), Some(0));
        assert_eq!(hints.distance(&check, after(999)), Some(0));
        assert_eq!(hints.distance(&check, after(1_000)), None, "the refusal is too old");
        let refund = Check { op: Op::Refund { cost: Hits(3) }, ..check };
        assert_eq!(hints.distance(&refund, NOW), None, "a refund cannot reject its call");
        hints.record(&check, &Outcome::pass(Hits(500)), NOW);
        assert_eq!(hints.distance(&check, NOW), None, "a later check passed");
    }

    #[test]
    fn more_available_hits_than_a_hint_can_store_are_far_from_the_limit() {
        let (hints, limit) = (NearLimitHints::new(), limit());
        let check = take(7, 3, &limit);
        hints.record(&check, &Outcome::pass(Hits(1 << 32)), NOW);
        assert_eq!(hints.distance(&check, NOW), None);
    }
}
