//! The memory store: counters in this process's memory, in up to 256 shards with a lock each.
//!
//! # Size
//!
//! An entry takes 48 bytes (key 16, state 24, expiry 8). Its slot in the index takes 5 bytes, and
//! the index is between 7/16 and 7/8 full, which makes 5.7 to 11.4 bytes per key: 54 to 60 bytes in
//! total. [`MemoryStore::footprint`] measures 59.4 bytes per key at one million keys and 56.7 at
//! ten million. Below a few hundred thousand keys the first chunks of the shards dominate (1.6 MB).
//!
//! Sliding logs, concurrency slots and hybrid counters do not fit into an entry. Every 48 bytes of
//! heap memory that such a counter holds count as one more key: a log of 100 hits weighs as much as
//! 52 keys, a log of 10,000 hits as much as 5,001.
//!
//! # When the store is full
//!
//! `max_keys` bounds the weight of all shards together, sketches included. An entry is reclaimed
//! when an absent one would mean the same (a full bucket, a past window): a few at every insertion,
//! more when the store is full, and by [`MemoryStore::sweep`].
//!
//! While all entries are live, every rule has a fair share: the weight of all entries divided by
//! the number of rules that hold some.
//!
//! - A new key of a rule below its share gets an entry: one of the rule furthest above its share,
//!   among 32 slots of the shard, is folded into the `sketch` of that rule.
//! - A new key of any other rule is counted in the sketch of its own rule, where keys can refuse
//!   each other, but none is ever admitted more than its limit.
//! - An existing key keeps its entry until its rule is the one furthest above its share, and a
//!   growing one (a sliding log) makes room in the same way.
//! - A key that gets an entry later starts from its state in the sketch, so that no hit is
//!   forgotten.
//!
//! For a key in a sketch, waits may be longer than necessary, and refunds have no effect.
//!
//! So a flood of keys on one rule makes that rule less precise and no other one. Up to eight rules
//! have a sketch, 4 MiB each (less in a small store). New keys of further rules, and of concurrency
//! and hybrid limits, which fit into no sketch, are refused.
//!
//! Not here: the arithmetic (`algorithm`), the clock (every call carries the time).

mod eviction;
mod multi_check;
mod rules;
mod shard;
mod sketch;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::rules::Overflow;
use self::rules::{Rule, RuleTable};
use self::shard::{ENTRY_BYTES, EntryKey, Shard, weight};
use super::{LocalStore, Store};
use crate::algorithm;
use crate::domain::{
    Answer, Answers, Call, ChargeRecord, Check, Hits, Limit, Micros, Op, Outcome, Receipt, Source,
    Verdict,
};

/// Maximum number of shards: enough that even 64 threads rarely contend for a lock, and few enough
/// that the set of the shards that a call needs fits into four words.
const SHARDS_MAX: usize = 256;

/// Minimum number of keys per shard. A smaller store has fewer shards, so that every shard has room
/// for a sketch.
const KEYS_PER_SHARD_MIN: usize = 64;

/// Slots checked for expired entries at every insertion. More than one, so that entries are
/// reclaimed faster than they are added.
const RECLAIM_SLOTS: usize = 2;

/// Slots that a sweep checks while it holds a lock once. Takes about 10 µs.
const SWEEP_SLOTS: usize = 1_024;

/// Entries that a sweep moves per acquisition of a lock, to shrink a shard. Takes about 25 µs.
const SWEEP_MOVES: usize = 256;

/// Value of `retry_after` for a new key that found no room, not even in a sketch. The next sweep
/// may make room.
const NO_ROOM_WAIT: Micros = Micros::SECOND;

/// Statistics of a memory store. `live` and `sketch_weight` are present
/// values, the others totals since the start.
#[derive(Debug, Default)]
pub struct MemoryStats {
    /// Weight of all entries, expired ones included, and of all sketches; at most `max_keys`.
    pub live: AtomicU64,
    /// Weight of all sketches.
    pub sketch_weight: AtomicU64,
    /// Weight of the entries that were removed because they had expired.
    pub evicted: AtomicU64,
    /// Number of entries folded into a sketch, to make room for other entries.
    pub folded: AtomicU64,
    /// Number of charges to sketches, made because the store was full.
    pub overflowed: AtomicU64,
    /// Number of checks refused because there was no room, not even in a sketch.
    pub no_room: AtomicU64,
    /// Number of checks whose counter had a state from the future, because the clock had stepped
    /// back or the capacity of a bucket had been lowered.
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
    /// Maximum weight of all entries and sketches.
    max_keys: u64,
    /// Weight that only sketches may use.
    sketch_reserve: u64,
    /// Cells per row of a sketch, within one shard.
    sketch_width: usize,
    /// Weight of a sketch, within one shard.
    sketch_weight: usize,
    rules: RuleTable,
    /// Shard at which the next sweep or the next search for room starts.
    next: AtomicUsize,
    stats: MemoryStats,
}

