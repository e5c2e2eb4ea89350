//! Limits log lines that may repeat: a number of lines a minute for each message and subject.
//!
//! Without it, a server that closes idle connections, a port scan, or a control plane that responds
//! in a loop would fill the log.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use super::Lock;

/// Time in which a limited number of lines with the same message and subject is written.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of tracked pairs of message and subject. Lines of any further pair are
/// suppressed. A Redis Cluster has at most 1,000 nodes, and few of them fail at the same time.
const TRACKED_LINES_MAX: usize = 1_024;

/// Number of suppressed log lines with the same message and subject since the last one was written.
/// `None` instead of 0, so that the log line omits the field `suppressed`.
pub type SuppressedLines = Option<NonZeroU64>;

/// Function that returns the current monotonic time.
type ReadTime = dyn Fn() -> Instant + Send + Sync;

/// Limiter that suppresses repeated log lines. Takes a lock, so it is not for the request path.
pub struct LogLimiter {
    /// Number of lines per minute for each message and subject.
    lines_max: u64,
    /// Time source; `None` if no line is to be suppressed.
    now: Option<Box<ReadTime>>,
    lines: Lock<HashMap<(&'static str, String), LineCount>>,
}

/// Number of lines with the same message and subject since `first_at`, including suppressed ones.
#[derive(Debug)]
struct LineCount {
    first_at: Instant,
    count: u64,
}

impl fmt::Debug for LogLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLimiter").field("lines_max", &self.lines_max).finish_non_exhaustive()
    }
}

impl LogLimiter {
    /// Creates a limiter that admits `lines_max` lines a minute for each message and subject.
    pub fn new(lines_max: u64, now: impl Fn() -> Instant + Send + Sync + 'static) -> LogLimiter {
        LogLimiter { lines_max, now: Some(Box::new(now)), lines: Lock::default() }
    }

    /// Creates a limiter that suppresses nothing.
    pub fn unlimited() -> LogLimiter {
        LogLimiter { lines_max: u64::MAX, now: None, lines: Lock::default() }
    }

    /// Returns `None` if a line with this message and subject must be suppressed. Otherwise,
    /// returns the number of such lines suppressed since the last one was logged.
    pub fn admit(&self, message: &'static str, subject: &impl ToString) -> Option<SuppressedLines> {
        let Some(now) = &self.now else { return Some(None) };
        let now = now();
        let is_recent =
            |line: &LineCount| now.saturating_duration_since(line.first_at) < LOG_INTERVAL;
        let mut lines = self.lines.lock();
        let key = (message, subject.to_string());
        if let Some(line) = lines.get_mut(&key) {
            if is_recent(line) {
                line.count += 1;
                return (line.count <= self.lines_max).then_some(None);
            }
            let suppressed = line.count.saturating_sub(self.lines_max);
            *line = LineCount { first_at: now, count: 1 };
            return Some(NonZeroU64::new(suppressed));
        }
        if lines.len() >= TRACKED_LINES_MAX {
            lines.retain(|_, line| is_recent(line));
        }
        if lines.len() >= TRACKED_LINES_MAX {
            return None;
        }
        lines.insert(key, LineCount { first_at: now, count: 1 });
        Some(None)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the clock's origin is a real instant")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Returns a limiter whose clock shows the number of milliseconds in the second value.
    fn limiter(lines_max: u64) -> (LogLimiter, Arc<AtomicU64>) {
        let (millis, origin) = (Arc::<AtomicU64>::default(), Instant::now());
        let read = Arc::clone(&millis);
        let now = move || origin + Duration::from_millis(read.load(Ordering::Relaxed));
        (LogLimiter::new(lines_max, now), millis)
    }

    #[test]
    fn each_message_and_subject_is_logged_once_a_minute_with_the_suppressed_count() {
        let (limiter, millis) = limiter(1);
        assert_eq!(limiter.admit("lost", &"a"), Some(None));
        assert_eq!(limiter.admit("lost", &"b"), Some(None));
        assert_eq!(limiter.admit("refused", &"a"), Some(None));
        for _ in 0..7 {
            assert_eq!(limiter.admit("lost", &"a"), None);
        }
        millis.store(59_999, Ordering::Relaxed);
        assert_eq!(limiter.admit("lost", &"a"), None);
        millis.store(60_000, Ordering::Relaxed);
        assert_eq!(limiter.admit("lost", &"a"), Some(NonZeroU64::new(8)));
        assert_eq!(limiter.admit("lost", &"a"), None);
    }

    #[test]
    fn twenty_lines_a_minute_are_logged() {
        let (limiter, millis) = limiter(20);
        let admitted = |at: u64, count: usize| {
            millis.store(at, Ordering::Relaxed);
            let admitted: Vec<_> =
                (0..count).filter_map(|_| limiter.admit("control plane", &"")).collect();
            (admitted.len(), admitted.first().copied().flatten().map_or(0, NonZeroU64::get))
        };
        assert_eq!(admitted(0, 40_000), (20, 0));
        assert_eq!(admitted(59_000, 1), (0, 0));
        assert_eq!(admitted(60_000, 40_000), (20, 39_981));
        assert_eq!(admitted(120_000, 7), (7, 39_980));
        assert_eq!(admitted(180_000, 20), (20, 0), "nothing was suppressed");
    }

    #[test]
    fn unbounded_subjects_do_not_exhaust_memory() {
        let (limiter, millis) = limiter(1);
        for subject in 0..2 * TRACKED_LINES_MAX {
            let expected = if subject < TRACKED_LINES_MAX { Some(None) } else { None };
            assert_eq!(limiter.admit("lost", &subject), expected);
        }
        millis.store(60_000, Ordering::Relaxed);
        assert_eq!(limiter.admit("lost", &"new"), Some(None), "the others are forgotten");
    }
}
