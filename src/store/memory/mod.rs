//! The embedded store: counters in this process's memory, sharded over all cores.
//!
//! # Size
//!
//! An entry is 48 bytes (key 16, state 24, expiry 8) and its slot in the index 5 bytes at a load
//! between 7/16 and 7/8, so 5.7 to 11.4: 54 to 60 bytes per key, all in. (The shards' first chunks,
//! 1.6 MB in all, weigh on less than a few hundred thousand keys.) [`MemoryStore::footprint`]
//! measures it: 59.4 at one million keys, 56.7 at ten.
//!
//! Logs, slot tables and hybrids have more to remember than fits into an entry. Every 48 bytes of
//! that count as one more key: a log of 100 takes is 52 keys' worth, one of 10,000 is 5,001.
//!
//! # When it is full
//!
//! `max_keys` bounds the entries of all shards together. A take that would make a log or a slot table
//! grow beyond it is refused like that of a new key that finds no room. An entry is reclaimed when an absent one
//! would mean the same (a full bucket, a window that is over): a few slots at every insertion, more
//! when the store is full, and by [`MemoryStore::sweep`]. While all entries are live, a new key is
//! counted on a counter that its limit_id (the limit's rule and window) shares in that shard, so on
//! one of 256: keys that meet there refuse each other, but no more than the limit is ever admitted
//! to any of them, and whoever sends a million fresh keys drives out nobody. A key that gets an
//! entry of its own later starts from its shared counter's state, so that nothing is forgotten. A
//! sixteenth of the entries, 65,536 at most, is kept for shared counters; where even they run out,
//! a new key is refused.
//!
//! Not here: the arithmetic (`algorithm`), the time (every call brings it along).

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

/// Shards of a large store: enough that even 64 threads seldom wait for each other, few enough that
/// a call's set of shards is four words.
const SHARDS_MAX: usize = 256;

/// Below that many entries per shard a store has fewer shards, so that a shard can always keep some
/// shared counters.
const KEYS_PER_SHARD_MIN: usize = 64;

/// The part of the entries that is kept for shared counters.
const SHARED_PART: usize = 16;

/// And no more than this: 256 families in all 256 shards, 4 MiB.
const SHARED_MAX: usize = 65_536;

/// Slots looked at for expired entries at every insertion: more than one, so that garbage goes
/// faster than it comes.
const RECLAIM_SLOTS: usize = 2;

/// Slots looked at, at an insertion into a full store, in a shard: about 100 ns.
const RECLAIM_SLOTS_FULL: usize = 32;

/// Other shards searched then, if nobody holds their lock.
const RECLAIM_SHARDS: usize = 4;

/// Slots that a sweep looks at under one lock: some 10 µs.
const SWEEP_SLOTS: usize = 1_024;

/// How long a key waits that found neither room nor a shared counter: until the next sweep.
const NO_ROOM_WAIT: Micros = Micros::SECOND;

/// What happened in a memory store. They only grow, except `live`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Keys' worth of entries, shared counters and expired ones included; at most `max_keys`.
    pub live: AtomicU64,
    /// Keys' worth of entries that were removed because an absent one means the same.
    pub evicted: AtomicU64,
    /// Charges to a shared counter, because the store was full.
    pub overflowed: AtomicU64,
    /// Checks refused because not even a shared counter had room.
    pub no_room: AtomicU64,
    /// Checks that met a state of a later time than theirs: the clock stepped back (or a bucket's
    /// capacity was lowered).
    pub clock_regressions: AtomicU64,
    /// Checks refused because they asked for more than their limit's capacity.
    pub cost_exceeds_capacity: AtomicU64,
}

/// Counts hits in memory. The store's contract holds for all shards together: a call locks every
/// shard it needs, in ascending order.
///
/// It has no clock: [`Call::now`] is its time.
///
/// ```
/// use tidegate::store::memory::MemoryStore;
/// let store = MemoryStore::new(1_000_000);
/// assert!(store.is_empty());
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Padded]>,
    /// Entries that keys of their own may use.
    own_max: u64,
    /// Entries in all.
    max_keys: u64,
    /// The shard in which the next sweep, or search for room elsewhere, goes on.
    next: AtomicUsize,
    counters: Counters,
}

