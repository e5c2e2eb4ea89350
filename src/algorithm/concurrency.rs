//! Concurrency limit: at most L slots in use, usually one for each request in flight. A holder
//! acquires `c` slots, the cost of its check, under one lease. If the holder does not release them,
//! they become free when the lease ends.
//!
//! ```text
//! in flight  total slots of the leases that have not ended (until > now)
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

use super::step::{CounterOp, Step, saturate, time_until_room};
use crate::domain::{ChargeRecord, Concurrency, Hits, Holder, Micros, Outcome};

/// Stored state of a concurrency limit: the lease of each slot holder, sorted by the time at which
/// the leases end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    leases: Vec<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    /// Time at which the lease ends, in microseconds since the Unix epoch.
    until: Micros,
    holder: Holder,
    /// Number of slots that the holder uses under this lease.
    slots: u32,
}

impl State {
    /// Returns the heap memory used by the list of leases, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.leases.capacity() * size_of::<Lease>()
    }

    fn in_flight(&self) -> u64 {
        self.leases.iter().map(|lease| u64::from(lease.slots)).sum()
    }

    /// Returns the leases that have not expired at `now`, and whether any of them was clamped.
    ///
    /// A lease that ends more than two lease lengths from now was stored by a clock that ran ahead,
    /// or before the lease length was reduced. It is clamped to a lease that starts now. The
    /// returned state has capacity for `spare` more leases.
    fn without_expired(&self, limit: &Concurrency, now: Micros, spare: usize) -> (State, bool) {
        let latest = now.saturating_add(limit.lease).saturating_add(limit.lease);
        let mut clamped = false;
        let mut leases = Vec::with_capacity(self.leases.len() + spare);
        leases.extend(self.leases.iter().filter(|lease| lease.until > now).map(|old| {
            let far = old.until > latest;
            clamped |= far;
            Lease { until: if far { now.saturating_add(limit.lease) } else { old.until }, ..*old }
        }));
        if clamped {
            leases.sort_by_key(|lease| lease.until);
        }
        (State { leases }, clamped)
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
        let others = self.leases.iter().filter(|lease| Some(lease.holder) != holder);
        time_until_room(limit.slots, cost, others.map(|lease| (lease.slots, lease.until)), now)
    }

    fn set_lease(&mut self, holder: Holder, slots: u64, until: Micros) {
        self.leases.retain(|lease| lease.holder != holder);
        let at = self.leases.partition_point(|lease| lease.until <= until);
        self.leases.insert(at, Lease { until, holder, slots: saturate(slots) });
    }
}

/// Applies an operation on behalf of `holder`. Returns the outcome and, if the state changes, the
/// new state.
pub fn apply(
    state: Option<&State>,
    limit: &Concurrency,
    op: CounterOp,
    holder: Option<Holder>,
    now: Micros,
) -> Step<State> {
    let (mut after, clamped) = match state {
        // A refund must not need more memory than the table has: only a take gets spare capacity.
        Some(state) => {
            state.without_expired(limit, now, usize::from(matches!(op, CounterOp::Take(_))))
        }
        None => (State::default(), false),
    };
    let mut wait = Some(Micros::ZERO);
    let mut taken = None;
    let mut charged = Hits::ZERO;
    let mut write = clamped;
    match (op, holder) {
        // A refund without a holder frees nothing.
        (CounterOp::Refund(_), None) => {}
        (CounterOp::Refund(_), Some(holder)) => {
            let before = after.leases.len();
            after.leases.retain(|lease| lease.holder != holder);
            write |= after.leases.len() != before;
        }
        (CounterOp::Peek(hits), _) => wait = after.wait_time(limit, hits, None, now),
        (CounterOp::Take(cost), holder) => {
            // `decide` always sets a holder. Takes without one would share this holder and renew
            // each other's lease.
            let holder = holder.unwrap_or(Holder(0));
            wait = after.wait_time(limit, cost, Some(holder), now);
            if wait == Some(Micros::ZERO) {
                let newest = after.leases.last().map_or(Micros::ZERO, |lease| lease.until);
                let began = newest.saturating_sub(limit.lease).max(now);
                let renewed = after.leases.iter().find(|lease| lease.holder == holder).copied();
                after.set_lease(holder, cost, began.saturating_add(limit.lease));
                write = true;
                // A renewal charges nothing. A refund of it restores the former slots and lease.
                let (hits, window) = match renewed {
                    Some(lease) => (Hits(lease.slots.into()), lease.until),
                    None => (Hits(cost), Micros::ZERO),
                };
                charged = if renewed.is_some() { Hits::ZERO } else { Hits(cost) };
                taken = Some(ChargeRecord { hits, at: began, window, entry: holder.0 });
            }
        }
    }
    let last = after.leases.last().map(|lease| lease.until);
    Step {
        outcome: Outcome {
            charged,
            reset_after: last.map_or(Micros::ZERO, |until| until.saturating_sub(now)),
            taken,
            ..Outcome::after(wait, Hits(limit.slots.0.saturating_sub(after.in_flight())))
        },
        write: write.then_some(after),
        stepped_back: clamped,
    }
}

