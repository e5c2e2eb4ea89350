//! Admission in front of a remote store: no more calls in flight than it can answer in time, and
//! none behind a call that has waited too long.
//!
//! Whoever is not let in is answered from the local store at once, rather than queued. Not here:
//! that answer (`fallback`), time (every call brings it along).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::domain::Micros;

/// Calls in flight unless somebody says otherwise. One Redis core decides about 180,000 a second,
/// so about this many within a call's budget of 6 ms: whoever came after them would wait in vain.
pub const IN_FLIGHT_MAX: u32 = 1_024;

/// How old the oldest call in flight may be beside a budget of 6 ms: one that is older was not ended
/// by its timer, so this process is short of CPU, and a queue would only make it worse. Where the
/// budget is another, whoever composes the store says how old.
pub const AGE_MAX: Micros = Micros(10_000);

/// How old a call may be beside that budget: as much older as [`AGE_MAX`] is beside 6 ms.
pub fn age_max(budget: Duration) -> Micros {
    let micros = u64::try_from(budget.as_micros()).unwrap_or(u64::MAX);
    Micros(micros).saturating_add(Micros(4_000))
}

/// Counts the calls in flight, in two generations of at least the largest age each. While a call of the
/// former generation is in flight, its age is known to exceed the present generation's, so that one
/// comparison stands for a search for the oldest: it is noticed between one and two of them.
#[derive(Debug)]
pub struct InFlightLimit {
    max: u32,
    age_max: Micros,
    in_flight: [AtomicU32; 2],
    /// When the present generation began; the lowest bit says which of the two it is.
    generation: AtomicU64,
}

/// A call in flight; it leaves when this is dropped.
#[derive(Debug)]
pub struct InFlightPermit<'a>(&'a AtomicU32);

impl InFlightLimit {
    /// A gate for that many calls at a time, at least 1, none of them older than `age_max`.
    pub fn new(max: u32, age_max: Micros) -> InFlightLimit {
        let (in_flight, generation) = Default::default();
        InFlightLimit { max: max.max(1), age_max, in_flight, generation }
    }

    /// Lets a call in; `None` if it must be answered otherwise.
    pub fn enter(&self, now: Micros) -> Option<InFlightPermit<'_>> {
        let held = self.generation.load(Ordering::Relaxed);
        let (began, mut present) = (Micros(held & !1), (held & 1) as usize);
        // A clock that stepped back would keep a generation for as long as it stepped.
        let stepped_back = now < Micros(began.0.saturating_sub(self.age_max.0));
        if now.saturating_sub(began) >= self.age_max || stepped_back {
            if !stepped_back {
                if self.in_flight[1 - present].load(Ordering::Relaxed) > 0 {
                    return None;
                }
                present = 1 - present;
            }
            let next = (now.0 & !1) | present as u64;
            // Whoever loses the race counts in the generation that it meant, 10 ms off at most.
            let _ =
                self.generation.compare_exchange(held, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        if self.in_flight() >= self.max {
            return None;
        }
        let counter = &self.in_flight[present];
        counter.fetch_add(1, Ordering::Relaxed);
        Some(InFlightPermit(counter))
    }

    /// Calls in flight now.
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
    fn no_more_calls_are_in_flight_than_the_gate_has_places() {
        let gate = InFlightLimit::new(3, AGE_MAX);
        let held: Vec<_> = (0..3).map(|_| gate.enter(NOW).unwrap()).collect();
        assert!(gate.enter(NOW).is_none());
        drop(held);
        assert!(gate.enter(NOW).is_some());
        assert_eq!(gate.in_flight(), 0);
    }

    #[test]
    fn nobody_enters_behind_a_call_that_is_too_old() {
        let gate = InFlightLimit::new(100, AGE_MAX);
        let old = gate.enter(NOW).unwrap();
        drop(gate.enter(after(AGE_MAX.0)).unwrap());
        assert!(gate.enter(after(2 * AGE_MAX.0)).is_none());
        drop(old);
        assert!(gate.enter(after(2 * AGE_MAX.0)).is_some());
    }

    #[test]
    fn a_call_of_ordinary_age_keeps_nobody_out() {
        let gate = InFlightLimit::new(2, AGE_MAX);
        let mut held = gate.enter(NOW).unwrap();
        for step in 1..1_000 {
            let next = gate.enter(after(step * 6_000)).unwrap();
            held = next;
        }
        drop(held);
    }

    #[test]
    fn a_clock_that_steps_back_neither_closes_the_gate_nor_opens_it_for_good() {
        let gate = InFlightLimit::new(100, AGE_MAX);
        drop(gate.enter(after(3_600_000_000)).unwrap());
        let old = gate.enter(NOW).unwrap();
        drop(gate.enter(after(AGE_MAX.0)).unwrap());
        assert!(gate.enter(after(2 * AGE_MAX.0)).is_none());
        drop(old);
    }
}
