//! Log of failed TLS handshakes. Writes at most one line per minute, because a port scan or a
//! single misconfigured client would otherwise fill the log.
//!
//! Not here: the counter of failed handshakes (`connection_stats`).

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two log lines about failed handshakes: 60 s.
const HANDSHAKE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Rate-limited log of failed TLS handshakes. Each line reports how many have failed since the
/// previous line.
#[derive(Debug, Default)]
pub(crate) struct HandshakeLog {
    state: Mutex<HandshakeLogState>,
}

#[derive(Debug, Default)]
struct HandshakeLogState {
    logged_at: Option<Instant>,
    unlogged_failures: u64,
}

impl HandshakeLog {
    /// Logs a failed handshake with its reason and peer address, unless a line was logged within
    /// the last minute. The line reports the number of failures since the previous line, including
    /// this one.
    pub(crate) fn record_failure(
        &self,
        now: Instant,
        peer: Option<SocketAddr>,
        reason: &dyn fmt::Display,
    ) {
        if let Some(failures) = self.count_failure(now) {
            let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
            tracing::warn!(peer, %reason, failures, "TLS handshake failed");
        }
    }

    /// Counts a failure. If a log line is due, returns the number of failures since the previous
    /// line and resets the count.
    fn count_failure(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.unlogged_failures += 1;
        let due = state
            .logged_at
            .is_none_or(|at| now.saturating_duration_since(at) >= HANDSHAKE_LOG_INTERVAL);
        due.then(|| {
            state.logged_at = Some(now);
            std::mem::take(&mut state.unlogged_failures)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn one_line_per_minute_reports_the_failures_since_the_previous_line() {
        let log = HandshakeLog::default();
        let start = Clock::System.monotonic_now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(log.count_failure(at(0)), Some(1));
        assert_eq!(log.count_failure(at(1)), None);
        assert_eq!(log.count_failure(at(59)), None);
        assert_eq!(log.count_failure(at(60)), Some(3));
        assert_eq!(log.count_failure(at(61)), None);
    }
}
