//! Table of the rules in the memory store: how much capacity the entries of each rule use, and the
//! fair share of a rule.
//!
//! In this module, a rule is one limit of a policy rule, with its algorithm and window, so that all
//! counters of a rule have states of the same kind. The fair share is the capacity that entries can
//! use, divided by the number of rules that have entries.
//!
//! Not here: the entries (`shard`), the counters of keys without an entry (`sketch`).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::sketch::CellFormat;
use crate::domain::{Limit, Lock};

/// Number of slots in the rule table, which takes 160 KiB. Rules that cannot get a slot of their
/// own share slot 0, and their entries are never folded into a sketch.
const RULES_MAX: usize = 4_096;

/// Maximum number of slots that a lookup in the rule table probes. If other rules use all of these
/// slots, the rule uses the shared slot 0.
const PROBES_MAX: usize = 8;

/// Slot of the rule table that all rules without a slot of their own share.
const SHARED_SLOT: RuleSlot = RuleSlot(0);

/// Number of keys by which the weight of a rule grows until the maximum of all rules is updated,
/// because all threads share that number.
const WEIGHT_MAX_STEP: u64 = 64;

/// Key of a slot of the rule table while the slot is being reassigned. No rule has this key.
const REASSIGNING_KEY: u64 = u64::MAX;

/// Index of a rule's slot in the [`RuleTable`]. Every entry of the memory store contains this
/// index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleSlot(pub(super) u16);

/// Identity of a rule in the memory store: the id of its limit and the format of its sketch cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleIdentity {
    /// Hash of the limit's id and the format of the sketch cells; never 0.
    pub(super) key: u64,
    limit_id: u64,
    pub(super) format: CellFormat,
}

impl RuleIdentity {
    /// Returns the identity of the rule to which the counters of a limit belong.
    pub(super) fn for_limit(limit: &Limit) -> RuleIdentity {
        RuleIdentity::new(limit.limit_id, CellFormat::for_limit(limit))
    }

    /// Returns the identity of the blocks of a limit, which fit into no sketch.
    pub(super) fn for_blocks(limit: &Limit) -> RuleIdentity {
        RuleIdentity::new(limit.limit_id, CellFormat::None)
    }

    fn new(limit_id: u64, format: CellFormat) -> RuleIdentity {
        // The format is part of the identity, so that a changed algorithm never reads the cells of
        // the former one. The odd factor (2^64 / golden ratio) spreads small ids in tests, too.
        let key = (limit_id ^ format.encode().rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        RuleIdentity { key: key.clamp(1, REASSIGNING_KEY - 1), limit_id, format }
    }
}

/// Report that new keys of a rule got no entry, because the memory store was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Id of the rule's limit, as in [`Limit::limit_id`].
    pub limit_id: u64,
    /// Whether new keys of the rule are refused. If false, the keys are counted in a sketch.
    pub is_refusing: bool,
}

/// Slot of the rule table, with the identity of a rule and the capacity that its entries use.
#[derive(Debug, Default)]
struct RuleUsage {
    /// Key that identifies the rule; 0 if the slot has never been used.
    key: AtomicU64,
    limit_id: AtomicU64,
    format: AtomicU64,
    /// Capacity that the rule's entries use, in keys.
    weight: AtomicU64,
    /// Overflow bits of the rule, [`SKETCHED_BIT`] and [`REFUSED_BIT`]. The low four bits contain
    /// the overflows since the last call of [`RuleTable::new_overflows`]. The high four bits
    /// contain those that have been reported since the store became full.
    overflow: AtomicU8,
}

/// Bit of [`RuleUsage::overflow`] that is set when a new key of the rule is counted in a sketch.
const SKETCHED_BIT: u8 = 1;
/// Bit of [`RuleUsage::overflow`] that is set when a new key of the rule is refused.
const REFUSED_BIT: u8 = 2;
/// Position of the first bit of [`RuleUsage::overflow`] that records a reported overflow. The bits
/// below it record overflows that are not reported yet.
const REPORTED_SHIFT: u8 = 4;

