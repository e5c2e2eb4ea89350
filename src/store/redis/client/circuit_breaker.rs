//! State machine of a circuit breaker. While the breaker of a node is open, no call is sent to the
//! node, so no caller waits for a node that does not respond.
//!
//! - *Closed*: every call is sent. It opens when half of at least [`WINDOW_CALLS_MIN`] calls failed within
//!   [`WINDOW_LENGTH`], or when [`TIMEOUTS_MAX`] calls in a row had no reply in time.
//! - *Open*: nothing is sent until the first probe, a real call, is due.
//! - *Half-open*: one probe every 100 to 500 ms. After [`PROBE_SUCCESSES_MIN`] successful ones it closes and
//!   ramps up, from a tenth of the calls to all of them within [`RAMP_LENGTH`]; a failed one reopens it.
//!
//! Not here: clocks and randomness (arguments), which results count as failures (`node_breaker`).

use crate::domain::Micros;

/// Minimum number of calls in a window before their failure rate can open the breaker.
const WINDOW_CALLS_MIN: u64 = 20;
/// Length of the window over which the failure rate is computed.
const WINDOW_LENGTH: Micros = Micros::SECOND;
/// Number of consecutive timeouts that opens the breaker. At 1,000 calls a second, a dead node is
/// detected 5 ms after the first timeout.
const TIMEOUTS_MAX: u32 = 5;
/// Shortest time between probes. A random time up to `PROBE_INTERVAL_SPREAD_US` is added, so that a
/// hundred processes whose breakers opened together do not probe the node at the same moment.
const PROBE_INTERVAL_MIN: Micros = Micros(100_000);
/// Maximum of the random time added to [`PROBE_INTERVAL_MIN`], in microseconds.
const PROBE_INTERVAL_SPREAD_US: u64 = 400_000;
/// Number of consecutive successful probes that closes the breaker.
const PROBE_SUCCESSES_MIN: u32 = 3;
/// Time from the closing of the breaker until it sends all calls again.
const RAMP_LENGTH: Micros = Micros::SECOND;
/// Proportion of calls sent at the start of the ramp, in thousandths.
const RAMP_START_PERMILLE: u64 = 100;
const RAMP_PERMILLE: u64 = 1_000;
/// Exclusive upper bound of the random numbers passed to the breaker.
pub(crate) const RANDOM_MAX: u64 = 1_024;

/// State of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls are sent to the node.
    Closed,
    /// Calls are rejected without being sent.
    Open,
    /// Calls are rejected, except for the probes that test whether the node has recovered.
    HalfOpen,
}

impl BreakerState {
    /// Every variant, in the order in which metrics list them.
    pub const ALL: [BreakerState; 3] =
        [BreakerState::Closed, BreakerState::Open, BreakerState::HalfOpen];

    /// Returns the name of the state, as used in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

/// Number of times that a breaker has opened or closed. A call carries the epoch in which it was
/// admitted, and the breaker ignores results from earlier epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerEpoch(pub(crate) u32);

/// Failure of a call that the circuit breaker counts against the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// The call timed out, or its connection was lost.
    NoReply,
    /// The node replied with an error, such as LOADING, that means it cannot serve calls.
    ErrorReply,
}

/// State machine of a node's circuit breaker. Reads no clock and takes no locks;
/// [`NodeBreaker`](super::node_breaker::NodeBreaker) does.
#[derive(Clone, Debug)]
pub(crate) struct CircuitBreaker {
    state: BreakerState,
    epoch: u32,
    window_start: Micros,
    calls: u64,
    failures: u64,
    /// Number of timeouts since the last successful call.
    timeouts: u32,
    next_probe: Micros,
    probes: u32,
    ramp: Option<Ramp>,
}

/// Gradual return to full traffic after the breaker has closed.
#[derive(Clone, Copy, Debug)]
struct Ramp {
    start: Micros,
    /// Sum, in thousandths, of the proportions of calls to send. When it reaches [`RAMP_PERMILLE`],
    /// a call is sent.
    credit: u64,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        CircuitBreaker {
            state: BreakerState::Closed,
            epoch: 0,
            window_start: Micros::ZERO,
            calls: 0,
            failures: 0,
            timeouts: 0,
            next_probe: Micros::ZERO,
            probes: 0,
            ramp: None,
        }
    }
}

