//! Calls of several checks. Locks every shard that the call needs, decides the checks on copies of
//! their counters, and writes the result.
//!
//! Locks are taken in ascending order of the shards, so that two calls never wait for each other.
//!
//! Not here: calls of a single check, which need no copies (`super`).

use smallvec::SmallVec;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::shard::{EntryKey, Shard, Slot, weight};
use super::{MemoryStore, SHARDS_MAX, without_unreceipted_refund};
use crate::algorithm::{self, State};
use crate::domain::{Accounting, Admission, Answer, Check, Limit, Micros, Op, Outcome};

/// Number of working counters kept on the stack. Calls with more checks (up to 128) are rare, and
/// allocate.
const COUNTERS_INLINE: usize = 16;

const SHARD_SET_WORDS: usize = SHARDS_MAX / 64;

/// Bit set of the shards that a call needs.
#[derive(Default)]
struct ShardSet([u64; SHARD_SET_WORDS]);

/// Lock guards of the shards that a call needs.
struct LockedShards<'a> {
    set: ShardSet,
    guards: SmallVec<[MutexGuard<'a, Shard>; COUNTERS_INLINE]>,
}

/// Where a counter is stored, or whether it can be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Location {
    /// The counter is stored in the entry at this slot.
    Entry(Slot),
    /// The counter is not stored yet; room for one entry is claimed.
    Claimed,
    /// The counter is not stored, and the store has no room for it.
    NoRoom,
}

/// Working copy of a counter, shared by all checks of the call on that counter.
struct WorkingCounter<'a> {
    guard: usize,
    key: EntryKey,
    location: Location,
    /// Whether this is an overflow counter, which several keys share.
    is_overflow: bool,
    /// Weight of the counter's entry in the store, in keys; 0 if there is none.
    stored_weight: usize,
    /// Weight, in keys, that this counter has claimed from the capacity of the store.
    claimed_weight: usize,
    /// State before the call, as stored; `None` for a new counter.
    stored: Option<State>,
    /// State after the refunds of the call, which apply even if the call is rejected.
    after_refunds: Option<State>,
    /// State after the checks that have been decided so far.
    state: Option<State>,
    /// Limit of the check that changed the state last; determines when the entry expires.
    limit: &'a Limit,
}

type WorkingCounters<'a> = SmallVec<[WorkingCounter<'a>; COUNTERS_INLINE]>;

impl MemoryStore {
    /// Decides a call with several checks. Returns one answer per check, in order.
    pub(super) fn decide_all(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        now: Micros,
    ) -> Vec<Answer> {
        let mut shards = self.lock_all(checks, now);
        let mut counters = WorkingCounters::new();
        let at: SmallVec<[usize; COUNTERS_INLINE]> =
            checks.iter().map(|check| self.load(check, &mut shards, &mut counters, now)).collect();
        let mut answers = vec![Answer::NotAsked; checks.len()];

        for (i, check) in checks.iter().enumerate().filter(|(_, check)| check.is_refund()) {
            answers[i] = Answer::Decided(self.apply_check(&mut counters[at[i]], check, now));
        }
        for counter in &mut counters {
            counter.after_refunds.clone_from(&counter.state);
        }
        for (i, check) in checks.iter().enumerate().filter(|(_, check)| !check.is_refund()) {
            answers[i] = Answer::Decided(self.apply_check(&mut counters[at[i]], check, now));
        }
        let is_rejected = accounting == Accounting::AllOrNothing
            && Admission::from_answers(checks, &answers).is_rejected();
        if is_rejected {
            undo_except_debts(checks, &mut answers, &mut counters, &at, now);
        }
        if is_rejected || counters.len() < checks.len() {
            update_availability(checks, &mut answers, &counters, &at, now);
        }
        for counter in counters {
            self.save(counter, &mut shards);
        }
        answers
    }

