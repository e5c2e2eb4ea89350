//! The engine alone: a policy and the embedded store, with the time as an argument. What
//! `simulate` runs on.
//!
//! Not here: the network, files, clocks.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::decide::{Decider, Modes};
use crate::domain::{Code, Descriptor, Micros, Request};
use crate::policy::{self, Faults, Policy, Secret};
use crate::store::memory::MemoryStore;

/// Counters that one run can hold: enough for a caller each of the largest scenario.
const KEYS_MAX: usize = 4_000_000;

/// A decider on the embedded store.
#[derive(Debug)]
pub struct Engine {
    decider: Decider<MemoryStore, ()>,
    domain: String,
}

impl Engine {
    /// An engine for a policy of one domain, given as the text of a policy file.
    ///
    /// # Errors
    ///
    /// The policy's faults.
    pub fn new(policy: &str) -> Result<Engine, Faults> {
        let source =
            policy::Source { name: "policy".to_owned(), text: policy.as_bytes().to_vec() };
        let compiled = policy::compile(&[source], &policy::Options::default())?;
        let domain =
            compiled.domains.first().map_or_else(String::new, |domain| domain.name.to_string());
        let policy = Arc::new(Policy::build(compiled.domains, Secret::default()));
        let store = MemoryStore::new(KEYS_MAX);
        Ok(Engine { decider: Decider::new(policy, store, (), Modes::default()), domain })
    }

    /// May this pass at `now`, and if not, after how long?
    pub fn decide(&self, descriptors: &[Descriptor<'_>], now: Micros) -> (Code, Option<Micros>) {
        let policy = self.decider.policy();
        let request = Request { domain: &self.domain, descriptors };
        let mut decide = pin!(self.decider.decide(&policy, &request, now));
        match decide.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(decision)) => {
                (decision.code, decision.limited_by.and_then(|by| by.retry_after))
            }
            // The embedded store answers at once and always; were it ever not to, the caller is
            // refused rather than the simulation flattered.
            Poll::Ready(Err(_)) | Poll::Pending => (Code::OverLimit, None),
        }
    }
}
