//! Sliding log: at most L hits in any interval of one window's length W. Each charge is stored as
//! an entry until it is one window old. `c` is the cost of a check in hits.
//!
//! The state is the list of entries, oldest first. Each has a time, its hits, and a number that
//! identifies it for a refund. The list can grow to L entries, so L is at most 10,000.
//!
//! ```text
//! clock      max(now, newest): if the clock steps back, no expired entry counts again
//! counted    hits of entries with at > clock − W   (an entry at t expires at t + W)
//! passes iff counted + c ≤ L
//! retry at   t + W, where t is the first entry whose expiry makes counted + c ≤ L
//! reset      the newest entry + W
//! new entry  at = clock
//! ```
//!
//! An entry more than W in the future was written by a clock that ran ahead. It is moved to the
//! current time; otherwise the log would stay full until the time of that entry.
//!
//! Not here: calls with several checks, removal of expired counters (`store`).

use std::collections::VecDeque;

use super::step::{CounterOp, Step, saturate, time_until_room};
use crate::domain::{Charge, ChargeRecord, Hits, Micros, Outcome, SlidingLog};

/// Stored state of a sliding log: its entries, oldest first. Some may have expired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    entries: VecDeque<LogEntry>,
    /// Smallest identifier that the next entry may get. Smaller ones may belong to charges whose
    /// entries a caller's refund has removed, and whose receipts must not find another entry.
    reserved_id: u64,
}

/// Entry of a sliding log: the hits of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    at: Micros,
    /// Identifier of the entry, unique within the log. A refund uses it to find the entry.
    id: u64,
    hits: u32,
}

impl LogEntry {
    /// Returns the identifier of an entry after this one. Wraps for the entries of a sketch.
    fn next_id(&self) -> u64 {
        self.id.wrapping_add(1)
    }
}

impl State {
    fn hits(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.hits)).sum()
    }

    /// Returns the time of the newest entry, or `None` if the log is empty.
    pub(crate) fn newest(&self) -> Option<Micros> {
        self.entries.back().map(|entry| entry.at)
    }

    /// Returns two hit counts: the hits charged in the interval of length `length` before `start`,
    /// and the hits charged since `start`.
    pub(crate) fn hits_before_and_since(&self, start: Micros, length: Micros) -> (u32, u32) {
        let sum = |from: Micros, to: Micros| {
            let entries = self.entries.iter().filter(|entry| from <= entry.at && entry.at < to);
            entries.fold(0_u32, |sum, entry| sum.saturating_add(entry.hits))
        };
        (sum(start.saturating_sub(length), start), sum(start, Micros(u64::MAX)))
    }

    /// Creates a log from the hit counts of two windows: `earlier` for the window that ended at
    /// `start`, and `later` for the window that began then. Used because the memory store's sketch
    /// does not record individual charges. The entries get the latest possible times, so that the
    /// log never admits too many hits.
    pub(crate) fn from_two_windows(start: Micros, earlier: u32, later: u32, now: Micros) -> State {
        // No charge record has these numbers, so no refund removes more than its own hits.
        let earlier =
            LogEntry { at: start.saturating_sub(Micros(1)), id: u64::MAX - 1, hits: earlier };
        let later = LogEntry { at: start.max(now), id: u64::MAX, hits: later };
        let entries = [earlier, later].into_iter().filter(|entry| entry.hits > 0).collect();
        State { entries, reserved_id: 0 }
    }

    /// Returns the heap memory used by the entries, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<LogEntry>()
    }

    /// Returns the number of expired entries. They are at the front of the log.
    fn expired_count(&self, limit: &SlidingLog, now: Micros) -> usize {
        let clock = self.entries.back().map_or(now, |entry| entry.at.max(now));
        self.entries.partition_point(|entry| entry.at.saturating_add(limit.length) <= clock)
    }

    /// Returns a copy without the entries that have expired at `now`, and whether any entry was
    /// moved to `now` because it was more than one window in the future. The copy has capacity for
    /// `spare` more entries.
    fn without_expired(&self, limit: &SlidingLog, now: Micros, spare: usize) -> (State, bool) {
        let horizon = now.saturating_add(limit.length);
        let expired = self.expired_count(limit, now);
        let mut entries = VecDeque::with_capacity(self.entries.len() - expired + spare);
        entries.extend(self.entries.iter().skip(expired));
        // An empty log is equivalent to a missing one, whose numbers start at 0.
        let reserved_id = if entries.is_empty() { 0 } else { self.reserved_id };
        let mut state = State { entries, reserved_id };
        let clamped = state.entries.back().is_some_and(|entry| entry.at > horizon);
        if clamped {
            // The entry with the greatest number is the last one only until they are sorted.
            let next = state.entries.back().map_or(0, LogEntry::next_id);
            state.reserved_id = state.reserved_id.max(next);
            for entry in &mut state.entries {
                entry.at = if entry.at > horizon { now } else { entry.at };
            }
            state.entries.make_contiguous().sort_by_key(|entry| entry.at);
        }
        (state, clamped)
    }

    /// Returns the time until a charge of `cost` hits passes: zero if it passes now, or `None` if
    /// it never does.
    fn wait_time(&self, limit: &SlidingLog, cost: u64, now: Micros) -> Option<Micros> {
        let end_of = |entry: &LogEntry| entry.at.saturating_add(limit.length);
        let held = self.entries.iter().map(|entry| (entry.hits, end_of(entry)));
        time_until_room(limit.hits, cost, held, now)
    }
}

