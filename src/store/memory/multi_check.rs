//! A call of several checks: every shard it needs is locked, the checks are decided on copies, and
//! what stands in the end is written.
//!
//! Locks are taken in ascending order of the shards, so that no two calls wait for each other.
//!
//! Not here: a call of one check, which needs none of this (`super`).

use smallvec::SmallVec;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::shard::{EntryKey, Shard, Slot, weight};
use super::{MemoryStore, SHARDS_MAX, on_shared};
use crate::algorithm::{self, State};
use crate::domain::{Accounting, Answer, Charge, Check, Limit, Micros, Op, Outcome, Role, Verdict};

/// Checks for which a call's working states lie on the stack. More are possible (128) and rare;
/// they pay for one allocation.
const WORKS_ON_STACK: usize = 16;

const WORDS: usize = SHARDS_MAX / 64;

/// The set of shards that a call needs.
#[derive(Default)]
struct ShardSet([u64; WORDS]);

/// The shards of a call, locked.
struct Locked<'a> {
    set: ShardSet,
    guards: SmallVec<[MutexGuard<'a, Shard>; WORKS_ON_STACK]>,
}

/// Where a counter that a call touches is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has an entry.
    At(Slot),
    /// It has none, and one is claimed for it.
    Claimed,
    /// It has none, and there is no room for one.
    Nowhere,
}

/// One counter within a call: every check on it works on this state.
struct Work<'a> {
    guard: usize,
    key: EntryKey,
    place: Place,
    shared: bool,
    /// Keys' worth that it had, and that are claimed for it.
    had: usize,
    claimed: usize,
    /// As the call found it.
    found: Option<State>,
    /// After the refunds.
    base: Option<State>,
    state: Option<State>,
    /// Of the check that wrote last.
    limit: &'a Limit,
}

type Works<'a> = SmallVec<[Work<'a>; WORKS_ON_STACK]>;

impl MemoryStore {
    /// Decides several checks as one.
    pub(super) fn decide_all(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        now: Micros,
    ) -> Vec<Answer> {
        let mut locked = self.lock_all(checks, now);
        let mut works = Works::new();
        let at: SmallVec<[usize; WORKS_ON_STACK]> =
            checks.iter().map(|check| self.resolve(check, &mut locked, &mut works, now)).collect();
        let mut outcomes: Vec<Answer> = vec![Answer::NotAsked; checks.len()];

        let refunded = |check: &Check<'_>| matches!(check.op, Op::Refund { .. });
        for (i, check) in checks.iter().enumerate().filter(|(_, check)| refunded(check)) {
            outcomes[i] = Answer::Decided(self.step(&mut works[at[i]], check, check.op, now));
        }
        for work in &mut works {
            work.base.clone_from(&work.state);
        }
        for (i, check) in checks.iter().enumerate().filter(|(_, check)| !refunded(check)) {
            outcomes[i] = Answer::Decided(self.step(&mut works[at[i]], check, check.op, now));
        }
        let refunded = accounting == Accounting::AllOrNothing && !admitted(checks, &outcomes);
        if refunded {
            keep_only_always(checks, &mut outcomes, &mut works, &at, now);
        }
        if refunded || works.len() < checks.len() {
            refresh(checks, &mut outcomes, &works, &at, now);
        }
        for work in works {
            self.store(work, &mut locked);
        }
        outcomes
    }

    fn lock_all(&self, checks: &[Check<'_>], now: Micros) -> Locked<'_> {
        let mut set = ShardSet::default();
        for check in checks {
            set.add(self.shard_of(EntryKey::own(check.key.identity)));
        }
        let mut locked = Locked { set: ShardSet::default(), guards: SmallVec::new() };
        set.each(|shard| {
            let mut guard = self.lock(shard);
            guard.note(now);
            locked.guards.push(guard);
        });
        locked.set = set;
        locked
    }

    /// The work of a check's counter: where it is kept, if anywhere, and what it holds.
    fn resolve<'a>(
        &self,
        check: &Check<'a>,
        locked: &mut Locked<'_>,
        works: &mut Works<'a>,
        now: Micros,
    ) -> usize {
        let own = EntryKey::own(check.key.identity);
        if let Some(at) = works.iter().position(|work| work.key == own) {
            return at;
        }
        let guard = locked.set.rank(self.shard_of(own));
        let shard = &mut *locked.guards[guard];
        let limit_id = check.limit.limit_id;
        if let Some(slot) = shard.find(own) {
            let state = shard.state(slot);
            let (had, state) = (weight(state), Some(state.clone()));
            let work = Work::new(guard, own, Place::At(slot), false, state, check.limit);
            works.push(work.weighing(had, had));
            return works.len() - 1;
        }
        let held = |slot| works.iter().any(|w| w.guard == guard && w.place == Place::At(slot));
        self.make_room(shard, now, held);
        if self.claim(false, 1) {
            let state = shard.find_shared(limit_id).map(|slot| shard.state(slot).clone());
            let work = Work::new(guard, own, Place::Claimed, false, state, check.limit);
            works.push(work.weighing(0, 1));
            return works.len() - 1;
        }
        let key = EntryKey::shared(limit_id);
        if let Some(at) = works.iter().position(|work| work.key == key && work.guard == guard) {
            return at;
        }
        let (place, state, (had, claimed)) = match shard.find_shared(limit_id) {
            Some(slot) => {
                let (state, had) = (shard.state(slot).clone(), weight(shard.state(slot)));
                (Place::At(slot), Some(state), (had, had))
            }
            None if self.claim(true, 1) => (Place::Claimed, None, (0, 1)),
            None => (Place::Nowhere, None, (0, 0)),
        };
        let work = Work::new(guard, key, place, true, state, check.limit);
        works.push(work.weighing(had, claimed));
        works.len() - 1
    }

    fn step<'a>(&self, work: &mut Work<'a>, check: &Check<'a>, op: Op, now: Micros) -> Outcome {
        if work.place == Place::Nowhere && matches!(op, Op::Take { .. }) {
            return self.no_room(check.limit, now);
        }
        // Refunds come first, so an entry that is only claimed holds no hits of its own yet.
        let is_own = matches!(work.place, Place::At(_)) && !work.shared;
        let op = if is_own { op } else { on_shared(op) };
        let step = algorithm::apply_for(work.state.as_ref(), check.limit, op, check.holder, now);
        self.count(&step, check);
        let keys = step.write.as_ref().map_or(0, weight);
        if keys > work.claimed {
            if !self.resize(work.shared, op, work.claimed, keys) {
                return self.no_room(check.limit, now);
            }
            work.claimed = keys;
        }
        if work.shared && step.outcome.charged.0 > 0 {
            self.counters.overflowed.fetch_add(1, Ordering::Relaxed);
        }
        work.note(step.write, check.limit);
        step.outcome
    }

