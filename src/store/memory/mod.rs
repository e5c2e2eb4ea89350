//! The memory store: counters in this process's memory, in up to 256 shards with a lock each.
//!
//! # Size
//!
//! An entry takes 48 bytes (key 16, state 24, expiry 8). Its slot in the index takes 5 bytes. The
//! index is between 7/16 and 7/8 full, so it takes 5.7 to 11.4 bytes per key. In total, a key takes
//! 54 to 60 bytes. [`MemoryStore::footprint`] measures 59.4 bytes per key at one million keys and
//! 56.7 at ten million. Below a few hundred thousand keys, the first 6 KiB chunk of each shard
//! dominates (1.6 MB for 256 shards).
//!
//! Sliding logs, concurrency slots and hybrid counters do not fit into an entry. Every 48 bytes of
//! heap memory that such a counter holds count as one more key: a log of 100 hits weighs as much as
//! 52 keys, a log of 10,000 hits as much as 5,001.
//!
//! # When the store is full
//!
//! `max_keys` is the capacity of the store: it bounds the total weight of all shards, in keys. This
//! weight includes the sketches, which hold approximate counters for keys without an entry. An
//! entry is reclaimed once its counter is equivalent to an unused one (a full bucket, a past
//! window). Every insertion reclaims a few entries, more if the store is full, and
//! [`MemoryStore::sweep`] reclaims the rest.
//!
//! If the store is full of live entries, every rule has a fair share: the maximum weight of all
//! entries, divided by the number of rules that hold entries.
//!
//! - A new key gets an entry if there is an entry of a rule that is above its share and holds more
//!   than the key's own rule. The store searches the shard for such an entry, and folds it into the
//!   sketch of its rule. Among several nearby, it chooses one of the rule that holds the most
//!   weight. On average, a new key searches at most 128 slots.
//! - Any other new key is counted in the sketch of its own rule. There, keys share cells and may be
//!   refused too early, but no key is ever admitted beyond its limit.
//! - An existing key keeps its entry until the entry is folded to make room for another. To make
//!   room for another rule, only entries of rules above their share are folded. An entry that grows
//!   (a sliding log) makes room in the same way.
//! - A key that gets an entry later starts from its state in the sketch, so that no hit is
//!   forgotten.
//!
//! For a key in a sketch, waits may be longer than necessary, and refunds have no effect.
//!
//! A flood of keys on some rules therefore makes only these rules less precise. An eighth of the
//! capacity is reserved for sketches. Each shard divides its part evenly among the rules that have
//! keys without an entry there: up to 128 rules in a store of the default size. New keys of further
//! rules are refused, and so are new keys of concurrency and hybrid limits, which do not fit into a
//! sketch.
//!
//! Not here: the arithmetic (`algorithm`), the clock (every call contains the current time).

mod blocks;
mod entry_key;
mod eviction;
mod multi_check;
mod rules;
mod shard;
mod sketch;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::entry_key::EntryKey;
use self::eviction::ShardRoom;
pub use self::rules::Overflow;
use self::rules::{RuleIdentity, RuleTable};
use self::shard::{ENTRY_BYTES, Shard, weight};
use super::{LocalStore, Store};
use crate::algorithm::{self, State, block};
use crate::domain::{
    Accounting, Answer, Answers, Call, ChargeRecord, Check, Hits, Limit, Micros, Op, Outcome,
    Receipt, Source, Verdict,
};

/// Maximum number of shards. Large enough that even 64 threads rarely contend for a lock, and
/// small enough that the set of shards for a call fits into four 64-bit words.
const SHARDS_MAX: usize = 256;

/// Minimum number of keys per shard. A small store has fewer shards, so that each has room for the
/// sketches of 64 rules.
const KEYS_PER_SHARD_MIN: usize = 2_048;

/// Number of slots that every insertion searches for expired entries. More than one, so that
/// entries are reclaimed faster than they are added.
const RECLAIM_SLOTS: usize = 2;

/// Number of slots that a sweep searches for expired entries each time it locks a shard. Searching
/// them takes about 10 µs.
const SWEEP_SLOTS: usize = 1_024;

/// Maximum number of entries that a sweep moves to shrink a shard, while it holds the shard's lock.
/// Moving them takes about 25 µs.
const SWEEP_MOVES: usize = 256;

/// Wait reported as `retry_after` for a check that is refused because the store has no room for its
/// counter. The next sweep may make room.
const NO_ROOM_WAIT: Micros = Micros::SECOND;

