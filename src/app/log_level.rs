//! The log level: as configured, or as an operator set it for a while.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::Micros;
use crate::telemetry::{LogHandle, Verbosity};

/// Changes the log level at run time.
#[derive(Debug)]
pub(super) struct LogLevelControl {
    logs: LogHandle,
    configured: Verbosity,
    current: Mutex<CurrentLevel>,
}

#[derive(Clone, Copy, Debug)]
struct CurrentLevel {
    level: Verbosity,
    /// When the configured level returns; `None`: never.
    until: Option<Micros>,
}

impl LogLevelControl {
    pub(super) fn new(logs: LogHandle, configured: Verbosity) -> LogLevelControl {
        let current = Mutex::new(CurrentLevel { level: configured, until: None });
        LogLevelControl { logs, configured, current }
    }

    /// Sets the level until that time, or for good.
    pub(super) fn set(&self, level: Verbosity, until: Option<Micros>) {
        let mut current = self.current();
        // Logged before the change, which may silence this line.
        tracing::info!(level = level.as_str(), until = until.map(|at| at.0), "log level changed");
        self.logs.set(level);
        *current = CurrentLevel { level, until };
    }

    /// Returns to the configured level if the time of the other one is over.
    pub(super) fn expire(&self, now: Micros) {
        let mut current = self.current();
        if current.until.is_some_and(|until| until <= now) {
            self.logs.set(self.configured);
            *current = CurrentLevel { level: self.configured, until: None };
            tracing::info!(level = self.configured.as_str(), "log level restored");
        }
    }

    /// The level and how long it holds, on one line.
    pub(super) fn describe(&self, now: Micros) -> String {
        let CurrentLevel { level, until } = *self.current();
        match until {
            Some(until) => {
                let left = until.saturating_sub(now).ceil_secs();
                format!(
                    "{}, for {left} s more, then {}\n",
                    level.as_str(),
                    self.configured.as_str()
                )
            }
            None => format!("{}\n", level.as_str()),
        }
    }

    fn current(&self) -> MutexGuard<'_, CurrentLevel> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
