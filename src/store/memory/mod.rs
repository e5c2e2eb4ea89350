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
//! `max_keys` bounds the weight of all shards together. If a log or a slot table would grow beyond
//! it, the take is refused, as for a new key without room. An entry is reclaimed when an absent one
//! would mean the same (a full bucket, a past window): a few at every insertion, more when the
//! store is full, and by [`MemoryStore::sweep`].
//!
//! While all entries are live, a new key is counted on an overflow counter, which all keys of one
//! limit share within a shard, so one of 256 per limit. Keys on the same overflow counter can
//! refuse each other, but none of them is ever admitted more than its limit, and a flood of fresh
//! keys evicts nobody. A key that gets an entry of its own later starts from its overflow counter's
//! state, so that no hit is forgotten. A sixteenth of the entries, at most 65,536, is reserved for
//! overflow counters; if even those run out, a new key is refused.
//!
//! Not here: the arithmetic (`algorithm`), the clock (every call carries the time).

mod multi_check;
mod shard;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use self::shard::{ENTRY_BYTES, EntryKey, Shard, Slot, weight};
use super::{LocalStore, Store};
use crate::algorithm;
use crate::domain::{
    Answer, Answers, Call, Check, Hits, Limit, Micros, Op, Outcome, Receipt, Source, Verdict,
};

/// Maximum number of shards: enough that even 64 threads rarely contend for a lock, and few enough
/// that the set of the shards that a call needs fits into four words.
const SHARDS_MAX: usize = 256;

/// Minimum number of keys per shard. A smaller store has fewer shards, so that every shard has room
/// for some overflow counters.
const KEYS_PER_SHARD_MIN: usize = 64;

/// Divisor of `max_keys`: one entry in 16 is reserved for overflow counters.
const OVERFLOW_DIVISOR: usize = 16;

/// Maximum number of entries reserved for overflow counters: one for each of 256 limits in each of
/// 256 shards, 4 MiB.
const OVERFLOW_ENTRIES_MAX: usize = 65_536;

/// Number of slots checked for expired entries at every insertion. More than one, so that entries
/// are reclaimed faster than they are added.
const RECLAIM_SLOTS: usize = 2;

/// Number of slots checked per shard at an insertion into a full store. Checking them takes about
/// 100 ns.
const RECLAIM_SLOTS_FULL: usize = 32;

/// Maximum number of other shards that are searched for expired entries if the key's shard has
/// none. A shard is skipped if another thread holds its lock.
const RECLAIM_SHARDS_MAX: usize = 4;

/// Number of slots that a sweep checks before it releases the lock of a shard. Checking them takes
/// about 10 µs.
const SWEEP_SLOTS: usize = 1_024;

/// Value of `retry_after` for a check that is refused because neither its key nor an overflow
/// counter had room. One second, because the next sweep may make room.
const NO_ROOM_WAIT: Micros = Micros::SECOND;