impl CircuitBreaker {
    /// Returns the state of the breaker.
    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// Returns whether the breaker is closed and the ramp is over, so that every call is sent.
    pub(crate) fn is_fully_closed(&self) -> bool {
        self.state == BreakerState::Closed && self.ramp.is_none()
    }

    /// Returns the epoch, in which new calls are admitted.
    pub(crate) fn epoch(&self) -> BreakerEpoch {
        BreakerEpoch(self.epoch)
    }

    /// Admits or rejects a call. Returns the current epoch if the call may be sent, otherwise
    /// `None`. `random` must be below [`RANDOM_MAX`].
    pub(crate) fn admit(&mut self, now: Micros, random: u64) -> Option<BreakerEpoch> {
        match self.state {
            BreakerState::Closed => self.admit_on_ramp(now).then_some(self.epoch()),
            BreakerState::Open | BreakerState::HalfOpen => {
                if now < self.next_probe {
                    return None;
                }
                self.state = BreakerState::HalfOpen;
                self.next_probe = next_probe(now, random);
                Some(self.epoch())
            }
        }
    }

    fn admit_on_ramp(&mut self, now: Micros) -> bool {
        let Some(ramp) = &mut self.ramp else { return true };
        let elapsed = now.saturating_sub(ramp.start);
        if elapsed >= RAMP_LENGTH {
            self.ramp = None;
            return true;
        }
        ramp.credit +=
            RAMP_START_PERMILLE + (RAMP_PERMILLE - RAMP_START_PERMILLE) * elapsed.0 / RAMP_LENGTH.0;
        let admitted = ramp.credit >= RAMP_PERMILLE;
        ramp.credit -= if admitted { RAMP_PERMILLE } else { 0 };
        admitted
    }

    /// Records that `count` calls admitted in `epoch` have succeeded.
    pub(crate) fn record_success(&mut self, epoch: BreakerEpoch, count: u64, now: Micros) {
        if epoch != self.epoch() || count == 0 {
            return;
        }
        match self.state {
            BreakerState::Closed => {
                self.roll_window(now);
                self.calls += count;
                self.timeouts = 0;
            }
            BreakerState::HalfOpen => {
                self.probes += 1;
                if self.probes >= PROBE_SUCCESSES_MIN {
                    *self = CircuitBreaker {
                        epoch: self.epoch.wrapping_add(1),
                        window_start: now,
                        ramp: Some(Ramp { start: now, credit: 0 }),
                        ..CircuitBreaker::default()
                    };
                }
            }
            BreakerState::Open => {}
        }
    }

    /// Records that a call admitted in `epoch` has failed.
    pub(crate) fn record_failure(
        &mut self,
        epoch: BreakerEpoch,
        failure: CallFailure,
        now: Micros,
        random: u64,
    ) {
        if epoch != self.epoch() {
            return;
        }
        match self.state {
            BreakerState::Closed => {
                self.roll_window(now);
                self.calls += 1;
                self.failures += 1;
                self.timeouts += u32::from(failure == CallFailure::NoReply);
                let half = self.calls >= WINDOW_CALLS_MIN && self.failures * 2 >= self.calls;
                if half || self.timeouts >= TIMEOUTS_MAX {
                    self.open(now, random);
                }
            }
            BreakerState::HalfOpen => self.open(now, random),
            BreakerState::Open => {}
        }
    }

    fn open(&mut self, now: Micros, random: u64) {
        *self = CircuitBreaker {
            state: BreakerState::Open,
            epoch: self.epoch.wrapping_add(1),
            next_probe: next_probe(now, random),
            ..CircuitBreaker::default()
        };
    }

    fn roll_window(&mut self, now: Micros) {
        if now.saturating_sub(self.window_start) >= WINDOW_LENGTH {
            (self.window_start, self.calls, self.failures) = (now, 0, 0);
        }
    }
}

