//! Last known states of the counters of recently rejected calls. If a cached refusal rejects a
//! call, the statuses of its skipped checks report these states.
//!
//! A lost or outdated entry only makes a status less precise. The table therefore has a fixed
//! size, and a new counter overwrites the one that occupies its entry.
//!
//! Not here: the refusals themselves (`refusal_cache`).

use std::sync::Mutex;

use crate::domain::{Answer, Check, Hits, Micros, Outcome};

/// Number of entries in the table. An entry takes 64 bytes. Few entries are needed, because the
/// checks of a call are stored only if at least one of its refusals is cached.
const ENTRY_COUNT: usize = 1_024;

/// Lifetime of an entry, in microseconds. The refusal cache calls the store again after one
/// second, and the new answer replaces the entry.
const TTL: Micros = Micros(2_000_000);

/// Hash table of counters with the store's most recent answer for each. A locked entry is skipped,
/// so that no call waits for another.
#[derive(Debug)]
pub(super) struct LastKnownCounters {
    entries: Box<[Mutex<Option<KnownCounter>>]>,
}

#[derive(Clone, Copy, Debug)]
struct KnownCounter {
    identity: u128,
    /// Time of the store's answer, by this process's clock.
    recorded_at: Micros,
    available: Hits,
    reset_at: Micros,
}

impl LastKnownCounters {
    pub(super) fn new() -> LastKnownCounters {
        LastKnownCounters { entries: (0..ENTRY_COUNT).map(|_| Mutex::new(None)).collect() }
    }

    /// Records the store's answer to a check, for later checks of the same counter.
    pub(super) fn record(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        if let Ok(mut entry) = self.entry(check).try_lock() {
            *entry = Some(KnownCounter {
                identity: check.key.identity,
                recorded_at: now,
                available: outcome.available,
                reset_at: now.saturating_add(outcome.reset_after),
            });
        }
    }

    /// Returns the answer for a check that is not sent to the store: `LastKnown` if its counter
    /// has an entry, otherwise `NotAsked`.
    pub(super) fn answer(&self, check: &Check<'_>, now: Micros) -> Answer {
        let entry = self.entry(check).try_lock().ok().and_then(|entry| *entry);
        match entry {
            Some(known)
                if known.identity == check.key.identity
                    && known.recorded_at <= now
                    && now < known.recorded_at.saturating_add(TTL) =>
            {
                // The counter is full again after its reset, and a changed limit may be smaller.
                let capacity = check.limit.capacity();
                let is_reset = known.reset_at <= now;
                Answer::LastKnown {
                    available: if is_reset { capacity } else { known.available.min(capacity) },
                    reset_after: Some(known.reset_at.saturating_sub(now)),
                }
            }
            Some(_) | None => Answer::NotAsked,
        }
    }

    fn entry(&self, check: &Check<'_>) -> &Mutex<Option<KnownCounter>> {
        // The identity is a hash, so its lowest bits choose the entry.
        &self.entries[(check.key.identity as usize) % ENTRY_COUNT]
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
    fn a_known_counter_is_full_from_its_reset_on() {
        let (counters, limit) = (LastKnownCounters::new(), fixed_window(10, Micros::SECOND));
        let limit = Arc::new(limit);
        let check = take(1, 1, &limit);
        let outcome = Outcome { reset_after: Micros::SECOND, ..Outcome::pass(Hits(7)) };
        counters.record(&check, &outcome, NOW);
        let answer = |after| counters.answer(&check, NOW.saturating_add(Micros(after)));
        assert_eq!(answer(0), known(7, 1_000_000));
        assert_eq!(answer(999_999), known(7, 1));
        assert_eq!(answer(1_000_000), known(10, 0));
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
