//! Exponential backoff with jitter between connection attempts.
//!
//! Not here: a connection attempt (`dialer`), rejecting commands during the wait (`connection`).

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::domain::FailureKind;

/// Wait after the first failure. Doubles with each further failure. Short enough to reach a server
/// that restarts quickly within 100 ms of its start.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// Maximum wait after a failure, except for a denied login. A recovering Redis server easily
/// handles a hundred processes that each try to connect once a second.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Wait after a denied login. Longer than after other failures, because only an operator can fix
/// the problem and every attempt adds a line to the server's log.
const WAIT_AFTER_DENIED_LOGIN: Duration = Duration::from_secs(2);

/// Backoff for reconnecting one connection. After a working connection is lost, the first attempt
/// is immediate.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// Number of consecutive failed connection attempts.
    failures: u32,
    /// Kind of failure of the last connection attempt, if it failed.
    failure: Option<FailureKind>,
    /// Whether no reply has arrived yet on the current connection. A connection that breaks before
    /// its first reply counts as a failed attempt. Otherwise the client would reconnect in a tight
    /// loop to a server that accepts connections and then drops them.
    awaits_first_reply: bool,
}

impl Backoff {
    /// Returns how long to wait before the next attempt, or `None` to connect immediately. Call
    /// this once per attempt.
    pub(crate) fn next_wait(&mut self) -> Option<Duration> {
        if std::mem::replace(&mut self.awaits_first_reply, true) {
            self.failures = self.failures.saturating_add(1);
        }
        if self.failures == 0 {
            return None;
        }
        if self.failure == Some(FailureKind::Denied) {
            return Some(with_jitter(WAIT_AFTER_DENIED_LOGIN));
        }
        // 20 ms × 2^10 exceeds `WAIT_MAX`.
        let grown = WAIT_MIN.saturating_mul(1 << (self.failures - 1).min(10));
        Some(with_jitter(grown.min(WAIT_MAX)))
    }

    /// Records a failed connection attempt. Returns whether the attempt before did not fail in the
    /// same way.
    pub(crate) fn record_failure(&mut self, kind: FailureKind) -> bool {
        self.failure.replace(kind) != Some(kind)
    }

    /// Resets the backoff, because the server has replied to a command.
    pub(crate) fn record_success(&mut self) {
        *self = Backoff::default();
    }
}

/// Returns a random duration between half of `wait` and `wait`.
pub(crate) fn with_jitter(wait: Duration) -> Duration {
    // `RandomState` has random keys. It is the only source of randomness in the standard library,
    // and good enough for jitter.
    let random = u32::try_from(RandomState::new().hash_one(()) % 1_024).unwrap_or(0);
    wait / 2 + (wait / 2).saturating_mul(random) / 1_024
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
            backoff.record_failure(FailureKind::NotConnected);
            let wait = backoff.next_wait().unwrap();
            assert!(wait >= last / 2 && wait <= WAIT_MAX, "{wait:?} after {last:?}");
            last = wait;
        }
        assert!(last >= WAIT_MAX / 4, "{last:?}");
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
        assert!(backoff.record_failure(FailureKind::Denied), "the first of its kind");
        assert!(backoff.next_wait().unwrap() >= WAIT_AFTER_DENIED_LOGIN / 2);
        assert!(!backoff.record_failure(FailureKind::Denied));
        assert!(backoff.record_failure(FailureKind::Loading), "another kind");
        assert!(backoff.next_wait().unwrap() < WAIT_AFTER_DENIED_LOGIN / 2);
    }

    #[test]
    fn waits_double_from_20_ms_to_a_second_and_are_shortened_by_up_to_half() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next_wait(), None);
        let mut next_wait = |kind| {
            backoff.record_failure(kind);
            backoff.next_wait().unwrap()
        };
        for longest in [20, 40, 80, 160, 320, 640].into_iter().chain([1_000; 40]) {
            let longest = Duration::from_millis(longest);
            let wait = next_wait(FailureKind::NotConnected);
            assert!((longest / 2..=longest).contains(&wait), "{wait:?} of {longest:?}");
        }
        let wait = next_wait(FailureKind::Denied);
        assert!((Duration::from_secs(1)..=Duration::from_secs(2)).contains(&wait), "{wait:?}");
        let waits: Vec<Duration> = (0..40).map(|_| next_wait(FailureKind::NotConnected)).collect();
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    }
}
