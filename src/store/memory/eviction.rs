//! Eviction in a full memory store: decides which new keys get an entry, which entries are folded
//! into a sketch, and which keys are refused.
//!
//! Folding an entry moves its state into the sketch of its rule and removes the entry. Folding
//! loses precision, but no hits: afterwards, the key may be refused too early, but it is never
//! admitted too often.
//!
//! Not here: the cells of a sketch (`sketch`), the capacity that each rule's entries use (`rules`).

use std::sync::TryLockError;
use std::sync::atomic::Ordering;

use super::entry_key::EntryKey;
use super::rules::{RuleIdentity, RuleSlot};
use super::shard::{EntryIndex, HEAP_BYTES_PER_KEY, Shard};
use super::sketch::{CellFormat, SKETCH_WIDTH_MIN, Sketch};
use super::{MemoryStore, RECLAIM_SLOTS};
use crate::domain::{Micros, Op};

/// Number of slots per shard that an insertion into a full store searches for expired entries. A
/// search takes about 100 ns.
const SLOTS_SEARCHED_WHEN_FULL: usize = 32;

/// Maximum number of other shards that an insertion into a full store searches if it finds no
/// expired entry in the shard of the new key. Locked shards are skipped.
const RECLAIM_SHARDS: usize = 4;

/// Minimum number of slots among which the entry to fold is chosen. A search takes about 100 ns.
const FOLD_SLOTS: usize = 32;

/// Average number of slots that may be searched for entries to fold, per key of capacity to be
/// claimed. Enough to find the entries of a rule that holds a hundredth of the shard. A bound on
/// each search instead would miss entries, or let every new key search the whole shard. Takes about
/// 400 ns.
const FOLD_SLOTS_ON_AVERAGE: usize = 128;

/// Maximum number of entries that are folded into sketches to make room for one entry. More than a
/// few are needed only when a concurrency counter's table of slots grows.
const FOLDED_ENTRIES_MAX: usize = 32;

/// Part of the store's capacity that is reserved for sketches: one in so many keys.
const SKETCH_SHARE: usize = 8;

/// Maximum number of cells per row of all sketches of a shard, in stores of 15 million keys and
/// more. To divide them takes about 50 µs.
const SHARD_WIDTH_MAX: usize = 4_096;

/// Returns the number of cells per row of all sketches of a shard together, for a store of
/// `max_keys` keys: a power of two, or 0 if the store is too small for sketches.
pub(super) fn shard_sketch_width(max_keys: usize, shards: usize) -> usize {
    let bytes = max_keys / SKETCH_SHARE / shards * HEAP_BYTES_PER_KEY;
    let width = (bytes / Sketch::bytes_max(SKETCH_WIDTH_MIN) * SKETCH_WIDTH_MIN).checked_ilog2();
    width.map_or(0, |log| 1 << log).min(SHARD_WIDTH_MAX)
}

/// Returns the maximum capacity that the sketches of a shard use, in keys. `width` is their number
/// of cells per row.
pub(super) fn shard_sketch_weight(width: usize) -> usize {
    Sketch::bytes_max(width).div_ceil(HEAP_BYTES_PER_KEY)
}

impl MemoryStore {
    /// Returns the capacity in use, in keys, at which the store has no room for new entries:
    /// `max_keys` minus the unused part of the reserve for sketches.
    fn full_weight(&self) -> u64 {
        self.entry_capacity + self.stats.sketch_weight.load(Ordering::Relaxed)
    }

    /// Returns whether the store has no room for new entries.
    pub(super) fn is_full(&self) -> bool {
        self.stats.live.load(Ordering::Relaxed) >= self.full_weight()
    }

