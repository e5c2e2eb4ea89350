//! The contract in its simplest form: a map of states, and a call that is decided on all of it.

use std::collections::HashMap;

use super::random_calls::Reference;
use super::store_under_test::{SECOND, slots};
use tidegate::algorithm::{State, apply, apply_for, expires_at, refund};
use tidegate::domain::{
    Accounting, Algorithm, Call, Charge, Check, CounterKey, Hits, Micros, Op, Outcome, Receipt,
    Role, Verdict,
};

#[derive(Default)]
pub struct Model {
    states: HashMap<CounterKey, State>,
}

impl Reference for Model {
    async fn apply(&mut self, call: &Call<'_>) -> Vec<Outcome> {
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

    async fn refund(&mut self, receipt: &Receipt, now: Micros) {
        if let Some(state) = self.states.get_mut(&receipt.key)
            && let Some(new) = refund(state, &receipt.limit, &receipt.taken, now)
        {
            *state = new;
        }
    }

    /// A counter that is over may be gone, and of others the holds and leases that have ended.
    fn may_be_gone(&self, check: &Check<'_>, now: Micros) -> bool {
        let Some(state) = self.states.get(&check.key) else { return false };
        let has_ended = match check.limit.algorithm {
            Algorithm::Concurrency(_) => {
                let many = slots(1 << 32, SECOND);
                let left = |at| apply(Some(state), &many, Op::PEEK, at).outcome.available;
                left(now) != left(Micros::ZERO)
            }
            _ => check.limit.reserve.is_some(),
        };
        has_ended || expires_at(state, check.limit) <= now
    }
}

impl Model {
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
