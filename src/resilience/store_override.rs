//! Operator override that disables the remote store, to rehearse an outage.
//!
//! `app` ends the rehearsal when its time is over. Overrides of rules change the policy (`policy`).

use std::sync::atomic::{AtomicBool, Ordering};

/// Switch with which an operator disables the remote store. A single atomic, read once per call.
#[derive(Debug, Default)]
pub struct StoreOverride {
    disabled: AtomicBool,
}

impl StoreOverride {
    /// Disables the store until [`enable`](Self::enable) is called.
    pub fn disable(&self) {
        self.disabled.store(true, Ordering::Relaxed);
    }

    /// Enables the remote store, so that calls are sent to it again.
    pub fn enable(&self) {
        self.disabled.store(false, Ordering::Relaxed);
    }

    /// Returns whether the store is disabled.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }
}
