//! Sliding window: counts the hits of the current window, plus the previous window's hits weighted
//! by the fraction of that window that the sliding interval still covers. For the symbols, see the
//! [parent module](super).
//!
//! The state is the start of the current window and the hits of the previous and the current
//! window, `prev` and `cur`. Any interval of one window's length admits about L hits of steady
//! traffic, and fewer than 2 L hits even if an adversary sends all hits at the end of a window.
//!
//! `e` is the time since the current window started, rounded down. W and `e` are in ticks (see
//! [`SlidingWindow::tick`]). All arithmetic is integer.
//!
//! ```text
//! room(c)    L − cur − c
//! passes iff room(c) ≥ 0 and prev·(W − e) ≤ room(c)·W
//! retry at   cur + c ≤ L:  tick W − ⌊room(c)·W / prev⌋ of this window
//!            else, c ≤ L:  tick W − ⌊(L − c)·W / cur⌋ of the next one
//! available  L − cur − ⌈prev·(W − e) / W⌉
//! reset      the end of the next window if cur > 0, of this one if prev > 0, else now
//! ```
//!
//! Solving the second inequality for `e` gives the retry times. The two sides of the inequality
//! are computed separately, because the Lua script compares doubles, and each product must stay
//! below 2^53. The policy compiler therefore keeps L·W below 2^53, and a count is at most the smaller
//! of `u32::MAX` and ⌊(2^53 − 1) / W⌋.
//!
//! Counts are never cut to the limit, because the counter may also be that of a higher limit: one
//! before a change, or the rule's own while a request carries a lower one. A refund subtracts from
//! the counts as they are, so that hits above a lowered limit are given back first.
//!
//! Not here: calls with several checks, removal of expired counters (`store`).

use super::step::{CounterOp, Step, record_charge, saturate};
use crate::domain::{Charge, ChargeRecord, Hits, Micros, Outcome, SlidingWindow};

/// Integer bound for exact arithmetic in Lua: 2^53. Doubles, Lua's only number type, represent
/// every integer up to this bound exactly.
const EXACT_MAX: u64 = 1 << 53;

/// Stored state of a sliding window: the hits charged in the current window and in the previous
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Start of the current window, aligned to a multiple of the window length since the Unix
    /// epoch.
    pub start: Micros,
    /// Hits charged in the window before `start`.
    pub prev: u32,
    /// Hits charged in the window that begins at `start`.
    pub cur: u32,
}

/// State of a counter at the time of an operation: the hits in the current and the previous window.
/// A window that starts too far in the future is clamped.
#[derive(Clone, Copy)]
struct WindowView {
    start: Micros,
    prev: u64,
    cur: u64,
    /// Ticks (see [`SlidingWindow::tick`]) since the start of the current window, at most one
    /// window length.
    elapsed: u64,
    clamped: bool,
    stepped_back: bool,
}

/// Applies an operation to a sliding window. Returns the outcome and, if the state changes, the new
/// state.
pub fn apply(
    state: Option<State>,
    limit: &SlidingWindow,
    charge: Charge,
    op: CounterOp,
    now: Micros,
) -> Step<State> {
    let view = view_at(state, limit, now);
    let mut after = view;
    let mut wait = Some(Micros::ZERO);
    let mut charged = 0;
    match op {
        CounterOp::Refund(cost) => {
            let from_cur = cost.min(view.cur);
            after.cur -= from_cur;
            after.prev = view.prev.saturating_sub(cost - from_cur);
        }
        CounterOp::Peek(hits) => wait = view.wait_time(limit, hits, now),
        CounterOp::Take(cost) => {
            wait = view.wait_time(limit, cost, now);
            let passes = wait == Some(Micros::ZERO);
            if passes || charge == Charge::Always {
                let most = limit.count_max().max(view.cur);
                after.cur = view.cur.saturating_add(cost).min(most);
                charged = after.cur - view.cur;
            }
            if !passes && charge == Charge::Always {
                wait = after.wait_time(limit, cost, now);
            }
        }
    }
    let changed = (after.prev, after.cur) != (view.prev, view.cur);
    Step {
        outcome: Outcome {
            charged: Hits(charged),
            reset_after: after.reset_after(limit).saturating_sub(now),
            taken: record_charge(charged, now, view.start, 0),
            ..Outcome::after(wait, Hits(after.available(limit)))
        },
        write: (changed || view.clamped).then(|| State {
            start: after.start,
            prev: saturate(after.prev),
            cur: saturate(after.cur),
        }),
        stepped_back: view.stepped_back,
    }
}

