//! Concurrency: at most L slots in use, usually one for each request in flight. Each slot has a
//! holder and a lease. If the holder does not release the slot, it becomes free when the lease
//! ends. `c` is the cost of a check in slots.
//!
//! ```text
//! in flight  total hits of the slots whose lease has not ended (until > now)
//! passes iff in flight − slots of the same holder + c ≤ L
//! lease      until = max(now, start of the newest lease) + lease length;
//!            a take by the same holder renews it
//! retry at   end of the first lease after which c slots are free
//! ```
//!
//! A refund without a holder frees no slot. Envoy also sends its end-of-stream call for rejected
//! requests, so a refund without a holder could free a slot that another request has taken.
//!
//! Not here: generating holders (`decide`), calls with several checks and removal of
//! expired counters (`store`).

use super::Step;
use crate::domain::{ChargeRecord, Concurrency, Hits, Holder, Micros, Op, Outcome, Verdict};

/// Stored state of a concurrency limit: the slots in use, sorted by the time at which their leases
/// end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// Time at which the lease ends, in microseconds since the Unix epoch.
    until: Micros,
    holder: Holder,
    /// Number of slots that the holder uses under this lease.
    hits: u32,
}

impl State {
    /// Returns the number of slot holders, including those whose lease has expired.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the heap memory of the holder list, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// Returns whether the state has no slot holders, not even expired ones.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn in_flight(&self) -> u64 {
        self.slots.iter().map(|slot| u64::from(slot.hits)).sum()
    }

    /// Returns the slots whose leases have not expired at `now`, and whether any lease was clamped.
    ///
    /// A lease that ends more than two lease lengths from now was stored by a clock that ran ahead.
    /// It is clamped to a lease that starts now. The returned state has capacity for `spare` more
    /// slots.
    fn unexpired(&self, limit: &Concurrency, now: Micros, spare: usize) -> (State, bool) {
        let latest = now.saturating_add(limit.lease).saturating_add(limit.lease);
        let mut clamped = false;
        let mut slots = Vec::with_capacity(self.slots.len() + spare);
        slots.extend(self.slots.iter().filter(|slot| slot.until > now).map(|slot| {
            let far = slot.until > latest;
            clamped |= far;
            Slot { until: if far { now.saturating_add(limit.lease) } else { slot.until }, ..*slot }
        }));
        if clamped {
            slots.sort_by_key(|slot| slot.until);
        }
        (State { slots }, clamped)
    }

    /// Returns the time until `holder` can acquire `cost` slots: zero if it can do so now, or
    /// `None` if `cost` exceeds the limit.
    fn wait_time(
        &self,
        limit: &Concurrency,
        cost: u64,
        holder: Option<Holder>,
        now: Micros,
    ) -> Option<Micros> {
        limit.slots.0.checked_sub(cost)?;
        let others = || self.slots.iter().filter(|slot| Some(slot.holder) != holder);
        let mut in_use: u64 = others().map(|slot| u64::from(slot.hits)).sum();
        if in_use.saturating_add(cost) <= limit.slots.0 {
            return Some(Micros::ZERO);
        }
        for slot in others() {
            in_use -= u64::from(slot.hits);
            if in_use.saturating_add(cost) <= limit.slots.0 {
                return Some(Micros(slot.until.saturating_sub(now).0.max(1)));
            }
        }
        None
    }

    fn set_slots(&mut self, holder: Holder, hits: u64, until: Micros) {
        self.slots.retain(|slot| slot.holder != holder);
        let at = self.slots.partition_point(|slot| slot.until <= until);
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        self.slots.insert(at, Slot { until, holder, hits });
    }
}