    fn lock_all(&self, checks: &[Check<'_>], now: Micros) -> LockedShards<'_> {
        let mut set = ShardSet::default();
        for check in checks {
            set.add(self.shard_of(EntryKey::for_counter(check.key.identity)));
        }
        let mut guards = SmallVec::new();
        set.for_each_shard(|shard| {
            let mut guard = self.lock(shard);
            guard.set_latest(now);
            guards.push(guard);
        });
        LockedShards { set, guards }
    }

    /// Returns the index of the working counter for a check. Loads the counter unless an earlier
    /// check of the call has already done so.
    fn load<'a>(
        &self,
        check: &Check<'a>,
        shards: &mut LockedShards<'_>,
        counters: &mut WorkingCounters<'a>,
        now: Micros,
    ) -> usize {
        let own = EntryKey::for_counter(check.key.identity);
        if let Some(at) = counters.iter().position(|counter| counter.key == own) {
            return at;
        }
        let guard = shards.set.shards_before(self.shard_of(own));
        let shard = &mut *shards.guards[guard];
        let limit_id = check.limit.limit_id;
        let counter = |key, location, state: Option<State>| WorkingCounter {
            guard,
            key,
            location,
            is_overflow: false,
            stored_weight: 0,
            claimed_weight: 0,
            stored: state.clone(),
            after_refunds: None,
            state,
            limit: check.limit,
        };
        if let Some(slot) = shard.find(own) {
            let state = shard.state(slot);
            let weight = weight(state);
            counters.push(WorkingCounter {
                stored_weight: weight,
                claimed_weight: weight,
                ..counter(own, Location::Entry(slot), Some(state.clone()))
            });
            return counters.len() - 1;
        }
        let in_use =
            |slot| counters.iter().any(|c| c.guard == guard && c.location == Location::Entry(slot));
        self.make_room(shard, now, in_use);
        let overflow = shard.find_overflow(limit_id);
        if self.claim(false, 1) {
            let state = overflow.map(|slot| shard.state(slot).clone());
            let claimed = counter(own, Location::Claimed, state);
            counters.push(WorkingCounter { claimed_weight: 1, ..claimed });
            return counters.len() - 1;
        }
        let key = EntryKey::for_overflow(limit_id);
        if let Some(at) = counters.iter().position(|c| c.key == key && c.guard == guard) {
            return at;
        }
        let (location, state, stored_weight, claimed_weight) = match overflow {
            Some(slot) => {
                let (state, weight) = (shard.state(slot).clone(), weight(shard.state(slot)));
                (Location::Entry(slot), Some(state), weight, weight)
            }
            None if self.claim(true, 1) => (Location::Claimed, None, 0, 1),
            None => (Location::NoRoom, None, 0, 0),
        };
        let counter = counter(key, location, state);
        let is_overflow = true;
        counters.push(WorkingCounter { is_overflow, stored_weight, claimed_weight, ..counter });
        counters.len() - 1
    }

    /// Applies a check to its working counter.
    fn apply_check<'a>(
        &self,
        counter: &mut WorkingCounter<'a>,
        check: &Check<'a>,
        now: Micros,
    ) -> Outcome {
        if counter.location == Location::NoRoom && matches!(check.op, Op::Take { .. }) {
            return self.refuse_when_full(check.limit, now);
        }
        // Refunds are applied first, so a counter that is not stored yet holds no hits of its own.
        let is_own = matches!(counter.location, Location::Entry(_)) && !counter.is_overflow;
        let op = if is_own { check.op } else { without_unreceipted_refund(check.op) };
        let step = algorithm::apply_for(counter.state.as_ref(), check.limit, op, check.holder, now);
        self.record_stats(&step, check);
        let weight = step.write.as_ref().map_or(0, weight);
        if weight > counter.claimed_weight {
            if !self.resize(counter.is_overflow, op, counter.claimed_weight, weight) {
                return self.refuse_when_full(check.limit, now);
            }
            counter.claimed_weight = weight;
        }
        if counter.is_overflow && step.outcome.charged.0 > 0 {
            self.stats.overflowed.fetch_add(1, Ordering::Relaxed);
        }
        counter.write(step.write, check.limit);
        step.outcome
    }

