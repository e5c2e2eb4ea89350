//! Shard of the memory store: a slab of entries, and an index from keys to slots of the slab.
//!
//! The index is a hash table of 4-byte slot numbers, and the slab grows in small chunks, so growth
//! never copies entries and never doubles the memory. A hash table of entries would need between 55
//! and 110 bytes per entry. While it grew, it would need memory for both the old and the new table.
//!
//! Not here: locks, `max_keys` and the admission of calls (`super`).

use hashbrown::HashTable;

use super::entry_key::EntryKey;
use super::rules::{RuleIdentity, RuleSlot, RuleTable};
use super::sketch::{SKETCH_WIDTH_MIN, Sketch};
use crate::algorithm::{State, fixed_window};
use crate::domain::Micros;

/// Number of entries per chunk of the slab. A chunk takes 6 KiB, so at one million keys, the
/// partly used last chunks of all shards waste less than one byte per key.
const ENTRIES_PER_CHUNK: usize = 128;

/// Maximum step back in time between two calls that is attributed to reordering. Threads read the
/// clock before they lock the shard, so a later call may have an earlier time. A larger step means
/// that the clock was set back.
const REORDERING_MAX: Micros = Micros::SECOND;

/// Expiry time and rule of an entry, packed into one word. The time takes 48 bits, in milliseconds
/// since the Unix epoch, rounded up. The [`RuleSlot`] takes 16 bits.
#[derive(Clone, Copy)]
struct Expiry(u64);

impl Expiry {
    /// Expiry that marks a vacant slot.
    const NEVER: Expiry = Expiry(u64::MAX);

    fn new(expires: Micros, rule: RuleSlot) -> Expiry {
        let latest = (Expiry::NEVER.0 >> 16) - 1;
        Expiry(expires.ceil_millis().min(latest) << 16 | u64::from(rule.0))
    }

    fn has_passed(self, now: Micros) -> bool {
        self.0 >> 16 <= now.0 / 1_000
    }

    fn rule(self) -> RuleSlot {
        RuleSlot((self.0 & 0xffff) as u16)
    }

    fn is_never(self) -> bool {
        self.0 == Expiry::NEVER.0
    }

    fn time(self) -> Micros {
        Micros((self.0 >> 16).saturating_mul(1_000))
    }
}

/// Slot number of an entry in the slab. Valid until the entry is removed or moved by
/// [`Shard::compact`].
pub(super) type EntryIndex = u32;

#[derive(Clone)]
struct Entry {
    key: EntryKey,
    expires: Expiry,
    state: State,
}

/// Size of an entry in the slab, in bytes. The index takes additional memory for each entry; see
/// the documentation of the `memory` module.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(ENTRY_BYTES <= 48, "an entry and its index stay within 64 bytes");

/// Number of heap bytes of a counter's state that count as one key. Equals the size of an entry, so
/// that `max_keys` bounds the memory regardless of the algorithms in use.
pub(super) const HEAP_BYTES_PER_KEY: usize = 48;

const VACANT_ENTRY: Entry = Entry {
    key: EntryKey([0, 0]),
    expires: Expiry::NEVER,
    state: State::FixedWindow(fixed_window::State { start: Micros::ZERO, count: 0 }),
};

/// Shard of the memory store: a slab of entries and an index of their keys.
#[derive(Default)]
pub(super) struct Shard {
    index: HashTable<EntryIndex>,
    chunks: Vec<Box<[Entry]>>,
    free: Vec<EntryIndex>,
    /// Number of slots that are occupied or listed in `free`. Slots from this index on are unused.
    end: EntryIndex,
    /// Slot at which the next call to [`reclaim`](Self::reclaim) starts.
    reclaim_cursor: EntryIndex,
    /// Slot at which the next call to [`visit_entries`](Self::visit_entries) starts.
    fold_cursor: EntryIndex,
    /// Number of slots that [`visit_entries`](Self::visit_entries) may check until
    /// [`allow_visits`](Self::allow_visits) allows more.
    visits_left: usize,
    /// Sketches of the rules that have keys without an entry in this shard, all of the same width.
    pub(super) sketches: Vec<Sketch>,
    /// Number of heap bytes used by all counter states in this shard.
    heap_bytes: usize,
    /// Time of the latest call that used this shard, in microseconds since the Unix epoch.
    latest_call: Micros,
}

/// Returns the weight of a counter's state, which is the capacity that it uses, in keys: 1 for its
/// entry, plus 1 for every [`HEAP_BYTES_PER_KEY`] bytes of heap memory, rounded up.
pub(super) fn weight(state: &State) -> usize {
    1 + state.heap_bytes().div_ceil(HEAP_BYTES_PER_KEY)
}

