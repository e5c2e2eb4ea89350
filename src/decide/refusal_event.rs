//! What an observer is told of a check that refused: which counter, and what it counts.
//!
//! Not here: what is made of it (`telemetry`).

use super::Decider;
use crate::domain::{Check, Descriptor, Observer, RefusalEvent, Role};
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
        let (counter, shadow) = (check.key, check.role == Role::Shadow);
        let Some(rule) = rule else {
            let entries = descriptor.entries;
            let refused = RefusalEvent { rule: None, limit: 0, counter, entries, shadow };
            return self.observer.refused(&refused);
        };
        let limit = rule.position(name);
        let entries = rule.counter_of(limit, descriptor.entries);
        let (rule, entries) = (Some(rule.id), &entries[..]);
        self.observer.refused(&RefusalEvent { rule, limit, counter, entries, shadow });
    }
}
