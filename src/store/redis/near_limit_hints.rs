//! What was last seen of counters: whether a call over several cluster slots had better ask one of
//! them first.
//!
//! A hint, never a decision: a lost or mixed-up entry costs a round trip or a refund. So it is a
//! fixed table of atomics, written over by whatever comes to the same place, without locks.
//!
//! Not here: what follows from it (`split`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Check, Hits, Micros, Op, Outcome, Verdict};

/// Counters remembered: 4,096 of 16 bytes. Near its limit a counter is seen at every call, so it
/// does not stay written over for long.
const PLACES: usize = 4_096;

/// A refusal is remembered for that long.
const REFUSED_FOR_MS: u32 = 1_000;

/// A counter is near its limit where fewer hits are left than that many times the cost.
const NEAR_TIMES: u64 = 10;

/// Hits last seen left, per counter, and when it last refused.
#[derive(Debug)]
pub(super) struct NearLimitHints {
    places: Box<[Place]>,
}

#[derive(Debug, Default)]
struct Place {
    /// The low half of the counter's identity; 0 is nobody's.
    counter: AtomicU64,
    /// Hits left (at most 2^32 - 1) in the high half; in the low one when it last refused, in
    /// milliseconds that come round after 49 days; 0 is never.
    seen: AtomicU64,
}

/// How near a counter is to its limit: less is nearer.
pub(super) type Nearness = u64;

impl NearLimitHints {
    pub(super) fn new() -> NearLimitHints {
        NearLimitHints { places: (0..PLACES).map(|_| Place::default()).collect() }
    }

    /// Remembers an outcome.
    pub(super) fn note(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let (counter, place) = self.place(check);
        let left = outcome.available.0.min(u64::from(u32::MAX));
        let refused = match outcome.verdict {
            Verdict::Refuse => u64::from(millis(now).max(1)),
            Verdict::Pass => 0,
        };
        place.counter.store(counter, Ordering::Relaxed);
        place.seen.store(left << 32 | refused, Ordering::Relaxed);
    }

    /// How near to refusing a check was when last seen; `None` where it was far off or not seen.
    pub(super) fn near(&self, check: &Check<'_>, now: Micros) -> Option<Nearness> {
        let (counter, place) = self.place(check);
        if place.counter.load(Ordering::Relaxed) != counter {
            return None;
        }
        let cost = match check.op {
            Op::Take { cost } => cost.max(Hits::ONE).0,
            Op::Peek => 1,
            Op::Refund { .. } => return None,
        };
        let seen = place.seen.load(Ordering::Relaxed);
        let (left, refused) = (seen >> 32, seen as u32);
        let lately = refused != 0 && millis(now).wrapping_sub(refused) < REFUSED_FOR_MS;
        let near = left < cost.saturating_mul(NEAR_TIMES);
        (lately || near).then_some(if lately { 0 } else { 1 + left / cost })
    }

    fn place(&self, check: &Check<'_>) -> (u64, &Place) {
        let counter = (check.key.identity as u64).max(1);
        (counter, &self.places[counter as usize % PLACES])
    }
}

/// Milliseconds, cut to 32 bits.
fn millis(now: Micros) -> u32 {
    (now.0 / 1_000) as u32
}
