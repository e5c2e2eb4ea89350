//! Rate limiter for log lines: at most one line a minute for each message and subject.
//!
//! Without the limiter, a Redis server that closes idle connections or redirects calls to a dead
//! address would cause a log line per reconnect. Not here: counting the events (`node_stats`).

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};

use super::config::MonotonicClock;
use crate::domain::Micros;

/// Minimum time between two log lines with the same message and subject.
const LOG_LINE_INTERVAL_MIN: Micros = Micros(60_000_000);
/// Maximum number of tracked pairs of message and subject. Lines of any further pair are
/// suppressed. A cluster has at most 1,000 nodes, and few of them fail at the same time.
const TRACKED_LINES_MAX: usize = 1_024;

/// Number of log lines suppressed since a line with the same message and subject was last written.
/// `None` instead of 0, so that the log line omits the field `suppressed`.
pub(crate) type SuppressedLines = Option<NonZeroU64>;

/// Limiter that suppresses repeated log lines. Not used on the request path.
#[derive(Debug)]
pub(crate) struct LogLimiter {
    /// Clock that measures the time between lines; `None` if no line is to be suppressed.
    clock: Option<MonotonicClock>,
    lines: Mutex<HashMap<(&'static str, String), LoggedLine>>,
}

/// Time at which a log line was last written, and the number of lines with the same message and
/// subject that were suppressed since then.
#[derive(Debug)]
struct LoggedLine {
    logged_at: Micros,
    suppressed: u64,
}

impl LogLimiter {
    /// Creates a limiter that reads the time from `clock`. Without a clock, no line is suppressed.
    pub(crate) fn new(clock: Option<MonotonicClock>) -> LogLimiter {
        LogLimiter { clock, lines: Mutex::default() }
    }

    /// Returns `None` if a line with this message and subject must be suppressed. Otherwise,
    /// returns the number of such lines suppressed since the last one was logged.
    pub(crate) fn admit(
        &self,
        message: &'static str,
        subject: &impl ToString,
    ) -> Option<SuppressedLines> {
        let Some(clock) = &self.clock else { return Some(None) };
        let now = clock.now();
        let is_recent =
            |line: &LoggedLine| now.saturating_sub(line.logged_at) < LOG_LINE_INTERVAL_MIN;
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (message, subject.to_string());
        if let Some(line) = lines.get_mut(&key) {
            if is_recent(line) {
                line.suppressed += 1;
                return None;
            }
            line.logged_at = now;
            return Some(NonZeroU64::new(std::mem::take(&mut line.suppressed)));
        }
        if lines.len() >= TRACKED_LINES_MAX {
            lines.retain(|_, line| is_recent(line));
        }
        if lines.len() >= TRACKED_LINES_MAX {
            return None;
        }
        lines.insert(key, LoggedLine { logged_at: now, suppressed: 0 });
        Some(None)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the clock's origin is a real instant")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn each_message_and_subject_is_logged_once_a_minute_with_the_suppressed_count() {
        let time = Arc::new(AtomicU64::new(5));
        let read = Arc::clone(&time);
        let began = Instant::now();
        let passed = move || Duration::from_micros(read.load(Ordering::Relaxed));
        let clock = MonotonicClock::new(move || began + passed());
        let limiter = LogLimiter::new(Some(clock));
        assert_eq!(limiter.admit("lost", &"a"), Some(None));
        assert_eq!(limiter.admit("lost", &"b"), Some(None));
        assert_eq!(limiter.admit("refused", &"a"), Some(None));
        for _ in 0..7 {
            assert_eq!(limiter.admit("lost", &"a"), None);
        }
        time.store(5 + LOG_LINE_INTERVAL_MIN.0 - 1, Ordering::Relaxed);
        assert_eq!(limiter.admit("lost", &"a"), None);
        time.store(5 + LOG_LINE_INTERVAL_MIN.0, Ordering::Relaxed);
        assert_eq!(limiter.admit("lost", &"a"), Some(NonZeroU64::new(8)));
        assert_eq!(limiter.admit("lost", &"a"), None);
    }

    #[test]
    fn unbounded_subjects_do_not_exhaust_memory() {
        let minutes = Arc::new(AtomicU64::new(0));
        let (read, began) = (Arc::clone(&minutes), Instant::now());
        let passed = move || Duration::from_secs(60 * read.load(Ordering::Relaxed));
        let limiter = LogLimiter::new(Some(MonotonicClock::new(move || began + passed())));
        for subject in 0..2 * TRACKED_LINES_MAX {
            let expected = if subject < TRACKED_LINES_MAX { Some(None) } else { None };
            assert_eq!(limiter.admit("lost", &subject), expected);
        }
        minutes.store(1, Ordering::Relaxed);
        assert_eq!(limiter.admit("lost", &"new"), Some(None), "the others are forgotten");
    }
}
