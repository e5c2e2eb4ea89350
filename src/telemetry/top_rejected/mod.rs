//! Statistics of the keys that each limit rejects most, over the last ten seconds, the last hour,
//! and the last day.
//!
//! On the request path, a rejected check only sends a note of fixed size to a bounded channel,
//! without locking or waiting. If the channel is full, the note is dropped and counted. A
//! background task drains the channel twenty times per second into sketches of bounded size.

mod refusal_note;
mod space_saving;
mod top_report;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::refusal_note::RefusalNote;
use self::space_saving::KeyWindows;
use crate::domain::{Micros, RefusalEvent, RuleId};

pub use self::refusal_note::ValueDisplay;
pub use self::top_report::{TopKey, TopLimit, TopReport, TopWindow};

/// Capacity of the channel from the request path to the statistics, in notes. The channel takes a
/// little over 1 MB. At 20 drains per second, it can carry up to 160,000 rejections per second.
const NOTES_MAX: usize = 8_192;

/// Interval at which [`TopRefusals::drain`] must be called.
pub const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of limits whose rejected keys are tracked. Their sketches take less than 20 MB
/// in total, no matter how many keys an attacker sends. A further limit replaces the one that has
/// been idle longest.
const LIMITS_MAX: usize = 64;

/// Minimum time without rejections before a limit's sketch may be replaced, 10 s.
const IDLE_MIN: Micros = Micros::from_secs(10);

/// Domain, rule and name that identify a limit in listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitName {
    /// Domain of the limit.
    pub domain: Box<str>,
    /// Path of the limit's rule.
    pub rule: Box<str>,
    /// Name of the limit within its rule; empty if unnamed.
    pub limit: Box<str>,
}

/// Function that returns the name of the limit at a position within a rule. Returns `None` if the
/// active policy has no such rule, because the rule's id belongs to an earlier policy.
pub type ResolveLimit<'a> = &'a dyn Fn(RuleId, usize) -> Option<LimitName>;

/// Statistics of the most rejected keys.
pub struct TopRefusals {
    values: ValueDisplay,
    notes: SyncSender<RefusalNote>,
    dropped: AtomicU64,
    limits: Mutex<TopLimits>,
}

struct TopLimits {
    notes: Receiver<RefusalNote>,
    entries: Vec<LimitEntry>,
    /// Index of each limit in `entries`.
    indices: HashMap<LimitId, usize>,
    /// Number of notes dropped because no entry was free or the rule no longer exists.
    unplaced: u64,
}

/// Identity of a limit: the id of its rule and its position within the rule; `None` for all
/// request overrides.
type LimitId = Option<(RuleId, u16)>;

struct LimitEntry {
    name: LimitName,
    latest: Micros,
    /// Whether the limit's latest refusal did not affect admission, because the rule is in shadow
    /// mode or the call has a quota group to which no enforced limit applies.
    shadow: bool,
    windows: KeyWindows,
}

impl fmt::Debug for TopRefusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopRefusals").field("values", &self.values).finish_non_exhaustive()
    }
}

/// Rule name under which request overrides are listed.
const OVERRIDES: &str = "(override)";

impl TopRefusals {
    /// Creates empty statistics. `values` determines how the descriptor values of keys are
    /// displayed.
    pub fn new(values: ValueDisplay) -> Self {
        let (sender, receiver) = sync_channel(NOTES_MAX);
        TopRefusals {
            values,
            notes: sender,
            dropped: AtomicU64::new(0),
            limits: Mutex::new(TopLimits {
                notes: receiver,
                entries: Vec::new(),
                indices: HashMap::new(),
                unplaced: 0,
            }),
        }
    }

    /// Records a rejected check. Called on the request path: copies at most 170 bytes into the
    /// channel without locking, allocating or waiting.
    pub(super) fn record(&self, refused: &RefusalEvent<'_>) {
        if self.notes.try_send(RefusalNote::new(refused, self.values)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves notes from the channel into the sketches. Takes a lock, so it must not be called on
    /// the request path.
    pub fn drain(&self, now: Micros, resolve: ResolveLimit<'_>) {
        let limits = &mut *self.lock();
        // Drain at most one full channel, so that rejections which arrive faster than they are
        // drained cannot keep this loop running forever with the lock held.
        for _ in 0..NOTES_MAX {
            let Ok(note) = limits.notes.try_recv() else { break };
            match limits.find_or_add_entry(note.limit, now, resolve) {
                Some(at) => {
                    let entry = &mut limits.entries[at];
                    entry.latest = now;
                    entry.shadow = note.shadow;
                    entry.windows.add(now, &note);
                }
                None => limits.unplaced += 1,
            }
        }
    }

    /// Returns a report of the most rejected keys, as of `now`.
    pub fn report(&self, now: Micros, resolve: ResolveLimit<'_>) -> TopReport {
        self.drain(now, resolve);
        let limits = self.lock();
        let dropped = self.dropped.load(Ordering::Relaxed);
        top_report::report(&limits.entries, self.values, dropped + limits.unplaced, now)
    }

    /// Locks the sketches. Never called on the request path.
    fn lock(&self) -> MutexGuard<'_, TopLimits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
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
        resolve: ResolveLimit<'_>,
    ) -> Option<usize> {
        if let Some(at) = self.indices.get(&id) {
            return Some(*at);
        }
        let name = match id {
            None => LimitName { rule: OVERRIDES.into(), ..LimitName::default() },
            Some((rule, limit)) => resolve(rule, usize::from(limit))?,
        };
        // The limit may have an entry from an earlier policy, in which its rule had another number.
        let known = self.entries.iter().position(|entry| entry.name == name);
        let at = match known {
            Some(at) => at,
            None => self.add_entry(name, now)?,
        };
        // Drop the indices of earlier policies, whose rule numbers are never looked up again.
        if self.indices.len() >= 4 * LIMITS_MAX {
            self.indices.clear();
        }
        self.indices.insert(id, at);
        Some(at)
    }

    fn add_entry(&mut self, name: LimitName, now: Micros) -> Option<usize> {
        let entry = LimitEntry { name, latest: now, shadow: false, windows: KeyWindows::default() };
        if self.entries.len() < LIMITS_MAX {
            self.entries.push(entry);
            return Some(self.entries.len() - 1);
        }
        let (at, idlest) =
            self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.latest.0)?;
        if now.saturating_sub(idlest.latest) < IDLE_MIN {
            return None;
        }
        self.indices.retain(|_, index| *index != at);
        self.entries[at] = entry;
        Some(at)
    }
}

#[cfg(test)]
mod tests;
