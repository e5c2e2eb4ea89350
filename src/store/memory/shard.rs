//! Shard of the memory store: a slab of entries, and an index from keys to slots of the slab.
//!
//! The index is a hash table of 4-byte slot numbers, and the slab grows by small chunks, so growth
//! never copies entries and never doubles the memory. A hash table of entries would need between 55
//! and 110 bytes per entry, and while it grows, both the old and the new table.
//!
//! Not here: locks, the bound over all shards, the admission of calls.

use hashbrown::HashTable;

use crate::algorithm::{State, fixed_window};
use crate::domain::Micros;

/// Number of entries per chunk of the slab. A chunk has 6 KiB, so the partly used last chunks of
/// all shards waste less than a byte per key at one million keys.
const ENTRIES_PER_CHUNK: usize = 128;

/// Second half of the key of every overflow counter, which distinguishes it from other counters.
/// Their keys are hashes, so only one in 2^64 has this half by chance.
const OVERFLOW_MARKER: u64 = 0x7469_6465_6761_7465;

/// Maximum time by which a call may be older than the latest call without counting as a step back
/// of the clock. Threads read the clock before they take the lock, so calls may be reordered.
const REORDERING_MAX: Micros = Micros::SECOND;

/// Key of an entry: the identity of a counter as two 64-bit words, so that an entry is aligned to 8
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryKey([u64; 2]);

impl EntryKey {
    /// Returns the entry key of a counter. Ignores the counter's hash tag, which only chooses the
    /// hash slot in a Redis Cluster.
    pub(super) fn for_counter(identity: u128) -> EntryKey {
        let low = identity & u128::from(u64::MAX);
        EntryKey([u64::try_from(low).unwrap_or(0), u64::try_from(identity >> 64).unwrap_or(0)])
    }

    /// Returns the key of the overflow counter of a limit.
    pub(super) fn for_overflow(limit_id: u64) -> EntryKey {
        // Limit ids are small numbers; an odd factor (2^64 / golden ratio) spreads them over the
        // index without collisions.
        EntryKey([limit_id.wrapping_mul(0x9e37_79b9_7f4a_7c15), OVERFLOW_MARKER])
    }

    /// Returns the hash for the index: the first half of the key, because the second half chooses
    /// the shard. It needs no further hashing, because the identity is a keyed hash, so callers
    /// cannot choose colliding keys.
    fn hash(self) -> u64 {
        self.0[0]
    }

    /// Returns the half of the key whose lowest bits choose the shard.
    pub(super) fn shard_bits(self) -> u64 {
        self.0[1]
    }

    fn is_overflow(self) -> bool {
        self.0[1] == OVERFLOW_MARKER
    }
}

/// Index of an entry in the slab. It does not change until the entry is removed.
pub(super) type Slot = u32;

#[derive(Clone)]
struct Entry {
    key: EntryKey,
    /// Time from which the entry may be removed, in microseconds since the Unix epoch; `NEVER` for
    /// a vacant slot.
    expires: Micros,
    state: State,
}

/// Size of an entry in the slab, in bytes, without its share of the index (see `MemoryStore`).
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(ENTRY_BYTES <= 48, "an entry and its index stay within 64 bytes");

/// Number of heap bytes of a state that count as one key. Equal to the size of an entry, so that
/// `max_keys` bounds the memory regardless of the algorithms in use.
const KEY_BYTES: usize = 48;

const NEVER: Micros = Micros(u64::MAX);
const VACANT: Entry = Entry {
    key: EntryKey([0, 0]),
    expires: NEVER,
    state: State::FixedWindow(fixed_window::State { start: Micros::ZERO, count: 0 }),
};

/// Shard of the memory store: a slab of entries and an index over their keys.
#[derive(Default)]
pub(super) struct Shard {
    index: HashTable<Slot>,
    chunks: Vec<Box<[Entry]>>,
    free: Vec<Slot>,
    /// Number of slots that have ever been in use.
    high: Slot,
    /// Slot at which the next call of [`reclaim`](Self::reclaim) starts.
    cursor: Slot,
    /// Number of overflow counters in this shard.
    overflow: u32,
    /// Heap memory of all states in this shard, in bytes.
    heap: usize,
    /// Time of the latest call to this shard, in microseconds since the Unix epoch.
    latest: Micros,
}

/// Returns the weight of a state, the number of keys that it counts as: 1 for its entry, plus 1 for
/// every [`KEY_BYTES`] bytes on the heap.
pub(super) fn weight(state: &State) -> usize {
    1 + state.heap_bytes().div_ceil(KEY_BYTES)
}

