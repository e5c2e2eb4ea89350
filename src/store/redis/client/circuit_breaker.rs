//! The breaker of one node, as a pure state machine: while it is open nothing is sent there, so
//! that nobody waits for a node that does not answer.
//!
//! - *Closed*: everything is sent. It trips at half of at least [`CALLS_MIN`] calls failed within
//!   [`WINDOW`], or at [`STREAK_MAX`] calls in a row that were not answered in time.
//! - *Open*: nothing is sent until the first probe, a real call, is due.
//! - *HalfOpen*: one probe every 100 to 500 ms. After [`PROBES_MIN`] answered ones it flows again, at
//!   first a tenth of the calls, all of them after [`RAMP`]; a failed one trips it anew.
//!
//! Not here: clocks and chance (arguments), what counts as failed (`guard`).

use crate::domain::Micros;

/// Calls within a window from which on their share of failures says something.
const CALLS_MIN: u64 = 20;
/// How long calls are counted together.
const WINDOW: Micros = Micros::SECOND;
/// Calls in a row without an answer in time. At a thousand calls a second they pass in 5 ms, so a
/// dead node is noticed after one budget and those 5 ms.
const STREAK_MAX: u32 = 5;
/// A probe is due so long after the last one, at least and at most: a hundred processes whose
/// breakers that opened together do not meet again at the node that recovers.
const PROBE_AFTER_MIN: Micros = Micros(100_000);
const PROBE_AFTER_SPREAD: u64 = 400_000;
/// Answered probes in a row that make it flow.
const PROBES_MIN: u32 = 3;
/// How long it takes from a tenth of the calls to all of them.
const RAMP: Micros = Micros::SECOND;
/// The first of the ramp, in parts of [`RAMP_PARTS`].
const RAMP_FIRST: u64 = 100;
const RAMP_PARTS: u64 = 1_000;
/// Chance is a number below this.
pub(crate) const CHANCES: u64 = 1_024;

/// What the breaker does with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They are sent.
    Closed,
    /// They are refused.
    Open,
    /// They are refused, but for probes.
    HalfOpen,
}

impl State {
    /// All of them.
    pub const ALL: [State; 3] = [State::Closed, State::Open, State::HalfOpen];

    /// The word used in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::Open => "open",
            State::HalfOpen => "half_open",
        }
    }
}

/// Leave to send a call; its result is told with it. Results of calls that were sent before the
/// breaker last opened or closed say nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass(pub(crate) u32);

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It was not answered in time, or the connection was lost.
    Unanswered,
    /// The node said that it cannot serve.
    Refused,
}

/// One node's breaker.
#[derive(Clone, Debug)]
pub(crate) struct CircuitBreaker {
    state: State,
    /// Grows whenever it trips or begins to flow.
    epoch: u32,
    window_began: Micros,
    calls: u64,
    failures: u64,
    streak: u32,
    next_probe: Micros,
    probes: u32,
    /// While it ramps up: since when, and what the next call has saved up to be sent.
    ramp: Option<(Micros, u64)>,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        CircuitBreaker {
            state: State::Closed,
            epoch: 0,
            window_began: Micros::ZERO,
            calls: 0,
            failures: 0,
            streak: 0,
            next_probe: Micros::ZERO,
            probes: 0,
            ramp: None,
        }
    }
}

impl CircuitBreaker {
    /// What it does with calls.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Everything is sent, and the ramp is over.
    pub(crate) fn is_wide_open(&self) -> bool {
        self.state == State::Closed && self.ramp.is_none()
    }

    /// The pass of a call while it is wide open.
    pub(crate) fn pass(&self) -> Pass {
        Pass(self.epoch)
    }

    /// May a call be sent? `chance` is below [`CHANCES`].
    pub(crate) fn admit(&mut self, now: Micros, chance: u64) -> Option<Pass> {
        match self.state {
            State::Closed => self.admit_on_ramp(now).then_some(Pass(self.epoch)),
            State::Open | State::HalfOpen => {
                if now < self.next_probe {
                    return None;
                }
                self.state = State::HalfOpen;
                self.next_probe = probe_after(now, chance);
                Some(Pass(self.epoch))
            }
        }
    }

