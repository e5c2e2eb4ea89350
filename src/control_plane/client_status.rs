//! Status of the control plane client: counters and state for metrics and the live page.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::last_good::Rejection;
use crate::domain::Lock;

/// Counters and state of the control plane client, shared with metrics and the live page.
#[derive(Debug, Default)]
pub struct ControlPlaneStatus {
    /// Whether a stream to the control plane is open.
    pub connected: AtomicBool,
    /// Number of streams that have been opened.
    pub connects: AtomicU64,
    /// Number of failed connection attempts plus lost streams.
    pub failures: AtomicU64,
    /// Number of responses with policies.
    pub responses: AtomicU64,
    /// Number of ACKs sent. An ACK accepts a whole response.
    pub acks: AtomicU64,
    /// Number of NACKs sent. A NACK rejects a response in part or as a whole.
    pub nacks: AtomicU64,
    /// Number of domain compilations.
    pub compiled: AtomicU64,
    state: Lock<ControlPlaneState>,
}

/// State of the control plane client: policy versions, number of active domains, and errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ControlPlaneState {
    /// Most recently acknowledged version; empty before the first ACK.
    pub version: String,
    /// Version of the last response.
    pub received_version: String,
    /// Number of active domains.
    pub domains: usize,
    /// Errors in the last response.
    pub rejections: Vec<Rejection>,
    /// Reason why no stream is open; `None` while one is open.
    pub error: Option<String>,
}

impl ControlPlaneStatus {
    /// Returns a copy of the state.
    pub fn state(&self) -> ControlPlaneState {
        self.state.lock().clone()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut ControlPlaneState)) {
        change(&mut self.state.lock());
    }

    pub(crate) fn add_to_counter(counter: &AtomicU64, by: usize) {
        counter.fetch_add(by as u64, Ordering::Relaxed);
    }
}