/// Statistics of a memory store. `live` and `sketch_weight` are current values; all others are
/// totals since startup.
#[derive(Debug, Default)]
pub struct MemoryStats {
    /// Capacity that all entries, including expired ones, and all sketches use, in keys. At most
    /// `max_keys`, apart from the rounding of buffer sizes.
    pub live: AtomicU64,
    /// Capacity that all sketches use, in keys.
    pub sketch_weight: AtomicU64,
    /// Capacity freed by removing expired entries, in keys.
    pub evicted: AtomicU64,
    /// Number of entries folded into a sketch to make room.
    pub folded: AtomicU64,
    /// Number of charges that were counted in a sketch because the store had no room for an entry.
    pub overflowed: AtomicU64,
    /// Number of checks refused because the full store had no room for their counter, not even in a
    /// sketch, or no room for a counter to grow.
    pub no_room: AtomicU64,
    /// Number of checks whose counter had a state from the future, because the clock was set back
    /// or the capacity of a bucket was lowered.
    pub clock_regressions: AtomicU64,
    /// Number of checks refused because their cost exceeded the capacity of the limit.
    pub cost_exceeds_capacity: AtomicU64,
}

/// Store in the memory of this process. A call is atomic over all shards: it locks every shard that
/// it needs, in ascending order. The store has no clock and uses [`Call::now`].
///
/// ```
/// use tidegate::store::memory::MemoryStore;
/// let store = MemoryStore::new(1_000_000);
/// assert!(store.is_empty());
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[PaddedShard]>,
    /// Capacity that entries can use, in keys. The rest of `max_keys` is reserved for sketches.
    entry_capacity: u64,
    /// Number of cells per row that all sketches of a shard have together.
    shard_sketch_width: usize,
    /// Maximum capacity that the sketches of a shard use, in keys. Claimed for the first of them.
    shard_sketch_weight: u64,
    rules: RuleTable,
    /// Counter whose value modulo the number of shards is the index of the next shard to sweep or
    /// to search for expired entries.
    next_shard: AtomicUsize,
    stats: MemoryStats,
}

/// Shard with its lock. Aligned to 128 bytes, because processors fetch cache lines in pairs.
/// Otherwise threads that use different shards would contend for the same cache lines.
#[derive(Default)]
#[repr(align(128))]
struct PaddedShard(Mutex<Shard>);

impl std::fmt::Debug for PaddedShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shard")
    }
}

impl MemoryStore {
    /// Creates a store that holds at most `max_keys` keys. Clamps `max_keys` to the range from 1
    /// to 2^32 - 1.
    pub fn new(max_keys: usize) -> MemoryStore {
        let max_keys = max_keys.clamp(1, u32::MAX as usize);
        let shards = match (max_keys / KEYS_PER_SHARD_MIN).checked_ilog2() {
            Some(log) => (1_usize << log).min(SHARDS_MAX),
            None => 1,
        };
        let shard_sketch_width = eviction::shard_sketch_width(max_keys, shards);
        let shard_sketch_weight = eviction::shard_sketch_weight(shard_sketch_width);
        MemoryStore {
            shards: (0..shards).map(|_| PaddedShard::default()).collect(),
            entry_capacity: (max_keys - shards * shard_sketch_weight) as u64,
            shard_sketch_width,
            shard_sketch_weight: shard_sketch_weight as u64,
            rules: RuleTable::new(),
            next_shard: AtomicUsize::new(0),
            stats: MemoryStats::default(),
        }
    }

