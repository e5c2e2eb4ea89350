//! Step of an algorithm: an operation on a counter, its result, and the new state.

use crate::domain::{ChargeRecord, Hits, Micros, Op, Outcome};

/// Operation on a counter itself, without holds. A take of 0 hits is a peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterOp {
    /// Charges this number of hits if they pass, at least 1.
    Take(u64),
    /// Reports whether this number of hits would pass, at least 1.
    Peek(u64),
    /// Gives back this number of hits.
    Refund(u64),
}

impl From<Op> for CounterOp {
    fn from(op: Op) -> CounterOp {
        match op {
            Op::Take { cost: cost @ Hits(1..) } => CounterOp::Take(cost.0),
            Op::Peek { hits } => CounterOp::Peek(hits.0.max(1)),
            Op::Refund { cost } => CounterOp::Refund(cost.0),
            // `budget` turns the last two into other operations.
            Op::Take { .. } | Op::Hold { .. } | Op::Settle { .. } => CounterOp::Peek(1),
        }
    }
}

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

/// Returns the record of a charge in the window that starts at `window`, which is zero if the algorithm
/// has no windows; `None` if no hits were charged.
pub(super) fn record_charge(
    hits: u64,
    at: Micros,
    window: Micros,
    entry: u128,
) -> Option<ChargeRecord> {
    (hits > 0).then_some(ChargeRecord { hits: Hits(hits), at, window, entry })
}

/// Returns a number of hits or slots in the 32 bits in which states store it.
pub(super) fn saturate(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns the time until `cost` hits fit below `limit`: zero if they fit now, or `None` if they never
/// do. `held` are the hits that count against the limit, in the order of the times at which they end.
pub(super) fn time_until_room(
    limit: Hits,
    cost: u64,
    mut held: impl Iterator<Item = (u32, Micros)> + Clone,
    now: Micros,
) -> Option<Micros> {
    let room = limit.0.checked_sub(cost)?;
    let mut hits: u64 = held.clone().map(|(hits, _)| u64::from(hits)).sum();
    if hits <= room {
        return Some(Micros::ZERO);
    }
    let mut frees_enough = |ended: u32| {
        hits -= u64::from(ended);
        hits <= room
    };
    let (_, end) = held.find(|(ended, _)| frees_enough(*ended))?;
    // At least 1 µs, even if the clock has stepped back.
    Some(Micros(end.saturating_sub(now).0.max(1)))
}
