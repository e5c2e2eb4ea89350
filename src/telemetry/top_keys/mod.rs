//! Statistics of the keys (descriptor entries) of each limit: those that are rejected most, those that
//! use most hits, and those that are near the limit; over the last ten seconds, hour, and day.
//!
//! On the request path, a check sends a record of fixed size to a bounded channel, without locking or
//! waiting. If the channel is full, the record is dropped and counted. A background task drains the
//! channel twenty times per second into sketches of bounded size.
//!
//! Every refused check is recorded. Of the checks that pass, one in `one_in` is, and stands for that
//! many: all of them up to 400 per second, and fewer the more there are, so that the statistics of
//! use take less than 1 % of a core. A check that brings its key near the limit is recorded in any case.

mod key_record;
mod space_saving;
mod top_report;

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::space_saving::KeyWindows;
use crate::domain::{
    CheckEvent, Hits, KeyEvent, Lock, Micros, RuleId, ValueDisplay, Verdict, named_enum,
};

pub(super) use self::key_record::{KeyRecord, KeyResult};
pub(super) use self::space_saving::FrequentKeys;
pub use self::top_report::{TopKey, TopLimit, TopReport, TopWindow};

/// Capacity of the channel from the request path to the statistics, in records. The channel takes
/// 1.5 MB. At 20 drains per second, it can carry up to 160,000 rejections per second.
const CHANNEL_CAPACITY: usize = 8_192;

/// Interval at which [`TopKeys::drain`] must be called.
pub const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// Number of passed checks per drain that are recorded before fewer are, 20: 400 per second, each of
/// which costs about a microsecond.
const PASSED_RECORDS_TARGET: u64 = 20;

/// Binary logarithm of the maximum number of passed checks of which one is recorded, 1,024. It is
/// reached at 400,000 checks per second.
const SAMPLING_SHIFT_MAX: u32 = 10;

/// Maximum number of checks per drain that are recorded only because they bring a key near its limit.
const NEAR_RECORDS_MAX: u32 = 100;

/// Maximum number of limits per list whose keys are tracked. Their sketches take less than 20 MB
/// in total per 32 keys of a bucket, no matter how many keys an attacker sends. A further limit replaces the one that has
/// been idle longest.
const TRACKED_LIMITS_MAX: usize = 64;

/// Maximum number of keys tracked per limit and time bucket of each list, in the order of [`TopBy::ALL`].
/// Use needs more than the others, because a limit bounds it: many keys use about as much as the first.
const BUCKET_KEYS_MAX: [usize; TopBy::ALL.len()] = [32, 128, 32];

/// Minimum time without events after which another limit may replace a limit's sketch: 10 s.
const IDLE_MIN: Micros = Micros::from_secs(10);

named_enum! {
    /// What a list of keys counts.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum TopBy {
        /// Refused checks.
        #[default]
        Rejected => "rejected",
        /// Hits that were charged by admitted calls.
        Used => "used",
        /// Admitted checks that left a key near its limit. Only keys whose latest check did so are
        /// listed.
        Near => "near",
    }
}

/// Domain, rule and name that identify a limit in reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitName {
    /// Domain of the limit.
    pub domain: Box<str>,
    /// Path of the limit's rule in the policy.
    pub rule: Box<str>,
    /// Name of the limit within its rule; empty if unnamed.
    pub limit: Box<str>,
}

/// Function that returns the name of a limit, given the id of its rule and its position within the
/// rule. Returns `None` if the active policy has no rule with this id.
pub type LimitResolver<'a> = &'a dyn Fn(RuleId, usize) -> Option<LimitName>;

/// Statistics of the keys of each limit.
pub struct TopKeys {
    value_display: ValueDisplay,
    /// Used share of a limit from which a key is near it, from 0 to 1.
    near_ratio: f64,
    sender: SyncSender<KeyRecord>,
    /// Binary logarithm of the number of passed checks of which one is recorded.
    sampling_shift: AtomicU32,
    /// Number of checks that may still be recorded, until the next drain, because they bring a key
    /// near its limit.
    near_left: AtomicU32,
    /// Numbers of dropped records of refused and of passed checks.
    dropped: [AtomicU64; 2],
    lists: Lock<TopLists>,
}

struct TopLists {
    receiver: Receiver<KeyRecord>,
    /// Number of passed checks recorded since `one_in` was last chosen.
    passed_records: u64,
    /// Lists in the order of [`TopBy::ALL`].
    each: [TopList; TopBy::ALL.len()],
}