impl Shard {
    /// Returns the slot of the entry with the given key, or `None` if there is no such entry.
    pub(super) fn find(&self, key: EntryKey) -> Option<EntryIndex> {
        self.index.find(key.hash(), |slot| self.entry(*slot).key == key).copied()
    }

    pub(super) fn state(&self, slot: EntryIndex) -> &State {
        &self.entry(slot).state
    }

    pub(super) fn key(&self, slot: EntryIndex) -> EntryKey {
        self.entry(slot).key
    }

    /// Returns the rule of the entry in a slot, as a slot of the [`RuleTable`].
    pub(super) fn rule(&self, slot: EntryIndex) -> RuleSlot {
        self.entry(slot).expires.rule()
    }

    pub(super) fn replace_state(&mut self, slot: EntryIndex, state: State, expires: Micros) {
        let bytes = state.heap_bytes();
        let entry = self.entry_mut(slot);
        let before = std::mem::replace(&mut entry.state, state);
        entry.expires = Expiry::new(expires, entry.expires.rule());
        self.heap_bytes = self.heap_bytes + bytes - before.heap_bytes();
    }

    /// Adds an entry. Its key must not be in the index yet.
    pub(super) fn insert(&mut self, key: EntryKey, state: State, expires: Micros, rule: RuleSlot) {
        let slot = self.free.pop().unwrap_or_else(|| self.add_slot());
        self.heap_bytes += state.heap_bytes();
        *self.entry_mut(slot) = Entry { key, expires: Expiry::new(expires, rule), state };
        let chunks = &self.chunks;
        self.index.insert_unique(key.hash(), slot, |slot| entry_at(chunks, *slot).key.hash());
    }

    /// Checks up to `slots` slots, starting where the last call stopped. Removes each expired entry,
    /// unless `is_kept` returns true for its key. Returns the freed capacity, in keys.
    pub(super) fn reclaim(
        &mut self,
        now: Micros,
        slots: usize,
        rules: &RuleTable,
        is_kept: impl Fn(EntryKey) -> bool,
    ) -> usize {
        let mut removed = 0;
        for _ in 0..slots.min(self.end as usize) {
            let slot = if self.reclaim_cursor < self.end { self.reclaim_cursor } else { 0 };
            self.reclaim_cursor = slot + 1;
            let Entry { key, expires, .. } = self.entry(slot);
            if expires.has_passed(now) && !is_kept(*key) {
                removed += self.remove(slot, rules);
            }
        }
        removed
    }

    /// Allows [`visit_entries`](Self::visit_entries) to check `slots` more slots. Unused slots are
    /// kept for later calls, up to `max` or one round of the shard.
    pub(super) fn allow_visits(&mut self, slots: usize, max: usize) {
        self.visits_left = (self.visits_left + slots).min(self.slot_count().max(max));
    }

    /// Checks slots for at most one round of the shard, starting where the last call stopped. Calls
    /// `visit` for each occupied slot until `visit` returns false. Stops when as many slots have
    /// been checked as were allowed.
    pub(super) fn visit_entries(&mut self, mut visit: impl FnMut(&mut Shard, EntryIndex) -> bool) {
        for _ in 0..self.visits_left.min(self.slot_count()) {
            let slot = if self.fold_cursor < self.end { self.fold_cursor } else { 0 };
            self.fold_cursor = slot + 1;
            self.visits_left -= 1;
            if !self.entry(slot).expires.is_never() && !visit(self, slot) {
                break;
            }
        }
    }

    /// Returns the index in `sketches` of the sketch for the rule with the given key, or `None` if
    /// there is no such sketch.
    pub(super) fn find_sketch(&self, rule: u64) -> Option<usize> {
        self.sketches.iter().position(|sketch| sketch.rule == rule)
    }

    /// Merges the entry in a slot into the sketch at index `sketch`. Removes the entry and returns
    /// the freed capacity, in keys.
    pub(super) fn fold(
        &mut self,
        slot: EntryIndex,
        sketch: usize,
        now: Micros,
        rules: &RuleTable,
    ) -> usize {
        let entry = entry_at(&self.chunks, slot);
        self.sketches[sketch].fold(entry.key, &entry.state, entry.expires.time(), now);
        self.remove(slot, rules)
    }

    /// Returns whether the shard has room for another sketch if all its sketches have together
    /// `width` cells per row.
    pub(super) fn has_room_for_sketch(&self, width: usize) -> bool {
        self.sketches.len() < width / SKETCH_WIDTH_MIN
    }

