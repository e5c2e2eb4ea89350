//! Node scripts: Lua scripts that decide the checks of a call on one Redis Cluster node, across
//! hash slots. Decides for which slots a node script is used.
//!
//! Redis requires the declared keys of a script to be in one slot. A script that declares none may
//! use every slot of its node, so one script call decides all checks on that node atomically. If a
//! key cannot be used on the node, because its slot has moved or is moving, the script leaves no
//! charge and replies `not here`. The checks are then sent in one script call per slot, so that
//! Redis redirects them to the right node, and no node script is used for their slots for
//! [`SLOT_EXCLUSION_MS`].
//!
//! Some managed Redis services route a script call without keys to any node. Node scripts then
//! keep replying `not here` for slots that the intended node serves, and are turned off for
//! [`SCRIPT_DISABLE_DURATION`].
//!
//! Not here: grouping the checks (`multi_slot`), sending the script calls (`store`), their arguments (`script`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::script::keys::SLOTS;
use crate::domain::Micros;

/// Time in milliseconds for which a slot is excluded from node scripts after a `not here` reply to
/// a call with keys in that slot. Moving a slot and refreshing the slot table take less time.
const SLOT_EXCLUSION_MS: u32 = 1_000;

/// Points added to the failure score for each unexplained `not here` reply. A reply is unexplained
/// if the node then serves the same slots without a redirect. Any reply other than `not here`
/// subtracts one point, so node scripts stay on as long as at most one call in five gets an
/// unexplained `not here`. This tolerates a moving slot on Redis 8.0, where node scripts reply `not
/// here` for every key of that slot.
const UNEXPLAINED_POINTS: u32 = 4;
/// Failure score at which node scripts are turned off. Eight unexplained `not here` replies in a
/// row reach it.
const FAILURE_SCORE_MAX: u32 = 32;
/// Time for which node scripts stay turned off, 10 minutes. Afterwards they are used again, but if
/// the first reply is an unexplained `not here`, they are turned off again.
const SCRIPT_DISABLE_DURATION: Micros = Micros(600_000_000);

/// Switch that turns node scripts on and off, for the whole cluster or for single slots.
#[derive(Debug)]
pub(super) struct NodeScriptSwitch {
    /// Time of the last `not here` reply for each slot, in milliseconds, wrapping after 49 days; 0
    /// if there was none. Empty if node scripts are disabled. Takes 64 KiB.
    last_not_here: Box<[AtomicU32]>,
    failure_score: AtomicU32,
    /// Time until which node scripts are off, in microseconds since the Unix epoch.
    off_until: AtomicU64,
    times_off: AtomicU64,
}

impl NodeScriptSwitch {
    /// Creates a switch that is on. If `enabled` is false, the switch is off and stays off.
    pub(super) fn new(enabled: bool) -> NodeScriptSwitch {
        let slots = if enabled { usize::from(SLOTS) } else { 0 };
        NodeScriptSwitch {
            last_not_here: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            failure_score: AtomicU32::new(0),
            off_until: AtomicU64::new(0),
            times_off: AtomicU64::new(0),
        }
    }

    /// Returns whether node scripts are on. Even then, [`allows`](Self::allows) can exclude single
    /// slots.
    pub(super) fn is_on(&self, now: Micros) -> bool {
        !self.last_not_here.is_empty() && self.off_until.load(Ordering::Relaxed) <= now.0
    }

    /// Returns the number of times that node scripts were turned off because of too many
    /// unexplained `not here` replies.
    pub(super) fn times_off(&self) -> u64 {
        self.times_off.load(Ordering::Relaxed)
    }

    /// Returns whether a node script may be used for a slot. Returns false for a second after a
    /// `not here` reply for the slot.
    pub(super) fn allows(&self, slot: u16, now: Micros) -> bool {
        let last_not_here = self.last_not_here.get(usize::from(slot));
        let last_not_here = last_not_here.map_or(0, |millis| millis.load(Ordering::Relaxed));
        last_not_here == 0 || millis_u32(now).wrapping_sub(last_not_here) >= SLOT_EXCLUSION_MS
    }

