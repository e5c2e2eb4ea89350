//! Step of an algorithm: the result of an operation on a counter, and its new state.

use crate::domain::Outcome;

/// Result of applying one operation to one counter: the outcome and the state to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<S> {
    /// Outcome of the operation. `available` and `reset_after` describe the counter after the
    /// operation.
    pub outcome: Outcome,
    /// New state to store; `None` if the stored state does not change.
    ///
    /// A peek, or a rejection without `charge: always`, stores the state only if it was clamped. If
    /// the clamped state were not stored, every operation would clamp again and the counter would
    /// stay frozen.
    pub write: Option<S>,
    /// Whether the stored state indicates that the clock has stepped back. The same can happen
    /// after a policy change: a lower bucket capacity, a faster refill, or a shorter lease.
    pub stepped_back: bool,
}

impl<S> Step<S> {
    pub(super) fn map<T>(self, wrap: impl FnOnce(S) -> T) -> Step<T> {
        let Step { outcome, write, stepped_back } = self;
        Step { outcome, write: write.map(wrap), stepped_back }
    }
}
