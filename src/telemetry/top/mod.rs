//! Who is being refused: for each limit the keys that were refused most, in the last seconds, the
//! last hour and the last day.
//!
//! The request path only leaves a note of fixed size, and only of a refusal: one `try_send` into a
//! ring that is allocated at the start. It neither locks nor waits; a full ring drops the note and
//! counts it. Somebody else takes the notes in, twenty times a second, into sketches of bounded
//! size, which nobody on the request path touches.
//!
//! Not here: the sketches (`sketch`), what a note holds (`note`), who asks (`admin`).

mod refusal_note;
mod space_saving;
mod top_report;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::refusal_note::Note;
use self::space_saving::Spans;
use crate::domain::{Micros, RefusalEvent, RuleId};

pub use self::refusal_note::Values;
pub use self::top_report::{TopKey, TopLimit, TopReport, TopSpan};

/// Notes that wait to be taken in: at 20 times a second enough for 160,000 refusals a second, and
/// a little over a megabyte. Beyond it notes are dropped and counted.
const NOTES_MAX: usize = 8_192;

/// How often [`Top::take_in`] is to be called.
pub const TAKE_IN_EVERY: Duration = Duration::from_millis(50);

/// Limits whose keys are kept. Nobody looks through more; and however many distinct keys an
/// attacker sends, with them all sketches together stay below 20 MB. Another one takes the place of
/// the one that has not refused for the longest time.
const LIMITS_MAX: usize = 64;

/// A limit that refused within this time keeps its place.
const KEEPS_ITS_PLACE: Micros = Micros::from_secs(10);

/// A limit, as listings name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitName {
    /// The policy's domain.
    pub domain: Box<str>,
    /// The rule's printed path.
    pub rule: Box<str>,
    /// The limit's own name; empty where it has none.
    pub limit: Box<str>,
}

/// Which limit a number stands for: a rule, and the position among its limits. `None` where the
/// policy in force has no such rule (it was another's).
pub type Names<'a> = &'a dyn Fn(RuleId, usize) -> Option<LimitName>;

/// The refused keys.
pub struct Top {
    values: Values,
    notes: SyncSender<Note>,
    dropped: AtomicU64,
    kept: Mutex<Kept>,
}

struct Kept {
    notes: Receiver<Note>,
    limits: Vec<Held>,
    /// Where a number's limit is in `limits`.
    places: HashMap<Numbered, usize>,
    /// Notes of limits that found no place, or whose rule is gone.
    homeless: u64,
}

/// A limit by its rule's number and its position; `None`: one that the caller brought along.
type Numbered = Option<(RuleId, u16)>;

struct Held {
    name: LimitName,
    latest: Micros,
    /// The latest refusal had no say.
    shadow: bool,
    spans: Spans,
}

impl fmt::Debug for Top {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Top").field("values", &self.values).finish_non_exhaustive()
    }
}

/// What stands for the rule of limits that callers brought along.
const OVERRIDES: &str = "(override)";

impl Top {
    /// Nothing was refused yet. `values`: how keys are shown.
    pub fn new(values: Values) -> Self {
        let (sender, receiver) = sync_channel(NOTES_MAX);
        Top {
            values,
            notes: sender,
            dropped: AtomicU64::new(0),
            kept: Mutex::new(Kept {
                notes: receiver,
                limits: Vec::new(),
                places: HashMap::new(),
                homeless: 0,
            }),
        }
    }

    /// A check refused. On the request path: copies at most 170 bytes into a ring, without a lock,
    /// an allocation or a wait.
    pub(super) fn note(&self, refused: &RefusalEvent<'_>) {
        if self.notes.try_send(Note::of(refused, self.values)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the notes in. Not for the request path.
    pub fn take_in(&self, now: Micros, names: Names<'_>) {
        let kept = &mut *self.kept();
        // No more than one ring's worth: whoever refuses faster than this can be read must not hold
        // the lock for ever.
        for _ in 0..NOTES_MAX {
            let Ok(note) = kept.notes.try_recv() else { break };
            match kept.place(note.limit, now, names) {
                Some(at) => {
                    let held = &mut kept.limits[at];
                    held.latest = now;
                    held.shadow = note.shadow;
                    held.spans.add(now, &note);
                }
                None => kept.homeless += 1,
            }
        }
    }

    /// Who was refused, up to now.
    pub fn report(&self, now: Micros, names: Names<'_>) -> TopReport {
        self.take_in(now, names);
        let kept = self.kept();
        let dropped = self.dropped.load(Ordering::Relaxed);
        top_report::report(&kept.limits, self.values, dropped + kept.homeless, now)
    }

    /// Nobody on the request path waits for this lock.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Where the limit of a note is kept, or from now on.
    fn place(&mut self, number: Numbered, now: Micros, names: Names<'_>) -> Option<usize> {
        if let Some(at) = self.places.get(&number) {
            return Some(*at);
        }
        let name = match number {
            None => LimitName { rule: OVERRIDES.into(), ..LimitName::default() },
            Some((rule, limit)) => names(rule, usize::from(limit))?,
        };
        // Known by the number that it had in an earlier policy.
        let known = self.limits.iter().position(|held| held.name == name);
        let at = match known {
            Some(at) => at,
            None => self.make_room(name, now)?,
        };
        // Numbers of earlier policies are not asked for again.
        if self.places.len() >= 4 * LIMITS_MAX {
            self.places.clear();
        }
        self.places.insert(number, at);
        Some(at)
    }

    fn make_room(&mut self, name: LimitName, now: Micros) -> Option<usize> {
        let held = Held { name, latest: now, shadow: false, spans: Spans::default() };
        if self.limits.len() < LIMITS_MAX {
            self.limits.push(held);
            return Some(self.limits.len() - 1);
        }
        let idle = self.limits.iter().enumerate().min_by_key(|(_, held)| held.latest.0);
        let (at, longest) = idle?;
        if now.saturating_sub(longest.latest) < KEEPS_ITS_PLACE {
            return None;
        }
        self.places.retain(|_, place| *place != at);
        self.limits[at] = held;
        Some(at)
    }
}

#[cfg(test)]
mod tests;
