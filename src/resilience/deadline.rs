//! An answer in time: a store that is asked for at most its budget.
//!
//! Past the budget every check of the call is `Unanswered`; what that means for the caller is
//! decided above. Not here: why a store is slow, and what stands in for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::domain::{Answer, Answers, Call, Executed, Receipt, Source};
use crate::store::Store;

/// What a call may cost at most. Envoy waits 20 ms by default; a store that answers within 6 leaves
/// time for another way, and a healthy Redis answers within one.
pub const BUDGET: Duration = Duration::from_millis(6);
/// What is kept of the caller's deadline for the answer's way back.
pub const MARGIN: Duration = Duration::from_millis(2);

/// A store that answers within a budget, or says that it did not.
///
/// The runtime's timer counts whole milliseconds, so that the answer comes up to one late.
#[derive(Debug)]
pub struct Deadline<S> {
    store: S,
    budget: Duration,
    clock: Clock,
    overruns: AtomicU64,
}

impl<S: Store> Deadline<S> {
    /// Asks `store` for at most `budget`, and for at most the caller's deadline less [`MARGIN`].
    pub fn new(store: S, budget: Duration, clock: Clock) -> Self {
        Deadline { store, budget, clock, overruns: AtomicU64::new(0) }
    }

    /// The store that is asked.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Calls that were not answered in time.
    pub fn overruns(&self) -> u64 {
        self.overruns.load(Ordering::Relaxed)
    }

    fn budget(&self, now: Instant, deadline: Option<Instant>) -> Duration {
        let Some(deadline) = deadline else { return self.budget };
        let left = deadline.saturating_duration_since(now);
        self.budget.min(left.saturating_sub(MARGIN))
    }

    fn overrun(&self, call: &Call<'_>, executed: Executed) -> Answers {
        self.overruns.fetch_add(1, Ordering::Relaxed);
        // Nobody decided. Only a store across the network is given a budget.
        let each = vec![Answer::Unanswered { executed }; call.checks.len()];
        Answers { each, source: Source::Redis }
    }
}

impl<S: Store> Store for Deadline<S> {
    /// Dropping the store's own answer is what stops it: items that were not written yet are not
    /// written any more, and those that were run unheard.
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let now = self.clock.monotonic();
        let budget = self.budget(now, call.deadline);
        if budget.is_zero() {
            return self.overrun(call, Executed::No);
        }
        // Whoever can end in order before he is ended is told when that will be.
        let call = &Call { deadline: now.checked_add(budget), ..*call };
        match tokio::time::timeout(budget, self.store.apply(call)).await {
            Ok(answers) => answers,
            Err(_) => self.overrun(call, Executed::Unknown),
        }
    }

    /// Nobody waits for a refund, so that it has no budget: connections bound it.
    async fn refund(&self, receipts: &[Receipt]) {
        self.store.refund(receipts).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{
        Accounting, Algorithm, Charge, Check, FixedWindow, Hits, Key, Limit, Micros,
        OnStoreFailure, Op, Rate, Role, Unit, Window,
    };

    /// Answers `NotAsked` after a while.
    struct Slow(Duration);

    impl Store for Slow {
        async fn apply(&self, call: &Call<'_>) -> Answers {
            tokio::time::sleep(self.0).await;
            Answers { each: vec![Answer::NotAsked; call.checks.len()], source: Source::Redis }
        }

        async fn refund(&self, _: &[Receipt]) {}
    }

    async fn asked(takes: u64, budget: u64, deadline: Option<u64>) -> Answer {
        let clock = Clock::default();
        let deadline = deadline.map(|left| clock.monotonic() + Duration::from_millis(left));
        let window = Window::Epoch { length: Micros::SECOND };
        let limit = Arc::new(Limit {
            algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits(1), window }),
            rate: Rate { requests_per_unit: 1, unit: Some(Unit::Second), unit_multiplier: 1 },
            charge: Charge::Admitted,
            on_store_failure: OnStoreFailure::Local,
            limit_id: 0,
        });
        let check = Check {
            key: Key { identity: 1, tag: None },
            limit: &limit,
            op: Op::Peek,
            role: Role::Required,
            holder: None,
        };
        let (checks, accounting) = ([check], Accounting::AllOrNothing);
        let call = Call { checks: &checks, accounting, now: Micros::ZERO, deadline };
        let slow = Slow(Duration::from_millis(takes));
        let store = Deadline::new(slow, Duration::from_millis(budget), clock);
        let answers = store.apply(&call).await;
        assert_eq!(answers.each.len(), 1);
        let overrun = u64::from(answers.each[0] != Answer::NotAsked);
        assert_eq!(store.overruns(), overrun);
        answers.each[0]
    }

    const UNKNOWN: Answer = Answer::Unanswered { executed: Executed::Unknown };

    #[tokio::test(start_paused = true)]
    async fn a_store_is_asked_for_no_longer_than_its_budget() {
        assert_eq!(asked(5, 6, None).await, Answer::NotAsked);
        assert_eq!(asked(8, 6, None).await, UNKNOWN);
    }

    #[tokio::test(start_paused = true)]
    async fn nor_past_what_the_callers_deadline_leaves() {
        assert_eq!(asked(10_000, 60_000, Some(10)).await, UNKNOWN);
        assert_eq!(asked(5, 6, Some(60_000)).await, Answer::NotAsked);
        assert_eq!(asked(8, 6, Some(60_000)).await, UNKNOWN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_comes_too_late_is_not_sent() {
        let not_sent = Answer::Unanswered { executed: Executed::No };
        assert_eq!(asked(0, 6, Some(1)).await, not_sent);
    }
}