/// Statistics of a memory store: totals since the start, except for the gauge `live`. The weight of
/// an entry is the number of keys that it counts as.
#[derive(Debug, Default)]
pub struct MemoryStats {
    /// Total weight of the stored entries (gauge), including overflow counters and expired entries;
    /// at most `max_keys`.
    pub live: AtomicU64,
    /// Weight of the expired entries that were removed.
    pub evicted: AtomicU64,
    /// Number of charges to overflow counters, because the store was full.
    pub overflowed: AtomicU64,
    /// Number of checks refused because there was no room, not even for an overflow counter.
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
    /// Weight of all entries beyond which a new key gets no entry, but uses an overflow counter.
    own_max: u64,
    /// Maximum weight of all entries, including overflow counters. The weight of an entry is the
    /// number of keys that it counts as.
    max_keys: u64,
    /// Index of the shard at which the next sweep or the next search for room starts.
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
        let overflow = (max_keys / OVERFLOW_DIVISOR).clamp(1, OVERFLOW_ENTRIES_MAX);
        MemoryStore {
            shards: (0..shards).map(|_| PaddedShard::default()).collect(),
            own_max: (max_keys - overflow) as u64,
            max_keys: max_keys as u64,
            next: AtomicUsize::new(0),
            stats: MemoryStats::default(),
        }
    }

    /// Returns the number of keys that all entries count as, including overflow counters and
    /// expired entries.
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

    /// Removes expired entries and returns their weight. Checks at most `budget` slots, starting
    /// where the last sweep stopped. Call this every second.
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
                let freed = self.lock(at).reclaim(now, slots, |_| false);
                self.release(freed);
                removed += freed;
            }
            left -= slots;
        }
        removed
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

    /// Subtracts the weight of removed entries from the total weight of the store.
    fn release(&self, entries: usize) {
        if entries > 0 {
            self.stats.live.fetch_sub(entries as u64, Ordering::Relaxed);
            self.stats.evicted.fetch_add(entries as u64, Ordering::Relaxed);
        }
    }

    /// Adds `weight` to the total weight of the store, for a key's entry or, if `is_overflow`, for
    /// an overflow counter. Returns false, without adding it, if the store has no room.
    fn claim(&self, is_overflow: bool, weight: usize) -> bool {
        let max = if is_overflow { self.max_keys } else { self.own_max };
        let weight = weight as u64;
        let more = |live: u64| (live + weight <= max).then_some(live + weight);
        self.stats.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Updates the total weight of the store for an entry whose weight changes from `from` to `to`.
    /// Returns false if the store has no room. Only a take can fail: any other operation grows an
    /// entry at most by the rounding of its allocation.
    fn resize(&self, is_overflow: bool, op: Op, from: usize, to: usize) -> bool {
        match to.checked_sub(from) {
            Some(0) => true,
            Some(more) => {
                let claimed = self.claim(is_overflow, more);
                if !claimed && !matches!(op, Op::Take { .. }) {
                    self.stats.live.fetch_add(more as u64, Ordering::Relaxed);
                    return true;
                }
                claimed
            }
            None => {
                self.stats.live.fetch_sub((from - to) as u64, Ordering::Relaxed);
                true
            }
        }
    }

    /// Removes a few expired entries before an insertion, and more if the store is full. Keeps
    /// entries that are `in_use`. Never waits for the lock of another shard, so the caller may hold
    /// locks.
    fn make_room(&self, shard: &mut Shard, now: Micros, in_use: impl Fn(Slot) -> bool) {
        self.release(shard.reclaim(now, RECLAIM_SLOTS, &in_use));
        if self.stats.live.load(Ordering::Relaxed) < self.own_max {
            return;
        }
        let mut freed = shard.reclaim(now, RECLAIM_SLOTS_FULL, &in_use);
        for _ in 0..RECLAIM_SHARDS_MAX {
            if freed > 0 {
                break;
            }
            let at = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            freed = match self.shards[at].0.try_lock() {
                Ok(mut other) => other.reclaim(now, RECLAIM_SLOTS_FULL, |_| false),
                Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => 0,
            };
        }
        self.release(freed);
    }

    /// Updates the statistics after a check was applied to its counter.
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
        if let Some(slot) = shard.find(key) {
            let state = Some(shard.state(slot));
            let step = algorithm::apply_for(state, check.limit, check.op, check.holder, now);
            self.record_stats(&step, check);
            if let Some(state) = step.write {
                if !self.resize(false, check.op, weight(shard.state(slot)), weight(&state)) {
                    return self.refuse_when_full(check.limit, now);
                }
                let expires = algorithm::expires_at(&state, check.limit);
                shard.put(slot, state, expires);
            }
            return step.outcome;
        }
        self.make_room(shard, now, |_| false);
        let overflow = shard.find_overflow(check.limit.limit_id);
        let op = if overflow.is_some() { without_unreceipted_refund(check.op) } else { check.op };
        let state = overflow.map(|slot| shard.state(slot));
        let step = algorithm::apply_for(state, check.limit, op, check.holder, now);
        self.record_stats(&step, check);
        let Some(state) = step.write else { return step.outcome };
        let expires = algorithm::expires_at(&state, check.limit);
        let weight = shard::weight(&state);
        if self.claim(false, weight) {
            shard.insert(key, state, expires);
            return step.outcome;
        }
        let has_room = match overflow {
            Some(slot) => self.resize(true, op, shard::weight(shard.state(slot)), weight),
            None => self.claim(true, weight),
        };
        if !has_room {
            return self.refuse_when_full(check.limit, now);
        }
        self.stats.overflowed.fetch_add(1, Ordering::Relaxed);
        match overflow {
            Some(slot) => shard.put(slot, state, expires),
            None => shard.insert(EntryKey::for_overflow(check.limit.limit_id), state, expires),
        }
        step.outcome
    }

    /// Returns the refusal of a check for which there is no room, not even in an overflow counter.
    fn refuse_when_full(&self, limit: &Limit, now: Micros) -> Outcome {
        self.stats.no_room.fetch_add(1, Ordering::Relaxed);
        let empty = algorithm::apply(None, limit, Op::Peek, now).outcome;
        let reset_after = empty.reset_after.max(NO_ROOM_WAIT);
        Outcome { reset_after, ..Outcome::refuse_for(NO_ROOM_WAIT) }
    }

    fn refund_one(&self, receipt: &Receipt) {
        let key = EntryKey::for_counter(receipt.key.identity);
        let mut shard = self.lock(self.shard_of(key));
        let found = shard.find(key).or_else(|| shard.find_overflow(receipt.limit.limit_id));
        let Some(slot) = found else { return };
        let now = shard.latest();
        let state = shard.state(slot);
        if let Some(state) = algorithm::refund(state, &receipt.limit, &receipt.taken, now) {
            let expires = algorithm::expires_at(&state, &receipt.limit);
            self.resize(false, Op::Peek, weight(shard.state(slot)), weight(&state));
            shard.put(slot, state, expires);
        }
    }
}

/// Returns the operation to apply to an overflow counter: a refund without a receipt becomes one of
/// zero hits, because the hits may have been charged to another counter.
fn without_unreceipted_refund(op: Op) -> Op {
    match op {
        Op::Refund { .. } => Op::Refund { cost: Hits::ZERO },
        Op::Take { .. } | Op::Peek => op,
    }
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
