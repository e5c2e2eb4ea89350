//! Selects the script that decides a call, and the order in which it receives the checks.
//!
//! Not here: the arguments (`arguments`).

use smallvec::SmallVec;

use crate::domain::{
    Accounting, Algorithm, Bucket, Check, FixedWindow, Hits, Micros, Op, Refill, RepeatedCounters,
    Role, SlidingWindow, Window,
};

/// Number of checks whose order is stored without a heap allocation.
const CHECKS_INLINE: usize = 16;

/// Script that decides a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptSelection<'a> {
    /// A `single_*.lua` script, for a single check whose algorithm has such a script.
    Single(FastPath<'a>),
    /// `multi_check.lua`, for several checks on different counters, all with buckets or
    /// epoch-aligned fixed windows.
    Multi,
    /// `apply.lua`, for all other calls.
    Apply,
}

/// Limit whose algorithm has a fast-path script. The script returns the counter's state before the
/// call, from which `reply` computes the outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FastPath<'a> {
    /// Fixed window that is aligned to the epoch, and its length, at least 1 µs.
    FixedWindow(&'a FixedWindow, Micros),
    /// Token or leaky bucket. Both use the same script.
    Bucket(&'a Bucket),
    /// Sliding window, which is always aligned to the epoch.
    SlidingWindow(&'a SlidingWindow),
}

impl<'a> FastPath<'a> {
    /// Returns the fast path of a check, or `None` if only `apply.lua` can decide it.
    pub(crate) fn for_check(check: &Check<'a>) -> Option<FastPath<'a>> {
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

    /// Returns how `multi_check.lua` classifies a check of this limit, or `None` if that script
    /// cannot decide the check.
    fn multi_check_kind(&self, check: &Check<'_>) -> Option<MultiCheckKind> {
        match self {
            FastPath::FixedWindow(..) => Some(MultiCheckKind::FixedWindow),
            FastPath::Bucket(_) if is_credit_bucket(check) => Some(MultiCheckKind::CreditBucket),
            FastPath::Bucket(_) => Some(MultiCheckKind::ArrivalBucket),
            FastPath::SlidingWindow(_) => None,
        }
    }
}

/// Kind of a check that `multi_check.lua` decides. The variants are in the order in which the
/// script expects the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MultiCheckKind {
    FixedWindow,
    ArrivalBucket,
    CreditBucket,
}

impl<'a> ScriptSelection<'a> {
    pub(crate) fn for_checks(checks: &[Check<'a>]) -> ScriptSelection<'a> {
        match checks {
            [check] => {
                FastPath::for_check(check).map_or(ScriptSelection::Apply, ScriptSelection::Single)
            }
            [_, _, ..]
                if checks.iter().all(|check| multi_check_kind(check).is_some())
                    && RepeatedCounters::from_checks(checks).is_empty() =>
            {
                ScriptSelection::Multi
            }
            [] | [_, _, ..] => ScriptSelection::Apply,
        }
    }

    /// Returns the indices of the checks in the order in which the script expects and decides them.
    pub(crate) fn order(self, checks: &[Check<'_>]) -> SmallVec<[usize; CHECKS_INLINE]> {
        let place = |at: &usize| match self {
            ScriptSelection::Single(_) => 0,
            ScriptSelection::Multi => {
                multi_check_kind(&checks[*at]).map_or(0, |multi_check_kind| multi_check_kind as u8)
            }
            ScriptSelection::Apply => u8::from(!checks[*at].is_refund()),
        };
        let mut order: SmallVec<[usize; CHECKS_INLINE]> = (0..checks.len()).collect();
        order.sort_by_key(place);
        order
    }
}

/// Returns how `multi_check.lua` classifies a check, or `None` if that script cannot decide it.
pub(crate) fn multi_check_kind(check: &Check<'_>) -> Option<MultiCheckKind> {
    FastPath::for_check(check).and_then(|path| path.multi_check_kind(check))
}

/// Returns whether the check's limit is a bucket with [`Refill::Credits`], whose debt may include a
/// fraction of a microsecond.
pub(crate) fn is_credit_bucket(check: &Check<'_>) -> bool {
    matches!(
        &check.limit.algorithm,
        Algorithm::Bucket(Bucket { refill: Refill::Credits { .. }, .. })
    )
}

/// Returns whether `multi_check.lua` needs additional arguments for the check, which is true in any
/// of these cases:
///
/// - The check is not a take of at least one hit, or charges its hits even if it is refused.
/// - The check is a quota or shadow check of an all-or-nothing call.
/// - The limit is a bucket with a floor.
/// - The limit is a bucket with a largest debt of its own: it can owe more than its capacity, but some
///   other limit of the call cannot (`all_keep_debt` is false), or it is a fraction of a limit.
pub(crate) fn needs_extra_numbers(
    check: &Check<'_>,
    accounting: Accounting,
    all_keep_debt: bool,
) -> bool {
    let plain = match check.op {
        Op::Take { cost } => cost > Hits::ZERO && !check.charges_always(),
        Op::Peek { .. } | Op::Refund { .. } => false,
    };
    let has_own_numbers = match &check.limit.algorithm {
        Algorithm::Bucket(bucket) => {
            bucket.floor > Hits::ONE
                || bucket.debt_burst > bucket.burst
                || check.limit.charge.keeps_debt() && !all_keep_debt
        }
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => false,
    };
    let affects_admission = accounting == Accounting::Independent || check.role == Role::Required;
    !plain || has_own_numbers || !affects_admission
}
