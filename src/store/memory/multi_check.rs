//! Decides calls with several checks. Locks every shard that the call needs, decides the checks on
//! copies of their counters, and stores the result.
//!
//! Shards are locked in ascending order, so that two calls cannot deadlock.
//!
//! Not here: calls with a single check, which need no copies (`super`).

use std::collections::HashMap;
use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::entry_key::EntryKey;
use super::eviction::ShardRoom;
use super::rules::{RuleIdentity, RuleSlot};
use super::shard::{EntryIndex, Shard, weight};
use super::{MemoryStore, SHARDS_MAX, cancel_refund, remove_log_entry_number};
use crate::algorithm::{self, State, block};
use crate::domain::{
    Accounting, Admission, Answer, Check, Hits, Limit, Micros, Op, Outcome, Verdict,
};

/// Maximum number of counters of a call that are kept on the stack and searched linearly. Calls
/// with more counters are rare, so they may allocate and use a hash table.
const COUNTERS_INLINE: usize = 16;

/// Lock guards of the shards that hold a call's counters, and the indices of these shards, which are in
/// ascending order.
struct LockedShards<'a> {
    indices: SmallVec<[u8; SHARDS_MAX]>,
    guards: SmallVec<[MutexGuard<'a, Shard>; COUNTERS_INLINE]>,
}

/// Location of a counter in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Location {
    /// The counter is stored in the entry in this slot of the shard.
    Entry(EntryIndex),
    /// The counter is new. Capacity for its entry has been claimed for the rule in this slot of the
    /// rule table.
    Claimed(RuleSlot),
    /// The counter has no entry. Its hits are counted in the sketch of the rule with this key.
    Sketch(u64),
    /// The counter is not stored, because the store has no room for it.
    NoRoom,
}

/// Working copy of a counter, shared by all checks of the call that use this counter.
struct WorkingCounter<'a> {
    guard: usize,
    key: EntryKey,
    location: Location,
    /// Capacity that the counter's stored entry uses, in keys; 0 if the counter has no entry.
    stored_weight: usize,
    /// Part of the store's capacity that is claimed for this counter, in keys.
    claimed_weight: usize,
    /// Whether a check was refused because the store had no room for the counter's larger state.
    is_out_of_room: bool,
    /// State of the counter before the call; `None` if the counter was not stored.
    stored_state: Option<State>,
    /// State of the counter after the call's refunds, which apply even if the call is rejected.
    state_after_refunds: Option<State>,
    /// State of the counter after the checks decided so far.
    state: Option<State>,
    /// Limit of the latest check that changed the state. Determines when the entry expires.
    limit: &'a Limit,
}

/// Working counters of a call, in the order in which the checks first use them.
#[derive(Default)]
struct WorkingCounters<'a> {
    counters: SmallVec<[WorkingCounter<'a>; COUNTERS_INLINE]>,
    /// Positions in `counters` of the counters after the first [`COUNTERS_INLINE`], by key.
    positions: HashMap<EntryKey, usize>,
}

impl<'a> WorkingCounters<'a> {
    /// Returns the position of the counter with the given key, or `None` if no earlier check uses
    /// this counter.
    fn position(&self, key: EntryKey) -> Option<usize> {
        let mut searched = self.counters.iter().take(COUNTERS_INLINE);
        let found = searched.position(|counter| counter.key == key);
        if self.positions.is_empty() {
            return found;
        }
        found.or_else(|| self.positions.get(&key).copied())
    }

    /// Appends a counter and returns its position.
    fn push(&mut self, counter: WorkingCounter<'a>) -> usize {
        let position = self.counters.len();
        if position >= COUNTERS_INLINE {
            self.positions.insert(counter.key, position);
        }
        self.counters.push(counter);
        position
    }
}

