//! One shard of the memory store: entries in a slab, and an index of where each key's entry is.
//!
//! The index is a hash table of 4-byte slots and the slab grows by small chunks, so that growth
//! never copies entries and never doubles the memory: a table that held the entries themselves
//! would need between 55 and 110 bytes for each, and both tables at once while it grows.
//!
//! Not here: locks, the bound over all shards, what a call means.

use hashbrown::HashTable;

use crate::algorithm::{State, fixed_window};
use crate::domain::Micros;

/// Entries per chunk: 6 KiB, so that a shard's last chunk wastes less than a byte per key at a
/// million keys.
const CHUNK: usize = 128;

/// The second half of the keys of shared counters. Identities are keyed hashes: one that ends in
/// this very number is met once in 2^64 keys.
const SHARED: u64 = 0x7469_6465_6761_7465;

/// How far back a call's time may lie behind its predecessor's and count as simultaneous: threads
/// read the clock before they take the lock.
const REORDERED_MAX: Micros = Micros::SECOND;

/// A counter's key in this store: the identity as two words, so that an entry is aligned to 8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryKey([u64; 2]);

impl EntryKey {
    /// The key of a counter of its own. What `tag` says is of no interest here: it places counters
    /// and never splits them.
    pub(super) fn own(identity: u128) -> EntryKey {
        let low = identity & u128::from(u64::MAX);
        EntryKey([u64::try_from(low).unwrap_or(0), u64::try_from(identity >> 64).unwrap_or(0)])
    }

    /// The key of the counter that a limit_id shares in each shard.
    pub(super) fn shared(limit_id: u64) -> EntryKey {
        // Families are small numbers; an odd factor (2^64 / golden ratio) spreads them over the
        // index without joining any two.
        EntryKey([limit_id.wrapping_mul(0x9e37_79b9_7f4a_7c15), SHARED])
    }

    /// The identity is a keyed hash already, so its bits are as good as any hash of them, and
    /// nobody without the key can choose them to collide. The index uses this half, the choice of
    /// the shard the other.
    fn hash(self) -> u64 {
        self.0[0]
    }

    /// Bits that choose the shard.
    pub(super) fn shard_bits(self) -> u64 {
        self.0[1]
    }

    fn is_shared(self) -> bool {
        self.0[1] == SHARED
    }
}

/// Where an entry is: stable until it is removed.
pub(super) type Slot = u32;

#[derive(Clone)]
struct Entry {
    key: EntryKey,
    /// From when on the entry may go; `NEVER` marks a vacant slot.
    expires: Micros,
    state: State,
}

/// Bytes of an entry in the slab; its share of the index comes on top (see `MemoryStore`).
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(ENTRY_BYTES <= 48, "an entry and its index stay within 64 bytes");

/// Bytes of a state outside its entry that count as one key: an entry's own size, so that
/// `max_keys` bounds memory whatever the limits are.
const KEY_BYTES: usize = 48;

const NEVER: Micros = Micros(u64::MAX);
const VACANT: Entry = Entry {
    key: EntryKey([0, 0]),
    expires: NEVER,
    state: State::FixedWindow(fixed_window::State { start: Micros::ZERO, count: 0 }),
};

/// A part of the counters.
#[derive(Default)]
pub(super) struct Shard {
    index: HashTable<Slot>,
    chunks: Vec<Box<[Entry]>>,
    free: Vec<Slot>,
    /// Slots below this one were in use at some time.
    high: Slot,
    /// Where the search for expired entries goes on.
    cursor: Slot,
    /// How many entries are shared counters.
    shared: u32,
    /// Bytes of all entries' states outside the slab.
    heap: usize,
    /// The time of the latest call.
    latest: Micros,
}

/// How many keys' worth a state is: 1 for the entry, and 1 for every [`KEY_BYTES`] that it has
/// outside it.
pub(super) fn weight(state: &State) -> usize {
    1 + state.heap_bytes().div_ceil(KEY_BYTES)
}