    /// Stores a counter if it has changed, and releases the weight that was claimed but not used.
    fn save(&self, counter: WorkingCounter<'_>, shards: &mut LockedShards<'_>) {
        let is_changed = counter.state != counter.stored;
        let shard = &mut *shards.guards[counter.guard];
        let weight = match (counter.location, counter.state) {
            (Location::Entry(slot), Some(state)) if is_changed => {
                let (weight, expires) =
                    (weight(&state), algorithm::expires_at(&state, counter.limit));
                shard.put(slot, state, expires);
                weight
            }
            (Location::Claimed, Some(state)) if is_changed => {
                let (weight, expires) =
                    (weight(&state), algorithm::expires_at(&state, counter.limit));
                shard.insert(counter.key, state, expires);
                weight
            }
            (Location::Entry(_) | Location::Claimed | Location::NoRoom, _) => counter.stored_weight,
        };
        // `resize` gets a peek, because it may refuse a take for want of room.
        self.resize(counter.is_overflow, Op::Peek, counter.claimed_weight, weight);
    }
}

/// Undoes the charges of a rejected call. Refunds and takes with `charge: always` remain; for the
/// latter, charges the hits again. Verdicts and waits do not change.
fn undo_except_debts<'a>(
    checks: &[Check<'a>],
    answers: &mut [Answer],
    counters: &mut WorkingCounters<'a>,
    at: &[usize],
    now: Micros,
) {
    for counter in counters.iter_mut() {
        counter.state = counter.after_refunds.take();
    }
    for (i, check) in checks.iter().enumerate().filter(|(_, check)| !check.is_refund()) {
        let (counter, Answer::Decided(outcome)) = (&mut counters[at[i]], &mut answers[i]) else {
            continue;
        };
        if counter.location == Location::NoRoom {
            continue;
        }
        // A peek changes the state only if it clamps a state from the far future.
        let op = if check.charges_always() { check.op } else { Op::Peek };
        let step = algorithm::apply_for(counter.state.as_ref(), check.limit, op, check.holder, now);
        outcome.charged = step.outcome.charged;
        outcome.taken = step.outcome.taken;
        counter.write(step.write, check.limit);
    }
}

/// Updates `available` and `reset_after` of each outcome to their values after the whole call. They
/// change after a check is decided if several checks share a counter or if the call is undone.
fn update_availability(
    checks: &[Check<'_>],
    answers: &mut [Answer],
    counters: &WorkingCounters<'_>,
    at: &[usize],
    now: Micros,
) {
    for (i, check) in checks.iter().enumerate() {
        let counter = &counters[at[i]];
        if let Answer::Decided(outcome) = &mut answers[i]
            && counter.location != Location::NoRoom
        {
            let left = algorithm::apply(counter.state.as_ref(), check.limit, Op::Peek, now).outcome;
            outcome.available = left.available;
            outcome.reset_after = left.reset_after;
        }
    }
}

impl<'a> WorkingCounter<'a> {
    fn write(&mut self, state: Option<State>, limit: &'a Limit) {
        if let Some(state) = state {
            self.state = Some(state);
            self.limit = limit;
        }
    }
}

impl ShardSet {
    fn add(&mut self, shard: usize) {
        self.0[shard / 64] |= 1 << (shard % 64);
    }

    /// Returns the number of shards in the set that come before `shard`.
    fn shards_before(&self, shard: usize) -> usize {
        let whole: u32 = self.0[..shard / 64].iter().map(|word| word.count_ones()).sum();
        let below = self.0[shard / 64] & ((1 << (shard % 64)) - 1);
        (whole + below.count_ones()) as usize
    }

    /// Calls `visit` for every shard of the set, in ascending order.
    fn for_each_shard(&self, mut visit: impl FnMut(usize)) {
        for (at, word) in self.0.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                visit(at * 64 + rest.trailing_zeros() as usize);
                rest &= rest - 1;
            }
        }
    }
}