impl MemoryStore {
    /// Decides a call with several checks. Returns one answer per check, in the order of the
    /// checks.
    pub(super) fn decide_all(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        now: Micros,
    ) -> Vec<Answer> {
        let mut shards = self.lock_all(checks, now);
        let mut counters = WorkingCounters::default();
        let at: SmallVec<[usize; COUNTERS_INLINE]> = checks
            .iter()
            .map(|check| self.load_counter(check, &mut shards, &mut counters, now))
            .collect();
        let mut answers = vec![Answer::NotAsked; checks.len()];

        for (i, check) in checks.iter().enumerate().filter(|(_, check)| check.comes_first()) {
            if check.is_reset() {
                self.lift_block(check, &mut shards.guards[counters.counters[at[i]].guard]);
            }
            answers[i] =
                Answer::Decided(self.apply_check(&mut counters, at[i], check, &mut shards, now));
        }
        for counter in &mut counters.counters {
            counter.state_after_refunds.clone_from(&counter.state);
        }
        for (i, check) in checks.iter().enumerate().filter(|(_, check)| !check.comes_first()) {
            let guard = counters.counters[at[i]].guard;
            let is_blocked = self.block_left(check, &shards.guards[guard], now) > Micros::ZERO;
            let op = if is_blocked { block::op_while_blocked(check) } else { check.op };
            let check = Check { op, ..*check };
            let mut outcome = self.apply_check(&mut counters, at[i], &check, &mut shards, now);
            if is_blocked {
                outcome.verdict = Verdict::Refuse;
            } else if let Some(begun) = block::begun(&check, &outcome, now) {
                let is_kept = |key| counters.position(key).is_some();
                let shard = &mut *shards.guards[guard];
                let mut room = ShardRoom { store: self, shard, now, is_kept: &is_kept };
                room.store_block(&check, State::Block(begun));
            }
            answers[i] = Answer::Decided(outcome);
        }
        // A rejected call holds nothing, under either accounting.
        let is_rejected = (accounting == Accounting::AllOrNothing
            || checks.iter().any(Check::is_hold))
            && Admission::from_answers(checks, &answers).is_rejected();
        if is_rejected {
            undo_rejected_charges(checks, accounting, &mut answers, &mut counters, &at, now);
        }
        if is_rejected || counters.counters.len() < checks.len() {
            update_availability(checks, &mut answers, &counters, &at, now);
        }
        self.count_overflows(checks, &answers, &counters, &at);
        for ((check, answer), at) in checks.iter().zip(&mut answers).zip(&at) {
            if let Answer::Decided(outcome) = answer {
                let shard = &shards.guards[counters.counters[*at].guard];
                let left = self.block_left(check, shard, now);
                *outcome = block::outcome_with_block(*outcome, check, left);
            }
        }
        for counter in counters.counters {
            self.save_counter(counter, &mut shards, now);
        }
        answers
    }