/// Shard with its lock. Aligned to 128 bytes, because processors fetch cache lines in pairs:
/// threads that use different shards then do not contend for a cache line.
#[derive(Default)]
#[repr(align(128))]
struct PaddedShard(Mutex<Shard>);

impl std::fmt::Debug for PaddedShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shard")
    }
}

impl MemoryStore {
    /// Creates a store that holds at most `max_keys` keys, a number that is clamped to the range
    /// from 1 to 2^32 - 1.
    pub fn new(max_keys: usize) -> MemoryStore {
        let max_keys = max_keys.clamp(1, u32::MAX as usize);
        let shards = match (max_keys / KEYS_PER_SHARD_MIN).checked_ilog2() {
            Some(log) => (1_usize << log).min(SHARDS_MAX),
            None => 1,
        };
        let sketch_width = eviction::sketch_width(max_keys, shards);
        MemoryStore {
            shards: (0..shards).map(|_| PaddedShard::default()).collect(),
            max_keys: max_keys as u64,
            sketch_reserve: eviction::sketch_reserve(max_keys, shards) as u64,
            sketch_width,
            sketch_weight: eviction::sketch_weight(sketch_width),
            rules: RuleTable::new(),
            next: AtomicUsize::new(0),
            stats: MemoryStats::default(),
        }
    }

