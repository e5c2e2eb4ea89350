//! Deadline of store calls: bounds how long a call waits for a store.
//!
//! The store keeps to the deadline itself, because it owns a call that was sent: it may have to settle
//! charges whose answers come later. Not here: deciding unanswered checks (`fallback`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::domain::{Answer, Answers, Call, Check, ExecutionStatus, Micros, Receipt, Source};
use crate::store::delivery::unanswered;
use crate::store::{SharedStore, SharedStoreStats, Store};

/// Default maximum time that a call waits for a store; a caller's deadline can shorten it. A
/// healthy Redis replies within 1 ms; the rest is headroom for machines with busy cores.
pub const BUDGET_DEFAULT: Duration = Duration::from_millis(100);
/// Minimum part of the caller's remaining time that is reserved for sending the response.
pub const RESPONSE_MARGIN_MIN: Duration = Duration::from_millis(2);
/// Divisor that sets the response margin: a caller's remaining time divided by this number is
/// reserved for sending the response. With a divisor of 5, the store gets 16 ms of Envoy's default
/// timeout of 20 ms.
pub const RESPONSE_MARGIN_DIVISOR: u32 = 5;

/// Maximum budget, one hour, which keeps the time at which it ends representable.
const BUDGET_MAX: Duration = Duration::from_secs(3_600);

/// Store wrapper that limits how long a call waits for the wrapped store, by the call's deadline.
///
/// The runtime's timer has a resolution of 1 ms, so an answer may come up to 1 ms late.
#[derive(Debug)]
pub struct Deadline<S> {
    store: S,
    budget: Duration,
    clock: Clock,
    /// Number of calls that had no time left when they arrived.
    unsent: AtomicU64,
}

impl<S: Store> Deadline<S> {
    /// Wraps `store`. A call waits for the store at most `budget`, at most an hour, and, if the call
    /// has a deadline, at most the remaining time minus a margin. The margin is
    /// [`RESPONSE_MARGIN_MIN`] or a [fifth](RESPONSE_MARGIN_DIVISOR) of the remaining time,
    /// whichever is larger.
    pub fn new(store: S, budget: Duration, clock: Clock) -> Self {
        Deadline { store, budget: budget.min(BUDGET_MAX), clock, unsent: AtomicU64::new(0) }
    }

    /// Returns the wrapped store.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn budget(&self, now: Instant, deadline: Option<Instant>) -> Duration {
        let Some(deadline) = deadline else { return self.budget };
        let left = deadline.saturating_duration_since(now);
        self.budget
            .min(left.saturating_sub(RESPONSE_MARGIN_MIN.max(left / RESPONSE_MARGIN_DIVISOR)))
    }
}

impl<S: SharedStore> SharedStore for Deadline<S> {
    type Node = S::Node;

    fn nodes(&self) -> Vec<S::Node> {
        self.store.nodes()
    }

    async fn wait_until_connected(&self) {
        self.store.wait_until_connected().await;
    }

    async fn wait_until_idle(&self) {
        self.store.wait_until_idle().await;
    }

    fn shared_stats(&self) -> SharedStoreStats {
        let stats = self.store.shared_stats();
        let overruns = stats.overruns + self.unsent.load(Ordering::Relaxed);
        SharedStoreStats { overruns, ..stats }
    }

    fn is_available(&self) -> bool {
        self.store.is_available()
    }

    fn failure(&self) -> Option<String> {
        self.store.failure()
    }

    fn retire_policy(&self) {
        self.store.retire_policy();
    }
}