/// Hash table from each rule to the capacity that its entries use. Lock-free, except that assigning
/// a slot to a rule takes a lock.
#[derive(Debug)]
pub(super) struct RuleTable {
    slots: Box<[RuleUsage]>,
    /// Approximate number of rules that have entries, corrected by [`recount`](Self::recount).
    active_rules: AtomicU64,
    /// Maximum weight of a rule since the last [`recount`](Self::recount), in keys.
    weight_max: AtomicU64,
    assignment_lock: Lock<()>,
}

impl RuleTable {
    /// Creates an empty table.
    pub(super) fn new() -> RuleTable {
        RuleTable {
            slots: (0..RULES_MAX).map(|_| RuleUsage::default()).collect(),
            active_rules: AtomicU64::new(0),
            weight_max: AtomicU64::new(0),
            assignment_lock: Lock::default(),
        }
    }

    /// Adds `weight` keys to the capacity that a rule's entries use, and returns the rule's slot.
    /// Assigns a slot if the rule has none.
    pub(super) fn add(&self, rule: &RuleIdentity, weight: usize) -> RuleSlot {
        loop {
            let slot = self.find_or_assign_slot(rule);
            let usage = &self.slots[usize::from(slot.0)];
            let before = usage.weight.fetch_add(weight as u64, Ordering::SeqCst);
            // `assign` changes the key first and then reads the weight; here the order is reversed,
            // so that at least one side notices the other.
            if slot == SHARED_SLOT || usage.key.load(Ordering::SeqCst) == rule.key {
                if before == 0 {
                    self.active_rules.fetch_add(1, Ordering::Relaxed);
                }
                self.raise_weight_max(before, weight as u64);
                return slot;
            }
            usage.weight.fetch_sub(weight as u64, Ordering::SeqCst);
        }
    }

    /// Adds `weight` keys to the capacity that the entries of the rule in `slot` use. The rule must
    /// already have an entry.
    pub(super) fn add_to_slot(&self, slot: RuleSlot, weight: usize) {
        let weight = weight as u64;
        let before = self.slots[usize::from(slot.0)].weight.fetch_add(weight, Ordering::SeqCst);
        self.raise_weight_max(before, weight);
    }

    fn raise_weight_max(&self, before: u64, more: u64) {
        let after = before + more;
        if before / WEIGHT_MAX_STEP < after / WEIGHT_MAX_STEP {
            self.weight_max.fetch_max(after, Ordering::Relaxed);
        }
    }

    /// Returns the maximum capacity that the entries of any rule use, in keys. Too low by less than
    /// [`WEIGHT_MAX_STEP`] keys, and too high for up to a second after entries have been removed.
    pub(super) fn weight_max(&self) -> u64 {
        self.weight_max.load(Ordering::Relaxed)
    }