    /// Records a reply from a node script other than `not here`: lowers the failure score by one,
    /// but not below zero.
    pub(super) fn record_reply(&self) {
        // Usually there are no points, and nothing is written.
        if self.failure_score.load(Ordering::Relaxed) > 0 {
            let less = |points: u32| Some(points.saturating_sub(1));
            // Never fails: the closure always returns a value.
            let _ = self.failure_score.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Records that a node script replied `not here` to a call with keys in `slots`.
    pub(super) fn record_not_here(&self, slots: impl Iterator<Item = u16>, now: Micros) {
        for slot in slots {
            if let Some(last_not_here) = self.last_not_here.get(usize::from(slot)) {
                last_not_here.store(millis_u32(now).max(1), Ordering::Relaxed);
            }
        }
    }

    /// Records an unexplained `not here` reply: the node then served all slots of the call without
    /// a redirect. Returns whether this reply turned node scripts off.
    pub(super) fn record_unexplained(&self, now: Micros) -> bool {
        let points = self.failure_score.fetch_add(UNEXPLAINED_POINTS, Ordering::Relaxed);
        if points + UNEXPLAINED_POINTS < FAILURE_SCORE_MAX {
            return false;
        }
        // One more unexplained answer after the pause is enough.
        self.failure_score.store(FAILURE_SCORE_MAX - UNEXPLAINED_POINTS, Ordering::Relaxed);
        self.off_until.store(now.saturating_add(SCRIPT_DISABLE_DURATION).0, Ordering::Relaxed);
        self.times_off.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Returns the time in milliseconds, truncated to 32 bits.
fn millis_u32(now: Micros) -> u32 {
    (now.0 / 1_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_763_668_123_456_789);

    fn later(millis: u64) -> Micros {
        Micros(NOW.0 + millis * 1_000)
    }

    #[test]
    fn a_not_here_reply_excludes_only_its_slots_for_a_second() {
        let scripts = NodeScriptSwitch::new(true);
        assert!(scripts.is_on(NOW) && scripts.allows(7, NOW));
        scripts.record_not_here([7, 16_383].into_iter(), NOW);
        for slot in [7, 16_383] {
            assert!(!scripts.allows(slot, NOW) && !scripts.allows(slot, later(999)));
            assert!(scripts.allows(slot, later(1_000)));
        }
        assert!(scripts.allows(8, NOW) && scripts.is_on(NOW));
    }

    #[test]
    fn unexplained_replies_turn_scripts_off_and_one_more_does_after_the_pause() {
        let scripts = NodeScriptSwitch::new(true);
        for _ in 0..7 {
            assert!(!scripts.record_unexplained(NOW));
        }
        assert!(scripts.is_on(NOW));
        assert!(scripts.record_unexplained(NOW));
        assert!(!scripts.is_on(NOW) && !scripts.is_on(later(599_999)));
        assert!(scripts.is_on(later(600_000)));
        assert!(scripts.record_unexplained(later(600_000)), "the first one after the pause");
        assert!(!scripts.is_on(later(600_001)));
        assert_eq!(scripts.times_off(), 2);
    }

    #[test]
    fn a_few_unexplained_replies_do_not_turn_scripts_off() {
        let scripts = NodeScriptSwitch::new(true);
        for _ in 0..1_000 {
            assert!(!scripts.record_unexplained(NOW));
            (0..4).for_each(|_| scripts.record_reply());
        }
        assert!(scripts.is_on(NOW));
        // One call of three reaches the right node by chance.
        let off = (0..30).any(|n| {
            let off = n % 3 != 0 && scripts.record_unexplained(NOW);
            scripts.record_reply();
            off
        });
        assert!(off);
    }

    #[test]
    fn scripts_that_are_not_enabled_are_never_on() {
        let scripts = NodeScriptSwitch::new(false);
        assert!(!scripts.is_on(NOW));
        scripts.record_not_here([7].into_iter(), NOW);
    }
}
