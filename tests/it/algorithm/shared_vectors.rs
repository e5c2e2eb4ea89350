//! The shared vectors (`tests/vectors`) against the pure functions.

use tidegate::algorithm::{State, Step, apply_for, expires_at, refund};
use tidegate::domain::ChargeRecord;

use crate::support::vectors::{self, Expect, StepOp};

#[test]
fn the_vectors_hold_for_the_pure_functions() {
    let mut wrong = Vec::new();
    for case in vectors::all() {
        let mut state: Option<State> = None;
        let mut receipts: Vec<Option<ChargeRecord>> = Vec::new();
        for (i, step) in case.steps.iter().enumerate() {
            if let StepOp::Return(of) = step.op {
                let taken = receipts[of].expect("that step charged something");
                if let Some(held) = &state {
                    state = refund(held, &step.limit, &taken, step.at).or(state);
                }
                receipts.push(None);
                continue;
            }
            let op = step.op().expect("all but a return");
            let Step { outcome, write, .. } =
                apply_for(state.as_ref(), &step.limit, op, step.holder, step.at);
            state = write.or(state);
            receipts.push(outcome.taken);
            let got = Expect::of(&outcome);
            let kept =
                state.as_ref().map(|state| expires_at(state, &step.limit).saturating_sub(step.at));
            if Some(got) != step.expect || kept != step.keeps_for {
                wrong.push(format!(
                    "{}: {:?}, step {i} ({}):\n  got      {got:?}, kept for {kept:?}\n  expected {:?}, kept for {:?}",
                    case.file, case.case, case.why, step.expect, step.keeps_for
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} steps differ\n{}", wrong.len(), wrong.join("\n"));
}
