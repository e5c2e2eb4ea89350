//! From which level on logs are written: as configured, or for now as an operator wants it.
//!
//! Not here: writing them (`telemetry`), who may change it (`admin`).

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::Micros;
use crate::telemetry::{Level, Logs};

/// The level in force.
#[derive(Debug)]
pub(super) struct Levels {
    logs: Logs,
    configured: Level,
    held: Mutex<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    level: Level,
    /// When the configured one holds again; `None`: the level was set for good, or never.
    until: Option<Micros>,
}

impl Levels {
    pub(super) fn new(logs: Logs, configured: Level) -> Levels {
        Levels { logs, configured, held: Mutex::new(Held { level: configured, until: None }) }
    }

    /// Logs from that level on, until then or for good.
    pub(super) fn set(&self, level: Level, until: Option<Micros>) {
        let mut held = self.held();
        // Said before, since afterwards it may go unheard.
        tracing::info!(level = level.word(), until = until.map(|at| at.0), "log level set");
        self.logs.set(level);
        *held = Held { level, until };
    }

    /// Goes back to the configured level where its time has come.
    pub(super) fn expire(&self, now: Micros) {
        let mut held = self.held();
        if held.until.is_some_and(|until| until <= now) {
            self.logs.set(self.configured);
            *held = Held { level: self.configured, until: None };
            tracing::info!(level = self.configured.word(), "log level set back");
        }
    }

    /// The level and for how long, on a line.
    pub(super) fn told(&self, now: Micros) -> String {
        let Held { level, until } = *self.held();
        match until {
            Some(until) => {
                let left = until.saturating_sub(now).ceil_secs();
                format!("{}, for {left} s more, then {}\n", level.word(), self.configured.word())
            }
            None => format!("{}\n", level.word()),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