    /// Claims `weight` keys of the store's capacity for entries. If the store has no room for them,
    /// claims nothing and returns false.
    fn claim(&self, weight: usize) -> bool {
        let (weight, max) = (weight as u64, self.full_weight());
        let more = |live: u64| (live + weight <= max).then_some(live + weight);
        self.stats.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Releases `weight` keys of the store's capacity.
    pub(super) fn release(&self, weight: usize) {
        self.stats.live.fetch_sub(weight as u64, Ordering::Relaxed);
    }

    /// Releases the capacity that expired entries used, and adds it to the eviction statistics.
    /// `weight` is in keys.
    pub(super) fn release_expired(&self, weight: usize) {
        if weight > 0 {
            self.release(weight);
            self.stats.evicted.fetch_add(weight as u64, Ordering::Relaxed);
        }
    }
}

/// Shard in which a call makes room for its entries. The caller holds the lock of the shard.
pub(super) struct ShardRoom<'s> {
    pub(super) store: &'s MemoryStore,
    pub(super) shard: &'s mut Shard,
    pub(super) now: Micros,
    /// Returns whether a key is one of the call, whose entry stays.
    pub(super) is_kept: &'s dyn Fn(EntryKey) -> bool,
}

impl ShardRoom<'_> {
    /// Removes a few expired entries from the shard before an insertion. If the store is full,
    /// searches more slots of the shard. If no entry in them has expired, searches other shards.
    /// Skips other shards that are locked, so that a caller that holds locks cannot deadlock.
    pub(super) fn reclaim_expired(&mut self) {
        let ShardRoom { store, now, is_kept, .. } = *self;
        store.release_expired(self.shard.reclaim(now, RECLAIM_SLOTS, &store.rules, is_kept));
        if !store.is_full() {
            return;
        }
        let slots = SLOTS_SEARCHED_WHEN_FULL;
        let mut freed = self.shard.reclaim(now, slots, &store.rules, is_kept);
        for _ in 0..RECLAIM_SHARDS {
            if freed > 0 {
                break;
            }
            let at = store.next_shard.fetch_add(1, Ordering::Relaxed) % store.shards.len();
            freed = match store.shards[at].0.try_lock() {
                Ok(mut other) => other.reclaim(now, slots, &store.rules, |_| false),
                Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => 0,
            };
        }
        store.release_expired(freed);
    }

    /// Claims capacity for a new entry of a rule and returns the rule's slot. In a full store, it
    /// displaces entries of rules that are above their fair share and hold more than this rule.
    /// Returns `None` if there is no room for the entry.
    pub(super) fn claim_entry(&mut self, rule: &RuleIdentity, weight: usize) -> Option<RuleSlot> {
        let MemoryStore { rules, entry_capacity, .. } = self.store;
        // Entries that cannot be folded must leave room for other rules.
        if rule.format == CellFormat::None
            && rules.weight_of(rule) + weight as u64 > entry_capacity / 8 * 7
        {
            return None;
        }
        let is_claimed = self.store.claim(weight) || {
            self.allow_visits(weight);
            let held = rules.weight_of(rule);
            let share = rules.share(*entry_capacity, held > 0);
            let floor = share.max(held + weight as u64);
            (floor == share || floor < rules.weight_max())
                && self.fold_until_claimed(weight, floor, None)
        };
        is_claimed.then(|| rules.add(rule, weight))
    }

    /// Claims or releases the difference in capacity when an entry grows or shrinks. If the store
    /// is full, makes room by folding other entries. If that fails, claims nothing and returns
    /// false for an [`Op::Take`] or [`Op::Hold`]. For other operations, exceeds the store's capacity instead, by no
    /// more than the rounding of the entry's buffer size.
    pub(super) fn resize(&mut self, rule: RuleSlot, op: Op, (from, to): (usize, usize)) -> bool {
        let MemoryStore { rules, entry_capacity, stats, .. } = self.store;
        if let Some(less) = from.checked_sub(to) {
            if less > 0 {
                self.store.release(less);
                rules.subtract(rule, less);
            }
            return true;
        }
        let more = to - from;
        let share = rules.share(*entry_capacity, true);
        if !self.store.claim(more) {
            self.allow_visits(more);
            if !self.fold_until_claimed(more, share, Some(rule)) {
                if matches!(op, Op::Take { .. } | Op::Hold { .. }) {
                    return false;
                }
                stats.live.fetch_add(more as u64, Ordering::Relaxed);
            }
        }
        rules.add_to_slot(rule, more);
        true
    }

    fn allow_visits(&mut self, weight: usize) {
        self.shard.allow_visits(weight * FOLD_SLOTS_ON_AVERAGE, FOLDED_ENTRIES_MAX * FOLD_SLOTS);
    }

    /// Folds up to [`FOLDED_ENTRIES_MAX`] entries until `weight` keys of capacity can be claimed.
    /// Folds only entries of `resized_rule` and of rules that use more than `floor`, at least the
    /// fair share of each rule. Returns false if there is still no room.
    fn fold_until_claimed(
        &mut self,
        weight: usize,
        floor: u64,
        resized_rule: Option<RuleSlot>,
    ) -> bool {
        for _ in 0..FOLDED_ENTRIES_MAX {
            if !self.fold_one(floor, resized_rule) {
                return false;
            }
            if self.store.claim(weight) {
                return true;
            }
        }
        false
    }

    /// Folds one entry into the sketch of its rule. Searches the shard for an entry of
    /// `resized_rule` or of a rule that uses more than `floor`. Of those in the same [`FOLD_SLOTS`]
    /// slots, chooses one of the rule that uses the most capacity. Returns false if it finds none.
    fn fold_one(&mut self, floor: u64, resized_rule: Option<RuleSlot>) -> bool {
        let ShardRoom { store, is_kept, now, .. } = *self;
        let mut fullest: Option<(u64, EntryIndex)> = None;
        let mut seen = 0;
        self.shard.visit_entries(|shard, slot| {
            let rule = shard.rule(slot);
            let held = store.rules.weight(rule);
            let is_above = held > floor || resized_rule == Some(rule);
            if is_above
                && fullest.is_none_or(|(most, _)| held > most)
                && !is_kept(shard.key(slot))
                && store.rules.rule(rule).is_some_and(|rule| store.can_fold(shard, &rule))
            {
                fullest = Some((held, slot));
            }
            seen += 1;
            fullest.is_none() || seen < FOLD_SLOTS
        });
        let Some((_, slot)) = fullest else { return false };
        let Some(rule) = store.rules.rule(self.shard.rule(slot)) else { return false };
        let Some(sketch) = store.find_or_create_sketch(self.shard, &rule, now) else {
            return false;
        };
        store.release(self.shard.fold(slot, sketch, now, &store.rules));
        store.stats.folded.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl MemoryStore {
    /// Returns whether entries of the rule can be folded into a sketch. The state of the rule's
    /// algorithm must fit into a cell, and the shard must have a sketch of the rule or room for one.
    fn can_fold(&self, shard: &Shard, rule: &RuleIdentity) -> bool {
        rule.format != CellFormat::None
            && (shard.has_room_for_sketch(self.shard_sketch_width)
                || shard.find_sketch(rule.key).is_some())
    }

    /// Returns the index of the rule's sketch in the shard. Creates the sketch if it does not
    /// exist, and returns `None` if the shard has too many sketches or the rule's states do not fit
    /// into one. The sketch does not expire before the call ends.
    pub(super) fn find_or_create_sketch(
        &self,
        shard: &mut Shard,
        rule: &RuleIdentity,
        now: Micros,
    ) -> Option<usize> {
        let at = shard.find_sketch(rule.key).or_else(|| {
            if !shard.has_room_for_sketch(self.shard_sketch_width) {
                self.remove_expired_sketches(shard, now);
            }
            if !self.can_fold(shard, rule) {
                return None;
            }
            if shard.sketches.is_empty() {
                // In this order, so that other threads never see more room than there is.
                self.stats.live.fetch_add(self.shard_sketch_weight, Ordering::Relaxed);
                self.stats.sketch_weight.fetch_add(self.shard_sketch_weight, Ordering::Relaxed);
            }
            shard.add_sketch(rule, self.shard_sketch_width);
            Some(shard.sketches.len() - 1)
        })?;
        shard.sketches[at].keep_until(now.saturating_add(Micros(1)));
        Some(at)
    }

    /// Removes those sketches of a shard whose cells have all expired.
    pub(super) fn remove_expired_sketches(&self, shard: &mut Shard, now: Micros) {
        if shard.sketches.iter().all(|sketch| sketch.expires > now) {
            return;
        }
        shard.remove_expired_sketches(now, self.shard_sketch_width);
        if shard.sketches.is_empty() {
            self.stats.sketch_weight.fetch_sub(self.shard_sketch_weight, Ordering::Relaxed);
            self.stats.live.fetch_sub(self.shard_sketch_weight, Ordering::Relaxed);
        }
    }
}
