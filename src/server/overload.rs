//! Overload of a worker: the number of its calls that may be in flight while callers give up.
//!
//! A worker that is offered more calls than it can answer, or more than Redis can, answers all of them
//! late. Then their callers reset them, as Envoy does after 20 ms. While callers reset a large part of
//! the calls, a limit on the calls in flight falls to the number that is answered in 2 ms. While nearly
//! nobody gives up, it rises slowly, because callers may be more patient, or Redis slower. It ends when
//! it has refused nothing for a while. As in CoDel, the time that calls wait counts, and not a length.
//!
//! Not here: which calls are refused (`frame_filter`), the time that a call with a deadline has waited
//! (`call_queue`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::call_queue::CallQueue;
use crate::domain::Lock;

/// Time for which callers must have been resetting calls.
const ONSET: Duration = Duration::from_millis(100);
/// Interval at which the limit changes.
const TICK: Duration = Duration::from_millis(10);
/// Time without a refusal after which the limit ends.
const CALM: Duration = Duration::from_millis(250);
/// Time in which as many calls are answered as may be in flight when the limit begins: Envoy's timeout.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same while callers give up in spite of the limit. A call waits as long again in the socket, and
/// before that in Envoy, until other calls on its connection end.
const WAIT: Duration = Duration::from_millis(2);
/// Smallest limit: less than 1 ms of work in memory.
const LIMIT_MIN: usize = 32;
/// Divisor of the limit: one read passes at most the quotient, because other connections have calls
/// of the same age.
const READS_PER_LIMIT: usize = 8;

/// Calls of one worker, and how many of them may be in flight. Only the worker's thread uses it.
#[derive(Debug)]
pub(crate) struct Overload {
    /// Calls that have been accepted and not started.
    pub(crate) call_queue: Arc<CallQueue>,
    /// Number of calls that have been started and not ended.
    started: AtomicUsize,
    answered: AtomicUsize,
    /// Maximum number of calls in flight; `usize::MAX` without overload.
    limit: AtomicUsize,
    period: Lock<Period>,
}

/// Time since the limit last changed.
#[derive(Debug)]
struct Period {
    start: Instant,
    /// Number of calls that had been answered at the start.
    answered_before: usize,
    resets: usize,
    /// Time at which a caller last reset a call or, with a limit, a call was last refused.
    last_sign: Instant,
}

/// Guard that counts a started call.
#[derive(Debug)]
pub(crate) struct StartedCall<'a>(&'a Overload);

impl Overload {
    pub(crate) fn new(now: Instant) -> Self {
        let start = Period { start: now, answered_before: 0, resets: 0, last_sign: now };
        Overload {
            call_queue: Arc::default(),
            started: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
            period: Lock::new(start),
        }
    }

    /// Counts a call as started until the guard is dropped.
    pub(crate) fn start_call(&self) -> StartedCall<'_> {
        add(&self.started, 1);
        StartedCall(self)
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit.load(Ordering::Relaxed) < usize::MAX
    }

    /// Returns the number of calls that one read may pass.
    pub(crate) fn quota(&self) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        let in_flight =
            self.started.load(Ordering::Relaxed) + self.call_queue.load(Ordering::Relaxed);
        limit.saturating_sub(in_flight).min((limit / READS_PER_LIMIT).max(1))
    }

    /// Records what was read from a connection: how many calls their callers reset, and how many were
    /// refused. Changes the limit when a period ends.
    pub(crate) fn record(&self, resets: usize, refused: usize, now: Instant) {
        let mut period = self.period.lock();
        let limit = self.limit.load(Ordering::Relaxed);
        let is_limited = limit < usize::MAX;
        let has_been_calm =
            now.saturating_duration_since(period.last_sign) >= CALM && !(is_limited && refused > 0);
        period.resets += resets;
        if refused > 0 || resets > 0 && !is_limited {
            period.last_sign = now;
        }
        let elapsed = now.saturating_duration_since(period.start);
        if elapsed < if is_limited { TICK } else { ONSET } {
            return;
        }
        let answered_before = self.answered.load(Ordering::Relaxed);
        let answered = answered_before.wrapping_sub(period.answered_before);
        let next = if has_been_calm {
            usize::MAX
        } else {
            next_limit(limit, period.resets, answered, elapsed)
        };
        self.limit.store(next, Ordering::Relaxed);
        *period = Period { start: now, answered_before, resets: 0, ..*period };
    }
}

