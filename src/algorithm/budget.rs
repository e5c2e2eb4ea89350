//! Budget: a fixed window or token bucket whose hits can be held before they are used. A hold is an
//! upper estimate under an id. A settle charges what was used, and ends the hold.
//!
//! ```text
//! held       total of the holds that have not ended (end > now) and are not settled
//! passes iff the window or bucket passes held + c; for a hold, without its own former amount
//! hold       amount = c, end = now + ttl; what is used stays
//! settle     charges c in any case, unless the hold was settled before; amount = 0
//! retry at   first time at which the window or bucket passes c and what is still held then
//! available  that of the window or bucket, less held
//! ```
//!
//! A settled hold is kept until its end with an amount of 0, so that a settle that is sent twice
//! charges once. Holds outlive the end of a window: they count in the window that is current, where
//! they will be settled.
//!
//! Not here: ids of holds (`decide`), removal of expired counters (`store`).

use super::step::Step;
use super::{State as CounterState, apply_without_holds};
use crate::domain::{Charge, ChargeRecord, Hits, Holder, Limit, Micros, Op, Verdict};

/// Maximum number of holds of a counter, with those that are settled. Beyond it, the first settled one
/// to end is forgotten; if none is settled, a new hold is refused until one ends.
pub const HOLDS_MAX: usize = 10_000;

/// Stored state of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// State of the window or bucket; `None` if nothing has been used.
    used: Option<CounterState>,
    /// Holds in the order in which they end.
    holds: Vec<Hold>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    id: Holder,
    end: Micros,
    /// Hits held; 0 if the hold is settled.
    amount: u64,
}

impl State {
    /// Returns the heap memory used by the list of holds, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.holds.capacity() * size_of::<Hold>()
    }

    /// Returns the state of the window or bucket; `None` if nothing has been used.
    pub(super) fn used(&self) -> Option<&CounterState> {
        self.used.as_ref()
    }

    fn into_counter(self) -> CounterState {
        match self {
            State { used: Some(used), holds } if holds.is_empty() => used,
            budget => CounterState::Budget(Box::new(budget)),
        }
    }

    /// Returns the end of the last hold; zero if there is none.
    pub(super) fn held_until(&self) -> Micros {
        self.holds.last().map_or(Micros::ZERO, |hold| hold.end)
    }
}

/// Budget within an operation.
struct View<'a> {
    used: Option<&'a CounterState>,
    /// Holds that have not ended, settled ones included, in the order in which they end.
    holds: Vec<Hold>,
    /// Whether the operation has changed the holds.
    is_changed: bool,
    limit: &'a Limit,
    now: Micros,
}

/// Applies an operation to a budget. `id` identifies the hold to make or to settle. Returns the outcome
/// and, if the state changes, the new state.
pub(super) fn apply(
    state: Option<&CounterState>,
    limit: &Limit,
    op: Op,
    id: Option<Holder>,
    now: Micros,
) -> Step<CounterState> {
    let used = state.and_then(CounterState::used);
    let holds = live_holds(state, now, matches!(op, Op::Hold { .. }));
    let mut view = View { used, holds, is_changed: false, limit, now };
    let (mut wait, mut taken) = (Some(Micros::ZERO), None);
    let mut step = match op {
        Op::Peek { .. } | Op::Take { cost: Hits::ZERO } => {
            let needed = if let Op::Peek { hits } = op { hits } else { Hits::ONE };
            // Without the own hold, as a renewal must fit.
            let own = id.and_then(|id| take_hold(&mut view.holds, id));
            wait = view.wait_time(used, needed.max(Hits::ONE));
            own.into_iter().for_each(|own| insert_hold(&mut view.holds, own));
            view.apply(Op::PEEK)
        }
        Op::Take { cost } => {
            wait = view.wait_time(used, cost);
            let fits = wait == Some(Micros::ZERO);
            let charges = fits || limit.charge == Charge::Always;
            let step = view.apply(if charges { op } else { Op::PEEK });
            if charges && !fits {
                // That of a charge beyond the limit is computed after the charge.
                wait = view.wait_time(step.write.as_ref().or(used), cost);
            }
            step
        }
        Op::Refund { .. } => {
            if op == Op::RESET {
                view.is_changed = !view.holds.is_empty();
                view.holds.clear();
            }
            view.apply(op)
        }
        Op::Hold { cost, ttl_secs } => {
            (wait, taken) = view.hold(id.unwrap_or(Holder(0)), cost, ttl_secs);
            view.apply(Op::PEEK)
        }
        Op::Settle { cost } => view.settle(id, cost),
    };
    let held: u64 = view.holds.iter().map(|hold| hold.amount).sum();
    let outcome = &mut step.outcome;
    outcome.verdict = if wait == Some(Micros::ZERO) { Verdict::Pass } else { Verdict::Refuse };
    outcome.available = Hits(outcome.available.0.saturating_sub(held));
    let is_peek = matches!(op, Op::Peek { .. } | Op::Take { cost: Hits::ZERO });
    outcome.held = if is_peek { Hits(held) } else { Hits::ZERO };
    outcome.retry_after = wait.filter(|wait| *wait > Micros::ZERO);
    outcome.taken = taken.or(outcome.taken);
    if step.write.is_some() || view.is_changed {
        let used = step.write.take().or_else(|| used.cloned());
        step.write = Some(State { used, holds: view.holds }.into_counter());
    }
    step
}

