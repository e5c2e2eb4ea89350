//! What an observer is told of a check that refused: which counter, and what it counts.
//!
//! Not here: what is made of it (`telemetry`).

use super::Decider;
use crate::domain::{Check, Descriptor, Observer, Refused};
use crate::policy::Rule;
use crate::store::Store;

impl<S: Store, O: Observer> Decider<S, O> {
    /// Only refusals come here, so the way of a request that passes is no longer for it.
    pub(super) fn tell_refused(
        &self,
        rule: Option<&Rule>,
        check: &Check<'_>,
        name: &str,
        descriptor: &Descriptor<'_>,
    ) {
        let counter = check.key;
        let Some(rule) = rule else {
            let entries = descriptor.entries;
            return self.observer.refused(&Refused { rule: None, limit: 0, counter, entries });
        };
        let limit = rule.position(name);
        let entries = rule.counter_of(limit, descriptor.entries);
        self.observer.refused(&Refused { rule: Some(rule.id), limit, counter, entries: &entries });
    }
}