    fn admit_on_ramp(&mut self, now: Micros) -> bool {
        let Some((began, saved)) = &mut self.ramp else { return true };
        let elapsed = now.saturating_sub(*began);
        if elapsed >= RAMP {
            self.ramp = None;
            return true;
        }
        let part = RAMP_FIRST + (RAMP_PARTS - RAMP_FIRST) * elapsed.0 / RAMP.0;
        *saved += part;
        let passes = *saved >= RAMP_PARTS;
        *saved -= if passes { RAMP_PARTS } else { 0 };
        passes
    }

    /// So many calls were answered.
    pub(crate) fn answered(&mut self, pass: Pass, many: u64, now: Micros) {
        if pass.0 != self.epoch || many == 0 {
            return;
        }
        match self.state {
            State::Closed => {
                self.roll(now);
                self.calls += many;
                self.streak = 0;
            }
            State::HalfOpen => {
                self.probes += 1;
                if self.probes >= PROBES_MIN {
                    let next = self.epoch.wrapping_add(1);
                    *self = CircuitBreaker {
                        epoch: next,
                        window_began: now,
                        ..CircuitBreaker::default()
                    };
                    self.ramp = Some((now, 0));
                }
            }
            State::Open => {}
        }
    }

    /// A call failed.
    pub(crate) fn failed(&mut self, pass: Pass, failure: Failure, now: Micros, chance: u64) {
        if pass.0 != self.epoch {
            return;
        }
        match self.state {
            State::Closed => {
                self.roll(now);
                self.calls += 1;
                self.failures += 1;
                self.streak += u32::from(failure == Failure::Unanswered);
                let half = self.calls >= CALLS_MIN && self.failures * 2 >= self.calls;
                if half || self.streak >= STREAK_MAX {
                    self.trip(now, chance);
                }
            }
            State::HalfOpen => self.trip(now, chance),
            State::Open => {}
        }
    }

    fn trip(&mut self, now: Micros, chance: u64) {
        let next = self.epoch.wrapping_add(1);
        let next_probe = probe_after(now, chance);
        *self = CircuitBreaker {
            state: State::Open,
            epoch: next,
            next_probe,
            ..CircuitBreaker::default()
        };
    }

    fn roll(&mut self, now: Micros) {
        if now.saturating_sub(self.window_began) >= WINDOW {
            (self.window_began, self.calls, self.failures) = (now, 0, 0);
        }
    }
}

