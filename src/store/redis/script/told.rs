//! What `lua/apply.lua` and `lua/refund.lua` get and say of the algorithms that keep more than a
//! number or two: calendar windows, sliding windows, logs, slots and hybrid classes.
//!
//! Their scripts compute the whole outcome and tell it in six numbers. Not here: fixed windows and
//! buckets, calls (`args`, `reply`).

use std::fmt::Write as _;

use redis::Cmd;
use smallvec::SmallVec;

use crate::domain::{
    Algorithm, Calendar, Charge, ChargeRecord, Check, Hits, Holder, Hybrid, Limit, Micros, Op,
    Outcome, Receipt, Verdict, Window,
};

/// The most hits that are counted in a window.
pub(crate) const COUNT_MAX: u64 = u32::MAX as u64;

/// Why a reply could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// An error of the server or of the script.
    Error,
    /// Neither the line of a lean script nor the array of `apply.lua`.
    Shape,
    /// As many numbers as the checks make were expected.
    Length,
    /// A number out of range, or none at all.
    Number,
    /// The server's time is in none of the calendar windows around the process's: nothing was
    /// done.
    Misfit,
}

/// What the scripts call the arguments of a check, from `+2` on; the files' headers say the same.
pub mod names {
    /// `calendar.lua`.
    pub const CALENDAR: [&str; 4] = ["cost", "limit", "cap", "bounds"];
    /// `sliding_window.lua`, there as ARGV.
    pub const SLIDING_WINDOW: [&str; 5] = ["cost", "limit", "length_us", "cap", "tick_us"];
    /// `sliding_log.lua`.
    pub const SLIDING_LOG: [&str; 4] = ["cost", "limit", "length_us", "cap"];
    /// `concurrency.lua`.
    pub const CONCURRENCY: [&str; 4] = ["cost", "limit", "lease_us", "holder"];
    /// `hybrid.lua`.
    pub const HYBRID: [&str; 3] = ["cost", "burst", "terms"];
}

/// Numbers that a script tells of such a check.
pub(crate) const NUMBERS: usize = 6;

/// The most hits that a log or a slot table is asked for: what three bytes of an entry can hold,
/// twice (the policy's bound is 10,000).
const ENTRIES_MAX: u64 = 1 << 22;

/// The form's letter; `None` for fixed windows and buckets, which tell their state instead.
pub(crate) const fn form(algorithm: &Algorithm) -> Option<u8> {
    match algorithm {
        Algorithm::FixedWindow(window) => match window.window {
            Window::Epoch { .. } => None,
            Window::Calendar(_) => Some(b'k'),
        },
        Algorithm::Bucket(_) => None,
        Algorithm::SlidingWindow(_) => Some(b's'),
        Algorithm::SlidingLog(_) => Some(b'l'),
        Algorithm::Hybrid(_) => Some(b'h'),
        Algorithm::Concurrency(_) => Some(b'n'),
    }
}

/// How many arguments such a check has from `+2` on.
pub(crate) const fn arguments(algorithm: &Algorithm) -> usize {
    match algorithm {
        Algorithm::FixedWindow(_) => names::CALENDAR.len(),
        Algorithm::SlidingWindow(_) => names::SLIDING_WINDOW.len(),
        Algorithm::SlidingLog(_) => names::SLIDING_LOG.len(),
        Algorithm::Hybrid(_) => names::HYBRID.len(),
        Algorithm::Concurrency(_) => names::CONCURRENCY.len(),
        Algorithm::Bucket(_) => 0,
    }
}

/// Writes the arguments from `+2` on. `clock`: now, by the process.
pub(crate) fn write(
    command: &mut Cmd,
    limit: &Limit,
    cost: Hits,
    is_refund: bool,
    holder: Option<Holder>,
    clock: Micros,
) {
    let always = limit.charge == Charge::Always;
    match &limit.algorithm {
        Algorithm::FixedWindow(window) => {
            let hits = window.hits.0.min(COUNT_MAX);
            command.arg(cost.0.min(COUNT_MAX + 1)).arg(hits);
            command.arg(if always { COUNT_MAX } else { hits });
            match &window.window {
                Window::Calendar(calendar) => command.arg(bounds(calendar, clock).as_bytes()),
                Window::Epoch { .. } => command.arg(""),
            };
        }
        Algorithm::SlidingWindow(window) => {
            // A refund may empty both windows.
            command.arg(cost.0.min(2 * COUNT_MAX)).arg(window.hits.0).arg(window.length.0.max(1));
            command.arg(window.count_max(limit.charge)).arg(window.tick().0);
        }
        Algorithm::SlidingLog(log) => {
            let hits = log.hits.0.min(ENTRIES_MAX);
            let cap = if always { 2 * hits } else { hits };
            command.arg(cost.0.min(2 * ENTRIES_MAX + 1)).arg(hits).arg(log.length.0).arg(cap);
        }
        Algorithm::Concurrency(slots) => {
            let hits = slots.slots.0.min(ENTRIES_MAX);
            command.arg(cost.0.min(hits + 1)).arg(hits).arg(slots.lease.0);
            match holder {
                Some(Holder(bits)) => command.arg(bits.to_be_bytes().as_slice()),
                // Anonymous takes renew each other; an anonymous return frees nothing.
                None if is_refund => command.arg(""),
                None => command.arg([0u8; 16].as_slice()),
            };
        }
        Algorithm::Hybrid(classes) => {
            let terms = Terms::of(classes);
            command.arg(cost.0.min(terms.burst + 1)).arg(terms.burst).arg(terms.text().as_bytes());
        }
        Algorithm::Bucket(_) => {}
    }
}

