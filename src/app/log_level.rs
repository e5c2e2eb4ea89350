//! From which level on logs are written: as configured, or for now as an operator wants it.
//!
//! Not here: writing them (`telemetry`), who may change it (`admin`).

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::Micros;
use crate::telemetry::{LogHandle, Verbosity};

/// The level in force.
#[derive(Debug)]
pub(super) struct Levels {
    logs: LogHandle,
    configured: Verbosity,
    held: Mutex<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    level: Verbosity,
    /// When the configured one holds again; `None`: the level was set for good, or never.
    until: Option<Micros>,
}

impl Levels {
    pub(super) fn new(logs: LogHandle, configured: Verbosity) -> Levels {
        Levels { logs, configured, held: Mutex::new(Held { level: configured, until: None }) }
    }

    /// LogHandle from that level on, until then or for good.
    pub(super) fn set(&self, level: Verbosity, until: Option<Micros>) {
        let mut held = self.held();
        // Said before, since afterwards it may go unheard.
        tracing::info!(level = level.as_str(), until = until.map(|at| at.0), "log level set");
        self.logs.set(level);
        *held = Held { level, until };
    }

    /// Goes back to the configured level where its time has come.
    pub(super) fn expire(&self, now: Micros) {
        let mut held = self.held();
        if held.until.is_some_and(|until| until <= now) {
            self.logs.set(self.configured);
            *held = Held { level: self.configured, until: None };
            tracing::info!(level = self.configured.as_str(), "log level set back");
        }
    }

    /// The level and for how long, on a line.
    pub(super) fn told(&self, now: Micros) -> String {
        let Held { level, until } = *self.held();
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

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