struct TopList {
    /// Maximum number of keys tracked per limit and time bucket.
    keys_max: usize,
    entries: Vec<LimitEntry>,
    /// Number of records dropped because all entries were in use or the rule no longer exists.
    unplaced: u64,
}

/// Identity of a limit: the id of its rule and its position within the rule, `None` for all request
/// overrides; and whether its refusals did not reject their calls, because of shadow mode or because
/// a quota group of the call passes. Those are counted apart, so that a rule whose mode changes
/// keeps both numbers.
type LimitId = (Option<(RuleId, u16)>, bool);

struct LimitEntry {
    /// Id of the limit in the policy of its latest record.
    id: LimitId,
    name: LimitName,
    latest: Micros,
    windows: KeyWindows,
}

impl fmt::Debug for TopKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopKeys")
            .field("value_display", &self.value_display)
            .finish_non_exhaustive()
    }
}

/// Rule path under which reports list request overrides.
const OVERRIDES_PATH: &str = "(override)";

/// Number of millionths in one.
const MILLION: f64 = 1e6;

/// Golden ratio as a fraction of 2^64.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

thread_local! {
    /// Multiple of [`GOLDEN_RATIO`] that chooses the recorded checks of this thread. No other sequence
    /// spreads as evenly, so calls that follow a pattern are chosen as often as others.
    static SEQUENCE: Cell<u64> = const { Cell::new(0) };
}

impl TopKeys {
    /// Creates empty statistics. `value_display` determines how the descriptor values of keys are
    /// displayed. A key is near its limit if it uses at least `near_ratio` of it.
    pub fn new(value_display: ValueDisplay, near_ratio: f64) -> Self {
        let (sender, receiver) = sync_channel(CHANNEL_CAPACITY);
        let list = |keys_max| TopList { keys_max, entries: Vec::new(), unplaced: 0 };
        let lists = TopLists { receiver, passed_records: 0, each: BUCKET_KEYS_MAX.map(list) };
        TopKeys {
            value_display,
            near_ratio,
            sender,
            sampling_shift: AtomicU32::new(0),
            near_left: AtomicU32::new(NEAR_RECORDS_MAX),
            dropped: Default::default(),
            lists: Lock::new(lists),
        }
    }

    /// Records a refused check. Safe to call on the request path: copies at most 192 bytes into
    /// the channel without locking, allocating or waiting.
    pub(super) fn record_refusal(&self, refused: &KeyEvent<'_>) {
        self.send(refused, KeyResult::Refused);
    }

    /// Decides whether to record a check that may have passed. Returns the number of checks for which
    /// its record stands; 0 if it is recorded only because it brings its key near the limit.
    pub(super) fn sample(&self, check: &CheckEvent) -> Option<u64> {
        let charged = check.outcome.charged;
        let passed = check.admitted && check.outcome.verdict == Verdict::Pass;
        if !passed || check.is_refund || charged == Hits::ZERO {
            return None;
        }
        let next = SEQUENCE.get().wrapping_add(GOLDEN_RATIO);
        SEQUENCE.set(next);
        let shift = self.sampling_shift.load(Ordering::Relaxed);
        if next.leading_zeros() >= shift {
            return Some(1 << shift);
        }
        let near = check.capacity.0 as f64 * self.near_ratio;
        let used = check.capacity.0.saturating_sub(check.outcome.available.0);
        let comes_near = used as f64 >= near && (used.saturating_sub(charged.0) as f64) < near;
        let take = |left: u32| left.checked_sub(1);
        let has_room =
            || self.near_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        (comes_near && has_room()).then_some(0)
    }

    /// Records a check for which [`sample`](Self::sample) has returned `weight`. As safe as
    /// [`record_refusal`](Self::record_refusal).
    pub(super) fn record_pass(&self, key: &KeyEvent<'_>, check: &CheckEvent, weight: u64) {
        let used = check.capacity.0.saturating_sub(check.outcome.available.0);
        // The share is at most 1. The cast rounds down.
        let used_ppm = (used as f64 / check.capacity.0.max(1) as f64 * MILLION) as u32;
        let hits = check.outcome.charged.0.saturating_mul(weight);
        self.send(key, KeyResult::Passed { hits, checks: weight.max(1), used_ppm });
    }