/// Applies an operation on behalf of `holder`. Returns the outcome and, if the state changes, the
/// new state.
pub fn apply(
    state: Option<&State>,
    limit: &Concurrency,
    op: Op,
    holder: Option<Holder>,
    now: Micros,
) -> Step<State> {
    let (mut slots, clamped) = match state {
        // A refund must not need more memory than the table has, so only a take gets spare capacity.
        Some(state) => state.unexpired(limit, now, usize::from(matches!(op, Op::Take { .. }))),
        None => (State::default(), false),
    };
    let mut wait = Some(Micros::ZERO);
    let mut taken = None;
    let mut charged = Hits::ZERO;
    let mut write = clamped;
    match (op, holder) {
        (Op::Refund { .. }, None) => {}
        (Op::Refund { .. }, Some(holder)) => {
            let before = slots.slots.len();
            slots.slots.retain(|slot| slot.holder != holder);
            write |= slots.slots.len() != before;
        }
        (Op::Peek { hits }, _) => wait = slots.wait_time(limit, hits.0.max(1), None, now),
        (Op::Take { cost: Hits::ZERO }, _) => wait = slots.wait_time(limit, 1, None, now),
        (Op::Take { cost }, holder) => {
            // `decide` always sets a holder. Takes without one would share this holder and renew
            // each other's lease.
            let holder = holder.unwrap_or(Holder(0));
            wait = slots.wait_time(limit, cost.0, Some(holder), now);
            if wait == Some(Micros::ZERO) {
                let newest = slots.slots.last().map_or(Micros::ZERO, |slot| slot.until);
                let began = newest.saturating_sub(limit.lease).max(now);
                let renewed = slots.slots.iter().find(|slot| slot.holder == holder).copied();
                slots.set_slots(holder, cost.0, began.saturating_add(limit.lease));
                write = true;
                // A renewal charges nothing. Its receipt restores the former hits and lease.
                let (hits, window) = match renewed {
                    Some(slot) => (Hits(slot.hits.into()), slot.until),
                    None => (cost, Micros::ZERO),
                };
                charged = if renewed.is_some() { Hits::ZERO } else { cost };
                taken = Some(ChargeRecord { hits, at: began, window, entry: holder.0 });
            }
        }
    }
    let last = slots.slots.last().map(|slot| slot.until);
    Step {
        outcome: Outcome {
            verdict: if wait == Some(Micros::ZERO) { Verdict::Pass } else { Verdict::Refuse },
            charged,
            available: Hits(limit.slots.0.saturating_sub(slots.in_flight())),
            retry_after: wait.filter(|wait| *wait > Micros::ZERO),
            reset_after: last.map_or(Micros::ZERO, |until| until.saturating_sub(now)),
            taken,
        },
        write: write.then_some(slots),
        stepped_back: clamped,
    }
}

/// Refunds the charge in a receipt: frees its slots or, if the charge renewed a lease, restores the
/// holder's former slots and lease. Also drops expired leases. Returns `None` if the slots are no
/// longer in use, or if the lease has been renewed again.
pub fn refund(
    state: &State,
    limit: &Concurrency,
    taken: &ChargeRecord,
    now: Micros,
) -> Option<State> {
    let holder = Holder(taken.entry);
    let mut slots: Vec<Slot> =
        state.slots.iter().filter(|slot| slot.until > now).copied().collect();
    let present = slots.iter().find(|slot| slot.holder == holder)?;
    let is_renewal = taken.window > Micros::ZERO;
    if is_renewal && present.until != taken.at.saturating_add(limit.lease) {
        return None;
    }
    slots.retain(|slot| slot.holder != holder);
    let mut after = State { slots };
    if is_renewal && taken.window > now {
        after.set_slots(holder, taken.hits.0, taken.window);
    }
    Some(after)
}

/// Returns the time at which the last lease ends, or zero if no slot is in use.
pub fn expires_at(state: &State) -> Micros {
    state.slots.last().map_or(Micros::ZERO, |slot| slot.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 5_000_000;

    fn limit() -> Concurrency {
        Concurrency { slots: Hits(2), lease: Micros::from_secs(60) }
    }

    fn apply_at(state: Option<&State>, op: Op, holder: u128, at: u64) -> Step<State> {
        apply(state, &limit(), op, (holder != 0).then_some(Holder(holder)), Micros(at))
    }

    const TAKE: Op = Op::Take { cost: Hits::ONE };
    const RETURN: Op = Op::Refund { cost: Hits::ONE };

    #[test]
    fn a_slot_that_is_not_returned_becomes_free_when_its_lease_ends() {
        let one = apply_at(None, TAKE, 1, NOW).write;
        let two = apply_at(one.as_ref(), TAKE, 2, NOW + 1_000).write;
        let refused = apply_at(two.as_ref(), TAKE, 3, NOW + 2_000).outcome;
        assert_eq!(refused.retry_after, Some(Micros(60_000_000 - 2_000)));
        let free = apply_at(two.as_ref(), TAKE, 3, NOW + 60_000_000).outcome;
        assert_eq!(free.verdict, Verdict::Pass);
    }

    #[test]
    fn only_its_holder_returns_a_slot() {
        let one = apply_at(None, TAKE, 1, NOW).write;
        assert_eq!(apply_at(one.as_ref(), RETURN, 0, NOW).write, None, "no holder");
        assert_eq!(apply_at(one.as_ref(), RETURN, 2, NOW).write, None);
        assert!(apply_at(one.as_ref(), RETURN, 1, NOW).write.unwrap().is_empty());
    }

    #[test]
    fn taking_again_with_the_same_holder_renews_the_lease() {
        let one = apply_at(None, TAKE, 1, NOW).write;
        let two = apply_at(one.as_ref(), TAKE, 2, NOW).write;
        let renewed = apply_at(two.as_ref(), TAKE, 1, NOW + 1_000);
        assert_eq!(renewed.outcome.verdict, Verdict::Pass);
        assert_eq!(renewed.outcome.available, Hits(0));
        assert_eq!(expires_at(renewed.write.as_ref().unwrap()), Micros(NOW + 60_001_000));
    }
}