    /// Subtracts `weight` keys from the capacity that the entries of the rule in `slot` use.
    pub(super) fn subtract(&self, slot: RuleSlot, weight: usize) {
        let weight = weight as u64;
        if self.slots[usize::from(slot.0)].weight.fetch_sub(weight, Ordering::SeqCst) == weight {
            let less = |active: u64| Some(active.saturating_sub(1));
            let _ = self.active_rules.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Returns the capacity that the entries of the rule in `slot` use, in keys.
    pub(super) fn weight(&self, slot: RuleSlot) -> u64 {
        self.slots[usize::from(slot.0)].weight.load(Ordering::Relaxed)
    }

    /// Returns the capacity that a rule's entries use, in keys; 0 if the rule has no slot yet.
    pub(super) fn weight_of(&self, rule: &RuleIdentity) -> u64 {
        self.find_slot(rule).map_or(0, |slot| self.weight(slot))
    }

    /// Returns the rule in a slot, or `None` for the shared slot. Call this only while the rule has
    /// an entry, because otherwise the slot may be reassigned.
    pub(super) fn rule(&self, slot: RuleSlot) -> Option<RuleIdentity> {
        if slot == SHARED_SLOT {
            return None;
        }
        let usage = &self.slots[usize::from(slot.0)];
        let format = CellFormat::decode(usage.format.load(Ordering::Relaxed));
        Some(RuleIdentity::new(usage.limit_id.load(Ordering::Relaxed), format))
    }

    /// Returns the fair share of a rule, in keys: `total` divided by the number of rules that have
    /// entries. If `holds_entries` is false, the rule is about to get its first entry and is
    /// counted too.
    pub(super) fn share(&self, total: u64, holds_entries: bool) -> u64 {
        let rules = self.active_rules.load(Ordering::Relaxed) + u64::from(!holds_entries);
        total / rules.max(1)
    }

    /// Recounts the rules that have entries, and their maximum weight. Called every second, because
    /// the running count can drift when a slot is reassigned while an entry is added.
    pub(super) fn recount(&self) {
        let weights = || self.slots.iter().map(|usage| usage.weight.load(Ordering::Relaxed));
        let active = weights().filter(|weight| *weight > 0).count();
        self.active_rules.store(active as u64, Ordering::Relaxed);
        self.weight_max.store(weights().max().unwrap_or(0), Ordering::Relaxed);
    }

    /// Records that a new key of the rule got no entry because the store is full. `is_refusing` is
    /// true if the check was refused, and false if its hits were counted in a sketch.
    pub(super) fn record_overflow(&self, rule: &RuleIdentity, is_refusing: bool) {
        let bit = if is_refusing { REFUSED_BIT } else { SKETCHED_BIT };
        let usage = &self.slots[usize::from(self.find_or_assign_slot(rule).0)];
        if usage.overflow.load(Ordering::Relaxed) & bit == 0 {
            usage.overflow.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Returns the overflows recorded since the last call: at most one per rule for each kind of
    /// overflow (counted in a sketch, refused). While the store stays full (`is_full`), an overflow
    /// that has been reported is not reported again.
    pub(super) fn new_overflows(&self, is_full: bool) -> Vec<Overflow> {
        let mut begun = Vec::new();
        for usage in &self.slots {
            let bits = usage.overflow.load(Ordering::Relaxed);
            if bits == 0 {
                continue;
            }
            let (noted, reported) = (bits & 0xf, bits >> REPORTED_SHIFT);
            for bit in [SKETCHED_BIT, REFUSED_BIT] {
                if noted & bit != 0 && reported & bit == 0 {
                    let limit_id = usage.limit_id.load(Ordering::Relaxed);
                    begun.push(Overflow { limit_id, is_refusing: bit == REFUSED_BIT });
                }
            }
            // While the store stays full, an overflow is one overflow, however often it pauses.
            let kept = if is_full { (noted | reported) << REPORTED_SHIFT } else { 0 };
            usage.overflow.store(kept, Ordering::Relaxed);
        }
        begun
    }

    fn probe_sequence(rule: &RuleIdentity) -> impl Iterator<Item = usize> {
        let first = (rule.key >> 32) as usize;
        (0..PROBES_MAX).map(move |step| 1 + (first + step) % (RULES_MAX - 1))
    }

    fn find_slot(&self, rule: &RuleIdentity) -> Option<RuleSlot> {
        let at = Self::probe_sequence(rule)
            .find(|at| self.slots[*at].key.load(Ordering::SeqCst) == rule.key)?;
        u16::try_from(at).ok().map(RuleSlot)
    }

    /// Returns the slot of a rule. If the rule has no slot, assigns one.
    fn find_or_assign_slot(&self, rule: &RuleIdentity) -> RuleSlot {
        self.find_slot(rule).unwrap_or_else(|| self.assign(rule))
    }

    /// Assigns a slot to a rule. The slot must be unused, or its former rule must have no entries
    /// left. Returns [`SHARED_SLOT`] if there is no such slot.
    fn assign(&self, rule: &RuleIdentity) -> RuleSlot {
        let _assigning = self.assignment_lock.lock();
        if let Some(slot) = self.find_slot(rule) {
            return slot;
        }
        for at in Self::probe_sequence(rule) {
            let usage = &self.slots[at];
            let former = usage.key.swap(REASSIGNING_KEY, Ordering::SeqCst);
            if usage.weight.load(Ordering::SeqCst) > 0 {
                usage.key.store(former, Ordering::SeqCst);
                continue;
            }
            usage.limit_id.store(rule.limit_id, Ordering::Relaxed);
            usage.format.store(rule.format.encode(), Ordering::Relaxed);
            usage.overflow.store(0, Ordering::Relaxed);
            usage.key.store(rule.key, Ordering::SeqCst);
            return u16::try_from(at).map_or(SHARED_SLOT, RuleSlot);
        }
        SHARED_SLOT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Micros;

    fn rule(limit_id: u64) -> RuleIdentity {
        RuleIdentity::new(limit_id, CellFormat::FixedWindow)
    }

    #[test]
    fn rules_that_have_entries_share_the_store_equally() {
        let table = RuleTable::new();
        assert_eq!(table.share(900, false), 900);
        let first = table.add(&rule(1), 10);
        table.add(&rule(2), 1);
        assert_eq!((table.share(900, true), table.share(900, false)), (450, 300));
        assert_eq!((table.weight(first), table.weight_of(&rule(3))), (10, 0));
        table.subtract(first, 10);
        assert_eq!(table.share(900, true), 900);
        assert_eq!(table.rule(first), Some(rule(1)));
    }

    #[test]
    fn a_limit_whose_sketch_format_changes_is_another_rule() {
        let window = |seconds| CellFormat::SlidingWindow { length: Micros::from_secs(seconds) };
        let formats = [CellFormat::FixedWindow, CellFormat::Bucket, window(1), window(2)];
        let table = RuleTable::new();
        let slots = formats.map(|format| table.add(&RuleIdentity::new(7, format), 1));
        for (format, slot) in formats.into_iter().zip(slots) {
            let rule = RuleIdentity::new(7, format);
            assert_eq!((table.rule(slot), table.weight_of(&rule)), (Some(rule), 1));
        }
    }

    #[test]
    fn a_slot_is_reassigned_only_when_its_rule_has_no_entries() {
        let table = RuleTable::new();
        let slots: Vec<_> = (0..50_000).map(|id| table.add(&rule(id), 1)).collect();
        let own = slots.iter().filter(|slot| **slot != SHARED_SLOT).count();
        assert!((3_000..RULES_MAX).contains(&own), "{own}");
        for (id, slot) in (0..).zip(&slots).filter(|(_, slot)| **slot != SHARED_SLOT) {
            assert_eq!(table.rule(*slot), Some(rule(id)));
        }
        for slot in slots {
            table.subtract(slot, 1);
        }
        let slot = table.add(&rule(60_000), 1);
        assert_eq!(table.rule(slot), Some(rule(60_000)));
        assert_eq!(table.share(10, true), 10);
    }

    #[test]
    fn an_overflow_is_reported_once_while_the_store_stays_full() {
        let table = RuleTable::new();
        table.add(&rule(7), 1);
        table.record_overflow(&rule(7), false);
        let begun = Overflow { limit_id: 7, is_refusing: false };
        assert_eq!(table.new_overflows(true), [begun]);
        table.record_overflow(&rule(7), false);
        assert_eq!(table.new_overflows(true), []);
        assert_eq!(table.new_overflows(false), []);
        table.record_overflow(&rule(7), true);
        assert_eq!(table.new_overflows(true), [Overflow { limit_id: 7, is_refusing: true }]);
    }
}
