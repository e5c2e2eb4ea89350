//! Last known states of counters. If a call is rejected before some of its checks are asked, their
//! statuses report these states.
//!
//! Not here: the table (`known_counters`), the refusals themselves (`refusal_cache`).

use super::known_counters::{Known, KnownCounters};
use crate::domain::{Answer, Check, Hits, Micros, Outcome};

/// Number of counters in the table, 40 bytes each, with one counter per set. A counter that several
/// calls share is recorded again soon after the counter of another caller has overwritten it.
const COUNTERS_MAX: usize = 8_192;

/// Store's most recent answers, by the low 64 bits of the counter's identity. A locked counter is
/// skipped, so that no call waits for another.
pub(super) type LastKnownCounters = KnownCounters<KnownState, COUNTERS_MAX, 1>;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownState {
    /// Time of the store's answer, by this process's clock.
    recorded_at: Micros,
    available: Hits,
    reset_at: Micros,
}

impl Known for KnownState {
    type Key = u64;

    fn is_useful(&self, now: Micros) -> bool {
        (self.recorded_at..self.reset_at).contains(&now)
    }

    fn stale_at(&self) -> Micros {
        self.reset_at
    }
}

impl LastKnownCounters {
    /// Records the store's answer to a check, for later checks of the same counter.
    pub(super) fn record(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        if let Some(mut set) = self.try_lock(&check.key) {
            let reset_at = now.saturating_add(outcome.reset_after);
            let state = KnownState { recorded_at: now, available: outcome.available, reset_at };
            set.insert(check.key.identity as u64, state, now);
        }
    }

    /// Returns the answer for a check that is not sent to the store: `LastKnown` if its counter
    /// has an entry and has not been reset since, otherwise `NotAsked`.
    pub(super) fn answer(&self, check: &Check<'_>, now: Micros) -> Answer {
        let key = check.key.identity as u64;
        let known = self.try_lock(&check.key).and_then(|mut set| set.get(&key).copied());
        let Some(known) = known.filter(|known| known.is_useful(now)) else {
            return Answer::NotAsked;
        };
        Answer::LastKnown {
            // A changed limit may be smaller.
            available: known.available.min(check.limit.capacity()),
            reset_after: Some(known.reset_at.saturating_sub(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::fixtures::{fixed_window, take};

    const NOW: Micros = Micros(1_763_596_800_000_000);

    fn known(available: u64, reset_after: u64) -> Answer {
        let reset_after = Some(Micros(reset_after));
        Answer::LastKnown { available: Hits(available), reset_after }
    }

    #[test]
    fn a_counter_is_known_until_its_reset() {
        let (counters, limit) = (LastKnownCounters::new(), fixed_window(10, Micros::SECOND));
        let limit = Arc::new(limit);
        let check = take(1, 1, &limit);
        let outcome = Outcome { reset_after: Micros::SECOND, ..Outcome::pass(Hits(7)) };
        counters.record(&check, &outcome, NOW);
        let answer = |after| counters.answer(&check, NOW.saturating_add(Micros(after)));
        assert_eq!(answer(0), known(7, 1_000_000));
        assert_eq!(answer(999_999), known(7, 1));
        assert_eq!(answer(1_000_000), Answer::NotAsked);
        let earlier = Micros(NOW.0 - 1);
        assert_eq!(counters.answer(&check, earlier), Answer::NotAsked, "the clock stepped back");
    }

    #[test]
    fn a_lowered_limit_has_at_most_its_capacity_available() {
        let counters = LastKnownCounters::new();
        let [limit, lowered] = [10, 5].map(|hits| Arc::new(fixed_window(hits, Micros::SECOND)));
        let outcome = Outcome { reset_after: Micros::SECOND, ..Outcome::pass(Hits(7)) };
        counters.record(&take(1, 1, &limit), &outcome, NOW);
        assert_eq!(counters.answer(&take(1, 1, &lowered), NOW), known(5, 1_000_000));
    }
}