/// Applies an operation to a sliding log. Returns the outcome and, if the state changes, the new
/// state.
pub fn apply(
    state: Option<&State>,
    limit: &SlidingLog,
    charge: Charge,
    op: CounterOp,
    now: Micros,
) -> Step<State> {
    // Copies the log: its length is bounded by the limit, and a take rewrites it anyway.
    let (mut log, clamped) = match state {
        // A refund must not need more memory than the log has, so only a take gets spare capacity.
        Some(state) => {
            state.without_expired(limit, now, usize::from(matches!(op, CounterOp::Take(_))))
        }
        None => (State::default(), false),
    };
    let newest = log.entries.back().map_or(Micros::ZERO, |entry| entry.at);
    let stepped_back = clamped || newest > now;
    let mut wait = Some(Micros::ZERO);
    let mut taken = None;
    let mut write = clamped;
    match op {
        CounterOp::Refund(cost) => write |= log.remove_newest(cost),
        CounterOp::Peek(hits) => wait = log.wait_time(limit, hits, now),
        CounterOp::Take(cost) => {
            wait = log.wait_time(limit, cost, now);
            let room = match charge {
                _ if wait == Some(Micros::ZERO) => cost,
                Charge::Admitted | Charge::Billed => 0,
                Charge::Always => {
                    cost.min(limit.hits.0.saturating_mul(2).saturating_sub(log.hits()))
                }
            };
            if room > 0 {
                taken = Some(log.push(room, now.max(newest)));
                write = true;
            }
            if wait != Some(Micros::ZERO) && room > 0 {
                wait = log.wait_time(limit, cost, now);
            }
        }
    }
    let newest = log.entries.back().map(|entry| entry.at.saturating_add(limit.length));
    Step {
        outcome: Outcome {
            charged: taken.map_or(Hits::ZERO, |taken: ChargeRecord| taken.hits),
            reset_after: newest.map_or(Micros::ZERO, |end| end.saturating_sub(now)),
            taken,
            ..Outcome::after(wait, Hits(limit.hits.0.saturating_sub(log.hits())))
        },
        write: write.then_some(log),
        stepped_back,
    }
}

impl State {
    fn push(&mut self, hits: u64, at: Micros) -> ChargeRecord {
        let id = self.entries.back().map_or(0, LogEntry::next_id).max(self.reserved_id);
        let hits = saturate(hits);
        self.entries.push_back(LogEntry { at, id, hits });
        ChargeRecord { hits: Hits(hits.into()), at, window: Micros::ZERO, entry: id.into() }
    }

    /// Removes hits from the newest entries, `hits` in total. Used for refunds requested by a
    /// caller, which do not identify a charge. Returns whether any hits were removed.
    fn remove_newest(&mut self, mut hits: u64) -> bool {
        let mut changed = false;
        while hits > 0 {
            let Some(entry) = self.entries.back_mut() else { break };
            changed = true;
            self.reserved_id = self.reserved_id.max(entry.next_id());
            let back = hits.min(entry.hits.into());
            hits -= back;
            entry.hits -= u32::try_from(back).unwrap_or(entry.hits);
            if entry.hits == 0 {
                self.entries.pop_back();
            }
        }
        changed
    }
}

