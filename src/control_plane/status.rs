//! Counters and state of the client, for metrics and the live page.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::last_good::Rejection;

/// Counters and state of the client, shared with metrics and the live page.
#[derive(Debug, Default)]
pub struct ControlPlaneStatus {
    /// Whether a stream is open.
    pub connected: AtomicBool,
    /// Number of streams that were opened.
    pub connects: AtomicU64,
    /// Number of attempts that failed, and of streams that were lost.
    pub failures: AtomicU64,
    /// Number of responses with the policies.
    pub responses: AtomicU64,
    /// Number of responses that were accepted.
    pub acks: AtomicU64,
    /// Number of NACKs that were sent.
    pub nacks: AtomicU64,
    /// Number of domains that were compiled.
    pub compiled: AtomicU64,
    state: Mutex<ControlPlaneState>,
}

/// State of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlPlaneState {
    /// Version that was acknowledged last; empty before the first.
    pub version: String,
    /// Version of the last response.
    pub received_version: String,
    /// Number of domains in force.
    pub domains: usize,
    /// Errors of the last response.
    pub rejections: Vec<Rejection>,
    /// Why there is no stream; `None` while there is one.
    pub error: Option<String>,
}

impl ControlPlaneStatus {
    /// Returns a copy of the state.
    pub fn state(&self) -> ControlPlaneState {
        self.lock().clone()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut ControlPlaneState)) {
        change(&mut self.lock());
    }

    pub(crate) fn count(counter: &AtomicU64, by: usize) {
        counter.fetch_add(by as u64, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, ControlPlaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