    /// Returns the weight of all entries, expired ones included, and of all sketches.
    pub fn len(&self) -> usize {
        usize::try_from(self.stats.live.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Returns whether the store has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the statistics, which keep being updated.
    pub fn stats(&self) -> &MemoryStats {
        &self.stats
    }

    /// Returns the number of bytes that this store has requested from the allocator. For benchmarks
    /// and diagnostics, because it locks every shard, one after another.
    pub fn footprint(&self) -> usize {
        let heap: usize = (0..self.shards.len()).map(|at| self.lock(at).occupied_bytes()).sum();
        size_of::<MemoryStore>() + self.shards.len() * size_of::<PaddedShard>() + heap
    }

    /// Removes expired entries, frees memory that is no longer needed, and returns the weight of
    /// the removed entries. Checks at most `budget` slots, starting where the last sweep stopped.
    /// Call this every second.
    pub fn sweep(&self, now: Micros, budget: usize) -> usize {
        let mut removed = 0;
        let mut left = budget;
        for _ in 0..self.shards.len() {
            if left == 0 {
                break;
            }
            let at = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len();
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

    /// Returns the rules that began to overflow since the last call. Call this every second.
    pub fn new_overflows(&self) -> Vec<Overflow> {
        let has_sketches = self.stats.sketch_weight.load(Ordering::Relaxed) > 0;
        self.rules.new_overflows(has_sketches || self.is_full())
    }

    fn shard_of(&self, key: EntryKey) -> usize {
        // A mask suffices, because the number of shards is a power of two.
        (key.shard_bits() & (self.shards.len() as u64 - 1)) as usize
    }

    /// Locks a shard. Ignores poisoning, because no code under the lock can panic halfway through a
    /// change.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the statistics after a step of an algorithm.
    fn record_stats(&self, step: &algorithm::Step, check: &Check<'_>) {
        if step.stepped_back {
            self.stats.clock_regressions.fetch_add(1, Ordering::Relaxed);
        }
        if let Op::Take { cost } = check.op
            && step.outcome.verdict == Verdict::Refuse
            && cost > check.limit.capacity()
        {
            self.stats.cost_exceeds_capacity.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Decides a call that consists of a single check. Never undoes the charge, because a single
    /// check that passes is charged regardless of its role and the accounting of the call.
    fn decide_alone(&self, check: &Check<'_>, now: Micros) -> Outcome {
        let key = EntryKey::for_counter(check.key.identity);
        let mut guard = self.lock(self.shard_of(key));
        let shard = &mut *guard;
        shard.set_latest(now);
        let Some(slot) = shard.find(key) else { return self.decide_new(check, shard, key, now) };
        let state = Some(shard.state(slot));
        let step = algorithm::apply_for(state, check.limit, check.op, check.holder, now);
        self.record_stats(&step, check);
        if let Some(state) = step.write {
            let sizes = (weight(shard.state(slot)), weight(&state));
            let in_use = |other| other == slot;
            if sizes.0 != sizes.1
                && !self.resize(shard, shard.rule(slot), check.op, sizes, now, &in_use)
            {
                return self.refuse_when_full(check.limit, now);
            }
            let expires = algorithm::expires_at(&state, check.limit);
            shard.put(slot, state, expires);
        }
        step.outcome
    }

    /// Decides a call of one check on a key without an entry.
    fn decide_new(
        &self,
        check: &Check<'_>,
        shard: &mut Shard,
        key: EntryKey,
        now: Micros,
    ) -> Outcome {
        let nothing = |_| false;
        self.reclaim_expired(shard, now, nothing);
        let rule = Rule::of(check.limit);
        let state = shard.find_sketch(rule.key).and_then(|at| shard.sketches[at].state(key, now));
        let op = without_unreceipted_refund(check.op);
        let step = algorithm::apply_for(state.as_ref(), check.limit, op, check.holder, now);
        self.record_stats(&step, check);
        let Some(state) = step.write else { return step.outcome };
        let expires = algorithm::expires_at(&state, check.limit);
        if let Some(slot) = self.claim_entry(shard, &rule, weight(&state), now, &nothing) {
            shard.insert(key, state, expires, slot);
            return step.outcome;
        }
        let Some(at) = self.sketch_of(shard, &rule, now, &nothing) else {
            return self.refuse_when_full(check.limit, now);
        };
        shard.sketches[at].charge(key, &state, expires, now);
        self.count_overflow(&rule);
        without_receipt_entry(step.outcome)
    }

    /// Counts a charge to a sketch.
    fn count_overflow(&self, rule: &Rule) {
        self.stats.overflowed.fetch_add(1, Ordering::Relaxed);
        self.rules.note_overflow(rule, false);
    }

    /// Returns the refusal for a key that can be stored neither as an entry nor in a sketch.
    fn refuse_when_full(&self, limit: &Limit, now: Micros) -> Outcome {
        self.stats.no_room.fetch_add(1, Ordering::Relaxed);
        self.rules.note_overflow(&Rule::of(limit), true);
        let empty = algorithm::apply(None, limit, Op::Peek, now).outcome;
        let reset_after = empty.reset_after.max(NO_ROOM_WAIT);
        Outcome { reset_after, ..Outcome::refuse_for(NO_ROOM_WAIT) }
    }

    /// Returns a receipt's hits to the entry of its key. Has no effect on a sketch, whose cells are
    /// shared with other keys.
    fn refund_one(&self, receipt: &Receipt) {
        let key = EntryKey::for_counter(receipt.key.identity);
        let mut guard = self.lock(self.shard_of(key));
        let shard = &mut *guard;
        let Some(slot) = shard.find(key) else { return };
        let now = shard.latest();
        let state = shard.state(slot);
        if let Some(state) = algorithm::refund(state, &receipt.limit, &receipt.taken, now) {
            let expires = algorithm::expires_at(&state, &receipt.limit);
            let sizes = (weight(shard.state(slot)), weight(&state));
            self.resize(shard, shard.rule(slot), Op::Peek, sizes, now, &|other| other == slot);
            shard.put(slot, state, expires);
        }
    }
}

/// Returns the operation as it applies to a key without an entry: a refund has no effect, neither
/// on an absent counter nor on a sketch, whose cells other keys share.
fn without_unreceipted_refund(op: Op) -> Op {
    match op {
        Op::Refund { .. } => Op::Refund { cost: Hits::ZERO },
        Op::Take { .. } | Op::Peek => op,
    }
}

/// Returns the outcome of a charge to a sketch, whose receipt names no entry of a sliding log. The
/// number of such an entry would be that of another take once the key gets an entry of its own.
fn without_receipt_entry(outcome: Outcome) -> Outcome {
    let taken = outcome.taken.map(|taken| ChargeRecord { entry: u128::MAX, ..taken });
    Outcome { taken, ..outcome }
}

impl LocalStore for MemoryStore {
    fn decide(&self, call: &Call<'_>) -> Vec<Answer> {
        match call.checks {
            [check] => vec![Answer::Decided(self.decide_alone(check, call.now))],
            checks => self.decide_all(checks, call.accounting, call.now),
        }
    }

    fn decide_one(&self, check: &Check<'_>, now: Micros) -> Outcome {
        self.decide_alone(check, now)
    }
}

impl Store for MemoryStore {
    /// Never suspends. Waits only for locks, each of which is held for well under a microsecond.
    async fn apply(&self, call: &Call<'_>) -> Answers {
        Answers { each: self.decide(call), source: Source::Memory }
    }

    async fn refund(&self, receipts: &[Receipt]) {
        for receipt in receipts {
            self.refund_one(receipt);
        }
    }
}

const _: () = assert!(ENTRY_BYTES + 12 <= 64, "the documentation states this bound");