/// Refunds a recorded charge: frees its slots or, if the charge renewed a lease, restores the
/// holder's former slots and lease. Also drops expired leases. Returns `None` if the slots are no
/// longer in use, or if the lease has been renewed again.
pub fn refund(
    state: &State,
    limit: &Concurrency,
    record: &ChargeRecord,
    now: Micros,
) -> Option<State> {
    let holder = Holder(record.entry);
    // Not collected, because that reserves at least four leases: a refund needs no more memory.
    let mut leases = Vec::with_capacity(state.leases.len());
    leases.extend(state.leases.iter().filter(|lease| lease.until > now));
    let present = leases.iter().find(|lease: &&Lease| lease.holder == holder)?;
    let is_renewal = record.window > Micros::ZERO;
    if is_renewal && present.until != record.at.saturating_add(limit.lease) {
        return None;
    }
    leases.retain(|lease| lease.holder != holder);
    let mut after = State { leases };
    if is_renewal && record.window > now {
        after.set_lease(holder, record.hits.0, record.window);
    }
    Some(after)
}

/// Returns the time at which the last lease ends, or zero if no slot is in use.
pub fn expires_at(state: &State) -> Micros {
    state.leases.last().map_or(Micros::ZERO, |lease| lease.until)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Verdict;

    const NOW: u64 = 5_000_000;

    fn limit() -> Concurrency {
        Concurrency { slots: Hits(2), lease: Micros::from_secs(60) }
    }

    fn apply_at(state: Option<&State>, op: CounterOp, holder: u128, at: u64) -> Step<State> {
        apply(state, &limit(), op, (holder != 0).then_some(Holder(holder)), Micros(at))
    }

    const TAKE: CounterOp = CounterOp::Take(1);
    const RELEASE: CounterOp = CounterOp::Refund(1);

    #[test]
    fn a_slot_that_is_not_released_becomes_free_when_its_lease_ends() {
        let one = apply_at(None, TAKE, 1, NOW).write;
        let two = apply_at(one.as_ref(), TAKE, 2, NOW + 1_000).write;
        let refused = apply_at(two.as_ref(), TAKE, 3, NOW + 2_000).outcome;
        assert_eq!(refused.retry_after, Some(Micros(60_000_000 - 2_000)));
        let free = apply_at(two.as_ref(), TAKE, 3, NOW + 60_000_000).outcome;
        assert_eq!(free.verdict, Verdict::Pass);
    }

    #[test]
    fn only_its_holder_releases_a_slot() {
        let one = apply_at(None, TAKE, 1, NOW).write;
        assert_eq!(apply_at(one.as_ref(), RELEASE, 0, NOW).write, None, "no holder");
        assert_eq!(apply_at(one.as_ref(), RELEASE, 2, NOW).write, None);
        assert!(apply_at(one.as_ref(), RELEASE, 1, NOW).write.unwrap().leases.is_empty());
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
