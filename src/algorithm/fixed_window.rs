//! Fixed window: at most L hits in each window. Windows are aligned to the epoch or to a calendar.
//!
//! The state is the start of the window and its hits. In any interval of one window's length it admits
//! at most 2 L: L just before a boundary and L just after it.
//!
//! With `w` = the start of the window that contains `now`, `w'` = its end, and `cap` = L (charge
//! always: 2^32−1):
//!
//! ```text
//! start > w'        from the far future: start, count = w, max(count, L), and that is written
//! w ≤ start ≤ w'    current (start = w': the clock stepped back over a boundary and stands still)
//! start < w         ended: start, count = w, 0
//! count = min(count, cap)
//! passes iff count + c ≤ L;  retry-after = reset = end of the window of `start` − now
//! ```
//!
//! Not here: calls of several checks, removal of entries.

use super::Step;
use crate::domain::{
    Charge, ChargeRecord, FixedWindow, Hits, Micros, Op, Outcome, Verdict, Window, WindowBounds,
};

/// Hits counted in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Start of the window.
    pub start: Micros,
    /// Hits in the window: at most the limit, or `u32::MAX` for `charge: always`.
    pub count: u32,
}

/// A state as it counts at a certain time.
struct Read {
    start: Micros,
    end: Micros,
    count: u64,
    /// Whether a counter exists for this window.
    counted: bool,
    /// Whether the state was clamped and must be written.
    clamped: bool,
    stepped_back: bool,
}

/// Applies an operation.
pub fn apply(
    state: Option<State>,
    limit: &FixedWindow,
    charge: Charge,
    op: Op,
    now: Micros,
) -> Step<State> {
    let hits = limit.hits.0.min(u64::from(u32::MAX));
    let cap = cap(hits, charge);
    let read = read(state, limit, hits, cap, now);
    let mut count = read.count;
    let mut write = read.clamped;
    let mut passes = true;
    let mut retry_after = None;
    match op {
        Op::Refund { cost } => {
            if read.counted && count > 0 {
                count = count.saturating_sub(cost.0);
                write = true;
            }
        }
        Op::Take { cost } => {
            passes = count.saturating_add(cost.0.max(1)) <= hits;
            if passes || charge == Charge::Always {
                count = count.saturating_add(cost.0).min(cap);
            }
            write |= count != read.count;
        }
        Op::Peek => passes = count < hits,
    }
    let needed = if let Op::Take { cost } = op { cost.0.max(1) } else { 1 };
    let rest = read.end.saturating_sub(now);
    if !passes && needed <= hits {
        retry_after = Some(rest);
    }
    let charged = Hits(count.saturating_sub(read.count));
    Step {
        outcome: Outcome {
            verdict: if passes { Verdict::Pass } else { Verdict::Refuse },
            charged,
            available: Hits(hits.saturating_sub(count)),
            retry_after,
            reset_after: rest,
            taken: (charged.0 > 0).then_some(ChargeRecord {
                hits: charged,
                at: now,
                window: read.start,
                entry: 0,
            }),
        },
        write: write.then(|| State { start: read.start, count: stored(count) }),
        stepped_back: read.stepped_back,
    }
}

/// Returns a receipt's hits to their window. Returns `None` if that window is not the state's.
pub fn refund(state: State, taken: &ChargeRecord) -> Option<State> {
    (state.start == taken.window && state.count > 0).then(|| State {
        start: state.start,
        count: stored(u64::from(state.count).saturating_sub(taken.hits.0)),
    })
}

/// Returns the window's end.
pub fn expires_at(state: State, limit: &FixedWindow) -> Micros {
    span(&limit.window, state.start).end
}

fn read(state: Option<State>, limit: &FixedWindow, hits: u64, cap: u64, now: Micros) -> Read {
    let present = span(&limit.window, now);
    let mut read = Read {
        start: present.start,
        end: present.end,
        count: 0,
        counted: false,
        clamped: false,
        stepped_back: false,
    };
    let Some(state) = state else { return read };
    let count = u64::from(state.count);
    if state.start > present.end {
        read.count = count.max(hits).min(cap);
        read.counted = true;
        read.clamped = true;
        read.stepped_back = true;
    } else if state.start >= present.start {
        read.start = state.start;
        if state.start != present.start {
            read.end = span(&limit.window, state.start).end;
        }
        read.count = count.min(cap);
        read.counted = true;
        read.stepped_back = state.start > now;
    }
    read
}

/// Returns the upper bound of the hits counted in a window.
pub(crate) fn cap(hits: u64, charge: Charge) -> u64 {
    match charge {
        Charge::Admitted => hits,
        Charge::Always => u64::from(u32::MAX),
    }
}

/// Returns the window that contains a time. A length of 0, which no policy has, counts as 1 µs, to
/// avoid a division by zero.
pub(crate) fn span(window: &Window, at: Micros) -> WindowBounds {
    match window {
        Window::Epoch { length } => {
            let length = length.0.max(1);
            let start = Micros(at.0 - at.0 % length);
            WindowBounds { start, end: start.saturating_add(Micros(length)) }
        }
        Window::Calendar(calendar) => calendar.window_at(at),
    }
}

fn stored(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