    /// Returns the capacity that all entries, including expired ones, and all sketches use, in
    /// keys.
    pub fn len(&self) -> usize {
        usize::try_from(self.stats.live.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Returns whether the store has neither entries nor sketches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the live statistics, which change as calls are decided.
    pub fn stats(&self) -> &MemoryStats {
        &self.stats
    }

    /// Returns the number of bytes that this store has requested from the allocator. Intended for
    /// benchmarks and diagnostics, because it locks all shards, one after another.
    pub fn footprint(&self) -> usize {
        let heap: usize = (0..self.shards.len()).map(|at| self.lock(at).occupied_bytes()).sum();
        size_of::<MemoryStore>() + self.shards.len() * size_of::<PaddedShard>() + heap
    }

    /// Removes expired entries and frees unused memory. Checks at most `budget` slots, starting at
    /// the shard after the last one that was swept or searched. Returns the capacity freed by
    /// removing expired entries, in keys. Call this every second.
    pub fn sweep(&self, now: Micros, budget: usize) -> usize {
        let mut removed = 0;
        let mut left = budget;
        for _ in 0..self.shards.len() {
            if left == 0 {
                break;
            }
            let at = self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let slots = self.lock(at).slot_count().min(left);
            for done in (0..slots).step_by(SWEEP_SLOTS) {
                let slots = SWEEP_SLOTS.min(slots - done);
                let freed = self.lock(at).reclaim(now, slots, &self.rules, |_| false);
                self.release_expired(freed);
                removed += freed;
            }
            let shard = &mut *self.lock(at);
            self.remove_expired_sketches(shard, now);
            shard.compact(SWEEP_MOVES);
            left -= slots;
        }
        self.rules.recount();
        removed
    }

    /// Returns the rules that have started to overflow since the last call: their new keys are
    /// counted in a sketch or refused, because the store is full. Call this every second.
    pub fn new_overflows(&self) -> Vec<Overflow> {
        let has_sketches = self.stats.sketch_weight.load(Ordering::Relaxed) > 0;
        self.rules.new_overflows(has_sketches || self.is_full())
    }

    fn shard_of(&self, key: EntryKey) -> usize {
        // A mask suffices, because the number of shards is a power of two.
        (key.shard_bits() & (self.shards.len() as u64 - 1)) as usize
    }

    /// Locks a shard. Ignores lock poisoning, because no code that holds the lock can panic
    /// halfway through a change.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the statistics for clock regressions and for costs that exceed the capacity of a
    /// limit.
    fn record_stats(&self, step: &algorithm::Step<algorithm::State>, check: &Check<'_>) {
        if step.stepped_back {
            self.stats.clock_regressions.fetch_add(1, Ordering::Relaxed);
        }
        if let Op::Take { cost } | Op::Hold { cost, .. } = check.op
            && step.outcome.verdict == Verdict::Refuse
            && cost > check.limit.capacity()
        {
            self.stats.cost_exceeds_capacity.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Decides a call with a single check. Never undoes the charge, because a single check that
    /// passes is charged regardless of its role and the call's accounting.
    fn decide_single_check(&self, check: &Check<'_>, now: Micros) -> Outcome {
        let key = EntryKey::for_counter(check.key.identity);
        let mut guard = self.lock(self.shard_of(key));
        let shard = &mut *guard;
        shard.record_call_time(now);
        let Some(slot) = shard.find(key) else {
            return self.decide_new_key(check, shard, key, now);
        };
        let state = Some(shard.state(slot));
        let step = algorithm::apply_for(state, check.limit, check.op, check.holder, now);
        self.record_stats(&step, check);
        if let Some(state) = step.write {
            let sizes = (weight(shard.state(slot)), weight(&state));
            let rule = shard.rule(slot);
            let mut room = ShardRoom { store: self, shard, now, is_kept: &|other| other == key };
            if sizes.0 != sizes.1 && !room.resize(rule, check.op, sizes) {
                return self.refuse_when_full(check.limit, now);
            }
            let expires = algorithm::expires_at(&state, check.limit);
            shard.replace_state(slot, state, expires);
        }
        step.outcome
    }

    /// Decides a call with a single check whose key has no entry in the store.
    fn decide_new_key(
        &self,
        check: &Check<'_>,
        shard: &mut Shard,
        key: EntryKey,
        now: Micros,
    ) -> Outcome {
        let mut room = ShardRoom { store: self, shard, now, is_kept: &|_| false };
        room.reclaim_expired();
        let rule = RuleIdentity::for_limit(check.limit);
        let sketch = room.shard.find_sketch(rule.key);
        let state = sketch.and_then(|at| room.shard.sketches[at].state(key, now));
        let op = cancel_refund(check.op);
        let step = algorithm::apply_for(state.as_ref(), check.limit, op, check.holder, now);
        self.record_stats(&step, check);
        let Some(state) = step.write else { return step.outcome };
        let expires = algorithm::expires_at(&state, check.limit);
        if let Some(slot) = room.claim_entry(&rule, weight(&state)) {
            shard.insert(key, state, expires, slot);
            return step.outcome;
        }
        let Some(at) = self.find_or_create_sketch(shard, &rule, now) else {
            let refusal = self.refuse_when_full(check.limit, now);
            return if check.comes_first() { Outcome::pass(refusal.available) } else { refusal };
        };
        shard.sketches[at].charge(key, &state, expires, now);
        self.count_overflow(&rule);
        remove_log_entry_number(step.outcome)
    }

    /// Counts a charge to a rule's sketch in the statistics. Also records that the rule has
    /// overflowed, so that [`new_overflows`](Self::new_overflows) reports the rule.
    fn count_overflow(&self, rule: &RuleIdentity) {
        self.stats.overflowed.fetch_add(1, Ordering::Relaxed);
        self.rules.record_overflow(rule, false);
    }

    /// Refuses a check because the full store has no room for its counter, neither as an entry nor
    /// in a sketch, or no room for the larger state of an existing entry. Updates the statistics
    /// and returns the outcome.
    fn refuse_when_full(&self, limit: &Limit, now: Micros) -> Outcome {
        self.stats.no_room.fetch_add(1, Ordering::Relaxed);
        self.rules.record_overflow(&RuleIdentity::for_limit(limit), true);
        let empty = algorithm::apply(None, limit, Op::PEEK, now).outcome;
        let reset_after = empty.reset_after.max(NO_ROOM_WAIT);
        Outcome { reset_after, ..Outcome::refuse_for(NO_ROOM_WAIT) }
    }

    /// Refunds the hits of a receipt to its key's entry. Has no effect if the key has no entry,
    /// because the cells of a sketch are shared with other keys.
    fn refund_one(&self, receipt: &Receipt) {
        let key = EntryKey::for_counter(receipt.key.identity);
        let mut guard = self.lock(self.shard_of(key));
        let shard = &mut *guard;
        let Some(slot) = shard.find(key) else { return };
        let now = shard.latest_call_time();
        let state = shard.state(slot);
        if let Some(state) = algorithm::refund(state, &receipt.limit, &receipt.taken, now) {
            let expires = algorithm::expires_at(&state, &receipt.limit);
            let sizes = (weight(shard.state(slot)), weight(&state));
            let rule = shard.rule(slot);
            let mut room = ShardRoom { store: self, shard, now, is_kept: &|other| other == key };
            room.resize(rule, Op::PEEK, sizes);
            shard.replace_state(slot, state, expires);
        }
    }
}

/// Replaces a refund with a refund of 0 hits. Returns any other operation unchanged. Used for keys
/// without an entry: neither an absent counter nor the shared cells of a sketch can be refunded.
fn cancel_refund(op: Op) -> Op {
    match op {
        Op::Refund { .. } => Op::Refund { cost: Hits::ZERO },
        Op::Take { .. } | Op::Peek { .. } | Op::Hold { .. } | Op::Settle { .. } => op,
    }
}

/// Removes the log entry number from the receipt of a charge that was counted in a sketch. Once the
/// key has a sliding log of its own, another charge could get the same number, and refunding the
/// receipt would remove that charge instead.
fn remove_log_entry_number(outcome: Outcome) -> Outcome {
    let taken = outcome.taken.map(|taken| ChargeRecord { entry: u128::MAX, ..taken });
    Outcome { taken, ..outcome }
}

impl LocalStore for MemoryStore {
    fn decide(&self, call: &Call<'_>) -> Vec<Answer> {
        match call.checks {
            [check] if check.limit.block_seconds.is_none() => {
                vec![Answer::Decided(self.decide_single_check(check, call.now))]
            }
            checks => self.decide_all(checks, call.accounting, call.now),
        }
    }

    fn decide_one(&self, check: &Check<'_>, now: Micros) -> Outcome {
        if check.limit.block_seconds.is_some() {
            let answers = self.decide_all(&[*check], Accounting::Independent, now);
            if let [Answer::Decided(outcome)] = answers[..] {
                return outcome;
            }
        }
        self.decide_single_check(check, now)
    }

    fn block(&self, check: &Check<'_>, left: Micros, now: Micros) {
        let shard = &mut *self.lock(self.shard_of(EntryKey::for_counter(check.key.identity)));
        let state = State::Block(block::State::begin(left, now));
        ShardRoom { store: self, shard, now, is_kept: &|_| false }.store_block(check, state);
    }
}

impl Store for MemoryStore {
    /// Decides a call without suspending. Waits only for locks. Other calls hold a lock for well
    /// under a microsecond, and a sweep holds one for tens of microseconds.
    async fn apply(&self, call: &Call<'_>) -> Answers {
        Answers::new(self.decide(call), Source::Memory)
    }

    async fn refund(&self, receipts: &[Receipt]) {
        for receipt in receipts {
            self.refund_one(receipt);
        }
    }
}

const _: () = assert!(ENTRY_BYTES + 12 <= 64, "the documentation states this bound");
