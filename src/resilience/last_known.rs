//! Last known states of counters. If a call is rejected before some of its checks are asked, their
//! statuses report these states.
//!
//! A lost or outdated entry only makes a status less precise. The table therefore has a fixed
//! size, and a new counter overwrites the one that occupies its entry.
//!
//! Not here: the refusals themselves (`refusal_cache`).

use std::sync::Mutex;

use crate::domain::{Answer, Check, Hits, Micros, Outcome};

/// Number of entries in the table, 40 bytes each. A counter that several calls share is recorded
/// again soon after the counter of another caller has overwritten it.
const ENTRY_COUNT: usize = 8_192;

/// Hash table of counters with the store's most recent answer for each. A locked entry is skipped,
/// so that no call waits for another.
#[derive(Debug)]
pub(super) struct LastKnownCounters {
    entries: Box<[Mutex<KnownCounter>]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KnownCounter {
    /// Low 64 bits of the counter's identity.
    counter: u64,
    /// Time of the store's answer, by this process's clock; zero for an empty entry.
    recorded_at: Micros,
    available: Hits,
    reset_at: Micros,
}

impl LastKnownCounters {
    pub(super) fn new() -> LastKnownCounters {
        LastKnownCounters { entries: (0..ENTRY_COUNT).map(|_| Mutex::default()).collect() }
    }

    /// Records the store's answer to a check, for later checks of the same counter.
    pub(super) fn record(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let (counter, entry) = self.entry(check);
        if let Ok(mut entry) = entry.try_lock() {
            *entry = KnownCounter {
                counter,
                recorded_at: now,
                available: outcome.available,
                reset_at: now.saturating_add(outcome.reset_after),
            };
        }
    }

    /// Returns the answer for a check that is not sent to the store: `LastKnown` if its counter
    /// has an entry and has not been reset since, otherwise `NotAsked`.
    pub(super) fn answer(&self, check: &Check<'_>, now: Micros) -> Answer {
        let (counter, entry) = self.entry(check);
        let known = entry.try_lock().map(|entry| *entry).unwrap_or_default();
        if known.counter != counter || !(known.recorded_at..known.reset_at).contains(&now) {
            return Answer::NotAsked;
        }
        Answer::LastKnown {
            // A changed limit may be smaller.
            available: known.available.min(check.limit.capacity()),
            reset_after: Some(known.reset_at.saturating_sub(now)),
        }
    }

    fn entry(&self, check: &Check<'_>) -> (u64, &Mutex<KnownCounter>) {
        // The identity is a hash, so its lowest bits choose the entry.
        let counter = check.key.identity as u64;
        (counter, &self.entries[counter as usize % ENTRY_COUNT])
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
