//! Log level at run time: the configured level, or a level that an operator has set, optionally for
//! a limited time.

use std::time::Instant;

use crate::domain::{Lock, Verbosity};
use crate::telemetry::LogHandle;

/// Control that sets the log level at run time, and restores the configured level when the change
/// expires.
#[derive(Debug)]
pub(super) struct LogLevelControl {
    logs: LogHandle,
    configured: Verbosity,
    current: Lock<CurrentLevel>,
}

#[derive(Clone, Copy, Debug)]
struct CurrentLevel {
    level: Verbosity,
    /// Time at which the configured level is restored; `None` if the change never expires.
    until: Option<Instant>,
}

impl LogLevelControl {
    pub(super) fn new(logs: LogHandle, configured: Verbosity) -> LogLevelControl {
        let current = Lock::new(CurrentLevel { level: configured, until: None });
        LogLevelControl { logs, configured, current }
    }

    /// Sets the log level until the time `until`, or until the next change if `until` is `None`.
    pub(super) fn set(&self, level: Verbosity, until: Option<Instant>, now: Instant) {
        let mut current = self.current.lock();
        let seconds = until.map(|until| seconds_left(until, now));
        // Log before the change, because the new level may suppress this line.
        tracing::info!(level = level.as_str(), seconds, "log level changed");
        self.logs.set(level);
        *current = CurrentLevel { level, until };
    }

    /// Restores the configured log level if the operator's change has expired.
    pub(super) fn expire(&self, now: Instant) {
        let mut current = self.current.lock();
        if current.until.is_some_and(|until| until <= now) {
            self.logs.set(self.configured);
            *current = CurrentLevel { level: self.configured, until: None };
            tracing::info!(level = self.configured.as_str(), "log level restored");
        }
    }

    /// Describes the current log level, and the time until it expires, on one line for operators.
    pub(super) fn describe(&self, now: Instant) -> String {
        let CurrentLevel { level, until } = *self.current.lock();
        match until {
            Some(until) => {
                let left = seconds_left(until, now);
                format!(
                    "{}, for {left} s more, then {}\n",
                    level.as_str(),
                    self.configured.as_str()
                )
            }
            None => format!("{}\n", level.as_str()),
        }
    }
}

/// Returns the number of seconds until a deadline, rounded up.
fn seconds_left(until: Instant, now: Instant) -> u64 {
    let left = until.saturating_duration_since(now);
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}
