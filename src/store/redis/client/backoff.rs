//! How long to wait before the next dial, and the jitter that keeps many processes apart.
//!
//! Not here: dialling (`dial`), what happens meanwhile (`connection`).

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::circuit_breaker::CHANCES;

/// After the first failure; doubled with each further one. A server that restarts is met again
/// within its first tenth of a second.
const FIRST: Duration = Duration::from_millis(20);
/// At most so long: a second's dials from a hundred processes are nothing to a Redis that recovers.
const LONGEST: Duration = Duration::from_secs(1);
/// After a refused login: nothing but an operator changes it, and every try is a line in their log.
const DENIED: Duration = Duration::from_secs(2);

/// The waits of one connection. The first dial after a connection that worked waits for nothing.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    denied: bool,
    /// A connection was made and has not answered anything yet: if it ends like that, it counts
    /// as a failure, so that a server which accepts and drops us is not dialled in a circle.
    unproven: bool,
}

impl Backoff {
    /// What to wait before the next dial.
    pub(crate) fn wait(&mut self) -> Option<Duration> {
        if std::mem::replace(&mut self.unproven, true) {
            self.failures = self.failures.saturating_add(1);
        }
        if self.failures == 0 {
            return None;
        }
        if self.denied {
            return Some(jittered(DENIED));
        }
        // 2^10 × 20 ms is past the bound.
        let grown = FIRST.saturating_mul(1 << (self.failures - 1).min(10));
        Some(jittered(grown.min(LONGEST)))
    }

    /// The dial failed.
    pub(crate) fn failed(&mut self) {
        self.denied = false;
    }

    /// The dial failed, and will until an operator helps.
    pub(crate) fn denied(&mut self) {
        self.denied = true;
    }

    /// The connection answered: all is well.
    pub(crate) fn worked(&mut self) {
        *self = Backoff::default();
    }

    /// Whether the last dial failed too.
    pub(crate) fn is_repeated(&self) -> bool {
        self.failures > 0
    }
}

/// Between half of it and the whole.
pub(crate) fn jittered(wait: Duration) -> Duration {
    wait / 2 + (wait / 2).saturating_mul(u32::try_from(chance()).unwrap_or(0)) / 1024
}

/// A number below [`CHANCES`](super::circuit_breaker::CHANCES).
pub(crate) fn chance() -> u64 {
    // Every `RandomState` has keys of its own: the standard library's only source of randomness,
    // and good enough to keep processes apart.
    RandomState::new().hash_one(()) % CHANCES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_worked_dials_again_at_once_and_then_waits_longer_each_time() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.wait(), None, "the first dial");
        backoff.worked();
        assert_eq!(backoff.wait(), None, "the first dial after a loss");
        let mut held = Duration::ZERO;
        for _ in 0..6 {
            backoff.failed();
            let wait = backoff.wait().unwrap();
            assert!(wait >= held / 2 && wait <= LONGEST, "{wait:?} after {held:?}");
            held = wait;
        }
        assert!(held >= LONGEST / 4, "{held:?}");
    }

    #[test]
    fn a_server_that_accepts_and_drops_us_is_not_dialled_in_a_circle() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.wait(), None);
        assert!(backoff.wait().is_some(), "the connection ended before it answered");
    }

    #[test]
    fn a_refused_login_is_repeated_slowly() {
        let mut backoff = Backoff::default();
        let _ = backoff.wait();
        backoff.denied();
        assert!(backoff.wait().unwrap() >= DENIED / 2);
        backoff.failed();
        assert!(backoff.wait().unwrap() < DENIED / 2);
    }
}