fn next_probe(now: Micros, random: u64) -> Micros {
    let spread = PROBE_INTERVAL_SPREAD_US * random.min(RANDOM_MAX) / RANDOM_MAX;
    Micros(now.0 + PROBE_INTERVAL_MIN.0 + spread)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Micros = Micros(1_000_000_000);

    fn at(millis: u64) -> Micros {
        Micros(NOW.0 + millis * 1_000)
    }

    fn opened() -> CircuitBreaker {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..TIMEOUTS_MAX {
            let epoch = breaker.admit(NOW, 0).unwrap();
            breaker.record_failure(epoch, CallFailure::NoReply, NOW, 0);
        }
        breaker
    }

    #[test]
    fn five_timeouts_in_a_row_open_it_unless_a_success_comes_between() {
        assert_eq!(opened().state(), BreakerState::Open);
        let mut breaker = CircuitBreaker::default();
        for call in 0..15 {
            let epoch = breaker.admit(NOW, 0).unwrap();
            match call % 5 {
                4 => breaker.record_success(epoch, 10, NOW),
                _ => breaker.record_failure(epoch, CallFailure::NoReply, NOW, 0),
            }
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn failures_of_half_of_twenty_calls_within_a_second_open_it() {
        let mut breaker = CircuitBreaker::default();
        breaker.record_success(breaker.epoch(), 10, NOW);
        for _ in 0..9 {
            breaker.record_failure(breaker.epoch(), CallFailure::ErrorReply, at(500), 0);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        let mut late = breaker.clone();
        late.record_failure(late.epoch(), CallFailure::ErrorReply, at(1_000), 0);
        assert_eq!(
            late.state(),
            BreakerState::Closed,
            "a second later those failures no longer count"
        );
        breaker.record_failure(breaker.epoch(), CallFailure::ErrorReply, at(999), 0);
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn three_successful_probes_sent_one_at_a_time_close_it() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(at(99), 0), None);
        for probe in 1..=3 {
            let epoch = breaker.admit(at(100 * probe), 0).unwrap();
            assert_eq!(breaker.admit(at(100 * probe + 99), 0), None);
            breaker.record_success(epoch, 1, at(100 * probe));
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_failed_probe_reopens_it_and_a_late_success_is_ignored() {
        let mut breaker = opened();
        let first = breaker.admit(at(100), 0).unwrap();
        breaker.record_failure(first, CallFailure::NoReply, at(106), RANDOM_MAX);
        assert_eq!(breaker.state(), BreakerState::Open);
        assert_eq!(breaker.admit(at(605), 0), None);
        breaker.record_success(first, 3, at(606));
        let second = breaker.admit(at(606), 0).unwrap();
        breaker.record_success(first, 3, at(606));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.record_success(second, 1, at(607));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }

    #[test]
    fn after_closing_it_ramps_up_from_a_tenth_to_all_calls() {
        let mut breaker = opened();
        for probe in 1..=3 {
            let epoch = breaker.admit(at(100 * probe), 0).unwrap();
            breaker.record_success(epoch, 1, at(100 * probe));
        }
        let mut sent =
            |from: u64| (0..100).filter(|step| breaker.admit(at(from + step), 0).is_some()).count();
        let (first, middle) = (sent(300), sent(800));
        assert!((8..25).contains(&first), "{first}");
        assert!((35..75).contains(&middle), "{middle}");
        assert_eq!(sent(1_300), 100);
        assert!(breaker.is_fully_closed());
    }

    proptest! {
        /// In any history: while it is not closed, at most one call per 100 ms is sent. Once every
        /// call succeeds, it is fully closed after four of the longest probe intervals and the
        /// ramp.
        #[test]
        fn while_not_closed_it_sends_only_probes_and_it_always_recovers(
            steps in proptest::collection::vec((0..200_u64, 0..3_u8, 0..RANDOM_MAX), 1..400),
        ) {
            let mut breaker = CircuitBreaker::default();
            let mut millis = 0;
            let mut last_probe: Option<u64> = None;
            for (pause, what, random) in steps {
                millis += pause;
                let was_closed = breaker.state() == BreakerState::Closed;
                let Some(epoch) = breaker.admit(at(millis), random) else { continue };
                if !was_closed {
                    let apart = last_probe.is_none_or(|last| millis - last >= 100);
                    prop_assert!(apart, "{last_probe:?} {millis}");
                    last_probe = Some(millis);
                }
                match what {
                    0 => breaker.record_success(epoch, 1, at(millis)),
                    1 => breaker.record_failure(epoch, CallFailure::ErrorReply, at(millis), random),
                    _ => breaker.record_failure(epoch, CallFailure::NoReply, at(millis), random),
                }
            }
            let end = millis + 4 * 500 + 1_001;
            while millis < end {
                millis += 10;
                if let Some(epoch) = breaker.admit(at(millis), RANDOM_MAX) {
                    breaker.record_success(epoch, 1, at(millis));
                }
            }
            prop_assert!(breaker.is_fully_closed());
        }
    }
}
