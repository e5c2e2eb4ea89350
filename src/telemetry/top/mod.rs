//! The keys that each limit rejects most: in the last seconds, the last hour and the last day.
//!
//! A request that is rejected only sends a note of fixed size to a bounded channel, which never locks
//! or waits; if the channel is full, the note is dropped and counted. A background task drains the
//! channel twenty times a second into sketches of bounded size that no request touches.
//!
//! Not here: the sketches (`space_saving`), a note's contents (`refusal_note`), who reads the report
//! (`admin`).

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

/// The capacity of the channel: at 20 drains a second enough for 160,000 rejections a second, in a
/// little over a megabyte.
const NOTES_MAX: usize = 8_192;

/// How often [`Top::drain`] is to be called.
pub const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// Limits with a sketch. Nobody reads a longer list, and all sketches together stay below 20 MB,
/// however many keys an attacker sends. A further limit replaces the one that has been idle longest.
const LIMITS_MAX: usize = 64;

/// A limit that rejected something within this time is not replaced.
const IDLE_MIN: Micros = Micros::from_secs(10);

/// A limit's name in listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitName {
    /// The policy's domain.
    pub domain: Box<str>,
    /// The rule's path.
    pub rule: Box<str>,
    /// The limit's own name; empty if it has none.
    pub limit: Box<str>,
}

/// Resolves a rule's id and the position of a limit within it. Returns `None` if the policy in force
/// has no such rule, because the id belongs to an earlier policy.
pub type ResolveLimit<'a> = &'a dyn Fn(RuleId, usize) -> Option<LimitName>;

/// The keys that are rejected most.
pub struct Top {
    values: ValueDisplay,
    notes: SyncSender<RefusalNote>,
    dropped: AtomicU64,
    limits: Mutex<TopLimits>,
}

struct TopLimits {
    notes: Receiver<RefusalNote>,
    entries: Vec<LimitEntry>,
    /// The index of each limit in `entries`.
    indices: HashMap<LimitId, usize>,
    /// Notes of limits without an entry, or of a rule that is gone.
    unplaced: u64,
}

/// A rule's id and the position of a limit within it; `None`: a request override.
type LimitId = Option<(RuleId, u16)>;

struct LimitEntry {
    name: LimitName,
    latest: Micros,
    /// Whether the latest rejection was in shadow mode.
    shadow: bool,
    windows: KeyWindows,
}

impl fmt::Debug for Top {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Top").field("values", &self.values).finish_non_exhaustive()
    }
}

/// The name under which request overrides are listed.
const OVERRIDES: &str = "(override)";

impl Top {
    /// Empty sketches. `values`: how the values of keys are displayed.
    pub fn new(values: ValueDisplay) -> Self {
        let (sender, receiver) = sync_channel(NOTES_MAX);
        Top {
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

    /// Records that a check was rejected. On the request path: copies at most 170 bytes into the
    /// channel, without a lock, an allocation or a wait.
    pub(super) fn record(&self, refused: &RefusalEvent<'_>) {
        if self.notes.try_send(RefusalNote::new(refused, self.values)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves the notes from the channel into the sketches. Never call it from a request.
    pub fn drain(&self, now: Micros, resolve: ResolveLimit<'_>) {
        let limits = &mut *self.lock();
        // No more than one channel's worth: rejections that arrive faster than they are drained must
        // not hold the lock forever.
        for _ in 0..NOTES_MAX {
            let Ok(note) = limits.notes.try_recv() else { break };
            match limits.index_of(note.limit, now, resolve) {
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

    /// The keys that were rejected most, up to now.
    pub fn report(&self, now: Micros, resolve: ResolveLimit<'_>) -> TopReport {
        self.drain(now, resolve);
        let limits = self.lock();
        let dropped = self.dropped.load(Ordering::Relaxed);
        top_report::report(&limits.entries, self.values, dropped + limits.unplaced, now)
    }

    /// No request waits for this lock.
    fn lock(&self) -> MutexGuard<'_, TopLimits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TopLimits {
    /// The index of a limit's entry, which is made if there is room.
    fn index_of(&mut self, id: LimitId, now: Micros, resolve: ResolveLimit<'_>) -> Option<usize> {
        if let Some(at) = self.indices.get(&id) {
            return Some(*at);
        }
        let name = match id {
            None => LimitName { rule: OVERRIDES.into(), ..LimitName::default() },
            Some((rule, limit)) => resolve(rule, usize::from(limit))?,
        };
        // It may have an entry under its id in an earlier policy.
        let known = self.entries.iter().position(|entry| entry.name == name);
        let at = match known {
            Some(at) => at,
            None => self.add_entry(name, now)?,
        };
        // Ids of earlier policies are not looked up any more.
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
