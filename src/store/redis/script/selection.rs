//! Selects the script that decides a call, and the order in which it gets the checks.
//!
//! Not here: the arguments themselves (`arguments`).

use crate::domain::{
    Accounting, Algorithm, Bucket, Check, FixedWindow, Hits, Micros, Op, Refill, Role,
    SlidingWindow, Window,
};

/// The script that decides a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Selection<'a> {
    /// `single_*.lua`: a call of one check whose algorithm has such a script.
    Single(FastPath<'a>),
    /// `multi_check.lua`: several checks of different fixed windows and buckets.
    Multi,
    /// `apply.lua`.
    Apply,
}

/// A limit whose counter is a few numbers: its fast path answers those instead of an outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FastPath<'a> {
    /// Windows of one length.
    FixedWindow(&'a FixedWindow, Micros),
    /// A bucket.
    Bucket(&'a Bucket),
    /// A sliding window.
    SlidingWindow(&'a SlidingWindow),
}

impl<'a> FastPath<'a> {
    /// `None`: only `apply.lua` decides checks of this limit.
    pub(crate) fn of(check: &Check<'a>) -> Option<FastPath<'a>> {
        match &check.limit.algorithm {
            Algorithm::FixedWindow(window) => match window.window {
                Window::Epoch { length } => {
                    Some(FastPath::FixedWindow(window, Micros(length.0.max(1))))
                }
                Window::Calendar(_) => None,
            },
            Algorithm::Bucket(bucket) => Some(FastPath::Bucket(bucket)),
            Algorithm::SlidingWindow(window) => Some(FastPath::SlidingWindow(window)),
            Algorithm::SlidingLog(_) | Algorithm::Hybrid(_) | Algorithm::Concurrency(_) => None,
        }
    }

    /// The place of its checks in `multi_check.lua`; `None` where that script has none for it.
    fn multi_kind(&self, check: &Check<'_>) -> Option<MultiKind> {
        match self {
            FastPath::FixedWindow(..) => Some(MultiKind::Window),
            FastPath::Bucket(_) if is_credit_form(check) => Some(MultiKind::Credits),
            FastPath::Bucket(_) => Some(MultiKind::Arrival),
            FastPath::SlidingWindow(_) => None,
        }
    }
}

/// The kinds of checks in `multi_check.lua`, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MultiKind {
    Window,
    Arrival,
    Credits,
}

impl<'a> Selection<'a> {
    pub(crate) fn of(checks: &[Check<'a>]) -> Selection<'a> {
        // Quadratic, and a fraction of what Redis spends on as many checks.
        let differs = |(at, check): (usize, &Check<'_>)| {
            checks[..at].iter().all(|earlier| earlier.key != check.key)
        };
        match checks {
            [check] => FastPath::of(check).map_or(Selection::Apply, Selection::Single),
            [_, _, ..]
                if checks.iter().all(|check| multi_kind(check).is_some())
                    && checks.iter().enumerate().all(differs) =>
            {
                Selection::Multi
            }
            [] | [_, _, ..] => Selection::Apply,
        }
    }

    /// The order in which the script gets and answers the checks, by their number in the call.
    pub(crate) fn order(self, checks: &[Check<'_>]) -> impl Iterator<Item = usize> + Clone {
        let place = move |check: &Check<'_>| match self {
            Selection::Single(_) => 0,
            Selection::Multi => multi_kind(check).map_or(0, |multi_kind| multi_kind as u8),
            Selection::Apply => u8::from(!check.is_refund()),
        };
        (0..3).flat_map(move |nth| (0..checks.len()).filter(move |at| place(&checks[*at]) == nth))
    }
}

/// The kind of a check in `multi_check.lua`; `None` where it decides no such checks.
pub(crate) fn multi_kind(check: &Check<'_>) -> Option<MultiKind> {
    FastPath::of(check).and_then(|path| path.multi_kind(check))
}

/// Whether a bucket's debt may be a fraction of a microsecond.
pub(crate) fn is_credit_form(check: &Check<'_>) -> bool {
    matches!(
        &check.limit.algorithm,
        Algorithm::Bucket(Bucket { refill: Refill::Credits { .. }, .. })
    )
}

/// Whether `multi_check.lua` must be told more of a check than its numbers: it is not a required take,
/// or its limit has a floor.
pub(crate) fn is_special(check: &Check<'_>, accounting: Accounting) -> bool {
    let plain = match check.op {
        Op::Take { cost } => cost > Hits::ZERO && !check.is_debt(),
        Op::Peek | Op::Refund { .. } => false,
    };
    let has_floor = match &check.limit.algorithm {
        Algorithm::Bucket(bucket) => bucket.floor > Hits::ONE,
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => false,
    };
    let has_say = accounting == Accounting::Independent || check.role == Role::Required;
    !plain || has_floor || !has_say
}
