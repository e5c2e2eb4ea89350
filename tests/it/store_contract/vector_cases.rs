//! The shared vectors (`tests/vectors`) against a store.

use std::sync::Arc;

use tidegate::domain::{Check, Micros, Receipt};
use tidegate::store::Store;

use super::store_under_test::*;
use crate::support::vectors::{self, Expect, StepOp};

pub async fn the_vectors_hold_for_calls_of_one_check<B: Bench>(bench: Arc<B>) {
    run(&*bench, false).await;
}

/// The same with another counter in each call, so that the checks are decided together.
pub async fn the_vectors_hold_for_checks_of_larger_calls<B: Bench>(bench: Arc<B>) {
    run(&*bench, true).await;
}

async fn run<B: Bench>(bench: &B, with_another: bool) {
    let beside = bucket(1, 1);
    for (n, case) in (1..).zip(vectors::all()) {
        let key = bench.key(n);
        let mut receipts: Vec<Option<Receipt>> = Vec::new();
        // All cases begin at one time, so the clock steps back between them: by far, and seen by
        // the store before the case begins.
        bench.set(Micros(case.steps[0].at.0 - 60 * MINUTE));
        one(bench, peek(key, &case.steps[0].limit)).await;
        for (i, step) in case.steps.iter().enumerate() {
            bench.set(step.at);
            if let StepOp::Return(of) = step.op {
                // A store without a clock refunds as of its latest call: so there is one.
                one(bench, peek(key, &step.limit)).await;
                let receipt = receipts[of].clone().expect("that step charged something");
                bench.store().refund(&[receipt]).await;
                receipts.push(None);
                continue;
            }
            let op = step.op().expect("all but a return");
            let asked = Check { holder: step.holder, ..check(key, &step.limit, op) };
            let outcome = if with_another {
                let another = bench.key(n * 1_000 + i as u64);
                apply(bench, &[take(another, &beside, 1), asked]).await[1]
            } else {
                one(bench, asked).await
            };
            receipts.push(Receipt::for_check(&asked, &outcome));
            assert_eq!(
                Some(Expect::of(&outcome)),
                step.expect,
                "{}: {:?}, step {i} ({})",
                case.file,
                case.case,
                case.why
            );
        }
    }
    bench.set(Micros(START.0));
}