impl View<'_> {
    /// Applies an operation to the window or bucket.
    fn apply(&self, op: Op) -> Step<CounterState> {
        let charge = self.limit.debt_charge();
        apply_without_holds(self.used, self.limit, charge, op, None, self.now)
    }

    /// Returns the time until hits fit alongside the holds: zero if they fit now, `None` if they never do.
    fn wait_time(&self, used: Option<&CounterState>, needed: Hits) -> Option<Micros> {
        let view = View { used, holds: Vec::new(), ..*self };
        let wait = |held: u64| {
            let op = Op::Peek { hits: Hits(needed.0.saturating_add(held)) };
            let outcome = view.apply(op).outcome;
            if outcome.verdict == Verdict::Pass { Some(Micros::ZERO) } else { outcome.retry_after }
        };
        first_fit(&self.holds, wait, self.now)
    }

    /// Holds hits, if they fit. Returns the wait, zero if they do, and the record of the hold.
    fn hold(
        &mut self,
        id: Holder,
        cost: Hits,
        ttl_secs: u32,
    ) -> (Option<Micros>, Option<ChargeRecord>) {
        let former = take_hold(&mut self.holds, id);
        let mut wait = self.wait_time(self.used, cost.max(Hits::ONE));
        if former.is_none() && self.holds.len() >= HOLDS_MAX {
            match self.holds.iter().position(|hold| hold.amount == 0) {
                Some(settled) if wait == Some(Micros::ZERO) => drop(self.holds.remove(settled)),
                Some(_) => {}
                None => {
                    let first = self.holds.first().map_or(Micros::ZERO, |hold| hold.end);
                    wait = wait.map(|wait| wait.max(first.saturating_sub(self.now)));
                }
            }
        }
        if wait != Some(Micros::ZERO) {
            former.into_iter().for_each(|former| insert_hold(&mut self.holds, former));
            return (wait, None);
        }
        let end = self.now.saturating_add(Micros::from_secs(ttl_secs.into()));
        insert_hold(&mut self.holds, Hold { id, end, amount: cost.0 });
        self.is_changed = true;
        let (held, window) = former.map_or((0, Micros::ZERO), |it| (it.amount, it.end));
        (wait, Some(ChargeRecord { hits: Hits(held), at: end, window, entry: id.0 }))
    }

    /// Ends a hold and charges the hits, unless the hold was settled before.
    fn settle(&mut self, id: Option<Holder>, cost: Hits) -> Step<CounterState> {
        let hold = self.holds.iter_mut().find(|hold| Some(hold.id) == id);
        let is_settled = hold.as_ref().is_some_and(|hold| hold.amount == 0);
        if let Some(hold) = hold {
            self.is_changed = !is_settled;
            hold.amount = 0;
        }
        if is_settled || cost == Hits::ZERO {
            return self.apply(Op::PEEK);
        }
        let (charge, op) = (Charge::Always, Op::Take { cost });
        apply_without_holds(self.used, self.limit, charge, op, None, self.now)
    }
}

/// Refunds a recorded charge to the window or bucket, or undoes a hold: restores the former one under
/// its id, if there was one. Returns `None` if nothing is left to refund, or if the hold was renewed or
/// settled since.
pub(super) fn refund(
    state: &State,
    limit: &Limit,
    record: &ChargeRecord,
    now: Micros,
) -> Option<CounterState> {
    let State { used, holds } = state;
    if !record.is_hold(limit) {
        let used = super::refund(used.as_ref()?, limit, record, now)?;
        return Some(State { used: Some(used), holds: holds.clone() }.into_counter());
    }
    let mut holds = holds.clone();
    let hold = take_hold(&mut holds, Holder(record.entry))?;
    if hold.end != record.at || hold.amount == 0 {
        return None;
    }
    if record.window > now {
        let (id, end, amount) = (hold.id, record.window, record.hits.0);
        insert_hold(&mut holds, Hold { id, end, amount });
    }
    Some(State { used: used.clone(), holds }.into_counter())
}

/// Returns the holds that have not ended, settled ones included, in the order in which they end. Only
/// with `with_spare`, another one fits without an allocation, because a full store has no room for it.
fn live_holds(state: Option<&CounterState>, now: Micros, with_spare: bool) -> Vec<Hold> {
    let Some(CounterState::Budget(budget)) = state else { return Vec::new() };
    let first = budget.holds.partition_point(|hold| hold.end <= now);
    let live = &budget.holds[first..];
    let mut holds = Vec::with_capacity(live.len() + usize::from(with_spare));
    holds.extend_from_slice(live);
    holds
}

/// Returns the time until hits fit alongside the holds; `None` if they never do. `wait` returns the time
/// until they fit while a given number of hits is held. The result is the first time at which that wait
/// is over, and no more than this number is held.
fn first_fit(holds: &[Hold], wait: impl Fn(u64) -> Option<Micros>, now: Micros) -> Option<Micros> {
    let mut held: u64 = holds.iter().map(|hold| hold.amount).sum();
    let mut first = wait(held);
    for hold in holds.iter().filter(|hold| hold.amount > 0) {
        let ends_in = hold.end.saturating_sub(now);
        if first.is_some_and(|first| first <= ends_in) {
            break;
        }
        held -= hold.amount;
        let later = wait(held).map(|wait| wait.max(ends_in));
        first = first.into_iter().chain(later).min();
    }
    first
}

/// Removes the hold with this id from the list, and returns it.
fn take_hold(holds: &mut Vec<Hold>, id: Holder) -> Option<Hold> {
    let at = holds.iter().position(|hold| hold.id == id)?;
    Some(holds.remove(at))
}

fn insert_hold(holds: &mut Vec<Hold>, hold: Hold) {
    let at = holds.partition_point(|other| other.end <= hold.end);
    holds.insert(at, hold);
}
