//! How long to wait before the next connection attempt, with jitter.
//!
//! Not here: connecting (`dialer`), what happens in the meantime (`connection`).

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::circuit_breaker::RANDOM_MAX;

/// After the first failure; doubled with each further one. A server that restarts is reached again
/// within its first tenth of a second.
const FIRST: Duration = Duration::from_millis(20);
/// The longest wait. A hundred processes that connect once a second do not burden a recovering
/// Redis.
const LONGEST: Duration = Duration::from_secs(1);
/// After a failed login: only an operator can fix it, and every attempt is a line in their log.
const DENIED: Duration = Duration::from_secs(2);

/// The backoff of one connection. The first attempt after a working connection is immediate.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    denied: bool,
    /// The present connection has not answered anything yet. If it breaks before it does, that
    /// counts as a failure; otherwise a server that accepts connections and drops them would be
    /// redialled in a tight loop.
    unproven: bool,
}

impl Backoff {
    /// The wait before the next attempt, if any. Call it once per attempt.
    pub(crate) fn next_wait(&mut self) -> Option<Duration> {
        if std::mem::replace(&mut self.unproven, true) {
            self.failures = self.failures.saturating_add(1);
        }
        if self.failures == 0 {
            return None;
        }
        if self.denied {
            return Some(jittered(DENIED));
        }
        // 2^10 × 20 ms exceeds the bound.
        let grown = FIRST.saturating_mul(1 << (self.failures - 1).min(10));
        Some(jittered(grown.min(LONGEST)))
    }

    /// The attempt failed. `denied`: the login failed, and will until an operator helps.
    pub(crate) fn record_failure(&mut self, denied: bool) {
        self.denied = denied;
    }

    /// The connection answered a command.
    pub(crate) fn record_success(&mut self) {
        *self = Backoff::default();
    }

    /// Whether the attempt before this one failed too.
    pub(crate) fn is_repeated(&self) -> bool {
        self.failures > 0
    }
}

/// A random duration between half of `wait` and all of it.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let random = u32::try_from(random()).unwrap_or(0);
    wait / 2 + (wait / 2).saturating_mul(random) / 1024
}

/// A random number below [`RANDOM_MAX`](super::circuit_breaker::RANDOM_MAX).
pub(crate) fn random() -> u64 {
    // Every `RandomState` has its own keys. It is the standard library's only source of randomness,
    // and good enough to keep processes apart.
    RandomState::new().hash_one(()) % RANDOM_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_after_a_working_connection_is_immediate_and_waits_grow() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next_wait(), None, "the first attempt");
        backoff.record_success();
        assert_eq!(backoff.next_wait(), None, "the first attempt after a loss");
        let mut last = Duration::ZERO;
        for _ in 0..6 {
            backoff.record_failure(false);
            let wait = backoff.next_wait().unwrap();
            assert!(wait >= last / 2 && wait <= LONGEST, "{wait:?} after {last:?}");
            last = wait;
        }
        assert!(last >= LONGEST / 4, "{last:?}");
    }

    #[test]
    fn a_server_that_accepts_and_drops_connections_is_not_dialled_in_a_tight_loop() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next_wait(), None);
        assert!(backoff.next_wait().is_some(), "the connection ended before it answered");
    }

    #[test]
    fn a_failed_login_is_retried_slowly() {
        let mut backoff = Backoff::default();
        let _ = backoff.next_wait();
        backoff.record_failure(true);
        assert!(backoff.next_wait().unwrap() >= DENIED / 2);
        backoff.record_failure(false);
        assert!(backoff.next_wait().unwrap() < DENIED / 2);
    }
}