impl Shard {
    /// Returns the slot of the entry with this key; `None` if there is no such entry.
    pub(super) fn find(&self, key: EntryKey) -> Option<Slot> {
        self.index.find(key.hash(), |slot| self.entry(*slot).key == key).copied()
    }

    /// Returns the slot of a limit's overflow counter; `None` if there is none. Does not search the
    /// index if the shard has no overflow counters.
    pub(super) fn find_overflow(&self, limit_id: u64) -> Option<Slot> {
        if self.overflow == 0 { None } else { self.find(EntryKey::for_overflow(limit_id)) }
    }

    /// Returns the state of the entry in a slot.
    pub(super) fn state(&self, slot: Slot) -> &State {
        &self.entry(slot).state
    }

    /// Replaces the state and the expiry time of the entry in a slot.
    pub(super) fn put(&mut self, slot: Slot, state: State, expires: Micros) {
        let bytes = state.heap_bytes();
        let entry = self.entry_mut(slot);
        let before = std::mem::replace(&mut entry.state, state);
        entry.expires = clamp_below_never(expires);
        self.heap = self.heap + bytes - before.heap_bytes();
    }

    /// Adds an entry. The index must not contain its key yet.
    pub(super) fn insert(&mut self, key: EntryKey, state: State, expires: Micros) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.grow(),
        };
        self.heap += state.heap_bytes();
        *self.entry_mut(slot) = Entry { key, expires: clamp_below_never(expires), state };
        self.overflow += u32::from(key.is_overflow());
        let chunks = &self.chunks;
        self.index.insert_unique(key.hash(), slot, |slot| entry_at(chunks, *slot).key.hash());
    }

    /// Checks up to `slots` slots from the cursor on, removes their entries if they are expired and
    /// not `in_use`, and returns the weight of the removed entries.
    pub(super) fn reclaim(
        &mut self,
        now: Micros,
        slots: usize,
        in_use: impl Fn(Slot) -> bool,
    ) -> usize {
        let mut removed = 0;
        for _ in 0..slots.min(self.high as usize) {
            let slot = if self.cursor < self.high { self.cursor } else { 0 };
            self.cursor = slot + 1;
            if self.entry(slot).expires <= now && !in_use(slot) {
                removed += weight(self.state(slot));
                self.remove(slot);
            }
        }
        removed
    }

    /// Returns the number of slots that [`reclaim`](Self::reclaim) has to check to reach every
    /// entry once.
    pub(super) fn slot_count(&self) -> usize {
        self.high as usize
    }

    /// Records the time of a call to this shard.
    pub(super) fn set_latest(&mut self, now: Micros) {
        if now > self.latest || now.saturating_add(REORDERING_MAX) < self.latest {
            self.latest = now;
        }
    }

    /// Returns the time of the latest call to this shard. Refunds by receipt have no time of their
    /// own and use this one.
    pub(super) fn latest(&self) -> Micros {
        self.latest
    }

    /// Returns the heap memory that the shard occupies, in bytes.
    pub(super) fn occupied_bytes(&self) -> usize {
        self.index.allocation_size()
            + self.chunks.len() * ENTRIES_PER_CHUNK * ENTRY_BYTES
            + self.chunks.capacity() * size_of::<Box<[Entry]>>()
            + self.free.capacity() * size_of::<Slot>()
            + self.heap
    }

    fn remove(&mut self, slot: Slot) {
        let entry = std::mem::replace(self.entry_mut(slot), VACANT);
        if let Ok(found) = self.index.find_entry(entry.key.hash(), |at| *at == slot) {
            found.remove();
        }
        self.overflow -= u32::from(entry.key.is_overflow());
        self.heap -= entry.state.heap_bytes();
        self.free.push(slot);
    }

    fn grow(&mut self) -> Slot {
        let slot = self.high;
        if slot as usize == self.chunks.len() * ENTRIES_PER_CHUNK {
            self.chunks.push(vec![VACANT; ENTRIES_PER_CHUNK].into_boxed_slice());
        }
        self.high += 1;
        slot
    }

    fn entry(&self, slot: Slot) -> &Entry {
        entry_at(&self.chunks, slot)
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.chunks[slot as usize / ENTRIES_PER_CHUNK][slot as usize % ENTRIES_PER_CHUNK]
    }
}

fn entry_at(chunks: &[Box<[Entry]>], slot: Slot) -> &Entry {
    &chunks[slot as usize / ENTRIES_PER_CHUNK][slot as usize % ENTRIES_PER_CHUNK]
}

fn clamp_below_never(expires: Micros) -> Micros {
    expires.min(Micros(NEVER.0 - 1))
}