    /// Writes a counter that changed; refunds an entry that was claimed for nothing.
    fn store(&self, work: Work<'_>, locked: &mut Locked<'_>) {
        let changed = work.state != work.found;
        let shard = &mut *locked.guards[work.guard];
        let keys = match (work.place, work.state) {
            (Place::At(slot), Some(state)) if changed => {
                let (keys, expires) = (weight(&state), algorithm::expires_at(&state, work.limit));
                shard.put(slot, state, expires);
                keys
            }
            (Place::Claimed, Some(state)) if changed => {
                let (keys, expires) = (weight(&state), algorithm::expires_at(&state, work.limit));
                shard.insert(work.key, state, expires);
                keys
            }
            (Place::At(_) | Place::Claimed | Place::Nowhere, _) => work.had,
        };
        // What was claimed for nothing, or is needed no more. (A refund needs no room.)
        self.resize(work.shared, Op::Peek, work.claimed, keys);
    }
}

/// A refused call: everything since the refunds is refunded, and what is charged always is charged
/// again. The verdicts and the waits stand as they were given.
fn keep_only_always<'a>(
    checks: &[Check<'a>],
    outcomes: &mut [Answer],
    works: &mut Works<'a>,
    at: &[usize],
    now: Micros,
) {
    for work in works.iter_mut() {
        work.state = work.base.take();
    }
    for (i, check) in checks.iter().enumerate() {
        let Answer::Decided(outcome) = &mut outcomes[i] else { continue };
        let op = match check.op {
            Op::Refund { .. } => continue,
            Op::Take { .. } if check.limit.charge == Charge::Always => check.op,
            Op::Take { .. } | Op::Peek => Op::Peek,
        };
        let work = &mut works[at[i]];
        if work.place == Place::Nowhere {
            continue;
        }
        let step = algorithm::apply_for(work.state.as_ref(), check.limit, op, check.holder, now);
        outcome.charged = step.outcome.charged;
        outcome.taken = step.outcome.taken;
        work.note(step.write, check.limit);
    }
}

/// Where several checks met on one counter, or were refunded: each is told what is left now.
fn refresh(
    checks: &[Check<'_>],
    outcomes: &mut [Answer],
    works: &Works<'_>,
    at: &[usize],
    now: Micros,
) {
    for (i, check) in checks.iter().enumerate() {
        let work = &works[at[i]];
        if let Answer::Decided(outcome) = &mut outcomes[i]
            && work.place != Place::Nowhere
        {
            let left = algorithm::apply(work.state.as_ref(), check.limit, Op::Peek, now).outcome;
            outcome.available = left.available;
            outcome.reset_after = left.reset_after;
        }
    }
}

/// The store's contract, 3.
fn admitted(checks: &[Check<'_>], outcomes: &[Answer]) -> bool {
    let (mut refused, mut quotas, mut quota_passes) = (false, false, false);
    for (check, answer) in checks.iter().zip(outcomes) {
        let passes = answer.outcome().is_some_and(|outcome| outcome.verdict == Verdict::Pass);
        match check.role {
            Role::Required => refused |= !passes,
            Role::Quota => {
                quotas = true;
                quota_passes |= passes;
            }
            Role::Shadow => {}
        }
    }
    !refused && (!quotas || quota_passes)
}

impl<'a> Work<'a> {
    fn new(
        guard: usize,
        key: EntryKey,
        place: Place,
        shared: bool,
        found: Option<State>,
        limit: &'a Limit,
    ) -> Work<'a> {
        let base = None;
        let state = found.clone();
        Work { guard, key, place, shared, had: 0, claimed: 0, found, base, state, limit }
    }

    fn weighing(self, had: usize, claimed: usize) -> Work<'a> {
        Work { had, claimed, ..self }
    }

    fn note(&mut self, write: Option<State>, limit: &'a Limit) {
        if let Some(state) = write {
            self.state = Some(state);
            self.limit = limit;
        }
    }
}

impl ShardSet {
    fn add(&mut self, shard: usize) {
        self.0[shard / 64] |= 1 << (shard % 64);
    }

    /// How many shards of the set come before this one.
    fn rank(&self, shard: usize) -> usize {
        let whole: u32 = self.0[..shard / 64].iter().map(|word| word.count_ones()).sum();
        let below = self.0[shard / 64] & ((1 << (shard % 64)) - 1);
        (whole + below.count_ones()) as usize
    }

    /// Every shard of the set, ascending.
    fn each(&self, mut visit: impl FnMut(usize)) {
        for (at, word) in self.0.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                visit(at * 64 + rest.trailing_zeros() as usize);
                rest &= rest - 1;
            }
        }
    }
}