/// A shard on cache lines of its own, so that threads on different shards do not slow each other
/// down; 128 bytes because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

impl std::fmt::Debug for Padded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shard")
    }
}

impl MemoryStore {
    /// A store of at most `max_keys` entries (at least 1, at most 2^32 - 1).
    pub fn new(max_keys: usize) -> MemoryStore {
        let max_keys = max_keys.clamp(1, u32::MAX as usize);
        let shards = match (max_keys / KEYS_PER_SHARD_MIN).checked_ilog2() {
            Some(log) => (1_usize << log).min(SHARDS_MAX),
            None => 1,
        };
        let shared = (max_keys / SHARED_PART).clamp(1, SHARED_MAX);
        MemoryStore {
            shards: (0..shards).map(|_| Padded::default()).collect(),
            own_max: (max_keys - shared) as u64,
            max_keys: max_keys as u64,
            next: AtomicUsize::new(0),
            counters: Counters::default(),
        }
    }

    /// Keys' worth of entries, shared counters and expired ones included.
    pub fn len(&self) -> usize {
        usize::try_from(self.counters.live.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// There is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The bytes that this store occupies, all in, as asked from the allocator. Takes every lock
    /// once: for benches and diagnostics.
    pub fn footprint(&self) -> usize {
        let heap: usize = (0..self.shards.len()).map(|at| self.lock(at).bytes()).sum();
        size_of::<MemoryStore>() + self.shards.len() * size_of::<Padded>() + heap
    }

    /// Removes expired entries, looking at `budget` slots at most, and goes on where the last sweep
    /// stopped; meant to be called every second. How many keys' worth it removed.
    pub fn sweep(&self, now: Micros, budget: usize) -> usize {
        let mut removed = 0;
        let mut left = budget;
        for _ in 0..self.shards.len() {
            if left == 0 {
                break;
            }
            let at = self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let slots = self.lock(at).slots().min(left);
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
        // The number of shards is a power of two and at most 256.
        (key.shard_bits() & (self.shards.len() as u64 - 1)) as usize
    }

    /// Nothing under the lock can panic half way through a change, so a poisoned shard is whole.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what was claimed, or what was removed.
    fn release(&self, entries: usize) {
        if entries > 0 {
            self.counters.live.fetch_sub(entries as u64, Ordering::Relaxed);
            self.counters.evicted.fetch_add(entries as u64, Ordering::Relaxed);
        }
    }

    /// Claims so many keys' worth for a key of its own, or for a shared counter, if there is room.
    fn claim(&self, shared: bool, keys: usize) -> bool {
        let max = if shared { self.max_keys } else { self.own_max };
        let keys = keys as u64;
        let more = |live: u64| (live + keys <= max).then_some(live + keys);
        self.counters.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Claims what an entry grows by, or returns what it shrinks by. Only a take may be refused for
    /// it: whatever else is written makes nothing grow by more than a rounding.
    fn resize(&self, shared: bool, op: Op, from: usize, to: usize) -> bool {
        match to.checked_sub(from) {
            Some(0) => true,
            Some(more) => {
                let claimed = self.claim(shared, more);
                if !claimed && !matches!(op, Op::Take { .. }) {
                    self.counters.live.fetch_add(more as u64, Ordering::Relaxed);
                    return true;
                }
                claimed
            }
            None => {
                self.counters.live.fetch_sub((from - to) as u64, Ordering::Relaxed);
                true
            }
        }
    }

    /// Removes a few expired entries before an insertion, more if the store is full. Never waits
    /// for the lock of another shard, so it may be called with locks held.
    fn make_room(&self, shard: &mut Shard, now: Micros, held: impl Fn(Slot) -> bool) {
        self.release(shard.reclaim(now, RECLAIM_SLOTS, &held));
        if self.counters.live.load(Ordering::Relaxed) < self.own_max {
            return;
        }
        let mut freed = shard.reclaim(now, RECLAIM_SLOTS_FULL, &held);
        for _ in 0..RECLAIM_SHARDS {
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

    /// Counts what is worth counting about a step.
    fn count(&self, step: &algorithm::Step, check: &Check<'_>) {
        if step.stepped_back {
            self.counters.clock_regressions.fetch_add(1, Ordering::Relaxed);
        }
        if let Op::Take { cost } = check.op
            && step.outcome.verdict == Verdict::Refuse
            && cost > check.limit.capacity()
        {
            self.counters.cost_exceeds_capacity.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Decides a call of one check: admitted iff it passes, or has no say; either way what passes
    /// is charged, so the step can be written as it is.
    fn decide_one(&self, check: &Check<'_>, now: Micros) -> Outcome {
        let key = EntryKey::own(check.key.identity);
        let mut guard = self.lock(self.shard_of(key));
        let shard = &mut *guard;
        shard.note(now);
        if let Some(slot) = shard.find(key) {
            let state = Some(shard.state(slot));
            let step = algorithm::apply_for(state, check.limit, check.op, check.holder, now);
            self.count(&step, check);
            if let Some(state) = step.write {
                if !self.resize(false, check.op, weight(shard.state(slot)), weight(&state)) {
                    return self.no_room(check.limit, now);
                }
                let expires = algorithm::expires_at(&state, check.limit);
                shard.put(slot, state, expires);
            }
            return step.outcome;
        }
        self.make_room(shard, now, |_| false);
        let shared = shard.find_shared(check.limit.limit_id);
        let op = if shared.is_some() { on_shared(check.op) } else { check.op };
        let state = shared.map(|slot| shard.state(slot));
        let step = algorithm::apply_for(state, check.limit, op, check.holder, now);
        self.count(&step, check);
        let Some(state) = step.write else { return step.outcome };
        let expires = algorithm::expires_at(&state, check.limit);
        let keys = weight(&state);
        if self.claim(false, keys) {
            shard.insert(key, state, expires);
            return step.outcome;
        }
        let found_room = match shared {
            Some(slot) => self.resize(true, op, weight(shard.state(slot)), keys),
            None => self.claim(true, keys),
        };
        if !found_room {
            return self.no_room(check.limit, now);
        }
        self.counters.overflowed.fetch_add(1, Ordering::Relaxed);
        match shared {
            Some(slot) => shard.put(slot, state, expires),
            None => shard.insert(EntryKey::shared(check.limit.limit_id), state, expires),
        }
        step.outcome
    }

    /// The answer where a key found neither room nor a shared counter.
    fn no_room(&self, limit: &Limit, now: Micros) -> Outcome {
        self.counters.no_room.fetch_add(1, Ordering::Relaxed);
        let empty = algorithm::apply(None, limit, Op::Peek, now).outcome;
        Outcome {
            verdict: Verdict::Refuse,
            charged: Hits::ZERO,
            available: Hits::ZERO,
            retry_after: Some(NO_ROOM_WAIT),
            reset_after: empty.reset_after.max(NO_ROOM_WAIT),
            taken: None,
        }
    }

    fn return_one(&self, receipt: &Receipt) {
        let key = EntryKey::own(receipt.key.identity);
        let mut shard = self.lock(self.shard_of(key));
        let found = shard.find(key).or_else(|| shard.find_shared(receipt.limit.limit_id));
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

/// A caller's own refund does not reach a counter that others share: it has no receipt, so
/// nobody knows whether its hits were counted there.
fn on_shared(op: Op) -> Op {
    match op {
        Op::Refund { .. } => Op::Refund { cost: Hits::ZERO },
        Op::Take { .. } | Op::Peek => op,
    }
}

impl LocalStore for MemoryStore {
    fn answer(&self, call: &Call<'_>) -> Vec<Answer> {
        match call.checks {
            [check] => vec![Answer::Decided(self.decide_one(check, call.now))],
            checks => self.decide_all(checks, call.accounting, call.now),
        }
    }

    fn answer_one(&self, check: &Check<'_>, now: Micros) -> Outcome {
        self.decide_one(check, now)
    }
}

impl Store for MemoryStore {
    /// Never waits except for the locks, which are held for well under a microsecond each.
    async fn apply(&self, call: &Call<'_>) -> Answers {
        Answers { each: self.answer(call), source: Source::Memory }
    }

    async fn refund(&self, receipts: &[Receipt]) {
        for receipt in receipts {
            self.return_one(receipt);
        }
    }
}

const _: () = assert!(ENTRY_BYTES + 12 <= 64, "stated above and in the README");