/// Refunds a recorded charge to the window that was charged. Returns the new state, or `None` if
/// that window is neither the current nor the previous one.
pub fn refund(state: State, limit: &SlidingWindow, record: &ChargeRecord) -> Option<State> {
    let back = |count: u32| saturate(u64::from(count).saturating_sub(record.hits.0));
    if record.window == state.start && state.cur > 0 {
        Some(State { cur: back(state.cur), ..state })
    } else if record.window.saturating_add(limit.length) == state.start && state.prev > 0 {
        Some(State { prev: back(state.prev), ..state })
    } else {
        None
    }
}

/// Returns the time from which the counted hits no longer affect any decision: the end of the
/// window that follows the last window with hits.
pub fn expires_at(state: State, limit: &SlidingWindow) -> Micros {
    let windows = if state.cur > 0 { 2 } else { 1 };
    state.start.saturating_add(Micros(limit.length.0.saturating_mul(windows)))
}

fn view_at(state: Option<State>, limit: &SlidingWindow, now: Micros) -> WindowView {
    let length = limit.length.0.max(1);
    let begins = Micros(now.0 - now.0 % length);
    let mut view = WindowView {
        start: begins,
        prev: 0,
        cur: 0,
        elapsed: (now.0 - begins.0) / limit.tick().0,
        clamped: false,
        stepped_back: false,
    };
    let Some(state) = state else { return view };
    let (prev, cur) = (u64::from(state.prev), u64::from(state.cur));
    if state.start.0 > now.0.saturating_add(length) {
        // From the far future: clamp to a full window now. Callers store the clamp; otherwise the
        // counter would stay frozen.
        view.cur = cur.max(limit.hits.0);
        view.clamped = true;
        view.stepped_back = true;
    } else if state.start >= begins {
        // If the clock stepped back behind the window's start, it counts as standing at that start.
        view.elapsed = now.saturating_sub(state.start).0 / limit.tick().0;
        view.stepped_back = state.start > now;
        (view.start, view.prev, view.cur) = (state.start, prev, cur);
    } else if state.start.saturating_add(Micros(length)) == begins {
        view.prev = cur;
    }
    view
}

impl WindowView {
    /// Returns the time until a charge of `cost` hits passes: zero if it passes now, or `None` if
    /// it never does.
    fn wait_time(&self, limit: &SlidingWindow, cost: u64, now: Micros) -> Option<Micros> {
        let window = limit.window_ticks();
        let spare = limit.hits.0.checked_sub(cost)?;
        let ticks = match spare.checked_sub(self.cur) {
            Some(room)
                if self.prev.saturating_mul(window - self.elapsed)
                    <= room.saturating_mul(window) =>
            {
                return Some(Micros::ZERO);
            }
            Some(room) => window - (room.saturating_mul(window) / self.prev).min(window),
            None => 2 * window - (spare.saturating_mul(window) / self.cur).min(window),
        };
        let retry_at = self.start.saturating_add(Micros(ticks.saturating_mul(limit.tick().0)));
        // At least 1 µs, even if the clock has stepped back.
        Some(Micros(retry_at.saturating_sub(now).0.max(1)))
    }

    fn available(&self, limit: &SlidingWindow) -> u64 {
        let window = limit.window_ticks();
        let carried = self.prev.saturating_mul(window - self.elapsed).div_ceil(window);
        limit.hits.0.saturating_sub(self.cur).saturating_sub(carried)
    }

    fn reset_after(&self, limit: &SlidingWindow) -> Micros {
        let windows = if self.cur > 0 { 2 } else { u64::from(self.prev > 0) };
        Micros(self.start.0.saturating_add(limit.length.0.saturating_mul(windows)))
    }
}

