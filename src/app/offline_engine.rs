//! Decision engine without a server, for `explain`, `simulate`, and `test`. It has a policy and a memory
//! store, and takes the current time as an argument.

use std::sync::Arc;

use futures_util::FutureExt as _;

use super::process::exit_codes::Failure;
use crate::decide::{Decider, GlobalModes};
use crate::domain::{Decision, Entry, Micros, Request};
use crate::policy::Policy;
use crate::store::memory::MemoryStore;

/// Decision engine with its own memory store, which is initially empty.
#[derive(Debug)]
pub struct OfflineEngine {
    policy: Arc<Policy>,
    decider: Decider<MemoryStore, ()>,
}

impl OfflineEngine {
    /// Creates an engine whose memory store holds at most `keys_max` counters. A `keys_max` of 0 is
    /// treated as 1.
    pub fn new(policy: Arc<Policy>, keys_max: usize) -> OfflineEngine {
        let store = MemoryStore::new(keys_max);
        let decider =
            Decider::new(Arc::clone(&policy), store, Arc::new(()), GlobalModes::default());
        OfflineEngine { decider, policy }
    }

    /// Decides a request as if the current time were `now`. Charges the counters in the memory
    /// store.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Bug`] if the memory store does not decide immediately.
    pub fn decide(&self, request: &Request<'_>, now: Micros) -> Result<Decision<'_>, Failure> {
        let decided = self.decider.decide(&self.policy, request, now).now_or_never();
        decided.and_then(Result::ok).ok_or(Failure::Bug("the memory store did not answer"))
    }
}

/// Converts key-value pairs into the entries of a descriptor, without copying.
pub fn to_entries(pairs: &[(String, String)]) -> Vec<Entry<'_>> {
    pairs
        .iter()
        .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
        .collect()
}