/// Writes the five arguments of a receipt.
pub(crate) fn write_receipt(command: &mut Cmd, receipt: &Receipt, letter: u8) {
    let Receipt { limit, taken, .. } = receipt;
    command.arg([letter].as_slice());
    match &limit.algorithm {
        Algorithm::FixedWindow(_) | Algorithm::Bucket(_) => {
            command.arg(taken.hits.0.min(COUNT_MAX)).arg(taken.window.0).arg("");
        }
        Algorithm::SlidingWindow(window) => {
            command.arg(taken.hits.0.min(COUNT_MAX)).arg(taken.window.0).arg(window.length.0);
        }
        Algorithm::SlidingLog(log) => {
            command.arg(low(taken.entry)).arg(taken.at.0).arg(log.length.0);
        }
        Algorithm::Concurrency(_) => {
            command.arg(taken.entry.to_be_bytes().as_slice()).arg("").arg("");
        }
        Algorithm::Hybrid(classes) => {
            let terms = Terms::of(classes);
            command.arg(taken.hits.0.min(terms.burst)).arg(taken.at.0).arg(terms.text().as_bytes());
        }
    }
    command.arg("");
}

/// The outcome that six numbers tell: available (refused: −1 − available), wait (0: none), reset,
/// charged, and of what was charged since and entry.
pub(crate) fn outcome(
    numbers: [i64; NUMBERS],
    check: &Check<'_>,
    now: Micros,
) -> Result<Outcome, ReplyError> {
    let [available, rest @ ..] = numbers;
    let passes = available >= 0;
    let count = |number| u64::try_from(number).map_err(|_| ReplyError::Number);
    let available = count(if passes { available } else { -1 - available })?;
    let [wait, reset, charged, since, entry] = rest.map(count);
    let (wait, charged) = (wait?, Hits(charged?));
    let (since, entry) = (Micros(since?), u128::from(entry?));
    let asked = match check.op {
        Op::Take { cost } => cost,
        Op::Peek | Op::Refund { .. } => Hits::ZERO,
    };
    // No script says so; believed, it would be shown to callers and refunded later.
    if available > check.limit.capacity().0 || charged > asked {
        return Err(ReplyError::Number);
    }
    let (at, window, entry) = match &check.limit.algorithm {
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) => (now, since, 0),
        Algorithm::Concurrency(_) => {
            (since, Micros::ZERO, check.holder.map_or(0, |Holder(bits)| bits))
        }
        Algorithm::SlidingLog(_) | Algorithm::Hybrid(_) | Algorithm::Bucket(_) => {
            (since, Micros::ZERO, entry)
        }
    };
    Ok(Outcome {
        verdict: if passes { Verdict::Pass } else { Verdict::Refuse },
        charged,
        available: Hits(available),
        retry_after: (wait > 0 && !passes).then_some(Micros(wait)),
        reset_after: Micros(reset?),
        taken: (charged > Hits::ZERO).then_some(ChargeRecord { hits: charged, at, window, entry }),
    })
}

/// Numbers in one argument, on the stack: four times of 16 digits, or the terms of some classes.
type Text = SmallVec<[u8; 96]>;

struct Numbers(Text);

impl Numbers {
    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Write for Numbers {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

fn numbers(each: impl Iterator<Item = u64>) -> Numbers {
    let mut text = Numbers(Text::new());
    for (n, number) in each.enumerate() {
        let blank = if n > 0 { " " } else { "" };
        // Into a vector: never fails.
        let _written = write!(text, "{blank}{number}");
    }
    text
}

fn bounds(calendar: &Calendar, clock: Micros) -> Numbers {
    numbers(calendar.around(clock).into_iter().map(|bound| bound.0))
}

/// A hybrid's numbers, as `lua/hybrid.lua` takes them.
struct Terms<'a> {
    limit: &'a Hybrid,
    burst: u64,
    unit: u64,
    tick: u64,
}

impl Terms<'_> {
    fn of(limit: &Hybrid) -> Terms<'_> {
        let window = crate::domain::SlidingWindow { hits: Hits::ZERO, length: limit.window };
        let unit = 100 * window.window_ticks();
        // The policy lets nothing through that this would change; it keeps Lua exact.
        let burst = limit.burst.0.min((1 << 51) / unit);
        Terms { limit, burst, unit, tick: window.tick().0 }
    }

    fn text(&self) -> Numbers {
        let Hybrid { hits, class, floor_percent, shares, .. } = self.limit;
        let head = [
            self.burst,
            self.unit,
            self.tick,
            hits.0,
            *class as u64 + 1,
            u64::from(*floor_percent),
        ];
        numbers(head.into_iter().chain(shares.iter().map(|share| u64::from(*share))))
    }
}

fn low(entry: u128) -> u64 {
    u64::try_from(entry).unwrap_or(u64::MAX)
}