    fn send(&self, key: &KeyEvent<'_>, result: KeyResult) {
        if self.sender.try_send(KeyRecord::new(key, result, self.value_display)).is_err() {
            let passed = matches!(result, KeyResult::Passed { .. });
            self.dropped[usize::from(passed)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves records from the channel into the sketches, and chooses how many checks are recorded
    /// until the next drain. Takes a lock, so it must not be called on the request path. Must be
    /// called by one task only, once per [`DRAIN_INTERVAL`].
    pub fn drain(&self, now: Micros, resolve: LimitResolver<'_>) {
        let lists = &mut *self.lists.lock();
        self.drain_into(lists, now, resolve);
        let checks = lists.passed_records * self.one_in();
        let shift = (checks / PASSED_RECORDS_TARGET).checked_ilog2().map_or(0, |shift| shift + 1);
        self.sampling_shift.store(shift.min(SAMPLING_SHIFT_MAX), Ordering::Relaxed);
        self.near_left.store(NEAR_RECORDS_MAX, Ordering::Relaxed);
        lists.passed_records = 0;
    }

    fn drain_into(&self, lists: &mut TopLists, now: Micros, resolve: LimitResolver<'_>) {
        let near_ppm = self.near_ratio * MILLION;
        // Drain at most one full channel, so that records which arrive faster than they are drained
        // cannot keep this loop running forever with the lock held.
        for _ in 0..CHANNEL_CAPACITY {
            let Ok(record) = lists.receiver.try_recv() else { break };
            let [rejected, used, near] = &mut lists.each;
            let KeyResult::Passed { hits, checks, used_ppm } = record.result else {
                rejected.add(now, &record, 1, 0, resolve);
                continue;
            };
            if hits > 0 {
                lists.passed_records += 1;
                used.add(now, &record, hits, used_ppm, resolve);
            }
            if f64::from(used_ppm) >= near_ppm {
                near.add(now, &record, checks, used_ppm, resolve);
            } else {
                near.set_used(&record, used_ppm);
            }
        }
    }

    /// Returns the number of passed checks of which one is recorded.
    fn one_in(&self) -> u64 {
        1 << self.sampling_shift.load(Ordering::Relaxed)
    }

    /// Returns the number of dropped records of a list.
    fn dropped(&self, by: TopBy) -> u64 {
        self.dropped[usize::from(by != TopBy::Rejected)].load(Ordering::Relaxed)
    }
}

impl TopList {
    /// Counts events of a record's key.
    fn add(
        &mut self,
        now: Micros,
        record: &KeyRecord,
        weight: u64,
        used_ppm: u32,
        resolve: LimitResolver<'_>,
    ) {
        match self.find_or_add_entry((record.limit, record.shadow), now, resolve) {
            Some(at) => {
                let entry = &mut self.entries[at];
                entry.latest = now;
                entry.windows.add(now, record, weight, used_ppm);
            }
            None => self.unplaced += 1,
        }
    }

    /// Notes the used share of a record's key, if the key is tracked.
    fn set_used(&self, record: &KeyRecord, used_ppm: u32) {
        let id = (record.limit, record.shadow);
        if let Some(entry) = self.entries.iter().find(|entry| entry.id == id) {
            entry.windows.set_used(record.counter, used_ppm);
        }
    }

    /// Returns the index of a limit's entry, and creates the entry if necessary. Returns `None` if
    /// all entries are in use and none has been idle for [`IDLE_MIN`], or if the active policy does
    /// not have the limit's rule.
    fn find_or_add_entry(
        &mut self,
        id: LimitId,
        now: Micros,
        resolve: LimitResolver<'_>,
    ) -> Option<usize> {
        if let Some(at) = self.entries.iter().position(|entry| entry.id == id) {
            return Some(at);
        }
        let name = match id.0 {
            None => LimitName { rule: OVERRIDES_PATH.into(), ..LimitName::default() },
            Some((rule, limit)) => resolve(rule, usize::from(limit))?,
        };
        // The limit may have an entry from an earlier policy, in which its rule had another number.
        let mut entries = self.entries.iter();
        let known = entries.position(|entry| entry.id.1 == id.1 && entry.name == name);
        let at = match known {
            Some(at) => at,
            None => self.add_entry(id, name, now)?,
        };
        self.entries[at].id = id;
        Some(at)
    }

    fn add_entry(&mut self, id: LimitId, name: LimitName, now: Micros) -> Option<usize> {
        let entry = LimitEntry { id, name, latest: now, windows: KeyWindows::new(self.keys_max) };
        if self.entries.len() < TRACKED_LIMITS_MAX {
            self.entries.push(entry);
            return Some(self.entries.len() - 1);
        }
        let (at, idlest) =
            self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.latest.0)?;
        if now.saturating_sub(idlest.latest) < IDLE_MIN {
            return None;
        }
        self.entries[at] = entry;
        Some(at)
    }
}

#[cfg(test)]
mod tests;