/// Returns the limit after a period in which this many calls were reset and answered.
fn next_limit(limit: usize, resets: usize, answered: usize, elapsed: Duration) -> usize {
    let answered_in = |time: Duration| {
        let calls = answered as u128 * time.as_nanos() / elapsed.as_nanos().max(1);
        usize::try_from(calls).unwrap_or(usize::MAX).max(LIMIT_MIN)
    };
    let gave_up = resets * 4 > answered;
    if limit == usize::MAX {
        let is_overload = gave_up && resets > LIMIT_MIN;
        return if is_overload { answered_in(PATIENCE) } else { usize::MAX };
    }
    let changed = if gave_up { limit - limit / 4 } else { limit + limit / 50 + 1 };
    changed.max(answered_in(WAIT))
}

impl StartedCall<'_> {
    /// Records that the call was answered.
    pub(crate) fn record_answer(&self) {
        add(&self.0.answered, 1);
    }
}

impl Drop for StartedCall<'_> {
    fn drop(&mut self) {
        add(&self.0.started, usize::MAX);
    }
}

/// Adds to a counter that only one thread writes. Wraps around.
fn add(counter: &AtomicUsize, number: usize) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    /// Overload whose clock and callers a test controls.
    struct Bench {
        overload: Overload,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let now = Clock::System.monotonic_now();
            Bench { overload: Overload::new(now), now }
        }

        /// Lets 10 ms pass, in which this many calls were answered, reset, and refused. Returns the
        /// limit.
        fn tick(&mut self, answered: usize, resets: usize, refused: usize) -> usize {
            self.now += TICK;
            for _ in 0..answered {
                self.overload.start_call().record_answer();
            }
            self.overload.record(resets, refused, self.now);
            self.overload.limit.load(Ordering::Relaxed)
        }

        fn ticks(
            &mut self,
            number: usize,
            answered: usize,
            resets: usize,
            refused: usize,
        ) -> usize {
            (0..number).map(|_| self.tick(answered, resets, refused)).last().unwrap()
        }
    }

    #[test]
    fn the_limit_begins_when_callers_have_given_up_for_100_ms() {
        let mut bench = Bench::new();
        assert_eq!(bench.ticks(9, 200, 200, 0), usize::MAX);
        // 20 ms of 20,000 answers per second.
        assert_eq!(bench.tick(200, 200, 0), 400);
        assert!(bench.overload.is_limited());
    }

    #[test]
    fn no_limit_begins_if_few_callers_give_up_or_all_together() {
        let mut bench = Bench::new();
        assert_eq!(bench.ticks(100, 200, 40, 0), usize::MAX);
        bench.now += Duration::from_secs(1);
        assert_eq!(bench.tick(0, 10_000, 0), usize::MAX);
        bench.now += Duration::from_secs(1);
        assert_eq!(bench.tick(0, 10_000, 0), usize::MAX);
        assert_eq!(Bench::new().ticks(100, 0, 1, 0), usize::MAX, "too few to tell");
    }

    #[test]
    fn the_limit_falls_to_the_answers_of_2_ms_while_callers_give_up_and_rises_while_none_does() {
        let mut bench = Bench::new();
        bench.ticks(10, 200, 200, 0);
        assert_eq!(bench.tick(200, 200, 100), 300);
        assert_eq!(bench.ticks(10, 200, 200, 100), 40);
        // Redis became slow, and answers 40 calls in 20 ms.
        assert_eq!(bench.tick(20, 0, 100), 41);
        assert!(bench.ticks(100, 20, 0, 100) > 300);
        assert_eq!(bench.ticks(100, 0, 1, 100), LIMIT_MIN);
    }

    #[test]
    fn the_limit_ends_after_250_ms_without_a_refusal() {
        let mut bench = Bench::new();
        bench.ticks(10, 200, 200, 0);
        assert!(bench.ticks(24, 200, 0, 0) < usize::MAX);
        bench.tick(200, 0, 1);
        assert!(bench.ticks(24, 200, 0, 0) < usize::MAX);
        assert_eq!(bench.tick(200, 0, 0), usize::MAX);
    }

    #[test]
    fn a_read_passes_an_eighth_of_the_limit_and_no_more_than_it_leaves() {
        let mut bench = Bench::new();
        assert_eq!(bench.overload.quota(), usize::MAX / READS_PER_LIMIT);
        bench.ticks(10, 200, 200, 0);
        assert_eq!(bench.overload.quota(), 50);
        let started: Vec<_> = (0..380).map(|_| bench.overload.start_call()).collect();
        assert_eq!(bench.overload.quota(), 20);
        drop(started);
        assert_eq!(bench.overload.quota(), 50);
    }
}
