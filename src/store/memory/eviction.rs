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

use super::rules::{RuleIdentity, RuleSlot};
use super::shard::{EntryIndex, HEAP_BYTES_PER_KEY, Shard, weight};
use super::sketch::{CellFormat, Sketch};
use super::{MemoryStore, RECLAIM_SLOTS};
use crate::domain::{Micros, Op};

/// Number of slots per shard that an insertion into a full store searches for expired entries. A
/// search takes about 100 ns.
const SLOTS_SEARCHED_WHEN_FULL: usize = 32;

/// Maximum number of other shards that an insertion into a full store searches if it finds no
/// expired entry in the shard of the new key. Locked shards are skipped.
const RECLAIM_SHARDS: usize = 4;

/// Number of slots that are searched for an entry to fold into a sketch. A search takes about 100
/// ns.
const FOLD_SLOTS: usize = 32;

/// Maximum number of entries that are folded into sketches to make room for one entry, not counting
/// those that a new sketch replaces. More than a few are needed only when a concurrency counter's
/// table of slots grows.
const FOLDED_ENTRIES_MAX: usize = 32;

/// Maximum number of cells per row of a rule's sketch, summed over all shards. Four rows with 16
/// bytes per cell use 4 MiB.
const SKETCH_WIDTH_MAX: usize = 65_536;

/// Ratio of the store's capacity, in keys, to the number of cells per row of a rule's sketch,
/// summed over all shards. The number of cells is rounded up to a power of two and is at most
/// [`SKETCH_WIDTH_MAX`]. In a store too small to reach this maximum, a sketch uses about a twelfth
/// of the store's memory.
const KEYS_PER_CELL: usize = 16;

/// Maximum number of sketches per shard, one per rule. Summed over all shards, they use at most 32
/// MiB.
const SKETCHES_PER_SHARD_MAX: usize = 8;

/// Minimum time between a failed attempt to make room for a sketch in a shard and the next attempt,
/// because each attempt searches the whole shard.
const SKETCH_RETRY_INTERVAL: Micros = Micros::SECOND;

/// Returns the number of cells per row of a sketch in one shard, for a store of `max_keys` keys.
pub(super) fn sketch_width(max_keys: usize, shards: usize) -> usize {
    ((max_keys / KEYS_PER_CELL).next_power_of_two().min(SKETCH_WIDTH_MAX) / shards).max(1)
}

/// Returns the part of the store's capacity that is reserved for sketches, in keys: enough for one
/// sketch in every shard, but at most a sixteenth of the capacity. Further sketches displace
/// entries.
pub(super) fn sketch_reserve(max_keys: usize, shards: usize) -> usize {
    (shards * sketch_weight(sketch_width(max_keys, shards))).min(max_keys / 16)
}

/// Returns the capacity that a sketch uses in one shard, in keys. `width` is the number of cells
/// per row.
pub(super) fn sketch_weight(width: usize) -> usize {
    Sketch::bytes(width).div_ceil(HEAP_BYTES_PER_KEY)
}

impl MemoryStore {
    /// Returns the capacity in use, in keys, at which the store has no room for new entries:
    /// `max_keys` minus the unused part of the sketch reserve.
    fn full_weight(&self) -> u64 {
        let sketches = self.stats.sketch_weight.load(Ordering::Relaxed);
        self.max_keys - self.sketch_reserve.saturating_sub(sketches)
    }

    /// Returns the capacity that entries can use, in keys: `max_keys` minus the capacity that
    /// sketches use and the unused part of the sketch reserve.
    fn entry_capacity(&self) -> u64 {
        self.full_weight().saturating_sub(self.stats.sketch_weight.load(Ordering::Relaxed))
    }

    /// Returns whether the store has no room for new entries.
    pub(super) fn is_full(&self) -> bool {
        self.stats.live.load(Ordering::Relaxed) >= self.full_weight()
    }

