//! Far-from-limit hints: a table of counters that were last seen far from their limit, so that
//! calls on them need no script.
//!
//! A wrong hint only costs a refund and a second round trip, because the hint never decides the
//! call; the counter's value does. The table therefore has a fixed size and no locks, counters may
//! overwrite each other's entries, and the fields of one entry may come from different calls.
//!
//! Not here: which checks use a hint (`plain_calls`), and hints about counters near their limit
//! (`near_limit_hints`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Check, Micros, Outcome};

/// Number of table entries, 24 bytes each. Only counters that are charged ten times a second or
/// more benefit from an entry, because a hint expires after 100 ms.
const HINT_COUNT: usize = 8_192;

/// Maximum age of a hint, in milliseconds. An older count does not show that its counter is still
/// far from the limit.
const AGE_MAX_MS: u32 = 100;

/// Maximum time until the end of a window that a hint can store, in milliseconds: 20 days. Times
/// are 32-bit milliseconds, so a difference of more than 24 days would have the wrong sign.
const END_MAX_MS: u64 = 20 * 86_400_000;

/// Difference in milliseconds below which two recorded window ends belong to the same window. The
/// ends differ because each is computed from this process's clock and the time left according to
/// the server. A window is at least twice as long as this difference.
const WINDOW_END_TOLERANCE_MS: u32 = 1_000;

/// Count that marks a counter as above its limit. The mark stays until the counter's window ends.
/// Until then, [`FarFromLimitHints::is_far`] returns false for the counter.
const ABOVE_LIMIT: u32 = u32::MAX;

/// Fixed-size table of the last known hit count of each counter.
#[derive(Debug)]
pub(super) struct FarFromLimitHints {
    entries: Box<[Hint]>,
}

#[derive(Debug, Default)]
struct Hint {
    /// Low 64 bits of the counter's identity; 0 for an empty entry.
    counter: AtomicU64,
    /// High 32 bits: the end of the window. Low 32 bits: the time at which the count was recorded.
    /// Both in milliseconds of this process's wall clock, wrapping after 49 days.
    times: AtomicU64,
    /// High 32 bits: the hit count. Low 32 bits: its growth since the previous record.
    counts: AtomicU64,
}

impl FarFromLimitHints {
    pub(super) fn new() -> FarFromLimitHints {
        FarFromLimitHints { entries: (0..HINT_COUNT).map(|_| Hint::default()).collect() }
    }

    /// Records the hit count of a check's window, given the outcome of the check and the maximum
    /// number of hits in the window.
    pub(super) fn record(&self, check: &Check<'_>, outcome: &Outcome, hits_max: u64, now: Micros) {
        let count = hits_max.saturating_sub(outcome.available.0);
        self.store(check, count, outcome.reset_after, now);
    }

    /// Records that a plain command returned a count above the limit, so that scripts decide until
    /// the window ends, `reset_after` from `now`.
    pub(super) fn record_above_limit(&self, check: &Check<'_>, reset_after: Micros, now: Micros) {
        self.store(check, u64::from(ABOVE_LIMIT), reset_after, now);
    }

    fn store(&self, check: &Check<'_>, count: u64, reset_after: Micros, now: Micros) {
        let (counter, hint) = self.entry(check);
        let now_ms = millis_u32(now);
        let end = now_ms.wrapping_add((reset_after.0 / 1_000).min(END_MAX_MS) as u32);
        let mut count = u32::try_from(count).unwrap_or(ABOVE_LIMIT);
        // Nothing is known of the counts before the first answer in a window.
        let mut growth = count;
        if hint.counter.load(Ordering::Relaxed) == counter {
            let held_end = (hint.times.load(Ordering::Relaxed) >> 32) as u32;
            if held_end.wrapping_sub(end).cast_signed().unsigned_abs() < WINDOW_END_TOLERANCE_MS {
                let held = (hint.counts.load(Ordering::Relaxed) >> 32) as u32;
                growth = count.saturating_sub(held);
                if held == ABOVE_LIMIT {
                    count = ABOVE_LIMIT;
                }
            }
        }
        hint.counter.store(counter, Ordering::Relaxed);
        hint.times.store(u64::from(end) << 32 | u64::from(now_ms), Ordering::Relaxed);
        hint.counts.store(u64::from(count) << 32 | u64::from(growth), Ordering::Relaxed);
    }

