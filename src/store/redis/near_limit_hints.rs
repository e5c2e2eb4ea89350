//! Hints on which counters are near their limit, so that a call over several cluster slots can ask
//! the slot of such a counter first.
//!
//! A lost or mixed-up hint only costs a round trip or a refund, so the table has a fixed size and is
//! written without locks: a counter overwrites whatever is in its entry.
//!
//! Not here: the order of the slots (`multi_slot`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Check, Micros, Outcome, Verdict};

/// Number of table entries, 16 bytes each. A counter near its limit is recorded on every call, so that
/// an overwritten entry is soon restored.
const ENTRIES: usize = 4_096;

/// How long a counter counts as near its limit after a refusal.
const REFUSED_FOR_MS: u32 = 1_000;

/// A counter is near its limit if fewer hits than this many times the cost are available.
const NEAR_TIMES: u64 = 10;

/// For each counter the available hits when last seen, and the time of the latest refusal.
#[derive(Debug)]
pub(super) struct NearLimitHints {
    entries: Box<[Hint]>,
}

#[derive(Debug, Default)]
struct Hint {
    /// The low half of the counter's identity; 0 for an empty entry.
    counter: AtomicU64,
    /// High half: available hits, at most 2^32 - 1. Low half: time of the refusal in milliseconds,
    /// wrapping after 49 days; 0 if the counter did not refuse.
    seen: AtomicU64,
}

/// How near a counter is to its limit; 0 is nearest.
pub(super) type Nearness = u64;

impl NearLimitHints {
    pub(super) fn new() -> NearLimitHints {
        NearLimitHints { entries: (0..ENTRIES).map(|_| Hint::default()).collect() }
    }

    /// Records an outcome.
    pub(super) fn record(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let (counter, hint) = self.entry(check);
        let available = outcome.available.0.min(u64::from(u32::MAX));
        let refused = match outcome.verdict {
            Verdict::Refuse => u64::from(millis(now).max(1)),
            Verdict::Pass => 0,
        };
        hint.counter.store(counter, Ordering::Relaxed);
        hint.seen.store(available << 32 | refused, Ordering::Relaxed);
    }

    /// Returns how near a check's counter was to its limit when last seen, or `None` if it was not
    /// near or not seen, or if the check is a refund.
    pub(super) fn nearness(&self, check: &Check<'_>, now: Micros) -> Option<Nearness> {
        let (counter, hint) = self.entry(check);
        if check.is_refund() || hint.counter.load(Ordering::Relaxed) != counter {
            return None;
        }
        let cost = check.hits_needed().0;
        let seen = hint.seen.load(Ordering::Relaxed);
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

/// Milliseconds, truncated to 32 bits.
fn millis(now: Micros) -> u32 {
    (now.0 / 1_000) as u32
}
