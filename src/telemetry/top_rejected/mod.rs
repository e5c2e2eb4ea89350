//! Statistics of the keys (descriptor entries) that each limit rejects most, over the last ten
//! seconds, the last hour, and the last day.
//!
//! On the request path, a rejected check sends a record of fixed size to a bounded channel, without
//! locking or waiting. If the channel is full, the record is dropped and counted. A background task
//! drains the channel twenty times per second into sketches of bounded size.

mod refusal_record;
mod space_saving;
mod top_report;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use self::space_saving::KeyWindows;
use crate::domain::{Lock, Micros, RefusalEvent, RuleId, ValueDisplay};

pub(super) use self::refusal_record::RefusalRecord;
pub(super) use self::space_saving::FrequentKeys;
pub use self::top_report::{TopKey, TopLimit, TopReport, TopWindow};

/// Capacity of the channel from the request path to the statistics, in records. The channel takes a
/// little over 1 MB. At 20 drains per second, it can carry up to 160,000 rejections per second.
const CHANNEL_CAPACITY: usize = 8_192;

/// Interval at which [`TopRefusals::drain`] must be called.
pub const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of limits whose rejected keys are tracked. Their sketches take less than 20 MB
/// in total, no matter how many keys an attacker sends. A further limit replaces the one that has
/// been idle longest.
const TRACKED_LIMITS_MAX: usize = 64;

/// Minimum time without rejections after which another limit may replace a limit's sketch: 10 s.
const IDLE_MIN: Micros = Micros::from_secs(10);

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

/// Statistics of the keys that each limit rejects most.
pub struct TopRefusals {
    value_display: ValueDisplay,
    sender: SyncSender<RefusalRecord>,
    dropped: AtomicU64,
    limits: Lock<TopLimits>,
}

struct TopLimits {
    receiver: Receiver<RefusalRecord>,
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
    /// Id of the limit in the policy of its latest refusal.
    id: LimitId,
    name: LimitName,
    latest_refusal: Micros,
    windows: KeyWindows,
}

impl fmt::Debug for TopRefusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopRefusals")
            .field("value_display", &self.value_display)
            .finish_non_exhaustive()
    }
}

/// Rule path under which reports list request overrides.
const OVERRIDES_PATH: &str = "(override)";

impl TopRefusals {
    /// Creates empty statistics. `value_display` determines how the descriptor values of keys are
    /// displayed.
    pub fn new(value_display: ValueDisplay) -> Self {
        let (sender, receiver) = sync_channel(CHANNEL_CAPACITY);
        TopRefusals {
            value_display,
            sender,
            dropped: AtomicU64::new(0),
            limits: Lock::new(TopLimits { receiver, entries: Vec::new(), unplaced: 0 }),
        }
    }

    /// Records a rejected check. Safe to call on the request path: copies at most 170 bytes into
    /// the channel without locking, allocating or waiting.
    pub(super) fn record(&self, refused: &RefusalEvent<'_>) {
        if self.sender.try_send(RefusalRecord::new(refused, self.value_display)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves records from the channel into the sketches. Takes a lock, so it must not be called on
    /// the request path.
    pub fn drain(&self, now: Micros, resolve: LimitResolver<'_>) {
        let limits = &mut *self.limits.lock();
        // Drain at most one full channel, so that rejections which arrive faster than they are
        // drained cannot keep this loop running forever with the lock held.
        for _ in 0..CHANNEL_CAPACITY {
            let Ok(record) = limits.receiver.try_recv() else { break };
            match limits.find_or_add_entry((record.limit, record.shadow), now, resolve) {
                Some(at) => {
                    let entry = &mut limits.entries[at];
                    entry.latest_refusal = now;
                    entry.windows.add(now, &record);
                }
                None => limits.unplaced += 1,
            }
        }
    }

    /// Returns a report of the most rejected keys, as of `now`.
    pub fn report(&self, now: Micros, resolve: LimitResolver<'_>) -> TopReport {
        self.drain(now, resolve);
        let limits = self.limits.lock();
        let dropped = self.dropped.load(Ordering::Relaxed);
        top_report::build_report(
            &limits.entries,
            self.value_display,
            dropped + limits.unplaced,
            now,
        )
    }
}

impl TopLimits {
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
        let entry = LimitEntry { id, name, latest_refusal: now, windows: KeyWindows::default() };
        if self.entries.len() < TRACKED_LIMITS_MAX {
            self.entries.push(entry);
            return Some(self.entries.len() - 1);
        }
        let (at, idlest) =
            self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.latest_refusal.0)?;
        if now.saturating_sub(idlest.latest_refusal) < IDLE_MIN {
            return None;
        }
        self.entries[at] = entry;
        Some(at)
    }
}

#[cfg(test)]
mod tests;
