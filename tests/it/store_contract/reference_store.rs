//! The contract in its simplest form: a map of states, and a call that is decided on all of it.

use std::collections::HashMap;

use tidegate::algorithm::{State, apply, apply_for, expires_at, refund};
use tidegate::domain::{
    Accounting, Call, Charge, Check, CounterKey, Hits, Micros, Op, Outcome, Receipt, Role, Verdict,
};

#[derive(Default)]
pub struct Model {
    states: HashMap<CounterKey, State>,
}

impl Model {
    pub fn apply(&mut self, call: &Call<'_>) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; call.checks.len()];
        for (i, check) in call.checks.iter().enumerate() {
            if check.comes_first() {
                outcomes[i] = Some(self.step(check, check.op, call.now));
            }
        }
        let before = self.states.clone();
        for (i, check) in call.checks.iter().enumerate() {
            outcomes[i] = outcomes[i].or_else(|| Some(self.step(check, check.op, call.now)));
        }
        let mut outcomes: Vec<Outcome> = outcomes.into_iter().map(Option::unwrap).collect();
        let undoes = call.accounting == Accounting::AllOrNothing
            || call.checks.iter().any(|check| matches!(check.op, Op::Hold { .. }));
        if undoes && !admitted(call.checks, &outcomes) {
            self.states = before;
            let is_independent = call.accounting == Accounting::Independent;
            for (check, outcome) in call.checks.iter().zip(&mut outcomes) {
                let op = match check.op {
                    Op::Refund { .. } | Op::Settle { .. } => continue,
                    Op::Take { .. } if check.limit.charge == Charge::Always => check.op,
                    Op::Take { .. } if is_independent && outcome.verdict == Verdict::Pass => {
                        check.op
                    }
                    Op::Take { .. } | Op::Peek { .. } | Op::Hold { .. } => Op::PEEK,
                };
                let again = self.step(check, op, call.now);
                (outcome.charged, outcome.taken) = (again.charged, again.taken);
            }
        }
        for (check, outcome) in call.checks.iter().zip(&mut outcomes) {
            let left = apply(self.states.get(&check.key), check.limit, Op::PEEK, call.now).outcome;
            (outcome.available, outcome.reset_after) = (left.available, left.reset_after);
            if check.cost() == Hits::ZERO && !check.comes_first() {
                outcome.held = left.held;
            }
        }
        outcomes
    }

    pub fn refund(&mut self, receipt: &Receipt, now: Micros) {
        if let Some(state) = self.states.get_mut(&receipt.key)
            && let Some(new) = refund(state, &receipt.limit, &receipt.taken, now)
        {
            *state = new;
        }
    }

    /// Whether a counter may be gone: an absent one means the same (for as long as the clock does
    /// not step back).
    pub fn is_over(&self, check: &Check<'_>, now: Micros) -> bool {
        self.states.get(&check.key).is_some_and(|state| expires_at(state, check.limit) <= now)
    }

    fn step(&mut self, check: &Check<'_>, op: Op, now: Micros) -> Outcome {
        let state = self.states.get(&check.key);
        let step = apply_for(state, check.limit, op, check.holder, now);
        if let Some(state) = step.write {
            self.states.insert(check.key, state);
        }
        step.outcome
    }
}

fn admitted(checks: &[Check<'_>], outcomes: &[Outcome]) -> bool {
    let passing = |role: Role| {
        checks
            .iter()
            .zip(outcomes)
            .filter(move |(check, _)| check.role == role)
            .map(|(_, outcome)| outcome.verdict == Verdict::Pass)
    };
    let quotas = || checks.iter().filter(|check| check.is_quota()).map(|check| check.role);
    passing(Role::Required).all(|passes| passes)
        && (quotas().next().is_none() || quotas().any(|quota| passing(quota).all(|passes| passes)))
}

/// Whether an outcome is one that a contract allows at all, whatever the store.
pub fn sane(outcome: &Outcome) -> bool {
    let refused = outcome.verdict == Verdict::Refuse;
    (refused || outcome.retry_after.is_none())
        && outcome.retry_after.is_none_or(|wait| wait > Micros::ZERO)
        && match outcome.taken {
            None => outcome.charged == Hits::ZERO,
            // A renewed lease charges nothing and has a receipt that restores the former one.
            Some(taken) => {
                outcome.charged == taken.hits
                    || outcome.charged == Hits::ZERO && taken.window > Micros::ZERO
            }
        }
}