impl<S: Store> Store for Deadline<S> {
    /// Calls the store, which answers by the end of the budget.
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let now = self.clock.monotonic_now();
        let budget = self.budget(now, call.deadline);
        if budget.is_zero() {
            self.unsent.fetch_add(1, Ordering::Relaxed);
            return unanswered(call, ExecutionStatus::NotExecuted, Source::Shed);
        }
        if Handle::try_current().is_err() {
            // The store's timer would panic. The runtime of a library user may have ended.
            return unanswered(call, ExecutionStatus::NotExecuted, Source::Redis);
        }
        self.store.apply(&Call { deadline: Some(now + budget), ..*call }).await
    }

    /// Calls the store without a time budget. The reply timeout of the connections bounds how long
    /// it takes.
    async fn apply_in_background(&self, call: &Call<'_>) -> Answers {
        self.store.apply(&Call { deadline: None, ..*call }).await
    }

    /// Refunds charges without a time budget, because no caller waits for a refund. The reply
    /// timeout of the connections bounds its duration.
    async fn refund(&self, receipts: &[Receipt]) {
        self.store.refund(receipts).await;
    }

    fn last_known(&self, check: &Check<'_>, now: Micros) -> Answer {
        self.store.last_known(check, now)
    }

    fn counter_losses(&self) -> u64 {
        self.store.counter_losses()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::fixtures::fixed_window;
    use crate::domain::{Accounting, Answer, Check, CounterKey, Micros, Op, Role};

    /// Store that answers every check with `NotAsked` after a delay, or with an unknown outcome at
    /// the call's deadline.
    struct SlowStore(Duration);

    impl Store for SlowStore {
        async fn apply(&self, call: &Call<'_>) -> Answers {
            let answer = tokio::time::sleep(self.0);
            match tokio::time::timeout_at(call.deadline.unwrap().into(), answer).await {
                Ok(()) => Answers::new(vec![Answer::NotAsked; call.checks.len()], Source::Redis),
                Err(_) => unanswered(call, ExecutionStatus::Unknown, Source::Redis),
            }
        }

        async fn refund(&self, _: &[Receipt]) {}
    }

    /// Returns the answer of a store that takes this many centiseconds, as are the budget and the
    /// caller's deadline. Each call has a runtime of its own, whose paused clock starts at the real
    /// time.
    fn answer_after(takes: u64, budget: u64, deadline: Option<u64>) -> Answer {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(try_answer_after(takes, budget, deadline))
    }

    async fn try_answer_after(takes: u64, budget: u64, deadline: Option<u64>) -> Answer {
        let centis = |centis: u64| Duration::from_millis(10 * centis);
        let clock = Clock::default();
        let deadline = deadline.map(|left| clock.monotonic_now() + centis(left));
        let limit = Arc::new(fixed_window(1, Micros::SECOND));
        let check = Check {
            key: CounterKey { identity: 1, tag: None },
            limit: &limit,
            op: Op::PEEK,
            role: Role::Required,
            holder: None,
        };
        let (checks, accounting) = ([check], Accounting::AllOrNothing);
        let call = Call { checks: &checks, accounting, now: Micros::ZERO, deadline };
        let slow = SlowStore(centis(takes));
        let store = Deadline::new(slow, centis(budget), clock);
        let answers = store.apply(&call).await;
        assert_eq!(answers.each.len(), 1);
        let not_sent = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
        let unsent = u64::from(answers.each[0] == not_sent);
        assert_eq!(store.unsent.load(Ordering::Relaxed), unsent);
        answers.each[0]
    }

    const UNKNOWN: Answer = Answer::Unanswered { executed: ExecutionStatus::Unknown };

    #[test]
    fn a_call_waits_no_longer_than_its_budget() {
        assert_eq!(answer_after(5, 6, None), Answer::NotAsked);
        assert_eq!(answer_after(8, 6, None), UNKNOWN);
    }

    #[test]
    fn a_call_waits_no_longer_than_the_callers_deadline_allows() {
        assert_eq!(answer_after(10_000, 60_000, Some(10)), UNKNOWN);
        assert_eq!(answer_after(15, 60_000, Some(20)), Answer::NotAsked);
        assert_eq!(answer_after(18, 60_000, Some(20)), UNKNOWN, "a fifth is reserved");
        assert_eq!(answer_after(7, 60_000, Some(10)), Answer::NotAsked);
        assert_eq!(answer_after(10, 60_000, Some(10)), UNKNOWN);
        assert_eq!(answer_after(5, 6, Some(60_000)), Answer::NotAsked);
        assert_eq!(answer_after(8, 6, Some(60_000)), UNKNOWN);
    }

    #[test]
    fn at_least_2_ms_of_the_callers_time_are_reserved_for_the_response() {
        let now = Clock::default().monotonic_now();
        let millis = Duration::from_millis;
        let store = Deadline::new(SlowStore(Duration::ZERO), millis(60_000), Clock::default());
        for (left, budget) in [(100, 80), (10, 8), (5, 3), (3, 1), (2, 0)] {
            assert_eq!(store.budget(now, Some(now + millis(left))), millis(budget), "{left} ms");
        }
    }

    #[test]
    fn a_call_without_time_left_is_not_sent() {
        let not_sent = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
        assert_eq!(answer_after(0, 6, Some(0)), not_sent);
    }
}