    /// Adds a sketch of a rule. The sketches of the shard have together at most `width` cells per
    /// row, and must have room for another one.
    pub(super) fn add_sketch(&mut self, rule: &RuleIdentity, width: usize) {
        let each = width / (self.sketches.len() + 1).next_power_of_two();
        self.sketches.iter_mut().for_each(|sketch| sketch.set_width(each));
        self.sketches.push(Sketch::new(rule.key, rule.format, each));
    }

    /// Removes the expired sketches, and divides their cells among the others.
    pub(super) fn remove_expired_sketches(&mut self, now: Micros, width: usize) {
        self.sketches.retain(|sketch| sketch.expires > now);
        let each = width / self.sketches.len().next_power_of_two();
        self.sketches.iter_mut().for_each(|sketch| sketch.set_width(each));
    }

    /// Shrinks the slab if more than half of its slots are vacant, so that memory is freed after a
    /// flood of keys. Moves up to `moves` entries from the end of the slab to vacant slots.
    pub(super) fn compact(&mut self, moves: usize) {
        if (self.end as usize) <= ENTRIES_PER_CHUNK || self.free.len() * 2 <= self.end as usize {
            return;
        }
        let mut moved = 0;
        while let Some(last) = self.end.checked_sub(1) {
            if !self.entry(last).expires.is_never() {
                if moved == moves {
                    break;
                }
                // Slots above the end stay in the list until the loop is over.
                let vacant = std::iter::from_fn(|| self.free.pop()).find(|slot| *slot < last);
                let Some(vacant) = vacant else { break };
                self.relocate(last, vacant);
                moved += 1;
            }
            self.end = last;
        }
        let end = self.end;
        self.free.retain(|slot| *slot < end);
        self.free.shrink_to(self.free.len() * 2);
        self.chunks.truncate((end as usize).div_ceil(ENTRIES_PER_CHUNK));
        self.chunks.shrink_to(self.chunks.len() * 2);
        if self.index.capacity() > 4 * self.index.len().max(ENTRIES_PER_CHUNK) {
            let chunks = &self.chunks;
            let hash = |slot: &EntryIndex| entry_at(chunks, *slot).key.hash();
            self.index.shrink_to(self.index.len() * 2, hash);
        }
    }

    /// Moves an entry to a vacant slot and updates the index.
    fn relocate(&mut self, from: EntryIndex, to: EntryIndex) {
        let entry = std::mem::replace(self.entry_mut(from), VACANT_ENTRY);
        let hash = entry.key.hash();
        *self.entry_mut(to) = entry;
        if let Some(slot) = self.index.find_mut(hash, |slot| *slot == from) {
            *slot = to;
        }
    }

    /// Returns the number of slots, occupied or vacant, that a full round of
    /// [`reclaim`](Self::reclaim) checks.
    pub(super) fn slot_count(&self) -> usize {
        self.end as usize
    }

    /// Records the time of a call that uses this shard. Ignores a time up to [`REORDERING_MAX`]
    /// before the latest recorded time, because concurrent calls can arrive out of order. Records
    /// an even earlier time, which means that the clock was set back.
    pub(super) fn record_call_time(&mut self, now: Micros) {
        if now > self.latest_call || now.saturating_add(REORDERING_MAX) < self.latest_call {
            self.latest_call = now;
        }
    }

    /// Returns the time of the latest call that used this shard. Refunds use it as the current
    /// time, because a receipt contains only the time of its charge.
    pub(super) fn latest_call_time(&self) -> Micros {
        self.latest_call
    }

    /// Returns the heap memory that the shard uses, in bytes.
    pub(super) fn occupied_bytes(&self) -> usize {
        self.index.allocation_size()
            + self.chunks.len() * ENTRIES_PER_CHUNK * ENTRY_BYTES
            + self.chunks.capacity() * size_of::<Box<[Entry]>>()
            + self.free.capacity() * size_of::<EntryIndex>()
            + self.sketches.iter().map(Sketch::heap_bytes).sum::<usize>()
            + self.heap_bytes
    }

    /// Removes the entry in a slot and returns the freed capacity, in keys.
    pub(super) fn remove(&mut self, slot: EntryIndex, rules: &RuleTable) -> usize {
        let entry = std::mem::replace(self.entry_mut(slot), VACANT_ENTRY);
        if let Ok(found) = self.index.find_entry(entry.key.hash(), |at| *at == slot) {
            found.remove();
        }
        self.heap_bytes -= entry.state.heap_bytes();
        self.free.push(slot);
        let weight = weight(&entry.state);
        rules.subtract(entry.expires.rule(), weight);
        weight
    }

