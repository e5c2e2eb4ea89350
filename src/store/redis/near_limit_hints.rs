//! Near-limit hints: which counters were last seen near their limit, so that a multi-slot call can
//! ask the slot of such a counter first.
//!
//! A wrong hint only costs a round trip or a refund. So the table has a fixed size and no locks,
//! and a counter overwrites whatever its entry holds.
//!
//! Not here: the order of the slots (`multi_slot`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Check, Micros, Outcome, Verdict};

/// Number of table entries, 16 bytes each. Every multi-slot call records its counters, so that an
/// overwritten hint soon returns.
const ENTRIES: usize = 4_096;

/// How long a counter counts as near its limit after a refusal, in milliseconds.
const REFUSED_FOR_MS: u32 = 1_000;

/// Factor for "near": a counter is near its limit if fewer hits than this times the cost are
/// available.
const NEAR_TIMES: u64 = 10;

/// Fixed-size table of counters with the available hits when last seen and the latest refusal.
#[derive(Debug)]
pub(super) struct NearLimitHints {
    entries: Box<[Hint]>,
}

#[derive(Debug, Default)]
struct Hint {
    /// Low half of the counter's identity; 0 for an empty entry.
    counter: AtomicU64,
    /// High half: available hits, at most 2^32 - 1. Low half: time of the refusal in milliseconds,
    /// wrapping after 49 days; 0 if the counter did not refuse.
    last_seen: AtomicU64,
}

/// Distance of a counter from its limit, in takes of the check's cost; 0 after a recent refusal.
pub(super) type Nearness = u64;

impl NearLimitHints {
    pub(super) fn new() -> NearLimitHints {
        NearLimitHints { entries: (0..ENTRIES).map(|_| Hint::default()).collect() }
    }

    /// Records the outcome of a check as the hint for its counter.
    pub(super) fn record(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let (counter, hint) = self.entry(check);
        let available = outcome.available.0.min(u64::from(u32::MAX));
        let refused = match outcome.verdict {
            Verdict::Refuse => u64::from(millis(now).max(1)),
            Verdict::Pass => 0,
        };
        hint.counter.store(counter, Ordering::Relaxed);
        hint.last_seen.store(available << 32 | refused, Ordering::Relaxed);
    }

    /// Returns how near the check's counter was to its limit when last seen. Returns `None` if it
    /// was not near, has no hint, or if the check is a refund.
    pub(super) fn nearness(&self, check: &Check<'_>, now: Micros) -> Option<Nearness> {
        let (counter, hint) = self.entry(check);
        if check.is_refund() || hint.counter.load(Ordering::Relaxed) != counter {
            return None;
        }
        let cost = check.hits_needed().0;
        let seen = hint.last_seen.load(Ordering::Relaxed);
        let (available, refused) = (seen >> 32, seen as u32);
        if refused != 0 && millis(now).wrapping_sub(refused) < REFUSED_FOR_MS {
            return Some(0);
        }
        (available < cost.saturating_mul(NEAR_TIMES)).then(|| 1 + available / cost)
    }

    fn entry(&self, check: &Check<'_>) -> (u64, &Hint) {
        let counter = (check.key.identity as u64).max(1);
        (counter, &self.entries[counter as usize % ENTRIES])
    }
}

/// Returns the time in milliseconds, truncated to 32 bits.
fn millis(now: Micros) -> u32 {
    (now.0 / 1_000) as u32
}
