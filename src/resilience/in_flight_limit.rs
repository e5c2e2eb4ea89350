//! Limit of the calls in flight at the remote store: admits at most as many calls as the store can
//! answer in time, and no new calls while an old call is still waiting.
//!
//! A call beyond the limit is not queued but answered from the local store at once. Not here: that
//! answer (`fallback`), the clock (every call carries the time).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::domain::Micros;

/// Default maximum number of calls in flight. One Redis core decides about 180,000 calls per
/// second, so about 1,000 within the budget of 6 ms. Any further call would time out.
pub const IN_FLIGHT_MAX: u32 = 1_024;

/// Default maximum age of the oldest call in flight, 10 ms for a budget of 6 ms. If a call is
/// older, its timer should have ended it, so this process is short of CPU, and more calls would
/// make it worse.
pub const AGE_MAX: Micros = Micros(10_000);

/// Returns the maximum age of the oldest call in flight for calls with this budget: 4 ms more than
/// the budget.
pub fn age_max(budget: Duration) -> Micros {
    let micros = u64::try_from(budget.as_micros()).unwrap_or(u64::MAX);
    Micros(micros).saturating_add(Micros(4_000))
}

/// Limit on the number and the age of the calls in flight at a store.
///
/// Calls are counted in two generations, each at least as long as the maximum age. A call of the
/// previous generation is older than the whole current generation, so a single comparison replaces
/// the search for the oldest call. A call is detected as too old when its age is between one and
/// two times the maximum.
#[derive(Debug)]
pub struct InFlightLimit {
    max: u32,
    age_max: Micros,
    in_flight: [AtomicU32; 2],
    /// Start of the current generation, in microseconds since the Unix epoch. The lowest bit is
    /// replaced by the index of its counter in `in_flight`.
    generation: AtomicU64,
}

/// Permit that counts one call as in flight until it is dropped.
#[derive(Debug)]
pub struct InFlightPermit<'a>(&'a AtomicU32);

impl InFlightLimit {
    /// Creates a limit that admits at most `max` calls (at least 1), and none while a call is older
    /// than `age_max`.
    pub fn new(max: u32, age_max: Micros) -> InFlightLimit {
        let (in_flight, generation) = Default::default();
        InFlightLimit { max: max.max(1), age_max, in_flight, generation }
    }

    /// Returns a permit for one call, or `None` if the limit is reached and the call must be
    /// answered locally.
    pub fn acquire(&self, now: Micros) -> Option<InFlightPermit<'_>> {
        let current = self.generation.load(Ordering::Relaxed);
        let (began, mut present) = (Micros(current & !1), (current & 1) as usize);
        // Without this, a clock that steps back would extend the generation by the same time.
        let stepped_back = now < Micros(began.0.saturating_sub(self.age_max.0));
        if now.saturating_sub(began) >= self.age_max || stepped_back {
            if !stepped_back {
                if self.in_flight[1 - present].load(Ordering::Relaxed) > 0 {
                    return None;
                }
                present = 1 - present;
            }
            let next = (now.0 & !1) | present as u64;
            // A thread that loses this race counts its call in the other generation: an error of
            // 10 ms at most.
            let _ = self.generation.compare_exchange(
                current,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        if self.in_flight() >= self.max {
            return None;
        }
        let counter = &self.in_flight[present];
        counter.fetch_add(1, Ordering::Relaxed);
        Some(InFlightPermit(counter))
    }

    /// Returns the number of calls in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.iter().map(|calls| calls.load(Ordering::Relaxed)).sum()
    }
}

impl Drop for InFlightPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_763_668_800_000_000);

    fn after(micros: u64) -> Micros {
        Micros(NOW.0 + micros)
    }

    #[test]
    fn no_more_calls_are_in_flight_than_the_limit_allows() {
        let limit = InFlightLimit::new(3, AGE_MAX);
        let held: Vec<_> = (0..3).map(|_| limit.acquire(NOW).unwrap()).collect();
        assert!(limit.acquire(NOW).is_none());
        drop(held);
        assert!(limit.acquire(NOW).is_some());
        assert_eq!(limit.in_flight(), 0);
    }

    #[test]
    fn no_permit_is_given_while_a_call_is_too_old() {
        let limit = InFlightLimit::new(100, AGE_MAX);
        let old = limit.acquire(NOW).unwrap();
        drop(limit.acquire(after(AGE_MAX.0)).unwrap());
        assert!(limit.acquire(after(2 * AGE_MAX.0)).is_none());
        drop(old);
        assert!(limit.acquire(after(2 * AGE_MAX.0)).is_some());
    }

    #[test]
    fn a_call_of_ordinary_age_blocks_no_other() {
        let limit = InFlightLimit::new(2, AGE_MAX);
        let mut held = limit.acquire(NOW).unwrap();
        for step in 1..1_000 {
            let next = limit.acquire(after(step * 6_000)).unwrap();
            held = next;
        }
        drop(held);
    }

    #[test]
    fn a_clock_that_steps_back_neither_blocks_calls_nor_disables_the_limit() {
        let limit = InFlightLimit::new(100, AGE_MAX);
        drop(limit.acquire(after(3_600_000_000)).unwrap());
        let old = limit.acquire(NOW).unwrap();
        drop(limit.acquire(after(AGE_MAX.0)).unwrap());
        assert!(limit.acquire(after(2 * AGE_MAX.0)).is_none());
        drop(old);
    }
}