    fn add_slot(&mut self) -> EntryIndex {
        let slot = self.end;
        if slot as usize == self.chunks.len() * ENTRIES_PER_CHUNK {
            self.chunks.push(vec![VACANT_ENTRY; ENTRIES_PER_CHUNK].into_boxed_slice());
        }
        self.end += 1;
        slot
    }

    fn entry(&self, slot: EntryIndex) -> &Entry {
        entry_at(&self.chunks, slot)
    }

    fn entry_mut(&mut self, slot: EntryIndex) -> &mut Entry {
        &mut self.chunks[slot as usize / ENTRIES_PER_CHUNK][slot as usize % ENTRIES_PER_CHUNK]
    }
}

fn entry_at(chunks: &[Box<[Entry]>], slot: EntryIndex) -> &Entry {
    &chunks[slot as usize / ENTRIES_PER_CHUNK][slot as usize % ENTRIES_PER_CHUNK]
}

#[cfg(test)]
mod tests {
    use super::super::rules::RuleIdentity;
    use super::*;
    use crate::domain::fixtures;

    const EXPIRES: Micros = Micros::SECOND;

    fn key(n: u32) -> EntryKey {
        let identity = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        EntryKey::for_counter(identity)
    }

    fn state(count: u32) -> State {
        State::FixedWindow(fixed_window::State { start: Micros::ZERO, count })
    }

    /// Adds the n-th entry, which expires at [`EXPIRES`]. All entries have one rule, whose slot is
    /// returned.
    fn add(shard: &mut Shard, rules: &RuleTable, n: u32) -> RuleSlot {
        let rule = RuleIdentity::for_limit(&fixtures::fixed_window(5, Micros::SECOND));
        let slot = rules.add(&rule, 1);
        shard.insert(key(n), state(n), EXPIRES, slot);
        slot
    }

    #[test]
    fn a_removed_entry_no_longer_counts_against_its_rule() {
        let (mut shard, rules) = (Shard::default(), RuleTable::new());
        let rule = add(&mut shard, &rules, 1);
        add(&mut shard, &rules, 2);
        assert_eq!(rules.weight(rule), 2);
        assert_eq!(shard.reclaim(EXPIRES, 2, &rules, |_| false), 2);
        assert_eq!(rules.weight(rule), 0);
    }

    #[test]
    fn entries_can_be_added_after_an_empty_shard_was_compacted() {
        let (mut shard, rules) = (Shard::default(), RuleTable::new());
        for n in 0..300 {
            add(&mut shard, &rules, n);
        }
        assert_eq!(shard.reclaim(EXPIRES, 300, &rules, |_| false), 300);
        shard.compact(0);
        assert_eq!(shard.slot_count(), 0);
        for n in 0..300 {
            add(&mut shard, &rules, n);
        }
        for n in 0..300 {
            let slot = shard.find(key(n)).unwrap();
            assert_eq!(shard.state(slot), &state(n));
        }
    }

    #[test]
    fn searches_in_vain_check_no_more_slots_than_are_allowed_on_average() {
        let (mut shard, rules) = (Shard::default(), RuleTable::new());
        for n in 0..1_000 {
            add(&mut shard, &rules, n);
        }
        let searched = |shard: &mut Shard| {
            let mut checked = 0;
            shard.visit_entries(|_, _| {
                checked += 1;
                true
            });
            checked
        };
        for _ in 0..50 {
            shard.allow_visits(128, 0);
        }
        // One round is saved up, and no more.
        assert_eq!(searched(&mut shard), 1_000);
        let later = (0..100).map(|_| {
            shard.allow_visits(128, 0);
            searched(&mut shard)
        });
        assert!(later.eq(std::iter::repeat_n(128, 100)));
        shard.allow_visits(128, 0);
        shard.visit_entries(|_, _| false);
        assert_eq!(searched(&mut shard), 127, "unused slots are kept");
    }

    #[test]
    fn only_a_step_back_of_more_than_a_second_sets_back_the_latest_call() {
        let mut shard = Shard::default();
        for (now, latest) in [
            (5_000_000, 5_000_000),
            (4_000_000, 5_000_000),
            (3_999_999, 3_999_999),
            (4_000_000, 4_000_000),
        ] {
            shard.record_call_time(Micros(now));
            assert_eq!(shard.latest_call_time(), Micros(latest), "{now}");
        }
    }
}