    /// Claims `weight` keys of the store's capacity. If more than `max` keys would then be in use,
    /// claims nothing and returns false.
    fn claim(&self, weight: usize, max: u64) -> bool {
        let weight = weight as u64;
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

    /// Removes a few expired entries from a shard before an insertion. If the store is full,
    /// searches more slots of the shard. If no entry in them has expired, searches other shards.
    /// Skips other shards that are locked, so that a caller that holds locks cannot deadlock. Keeps
    /// any entry of `shard` for which `in_use` returns true.
    pub(super) fn reclaim_expired(
        &self,
        shard: &mut Shard,
        now: Micros,
        in_use: impl Fn(EntryIndex) -> bool,
    ) {
        self.release_expired(shard.reclaim(now, RECLAIM_SLOTS, &self.rules, &in_use));
        if !self.is_full() {
            return;
        }
        let mut freed = shard.reclaim(now, SLOTS_SEARCHED_WHEN_FULL, &self.rules, &in_use);
        for _ in 0..RECLAIM_SHARDS {
            if freed > 0 {
                break;
            }
            let at = self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            freed = match self.shards[at].0.try_lock() {
                Ok(mut other) => {
                    other.reclaim(now, SLOTS_SEARCHED_WHEN_FULL, &self.rules, |_| false)
                }
                Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => 0,
            };
        }
        self.release_expired(freed);
    }

    /// Claims capacity for a new entry of a rule and returns the rule's slot. In a full store, a
    /// rule below its fair share displaces entries of rules above their fair share. Returns `None`
    /// if there is no room for the entry.
    pub(super) fn claim_entry(
        &self,
        shard: &mut Shard,
        rule: &RuleIdentity,
        weight: usize,
        now: Micros,
        in_use: &dyn Fn(EntryIndex) -> bool,
    ) -> Option<RuleSlot> {
        // Entries that cannot be folded must leave room for other rules.
        if rule.format == CellFormat::None
            && self.rules.weight_of(rule) + weight as u64 > self.entry_capacity() / 8 * 7
        {
            return None;
        }
        let is_claimed = self.claim(weight, self.full_weight()) || {
            let held = self.rules.weight_of(rule);
            let share = self.rules.share(self.entry_capacity(), held > 0);
            held + weight as u64 <= share
                && self.fold_until_claimed(shard, weight, share, None, now, in_use)
        };
        is_claimed.then(|| self.rules.add(rule, weight))
    }

    /// Claims or releases the difference in capacity when an entry grows or shrinks. If the store
    /// is full, makes room by folding other entries. If that fails, claims nothing and returns
    /// false for an [`Op::Take`]. For other operations, exceeds the store's capacity instead, by no
    /// more than the rounding of the entry's buffer size.
    pub(super) fn resize(
        &self,
        shard: &mut Shard,
        rule: RuleSlot,
        op: Op,
        (from, to): (usize, usize),
        now: Micros,
        in_use: &dyn Fn(EntryIndex) -> bool,
    ) -> bool {
        if let Some(less) = from.checked_sub(to) {
            if less > 0 {
                self.release(less);
                self.rules.subtract(rule, less);
            }
            return true;
        }
        let more = to - from;
        let share = self.rules.share(self.entry_capacity(), true);
        if !self.claim(more, self.full_weight())
            && !self.fold_until_claimed(shard, more, share, Some(rule), now, in_use)
        {
            if matches!(op, Op::Take { .. }) {
                return false;
            }
            self.stats.live.fetch_add(more as u64, Ordering::Relaxed);
        }
        self.rules.add_to_slot(rule, more);
        true
    }

    /// Folds up to [`FOLDED_ENTRIES_MAX`] entries until `weight` keys of capacity can be claimed.
    /// Folds only entries of `resized_rule` and of rules that use more than `share`, the fair share
    /// of each rule. Returns false if there is still no room.
    fn fold_until_claimed(
        &self,
        shard: &mut Shard,
        weight: usize,
        share: u64,
        resized_rule: Option<RuleSlot>,
        now: Micros,
        in_use: &dyn Fn(EntryIndex) -> bool,
    ) -> bool {
        for _ in 0..FOLDED_ENTRIES_MAX {
            if !self.fold_one(shard, share, resized_rule, now, in_use) {
                return false;
            }
            if self.claim(weight, self.full_weight()) {
                return true;
            }
        }
        false
    }

    /// Folds one entry into the sketch of its rule. Chooses the entry among the next [`FOLD_SLOTS`]
    /// slots of the shard, from the rule that uses the most capacity. Considers only `resized_rule`
    /// and rules above their fair share. Returns false if no entry can be folded.
    fn fold_one(
        &self,
        shard: &mut Shard,
        share: u64,
        resized_rule: Option<RuleSlot>,
        now: Micros,
        in_use: &dyn Fn(EntryIndex) -> bool,
    ) -> bool {
        let mut fullest: Option<(u64, EntryIndex)> = None;
        shard.visit_entries(FOLD_SLOTS, |shard, slot| {
            let rule = shard.rule(slot);
            let held = self.rules.weight(rule);
            let is_above = held > share || resized_rule == Some(rule);
            if is_above
                && fullest.is_none_or(|(most, _)| held > most)
                && !in_use(slot)
                && self.rules.rule(rule).is_some_and(|rule| can_fold(shard, &rule))
            {
                fullest = Some((held, slot));
            }
            true
        });
        let Some((_, slot)) = fullest else { return false };
        let key = shard.key(slot);
        let Some(rule) = self.rules.rule(shard.rule(slot)) else { return false };
        let Some(sketch) = self.find_or_create_sketch(shard, &rule, now, in_use) else {
            return false;
        };
        // Making the sketch may have folded that entry already.
        if shard.find(key) == Some(slot) {
            let freed = shard.fold(slot, sketch, now, &self.rules);
            self.release(freed);
            self.stats.folded.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Returns the index of the rule's sketch in the shard. Creates the sketch if it does not
    /// exist, and returns `None` if there is no room for it or the rule's states do not fit into a
    /// sketch. The sketch does not expire before the call ends.
    pub(super) fn find_or_create_sketch(
        &self,
        shard: &mut Shard,
        rule: &RuleIdentity,
        now: Micros,
        in_use: &dyn Fn(EntryIndex) -> bool,
    ) -> Option<usize> {
        let kept_until = now.saturating_add(Micros(1));
        if let Some(at) = shard.find_sketch(rule.key) {
            shard.sketches[at].keep_until(kept_until);
            return Some(at);
        }
        if shard.sketches.len() == SKETCHES_PER_SHARD_MAX {
            self.remove_expired_sketches(shard, now);
        }
        let denied = shard.sketch_denied_until;
        // After a step back of the clock, the time may be far away.
        let is_denied = now < denied && denied <= now.saturating_add(SKETCH_RETRY_INTERVAL);
        if is_denied || !can_fold(shard, rule) {
            return None;
        }
        if self.claim(self.sketch_weight, self.max_keys) {
            shard.sketches.push(Sketch::new(rule.key, rule.format, self.sketch_width));
        } else if !self.replace_entries_with_sketch(shard, rule, now, in_use) {
            shard.sketch_denied_until = now.saturating_add(SKETCH_RETRY_INTERVAL);
            return None;
        }
        self.stats.sketch_weight.fetch_add(self.sketch_weight as u64, Ordering::Relaxed);
        let at = shard.sketches.len() - 1;
        shard.sketches[at].keep_until(kept_until);
        Some(at)
    }

    /// Folds entries of a rule to make room for a sketch, then creates the sketch. Returns false and
    /// changes nothing if the rule has too few entries in this shard.
    fn replace_entries_with_sketch(
        &self,
        shard: &mut Shard,
        rule: &RuleIdentity,
        now: Micros,
        in_use: &dyn Fn(EntryIndex) -> bool,
    ) -> bool {
        let is_foldable =
            |shard: &Shard, slot| self.rules.rule(shard.rule(slot)) == Some(*rule) && !in_use(slot);
        let mut found = 0;
        shard.visit_entries(shard.slot_count(), |shard, slot| {
            if is_foldable(shard, slot) {
                found += weight(shard.state(slot));
            }
            found < self.sketch_weight
        });
        if found < self.sketch_weight {
            return false;
        }
        let at = shard.sketches.len();
        shard.sketches.push(Sketch::new(rule.key, rule.format, self.sketch_width));
        let (mut freed, mut folded) = (0, 0);
        shard.visit_entries(shard.slot_count(), |shard, slot| {
            if is_foldable(shard, slot) {
                freed += shard.fold(slot, at, now, &self.rules);
                folded += 1;
            }
            freed < self.sketch_weight
        });
        self.release(freed.saturating_sub(self.sketch_weight));
        self.stats.folded.fetch_add(folded, Ordering::Relaxed);
        true
    }

    /// Removes those sketches of a shard whose cells have all expired.
    pub(super) fn remove_expired_sketches(&self, shard: &mut Shard, now: Micros) {
        let weight = shard.remove_expired_sketches(now) * self.sketch_weight;
        if weight > 0 {
            self.stats.sketch_weight.fetch_sub(weight as u64, Ordering::Relaxed);
            self.release(weight);
        }
    }
}

/// Returns whether entries of the rule can be folded into a sketch. The state of the rule's
/// algorithm must fit into a cell, and the shard must have a sketch of the rule or room for one.
fn can_fold(shard: &Shard, rule: &RuleIdentity) -> bool {
    rule.format != CellFormat::None
        && (shard.sketches.len() < SKETCHES_PER_SHARD_MAX || shard.find_sketch(rule.key).is_some())
}
