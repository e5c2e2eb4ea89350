//! Operator override that disables the remote store, to rehearse an outage.
//!
//! Not here: ending the rehearsal after its duration (`app`), overrides of rules
//! (`policy::lookup`).

use std::sync::atomic::{AtomicBool, Ordering};

/// Switch with which an operator disables the remote store. It is a single atomic, which every
/// call reads once.
#[derive(Debug, Default)]
pub struct StoreOverride {
    disabled: AtomicBool,
}

impl StoreOverride {
    /// Disables the remote store until [`enable`](Self::enable) is called.
    pub fn disable(&self) {
        self.disabled.store(true, Ordering::Relaxed);
    }

    /// Enables the remote store again after [`disable`](Self::disable).
    pub fn enable(&self) {
        self.disabled.store(false, Ordering::Relaxed);
    }

    /// Returns whether an operator has disabled the remote store.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }
}