impl SlidingWindow {
    /// Returns the length of a tick, the time unit used to weight the previous window: 1 µs for
    /// windows shorter than a minute, 1 ms for windows shorter than a day, and 1 s otherwise.
    /// Coarser ticks for longer windows keep the product of limit and window length below 2^53.
    pub fn tick(&self) -> Micros {
        const MINUTE_MICROS: u64 = 60_000_000;
        const DAY_MICROS: u64 = 86_400_000_000;
        match self.length.0 {
            0..MINUTE_MICROS => Micros(1),
            MINUTE_MICROS..DAY_MICROS => Micros(1_000),
            DAY_MICROS.. => Micros(1_000_000),
        }
    }

    /// Returns the window's length in ticks, at least 1.
    pub fn window_ticks(&self) -> u64 {
        (self.length.0 / self.tick().0).max(1)
    }

    /// Returns the largest count that a window can store, in hits.
    pub fn count_max(&self) -> u64 {
        u64::from(u32::MAX).min((EXACT_MAX - 1) / self.window_ticks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Verdict;

    const T0: u64 = 1_800_014_400_000_000;

    fn limit(hits: u64, seconds: u64) -> SlidingWindow {
        SlidingWindow { hits: Hits(hits), length: Micros::from_secs(seconds) }
    }

    fn take(state: Option<State>, limit: &SlidingWindow, cost: u64, at: u64) -> Step<State> {
        apply(state, limit, Charge::Admitted, CounterOp::Take(cost), Micros(at))
    }

    #[test]
    fn half_a_window_later_half_of_the_previous_hits_count() {
        let limit = limit(100, 10);
        let full = take(None, &limit, 100, T0 + 9_999_999).write;
        let at = T0 + 15_000_000;
        assert_eq!(take(full, &limit, 1, at).outcome.available, Hits(49));
        assert_eq!(take(full, &limit, 50, at).outcome.verdict, Verdict::Pass);
        assert_eq!(take(full, &limit, 51, at).outcome.verdict, Verdict::Refuse);
    }

    #[test]
    fn the_wait_is_exact_for_every_cost_and_state() {
        for (prev, cur, cost, elapsed) in (0..=7)
            .flat_map(|p| (0..=7).map(move |c| (p, c)))
            .flat_map(|(p, c)| (1..=8).map(move |cost| (p, c, cost)))
            .flat_map(|(p, c, cost)| [0, 1, 333_333, 999_999].map(|e| (p, c, cost, e)))
        {
            let limit = limit(7, 1);
            let state = Some(State { start: Micros(T0), prev, cur });
            let now = T0 + elapsed;
            let step = take(state, &limit, cost, now);
            match step.outcome.retry_after {
                None => assert!(step.outcome.verdict == Verdict::Pass || cost > 7),
                Some(wait) => {
                    let verdict = |at| take(state, &limit, cost, at).outcome.verdict;
                    assert_eq!(
                        verdict(now + wait.0),
                        Verdict::Pass,
                        "{prev} {cur} {cost} {elapsed}"
                    );
                    assert_eq!(verdict(now + wait.0 - 1), Verdict::Refuse);
                }
            }
        }
    }

    #[test]
    fn the_available_hits_pass_and_one_more_does_not() {
        let limit = limit(1_000, 60);
        for elapsed in [0, 1_000, 17_123_000, 59_999_000] {
            let state = Some(State { start: Micros(T0), prev: 777, cur: 123 });
            let at = T0 + elapsed;
            let Hits(available) =
                apply(state, &limit, Charge::Admitted, CounterOp::Peek(1), Micros(at))
                    .outcome
                    .available;
            let verdict = |cost| take(state, &limit, cost, at).outcome.verdict;
            assert!(available == 0 || verdict(available) == Verdict::Pass);
            assert_eq!(verdict(available + 1), Verdict::Refuse);
        }
    }

    #[test]
    fn a_charge_is_refunded_to_its_own_window_or_not_at_all() {
        let limit = limit(10, 1);
        let first = take(None, &limit, 4, T0);
        let taken = first.outcome.taken.unwrap();
        let later = take(first.write, &limit, 1, T0 + 1_500_000).write.unwrap();
        assert_eq!((later.prev, later.cur), (4, 1));
        assert_eq!(refund(later, &limit, &taken).unwrap().prev, 0);
        let gone = take(Some(later), &limit, 1, T0 + 2_500_000).write.unwrap();
        assert_eq!(refund(gone, &limit, &taken), None);
    }
}