    /// Returns whether the check's counter is far from its limit of `hits_max` per window. Requires
    /// a hint that is at most 100 ms old and belongs to the current window. Twice the count,
    /// including the cost of the check, plus four times the last growth must not exceed the limit.
    pub(super) fn is_far(&self, check: &Check<'_>, hits_max: u64, now: Micros) -> bool {
        let (counter, hint) = self.entry(check);
        if hint.counter.load(Ordering::Relaxed) != counter {
            return false;
        }
        let (times, counts) =
            (hint.times.load(Ordering::Relaxed), hint.counts.load(Ordering::Relaxed));
        let (end, seen, now_ms) = ((times >> 32) as u32, times as u32, millis_u32(now));
        let is_recent = now_ms.wrapping_sub(seen) <= AGE_MAX_MS;
        let is_in_window = end.wrapping_sub(now_ms).cast_signed() > 0;
        let (count, growth) = ((counts >> 32) + check.cost().0, counts & u64::from(u32::MAX));
        is_recent && is_in_window && 2 * count + 4 * growth <= hits_max
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
    use crate::domain::{Hits, Limit};

    const NOW: Micros = Micros(1_763_596_800_000_000);
    const HITS: u64 = 1_000;

    fn limit() -> Arc<Limit> {
        Arc::new(fixed_window(HITS, Micros::from_secs(60)))
    }

    fn after(millis: u64) -> Micros {
        Micros(NOW.0 + millis * 1_000)
    }

    /// Records a count that was seen `millis` milliseconds after `NOW`, in a window that ends 30 s
    /// after `NOW`.
    fn record_count(hints: &FarFromLimitHints, check: &Check<'_>, count: u64, millis: u64) {
        let reset_after = Micros(30_000_000 - millis * 1_000);
        let outcome = Outcome { reset_after, ..Outcome::pass(Hits(HITS - count)) };
        hints.record(check, &outcome, HITS, after(millis));
    }

    #[test]
    fn a_counter_is_far_if_it_was_well_within_its_limit_in_the_last_100_ms() {
        let (hints, limit) = (FarFromLimitHints::new(), limit());
        let check = take(7, 1, &limit);
        let is_far = |millis| hints.is_far(&check, HITS, after(millis));
        assert!(!is_far(0), "nothing is known");
        record_count(&hints, &check, 1, 0);
        assert!(is_far(0) && is_far(100));
        assert!(!is_far(101), "the answer is too old");
        record_count(&hints, &check, 490, 200);
        assert!(!is_far(200), "it grew by 489 since the answer before");
        record_count(&hints, &check, 494, 210);
        assert!(!is_far(210), "twice 495 and four times 4 are 1,006");
        record_count(&hints, &check, 495, 220);
        assert!(is_far(220), "twice 496 and four times 1 are 996");
        assert!(hints.is_far(&take(7, 3, &limit), HITS, after(220)), "a cost of 3 fits exactly");
        assert!(!hints.is_far(&take(7, 4, &limit), HITS, after(220)), "a cost of 4 does not fit");
        let neighbour = take(7 + HINT_COUNT as u128, 1, &limit);
        assert!(!hints.is_far(&neighbour, HITS, after(220)), "another counter's entry");
        record_count(&hints, &neighbour, 1, 220);
        assert!(!is_far(220), "its entry was overwritten");
    }

    #[test]
    fn a_hint_from_another_window_is_ignored() {
        let (hints, limit) = (FarFromLimitHints::new(), limit());
        let check = take(7, 1, &limit);
        let outcome = Outcome { reset_after: Micros(50_000), ..Outcome::pass(Hits(HITS - 1)) };
        hints.record(&check, &outcome, HITS, NOW);
        assert!(hints.is_far(&check, HITS, after(49)));
        assert!(!hints.is_far(&check, HITS, after(50)), "the window has ended");
    }

    #[test]
    fn the_first_count_in_a_window_of_two_seconds_is_all_growth() {
        let (hints, limit) = (FarFromLimitHints::new(), limit());
        let check = take(7, 1, &limit);
        let record = |count, millis| {
            let reset_after = Micros(1_000_000);
            let outcome = Outcome { reset_after, ..Outcome::pass(Hits(HITS - count)) };
            hints.record(&check, &outcome, HITS, after(millis));
        };
        record(300, 0);
        record(310, 0);
        assert!(hints.is_far(&check, HITS, after(0)), "twice 311 and four times 10 are 662");
        record(310, 2_000);
        assert!(!hints.is_far(&check, HITS, after(2_000)), "it grew by 310 in the next window");
    }

    #[test]
    fn a_counter_above_its_limit_is_not_far_until_its_window_ends() {
        let (hints, limit) = (FarFromLimitHints::new(), limit());
        let check = take(7, 1, &limit);
        hints.record_above_limit(&check, Micros(30_000_000), NOW);
        record_count(&hints, &check, 1, 10);
        record_count(&hints, &check, 2, 20);
        assert!(!hints.is_far(&check, HITS, after(20)));
        let next_window =
            Outcome { reset_after: Micros(60_000_000), ..Outcome::pass(Hits(HITS - 1)) };
        hints.record(&check, &next_window, HITS, after(30_000));
        assert!(hints.is_far(&check, HITS, after(30_000)));
    }

    #[test]
    fn windows_longer_than_24_days_are_stored_too() {
        let (hints, limit) = (FarFromLimitHints::new(), limit());
        let check = take(7, 1, &limit);
        let year = Micros::from_secs(365 * 86_400);
        for millis in [0, 50] {
            let outcome = Outcome { reset_after: year, ..Outcome::pass(Hits(HITS - 1)) };
            hints.record(&check, &outcome, HITS, after(millis));
            assert!(hints.is_far(&check, HITS, after(millis)));
        }
    }
}
