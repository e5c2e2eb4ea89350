//! Operator override that disables the remote store, to rehearse an outage.
//!
//! Not here: overrides of rules, which change the policy (`policy`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::Micros;

/// Whether the remote store is disabled. One atomic, read once per call.
#[derive(Debug, Default)]
pub struct StoreOverride {
    /// End of the override; zero if the store is enabled.
    until: AtomicU64,
}

impl StoreOverride {
    /// Disables the store until `until`; with `None`, until [`enable`](Self::enable) is called.
    pub fn disable(&self, until: Option<Micros>) {
        self.until.store(until.map_or(u64::MAX, |until| until.0), Ordering::Relaxed);
    }

    /// Enables the store again.
    pub fn enable(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Whether the store is disabled.
    pub fn is_disabled(&self, now: Micros) -> bool {
        self.until.load(Ordering::Relaxed) > now.0
    }
}
