//! The trait of a store under test, and the helpers of the cases.

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::domain::{
    Accounting, Answer, Answers, Call, Check, CounterKey, Holder, Limit, Micros, Outcome, Receipt,
    Role, Source, Verdict,
};
use tidegate::store::Store;

use crate::support::limits;
pub use crate::support::limits::{
    MINUTE, SECOND, START, always, blocking, bucket, check, credits, hold, overridden, peek,
    refund, reserved, settle, sliding_log, sliding_window, slots, take, window,
};

/// A store and its time.
///
/// A store whose clock cannot be set is run in a test mode in which it takes `Call::now` for its
/// own time (and `now()` when receipts are refunded).
pub trait Bench: Send + Sync + 'static {
    type Store: Store;
    fn store(&self) -> &Self::Store;
    /// What the answers must give as their source.
    fn source(&self) -> Source;
    fn clock(&self) -> &ManualClock;
    /// The n-th counter of this bench; the counters of one bench share a tag, those of two benches
    /// never meet.
    fn key(&self, n: u64) -> CounterKey;

    /// How many traces of random calls it answers.
    fn traces(&self) -> u64 {
        160
    }

    fn now(&self) -> Micros {
        self.clock().get()
    }

    /// Sets the time, forward or back.
    fn set(&self, now: Micros) {
        self.clock().set(now);
    }

    fn advance(&self, by: u64) {
        self.set(Micros(self.now().0 + by));
    }
}

/// The only class of a hybrid: all of the bucket is its own.
pub fn hybrid(burst: u64, hits: u64, length_us: u64) -> Arc<Limit> {
    limits::hybrid(burst, hits, length_us, &[100], 0)
}

/// One of each kind that counts hits, all with the capacity given.
pub fn of_each_kind(capacity: u64) -> [Arc<Limit>; 6] {
    [
        window(capacity, MINUTE),
        bucket(capacity, 100_000),
        credits(capacity, 7, SECOND),
        sliding_window(capacity, MINUTE),
        sliding_log(capacity, MINUTE),
        hybrid(capacity, 600, MINUTE),
    ]
}

/// A check on behalf of a holder.
pub fn held(holder: u128, check: Check<'_>) -> Check<'_> {
    Check { holder: Some(Holder(holder)), ..check }
}

pub fn with_role(role: Role, check: Check<'_>) -> Check<'_> {
    Check { role, ..check }
}

/// Applies a call now.
pub async fn call<B: Bench>(
    bench: &B,
    accounting: Accounting,
    checks: &[Check<'_>],
) -> Vec<Outcome> {
    let call = Call { checks, accounting, now: bench.now(), deadline: None };
    let answers = bench.store().apply(&call).await;
    assert_eq!(answers.source, bench.source());
    assert_eq!(answers.each.len(), checks.len(), "one answer per check");
    decided(&answers)
}

/// The outcomes of a call; every check must have been decided.
pub fn decided(answers: &Answers) -> Vec<Outcome> {
    let outcome = |answer: &Answer| match answer {
        Answer::Decided(outcome) => *outcome,
        other => panic!("not decided: {other:?}"),
    };
    answers.each.iter().map(outcome).collect()
}

/// All or nothing.
pub async fn apply<B: Bench>(bench: &B, checks: &[Check<'_>]) -> Vec<Outcome> {
    call(bench, Accounting::AllOrNothing, checks).await
}

/// One check alone.
pub async fn one<B: Bench>(bench: &B, check: Check<'_>) -> Outcome {
    apply(bench, &[check]).await[0]
}

/// What is left of a counter.
pub async fn left<B: Bench>(bench: &B, key: CounterKey, limit: &Arc<Limit>) -> u64 {
    one(bench, peek(key, limit)).await.available.0
}

/// Takes, which must pass, and keeps the receipt.
pub async fn taken<B: Bench>(bench: &B, key: CounterKey, limit: &Arc<Limit>, cost: u64) -> Receipt {
    let check = take(key, limit, cost);
    let outcome = one(bench, check).await;
    assert!(passes(&outcome), "{outcome:?}");
    Receipt::for_check(&check, &outcome).expect("what is charged has a receipt")
}

pub fn passes(outcome: &Outcome) -> bool {
    outcome.verdict == Verdict::Pass
}

pub fn verdicts(outcomes: &[Outcome]) -> Vec<bool> {
    outcomes.iter().map(passes).collect()
}

pub fn charged(outcomes: &[Outcome]) -> Vec<u64> {
    outcomes.iter().map(|outcome| outcome.charged.0).collect()
}