impl Shard {
    /// Where a key's entry is.
    pub(super) fn find(&self, key: EntryKey) -> Option<Slot> {
        self.index.find(key.hash(), |slot| self.entry(*slot).key == key).copied()
    }

    /// Where a limit_id's shared counter is. Almost always there is none in the whole shard.
    pub(super) fn find_shared(&self, limit_id: u64) -> Option<Slot> {
        if self.shared == 0 { None } else { self.find(EntryKey::shared(limit_id)) }
    }

    /// What an entry holds.
    pub(super) fn state(&self, slot: Slot) -> &State {
        &self.entry(slot).state
    }

    /// Replaces what an entry holds.
    pub(super) fn put(&mut self, slot: Slot, state: State, expires: Micros) {
        let bytes = state.heap_bytes();
        let entry = self.entry_mut(slot);
        let before = std::mem::replace(&mut entry.state, state);
        entry.expires = before_never(expires);
        self.heap = self.heap + bytes - before.heap_bytes();
    }

    /// Adds an entry; the key must have none.
    pub(super) fn insert(&mut self, key: EntryKey, state: State, expires: Micros) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.grow(),
        };
        self.heap += state.heap_bytes();
        *self.entry_mut(slot) = Entry { key, expires: before_never(expires), state };
        self.shared += u32::from(key.is_shared());
        let chunks = &self.chunks;
        self.index.insert_unique(key.hash(), slot, |slot| entry_of(chunks, *slot).key.hash());
    }

    /// Looks at the next `slots` slots and removes the entries that expired, except those that
    /// `held` says are in use. How many keys' worth it removed.
    pub(super) fn reclaim(
        &mut self,
        now: Micros,
        slots: usize,
        held: impl Fn(Slot) -> bool,
    ) -> usize {
        let mut removed = 0;
        for _ in 0..slots.min(self.high as usize) {
            let slot = if self.cursor < self.high { self.cursor } else { 0 };
            self.cursor = slot + 1;
            if self.entry(slot).expires <= now && !held(slot) {
                removed += weight(self.state(slot));
                self.remove(slot);
            }
        }
        removed
    }

    /// How many slots a whole round of `reclaim` has.
    pub(super) fn slots(&self) -> usize {
        self.high as usize
    }

    /// Notes the time of a call.
    pub(super) fn note(&mut self, now: Micros) {
        if now > self.latest || now.saturating_add(REORDERED_MAX) < self.latest {
            self.latest = now;
        }
    }

    /// The time of the latest call. Nothing happened here since, so that what is returned later is
    /// returned as of then.
    pub(super) fn latest(&self) -> Micros {
        self.latest
    }

    /// Heap bytes.
    pub(super) fn bytes(&self) -> usize {
        self.index.allocation_size()
            + self.chunks.len() * CHUNK * ENTRY_BYTES
            + self.chunks.capacity() * size_of::<Box<[Entry]>>()
            + self.free.capacity() * size_of::<Slot>()
            + self.heap
    }

    fn remove(&mut self, slot: Slot) {
        let entry = std::mem::replace(self.entry_mut(slot), VACANT);
        if let Ok(found) = self.index.find_entry(entry.key.hash(), |at| *at == slot) {
            found.remove();
        }
        self.shared -= u32::from(entry.key.is_shared());
        self.heap -= entry.state.heap_bytes();
        self.free.push(slot);
    }

    fn grow(&mut self) -> Slot {
        let slot = self.high;
        if slot as usize == self.chunks.len() * CHUNK {
            self.chunks.push(vec![VACANT; CHUNK].into_boxed_slice());
        }
        self.high += 1;
        slot
    }

    fn entry(&self, slot: Slot) -> &Entry {
        entry_of(&self.chunks, slot)
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

fn entry_of(chunks: &[Box<[Entry]>], slot: Slot) -> &Entry {
    &chunks[slot as usize / CHUNK][slot as usize % CHUNK]
}

fn before_never(expires: Micros) -> Micros {
    expires.min(Micros(NEVER.0 - 1))
}
