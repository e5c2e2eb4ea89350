//! The switch that an operator rehearses with: the store counts as away until it is switched back,
//! or for a set time.
//!
//! Switches of rules are not here: they change the policy (`policy::switched`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::Micros;

/// Whether the store counts as away. One atomic, looked at once a call.
#[derive(Debug, Default)]
pub struct StoreOverride {
    /// Until when; zero: it does not.
    until: AtomicU64,
}

impl StoreOverride {
    /// The store counts as away until then; `None`: until it is switched back.
    pub fn disable(&self, until: Option<Micros>) {
        self.until.store(until.map_or(u64::MAX, |until| until.0), Ordering::Relaxed);
    }

    /// The store is asked again.
    pub fn enable(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Whether it counts as away.
    pub fn is_away(&self, now: Micros) -> bool {
        self.until.load(Ordering::Relaxed) > now.0
    }
}