/// Refunds a recorded charge by removing its log entry. Returns `None` if the entry has expired or
/// was already removed.
///
/// Also removes expired entries. Entries expire by the time of the newest entry, which may be later
/// than `now` if the clock was set back. Without that entry, expired entries would count again.
pub fn refund(
    state: &State,
    limit: &SlidingLog,
    record: &ChargeRecord,
    now: Micros,
) -> Option<State> {
    // The time is compared, too, because an empty log restarts its numbers at 0.
    let matches = |entry: &LogEntry| u128::from(entry.id) == record.entry && entry.at == record.at;
    let expired = state.expired_count(limit, now);
    let at = state.entries.range(expired..).position(matches)?;
    // Not collected, because that reserves at least four entries: a refund needs no more memory.
    let mut entries = VecDeque::with_capacity(state.entries.len() - expired);
    entries.extend(state.entries.range(expired..));
    entries.remove(at);
    Some(State { entries, reserved_id: state.reserved_id })
}

/// Returns the time at which the newest entry expires, or zero for an empty log.
pub fn expires_at(state: &State, limit: &SlidingLog) -> Micros {
    state.entries.back().map_or(Micros::ZERO, |entry| entry.at.saturating_add(limit.length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Verdict;

    fn limit(hits: u64) -> SlidingLog {
        SlidingLog { hits: Hits(hits), length: Micros::SECOND }
    }

    fn take(state: Option<&State>, hits: u64, cost: u64, at: u64) -> Step<State> {
        apply(state, &limit(hits), Charge::Admitted, CounterOp::Take(cost), Micros(at))
    }

    #[test]
    fn two_hits_in_one_microsecond_are_two_entries() {
        let first = take(None, 2, 1, 5_000_000);
        let second = take(first.write.as_ref(), 2, 1, 5_000_000);
        assert_eq!(second.write.as_ref().map(|log| log.entries.len()), Some(2));
        assert_eq!(take(second.write.as_ref(), 2, 1, 5_000_000).outcome.verdict, Verdict::Refuse);
    }

    #[test]
    fn a_take_after_an_entry_was_moved_to_the_present_has_a_number_of_its_own() {
        let first = take(None, 5, 1, 5_000_000);
        let ahead = take(first.write.as_ref(), 5, 1, 5_900_000);
        let clamped = take(ahead.write.as_ref(), 5, 1, 4_800_000);
        let number = |step: &Step<State>| step.outcome.taken.map(|taken| taken.entry);
        assert_eq!([&first, &ahead, &clamped].map(number), [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn a_take_counts_until_it_is_exactly_one_window_old() {
        let full = take(None, 1, 1, 5_000_000).write;
        let early = take(full.as_ref(), 1, 1, 5_999_999).outcome;
        assert_eq!((early.verdict, early.retry_after), (Verdict::Refuse, Some(Micros(1))));
        assert_eq!(take(full.as_ref(), 1, 1, 6_000_000).outcome.verdict, Verdict::Pass);
    }

    #[test]
    fn the_wait_ends_when_enough_of_the_oldest_entries_expire() {
        let a = take(None, 3, 1, 5_000_000).write;
        let b = take(a.as_ref(), 3, 1, 5_200_000).write;
        let c = take(b.as_ref(), 3, 1, 5_400_000).write;
        let wait = |cost| take(c.as_ref(), 3, cost, 5_500_000).outcome.retry_after;
        assert_eq!(wait(1), Some(Micros(500_000)));
        assert_eq!(wait(2), Some(Micros(700_000)));
        assert_eq!(wait(3), Some(Micros(900_000)));
        assert_eq!(wait(4), None);
    }

    #[test]
    fn a_refund_removes_only_the_take_of_its_receipt() {
        let a = take(None, 3, 1, 5_000_000);
        let b = take(a.write.as_ref(), 3, 2, 5_000_000);
        let back = refunded(b.write.as_ref().unwrap(), &a.outcome.taken.unwrap()).unwrap();
        assert_eq!(back.hits(), 2);
        assert_eq!(refunded(&back, &a.outcome.taken.unwrap()), None, "once");
    }

    fn refunded(state: &State, taken: &ChargeRecord) -> Option<State> {
        refund(state, &limit(3), taken, Micros(5_000_000))
    }

    #[test]
    fn an_expired_take_stays_expired_when_the_clock_steps_back() {
        let old = take(None, 2, 2, 5_000_000).write;
        let new = take(old.as_ref(), 2, 1, 6_500_000).write.unwrap();
        let early = Micros(5_900_000);
        let step = apply(Some(&new), &limit(2), Charge::Admitted, CounterOp::Peek(1), early);
        assert_eq!(step.outcome.available, Hits(1));
    }
}