fn probe_after(now: Micros, chance: u64) -> Micros {
    let spread = PROBE_AFTER_SPREAD * chance.min(CHANCES) / CHANCES;
    Micros(now.0 + PROBE_AFTER_MIN.0 + spread)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Micros = Micros(1_000_000_000);

    fn at(millis: u64) -> Micros {
        Micros(NOW.0 + millis * 1_000)
    }

    fn open() -> CircuitBreaker {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..STREAK_MAX {
            let pass = breaker.admit(NOW, 0).unwrap();
            breaker.failed(pass, Failure::Unanswered, NOW, 0);
        }
        breaker
    }

    #[test]
    fn five_unanswered_calls_in_a_row_trip_it_and_an_answer_between_them_does_not() {
        assert_eq!(open().state(), State::Open);
        let mut breaker = CircuitBreaker::default();
        for call in 0..15 {
            let pass = breaker.admit(NOW, 0).unwrap();
            match call % 5 {
                4 => breaker.answered(pass, 10, NOW),
                _ => breaker.failed(pass, Failure::Unanswered, NOW, 0),
            }
        }
        assert_eq!(breaker.state(), State::Closed);
    }

    #[test]
    fn half_of_twenty_calls_within_a_second_trip_it() {
        let mut breaker = CircuitBreaker::default();
        breaker.answered(breaker.pass(), 10, NOW);
        for _ in 0..9 {
            breaker.failed(breaker.pass(), Failure::Refused, at(500), 0);
        }
        assert_eq!(breaker.state(), State::Closed);
        let mut late = breaker.clone();
        late.failed(late.pass(), Failure::Refused, at(1_000), 0);
        assert_eq!(late.state(), State::Closed, "a second later they are forgotten");
        breaker.failed(breaker.pass(), Failure::Refused, at(999), 0);
        assert_eq!(breaker.state(), State::Open);
    }

    #[test]
    fn one_probe_at_a_time_and_three_answers_make_it_flow() {
        let mut breaker = open();
        assert_eq!(breaker.admit(at(99), 0), None);
        for probe in 1..=3 {
            let pass = breaker.admit(at(100 * probe), 0).unwrap();
            assert_eq!(breaker.admit(at(100 * probe + 99), 0), None);
            breaker.answered(pass, 1, at(100 * probe));
        }
        assert_eq!(breaker.state(), State::Closed);
    }

    #[test]
    fn a_failed_probe_trips_it_anew_and_a_late_answer_says_nothing() {
        let mut breaker = open();
        let first = breaker.admit(at(100), 0).unwrap();
        breaker.failed(first, Failure::Unanswered, at(106), CHANCES);
        assert_eq!(breaker.state(), State::Open);
        assert_eq!(breaker.admit(at(605), 0), None);
        breaker.answered(first, 3, at(606));
        let second = breaker.admit(at(606), 0).unwrap();
        breaker.answered(first, 3, at(606));
        assert_eq!(breaker.state(), State::HalfOpen);
        breaker.answered(second, 1, at(607));
        assert_eq!(breaker.state(), State::HalfOpen);
    }

    #[test]
    fn it_ramps_up_from_a_tenth_to_all() {
        let mut breaker = open();
        for probe in 1..=3 {
            let pass = breaker.admit(at(100 * probe), 0).unwrap();
            breaker.answered(pass, 1, at(100 * probe));
        }
        let mut sent =
            |from: u64| (0..100).filter(|step| breaker.admit(at(from + step), 0).is_some()).count();
        let (first, middle) = (sent(300), sent(800));
        assert!((8..25).contains(&first), "{first}");
        assert!((35..75).contains(&middle), "{middle}");
        assert_eq!(sent(1_300), 100);
        assert!(breaker.is_wide_open());
    }

    proptest! {
        /// Whatever happens: while it does not flow at most one call leaves every 100 ms, and once
        /// every call is answered it flows within three of its longest pauses and the ramp.
        #[test]
        fn it_never_lets_more_than_probes_through_and_always_recovers(
            steps in proptest::collection::vec((0..200_u64, 0..3_u8, 0..CHANCES), 1..400),
        ) {
            let mut breaker = CircuitBreaker::default();
            let mut millis = 0;
            let mut last_probe: Option<u64> = None;
            for (pause, what, chance) in steps {
                millis += pause;
                let flowed = breaker.state() == State::Closed;
                let Some(pass) = breaker.admit(at(millis), chance) else { continue };
                if !flowed {
                    let apart = last_probe.is_none_or(|last| millis - last >= 100);
                    prop_assert!(apart, "{last_probe:?} {millis}");
                    last_probe = Some(millis);
                }
                match what {
                    0 => breaker.answered(pass, 1, at(millis)),
                    1 => breaker.failed(pass, Failure::Refused, at(millis), chance),
                    _ => breaker.failed(pass, Failure::Unanswered, at(millis), chance),
                }
            }
            let end = millis + 4 * 500 + 1_001;
            while millis < end {
                millis += 10;
                if let Some(pass) = breaker.admit(at(millis), CHANCES) {
                    breaker.answered(pass, 1, at(millis));
                }
            }
            prop_assert!(breaker.is_wide_open());
        }
    }
}
