//! Which script decides a call, in which form it gets each check, and in which order.
//!
//! Not here: the arguments themselves (`args`).

use super::told;
use crate::domain::{Accounting, Algorithm, Charge, Check, Hits, Op, Refill, Role};

/// Which script decides a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The algorithm's own: one check that takes and is charged when admitted.
    Alone,
    /// `takes.lua`: several such checks of different counters, where no roles matter.
    Takes,
    /// `apply.lua`.
    Any,
}

impl Plan {
    pub(crate) fn of(checks: &[Check<'_>], accounting: Accounting) -> Plan {
        let takes = |check: &Check<'_>| {
            matches!(check.op, Op::Take { cost: Hits(1..) })
                && check.limit.charge == Charge::Admitted
        };
        let all_say = |check: &Check<'_>| {
            accounting == Accounting::Independent || check.role == Role::Required
        };
        // Quadratic, and a fraction of what Redis spends on as many checks.
        let other = |(at, check): (usize, &Check<'_>)| {
            checks[..at].iter().all(|earlier| earlier.key != check.key)
        };
        let plain = |check: &Check<'_>| match &check.limit.algorithm {
            Algorithm::Bucket(bucket) => bucket.floor <= Hits::ONE,
            algorithm => told::form(algorithm).is_none(),
        };
        match checks {
            [check] if takes(check) && has_script(check) => Plan::Alone,
            [_, _, ..]
                if checks.iter().all(|check| takes(check) && all_say(check) && plain(check))
                    && checks.iter().enumerate().all(other) =>
            {
                Plan::Takes
            }
            _ => Plan::Any,
        }
    }

    /// The order in which the script gets and answers the checks, by their number in the call.
    pub(crate) fn order<'a>(
        self,
        checks: &'a [Check<'_>],
    ) -> impl Iterator<Item = usize> + Clone + 'a {
        (0..3).flat_map(move |rank| {
            (0..checks.len()).filter(move |at| self.rank(&checks[*at]) == rank)
        })
    }

    fn rank(self, check: &Check<'_>) -> u8 {
        match (self, check.op) {
            (Plan::Takes, _) => match form(check) {
                Form::Window => 0,
                Form::Arrival => 1,
                Form::Credits | Form::Told(_) => 2,
            },
            (Plan::Alone | Plan::Any, Op::Refund { .. }) => 0,
            (Plan::Alone | Plan::Any, Op::Take { .. } | Op::Peek) => 1,
        }
    }
}

/// How a check is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Window,
    Arrival,
    Credits,
    /// By that letter: the script tells the whole outcome.
    Told(u8),
}

/// Whether the check's algorithm has a script of its own.
fn has_script(check: &Check<'_>) -> bool {
    !matches!(form(check), Form::Told(b'k' | b'l' | b'n' | b'h'))
}

/// The form in which a script gets a check: a debt is always in credit form.
pub(crate) fn form(check: &Check<'_>) -> Form {
    if let Some(letter) = told::form(&check.limit.algorithm) {
        return Form::Told(letter);
    }
    match &check.limit.algorithm {
        Algorithm::Bucket(bucket) => match bucket.refill {
            Refill::Arrival { .. } if !is_debt(check) => Form::Arrival,
            Refill::Arrival { .. } | Refill::Credits { .. } => Form::Credits,
        },
        _ => Form::Window,
    }
}

/// Whether a check is charged whatever its verdict: a debt.
pub(crate) fn is_debt(check: &Check<'_>) -> bool {
    matches!(check.op, Op::Take { cost: Hits(1..) })
        && check.limit.charge == Charge::Always
        // A slot is held or it is not, and classes are charged what they were granted.
        && !matches!(check.limit.algorithm, Algorithm::Concurrency(_) | Algorithm::Hybrid(_))
}
