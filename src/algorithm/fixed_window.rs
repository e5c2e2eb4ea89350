//! Fixed window: at most L hits in each window. Windows are aligned to the epoch or to a calendar.
//!
//! The state is the window's start and its hit count. Any interval of one window's length admits
//! at most 2 L hits: L just before a boundary and L just after it.
//!
//! `c` is the cost of a check in hits, `w` the start of the window that contains `now`, `w'` the
//! end of that window.
//!
//! ```text
//! start > w'        too far in the future: store start = w, count = max(count, L)
//! w ≤ start < w'    current window
//! start = w'        the clock stepped back over a boundary: keep counting in the stored window
//! start < w         ended: start = w, count = 0
//! passes iff count + c ≤ L;  retry-after = reset = (end of the window begun at start) − now
//! ```
//!
//! The count is never cut to the limit, because the counter may also be that of a higher limit: one
//! before a change, or the rule's own while a request carries a lower one. A refund subtracts from
//! the count as it is, so that hits above a lowered limit are given back first.
//!
//! Not here: calls with several checks, removal of expired counters (`store`).

use super::step::{CounterOp, Step, record_charge, saturate};
use crate::domain::{
    Charge, ChargeRecord, FixedWindow, Hits, Micros, Outcome, Window, WindowBounds,
};

/// Largest count that a window stores, in hits.
const COUNT_MAX: u64 = u32::MAX as u64;

/// Stored state of a fixed window: the number of hits charged in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Start of the window, aligned to the calendar or to a multiple of the window length since the
    /// Unix epoch.
    pub start: Micros,
    /// Hits charged in the window. More than the limit if the limit was lowered, or with `charge:
    /// billed` or `always`.
    pub count: u32,
}

/// State of a counter at the time of an operation: the bounds of the current window, and its hits.
/// A stored window that starts too far in the future is clamped.
struct WindowView {
    start: Micros,
    end: Micros,
    count: u64,
    /// Whether the stored state belongs to the current window. If not, the count starts at zero.
    is_stored: bool,
    /// Whether the stored window was too far in the future and was clamped. If so, the clamped
    /// state must be stored.
    clamped: bool,
    stepped_back: bool,
}

/// Applies an operation to a fixed window. Returns the outcome and, if the state changes, the new
/// state.
pub fn apply(
    state: Option<State>,
    limit: &FixedWindow,
    charge: Charge,
    op: CounterOp,
    now: Micros,
) -> Step<State> {
    let hits = limit.hits.0.min(COUNT_MAX);
    let view = view_at(state, limit, hits, now);
    let mut count = view.count;
    let mut write = view.clamped;
    let mut wait = Some(Micros::ZERO);
    let rest = view.end.saturating_sub(now);
    match op {
        CounterOp::Refund(cost) => {
            if view.is_stored && count > 0 {
                count = count.saturating_sub(cost);
                write = true;
            }
        }
        CounterOp::Take(cost) | CounterOp::Peek(cost) => {
            let passes = count.saturating_add(cost) <= hits;
            if !passes {
                wait = (cost <= hits).then_some(rest);
            }
            let charges = passes || charge == Charge::Always;
            if charges && matches!(op, CounterOp::Take(_)) {
                count = count.saturating_add(cost).min(COUNT_MAX);
            }
            write |= count != view.count;
        }
    }
    let charged = count.saturating_sub(view.count);
    Step {
        outcome: Outcome {
            charged: Hits(charged),
            reset_after: rest,
            taken: record_charge(charged, now, view.start, 0),
            ..Outcome::after(wait, Hits(hits.saturating_sub(count)))
        },
        write: write.then(|| State { start: view.start, count: saturate(count) }),
        stepped_back: view.stepped_back,
    }
}

/// Refunds a recorded charge to the window that was charged. Returns the new state, or `None` if
/// the counter has moved on to another window.
pub fn refund(state: State, record: &ChargeRecord) -> Option<State> {
    (state.start == record.window && state.count > 0).then(|| State {
        start: state.start,
        count: saturate(u64::from(state.count).saturating_sub(record.hits.0)),
    })
}

/// Returns the time at which the counter's window ends.
pub fn expires_at(state: State, limit: &FixedWindow) -> Micros {
    window_at(&limit.window, state.start).end
}

fn view_at(state: Option<State>, limit: &FixedWindow, hits: u64, now: Micros) -> WindowView {
    let present = window_at(&limit.window, now);
    let mut view = WindowView {
        start: present.start,
        end: present.end,
        count: 0,
        is_stored: false,
        clamped: false,
        stepped_back: false,
    };
    let Some(state) = state else { return view };
    let count = u64::from(state.count);
    if state.start > present.end {
        view.count = count.max(hits);
        view.is_stored = true;
        view.clamped = true;
        view.stepped_back = true;
    } else if state.start >= present.start {
        view.start = state.start;
        if state.start != present.start {
            view.end = window_at(&limit.window, state.start).end;
        }
        view.count = count;
        view.is_stored = true;
        view.stepped_back = state.start > now;
    }
    view
}

/// Returns the window that contains `at`. A window length of zero, which no policy allows, is
/// treated as 1 µs to avoid a division by zero.
pub(crate) fn window_at(window: &Window, at: Micros) -> WindowBounds {
    match window {
        Window::Epoch { length } => {
            let length = length.0.max(1);
            let start = Micros(at.0 - at.0 % length);
            WindowBounds { start, end: start.saturating_add(Micros(length)) }
        }
        Window::Calendar(calendar) => calendar.window_at(at),
    }
}
