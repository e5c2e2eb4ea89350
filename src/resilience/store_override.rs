//! Operator override that disables the remote store, to rehearse an outage.
//!
//! Not here: overrides of rules, which change the policy (`policy`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::Micros;

/// Switch with which an operator disables the remote store. A single atomic, read once per call.
#[derive(Debug, Default)]
pub struct StoreOverride {
    /// Time at which the store is enabled again, in microseconds since the Unix epoch; zero if it
    /// is enabled, `u64::MAX` if it stays disabled.
    until: AtomicU64,
}

impl StoreOverride {
    /// Disables the store until the given time or, with `None`, until [`enable`](Self::enable) is
    /// called.
    pub fn disable(&self, until: Option<Micros>) {
        self.until.store(until.map_or(u64::MAX, |until| until.0), Ordering::Relaxed);
    }

    /// Enables the remote store, so that calls are sent to it again.
    pub fn enable(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Returns whether the store is disabled.
    pub fn is_disabled(&self, now: Micros) -> bool {
        self.until.load(Ordering::Relaxed) > now.0
    }
}
