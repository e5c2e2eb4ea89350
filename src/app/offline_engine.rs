//! The engine alone: a policy and the embedded store, with the time as an argument. What `explain`
//! and `simulate` ask.
//!
//! Not here: the network, files, clocks.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::exit_codes::Failure;
use crate::decide::{Decider, Modes};
use crate::domain::{Decision, Micros, Request};
use crate::policy::Policy;
use crate::store::memory::MemoryStore;

/// A decider on an embedded store of its own, on which nobody has called yet.
#[derive(Debug)]
pub struct Engine {
    policy: Arc<Policy>,
    decider: Decider<MemoryStore, ()>,
}

impl Engine {
    /// An engine for a policy, with at most `keys_max` counters (at least 1).
    pub fn new(policy: Arc<Policy>, keys_max: usize) -> Engine {
        let store = MemoryStore::new(keys_max);
        Engine { decider: Decider::new(Arc::clone(&policy), store, (), Modes::default()), policy }
    }

    /// May this pass at `now`?
    ///
    /// # Errors
    ///
    /// [`Failure::Bug`] if the embedded store does not answer at once, as it always does.
    pub fn decide(&self, request: &Request<'_>, now: Micros) -> Result<Decision<'_>, Failure> {
        let mut decide = pin!(self.decider.decide(&self.policy, request, now));
        match decide.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(decision)) => Ok(decision),
            Poll::Ready(Err(_)) | Poll::Pending => {
                Err(Failure::Bug("the memory store gave no answer"))
            }
        }
    }
}