    /// Counts the charges of a call to sketches, after a rejected call's charges are undone.
    fn count_overflows(
        &self,
        checks: &[Check<'_>],
        answers: &[Answer],
        counters: &WorkingCounters<'_>,
        at: &[usize],
    ) {
        for (i, check) in checks.iter().enumerate() {
            if matches!(counters.counters[at[i]].location, Location::Sketch(_))
                && matches!(answers[i], Answer::Decided(outcome) if outcome.charged.0 > 0)
            {
                self.count_overflow(&RuleIdentity::for_limit(check.limit));
            }
        }
    }

    fn lock_all(&self, checks: &[Check<'_>], now: Micros) -> LockedShards<'_> {
        let mut indices: SmallVec<[u8; SHARDS_MAX]> = SmallVec::new();
        for check in checks {
            let index = self.shard_of(EntryKey::for_counter(check.key.identity)) as u8;
            if let Err(at) = indices.binary_search(&index) {
                indices.insert(at, index);
            }
        }
        let lock = |index: &u8| {
            let mut guard = self.lock(usize::from(*index));
            guard.record_call_time(now);
            guard
        };
        let guards = indices.iter().map(lock).collect();
        LockedShards { indices, guards }
    }

    /// Returns the index of the working counter for a check. Loads the counter if no earlier check
    /// of the call has loaded it.
    fn load_counter<'a>(
        &self,
        check: &Check<'a>,
        shards: &mut LockedShards<'_>,
        counters: &mut WorkingCounters<'a>,
        now: Micros,
    ) -> usize {
        let key = EntryKey::for_counter(check.key.identity);
        if let Some(at) = counters.position(key) {
            return at;
        }
        let index = self.shard_of(key);
        let guard = shards.indices.partition_point(|other| usize::from(*other) < index);
        let shard = &mut *shards.guards[guard];
        // The weight of the entry itself: its copy may have less spare capacity.
        let (location, weight, state) = match shard.find(key) {
            Some(slot) => {
                let state = shard.state(slot);
                (Location::Entry(slot), weight(state), Some(state.clone()))
            }
            None => {
                let is_kept = |key| counters.position(key).is_some();
                let mut room = ShardRoom { store: self, shard, now, is_kept: &is_kept };
                room.reclaim_expired();
                let rule = RuleIdentity::for_limit(check.limit);
                let location = match room.claim_entry(&rule, 1) {
                    Some(slot) => Location::Claimed(slot),
                    None => match self.find_or_create_sketch(shard, &rule, now) {
                        Some(_) => Location::Sketch(rule.key),
                        None => Location::NoRoom,
                    },
                };
                let sketch = shard.find_sketch(rule.key);
                (location, 0, sketch.and_then(|at| shard.sketches[at].state(key, now)))
            }
        };
        let claimed_weight = match location {
            Location::Claimed(_) => 1,
            Location::Entry(_) | Location::Sketch(_) | Location::NoRoom => weight,
        };
        counters.push(WorkingCounter {
            guard,
            key,
            location,
            stored_weight: weight,
            claimed_weight,
            is_out_of_room: false,
            stored_state: state.clone(),
            state_after_refunds: None,
            state,
            limit: check.limit,
        })
    }

    /// Applies a check to its working counter and returns the outcome.
    fn apply_check<'a>(
        &self,
        counters: &mut WorkingCounters<'a>,
        at: usize,
        check: &Check<'a>,
        shards: &mut LockedShards<'_>,
        now: Micros,
    ) -> Outcome {
        let counter = &counters.counters[at];
        if counter.location == Location::NoRoom
            && matches!(check.op, Op::Take { .. } | Op::Hold { .. })
        {
            return self.refuse_when_full(check.limit, now);
        }
        // Refunds are applied first, so a counter that is not stored yet holds no hits of its own, except
        // those of a settle, which are never in a sketch.
        let is_own =
            matches!(counter.location, Location::Entry(_)) || check.limit.reserve.is_some();
        let op = if is_own { check.op } else { cancel_refund(check.op) };
        let step = algorithm::apply_for(counter.state.as_ref(), check.limit, op, check.holder, now);
        self.record_stats(&step, check);
        let (guard, claimed) = (counter.guard, counter.claimed_weight);
        let rule = match counter.location {
            Location::Entry(slot) => Some(shards.guards[guard].rule(slot)),
            Location::Claimed(rule) => Some(rule),
            Location::Sketch(_) | Location::NoRoom => None,
        };
        let weight = step.write.as_ref().map_or(0, weight);
        if let Some(rule) = rule
            && weight > claimed
        {
            let is_kept = |key| counters.position(key).is_some();
            let shard = &mut *shards.guards[guard];
            let mut room = ShardRoom { store: self, shard, now, is_kept: &is_kept };
            if !room.resize(rule, op, (claimed, weight)) {
                counters.counters[at].is_out_of_room = true;
                return self.refuse_when_full(check.limit, now);
            }
            counters.counters[at].claimed_weight = weight;
        }
        let counter = &mut counters.counters[at];
        counter.set_state(step.write, check.limit);
        match counter.location {
            Location::Sketch(_) => remove_log_entry_number(step.outcome),
            Location::Entry(_) | Location::Claimed(_) | Location::NoRoom => step.outcome,
        }
    }

    /// Stores a counter if it has changed. Releases the claimed capacity that the counter does not
    /// need.
    fn save_counter(
        &self,
        counter: WorkingCounter<'_>,
        shards: &mut LockedShards<'_>,
        now: Micros,
    ) {
        let is_changed = counter.state != counter.stored_state;
        let shard = &mut *shards.guards[counter.guard];
        let mut stored_weight = counter.stored_weight;
        if is_changed && let Some(state) = counter.state {
            let expires = algorithm::expires_at(&state, counter.limit);
            match counter.location {
                Location::Entry(slot) => {
                    stored_weight = weight(&state);
                    shard.replace_state(slot, state, expires);
                }
                Location::Claimed(rule) => {
                    stored_weight = weight(&state);
                    shard.insert(counter.key, state, expires, rule);
                }
                Location::Sketch(rule) => {
                    if let Some(at) = shard.find_sketch(rule) {
                        shard.sketches[at].charge(counter.key, &state, expires, now);
                    }
                }
                Location::NoRoom => {}
            }
        }
        let rule = match counter.location {
            Location::Entry(slot) => shard.rule(slot),
            Location::Claimed(rule) => rule,
            Location::Sketch(_) | Location::NoRoom => return,
        };
        // Never grows: the claimed weight is that of the largest state.
        let sizes = (counter.claimed_weight, stored_weight);
        let mut room = ShardRoom { store: self, shard, now, is_kept: &|_| true };
        room.resize(rule, Op::PEEK, sizes);
    }
}

/// Undoes the charges of a rejected call. First resets each counter to its state after the call's
/// refunds and settles. Then repeats the charges that apply even to a rejected call, which are all but
/// holds under independent accounting. Leaves the verdicts and wait times unchanged.
fn undo_rejected_charges<'a>(
    checks: &[Check<'a>],
    accounting: Accounting,
    answers: &mut [Answer],
    counters: &mut WorkingCounters<'a>,
    at: &[usize],
    now: Micros,
) {
    for counter in &mut counters.counters {
        counter.state = counter.state_after_refunds.take();
    }
    for (i, check) in checks.iter().enumerate().filter(|(_, check)| !check.comes_first()) {
        let (counter, Answer::Decided(outcome)) = (&mut counters.counters[at[i]], &mut answers[i])
        else {
            continue;
        };
        if counter.location == Location::NoRoom {
            continue;
        }
        // A peek changes the state only if it clamps a state from the far future.
        let is_charged = check.applies_when_rejected(accounting)
            && (check.charges_always() || outcome.verdict == Verdict::Pass)
            && !counter.is_out_of_room;
        let op = if is_charged { check.op } else { Op::PEEK };
        let step = algorithm::apply_for(counter.state.as_ref(), check.limit, op, check.holder, now);
        outcome.charged = step.outcome.charged;
        outcome.taken = step.outcome.taken;
        counter.set_state(step.write, check.limit);
    }
}

/// Updates `available` and `reset_after` of each outcome to the values after the whole call. These
/// may differ from the values after the check itself if several checks share a counter or if the
/// call's charges are undone.
fn update_availability(
    checks: &[Check<'_>],
    answers: &mut [Answer],
    counters: &WorkingCounters<'_>,
    at: &[usize],
    now: Micros,
) {
    for (i, check) in checks.iter().enumerate() {
        let counter = &counters.counters[at[i]];
        if let Answer::Decided(outcome) = &mut answers[i]
            && counter.location != Location::NoRoom
        {
            let left = algorithm::apply(counter.state.as_ref(), check.limit, Op::PEEK, now).outcome;
            outcome.available = left.available;
            if check.cost() == Hits::ZERO && !check.comes_first() {
                outcome.held = left.held;
            }
            outcome.reset_after = left.reset_after;
        }
    }
}

impl<'a> WorkingCounter<'a> {
    fn set_state(&mut self, state: Option<State>, limit: &'a Limit) {
        if let Some(state) = state {
            self.state = Some(state);
            self.limit = limit;
        }
    }
}
