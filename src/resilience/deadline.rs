//! Deadline of store calls: bounds how long a call waits for a store.
//!
//! The store keeps to the deadline itself, because it owns a call that was sent: it may have to settle
//! charges whose answers come later. Not here: deciding unanswered checks (`fallback`).

use std::time::{Duration, Instant};

/// Default maximum time that a call waits for a store; a caller's deadline can shorten it. A
/// healthy Redis replies within 1 ms; the rest is headroom for machines with busy cores.
pub const BUDGET_DEFAULT: Duration = Duration::from_millis(100);
/// Minimum part of the caller's remaining time that is reserved for sending the response.
pub const RESPONSE_MARGIN_MIN: Duration = Duration::from_millis(2);
/// Divisor that sets the response margin: a caller's remaining time divided by this number is
/// reserved for sending the response. With a divisor of 5, the store gets 16 ms of Envoy's default
/// timeout of 20 ms.
pub const RESPONSE_MARGIN_DIVISOR: u32 = 5;

/// Returns how long a call with this deadline waits for the store from `now` on: at most `budget` and,
/// if it has a deadline, at most the remaining time minus a margin. The margin is
/// [`RESPONSE_MARGIN_MIN`] or a [fifth](RESPONSE_MARGIN_DIVISOR) of the remaining time, whichever is
/// larger.
///
/// The runtime's timer has a resolution of 1 ms, so an answer may come up to 1 ms late.
pub(super) fn wait_max(budget: Duration, now: Instant, deadline: Option<Instant>) -> Duration {
    let Some(deadline) = deadline else { return budget };
    let left = deadline.saturating_duration_since(now);
    budget.min(left.saturating_sub(RESPONSE_MARGIN_MIN.max(left / RESPONSE_MARGIN_DIVISOR)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::clock::Clock;
    use crate::domain::fixtures::{fixed_window, take};
    use crate::domain::{
        Accounting, Answer, Answers, Call, Check, ExecutionStatus, FailureKind, Micros, Op,
        Outcome, Receipt, Source,
    };
    use crate::resilience::stack::{Stack, StackConfig};
    use crate::store::delivery::unanswered;
    use crate::store::{LocalStore, Store};

    /// Store that answers every check with `NotAsked` after a delay, or with an unknown outcome at
    /// the call's deadline.
    struct SlowStore(Duration);

    impl Store for SlowStore {
        async fn apply(&self, call: &Call<'_>) -> Answers {
            let answer = tokio::time::sleep(self.0);
            match tokio::time::timeout_at(call.deadline.unwrap().into(), answer).await {
                Ok(()) => Answers::new(vec![Answer::NotAsked; call.checks.len()], Source::Redis),
                Err(_) => unanswered(call, ExecutionStatus::Unknown, FailureKind::TimedOut),
            }
        }

        async fn refund(&self, _: &[Receipt]) {}
    }

    impl LocalStore for SlowStore {
        fn decide(&self, _: &Call<'_>) -> Vec<Answer> {
            panic!("only the remote store is asked")
        }

        fn decide_one(&self, _: &Check<'_>, _: Micros) -> Outcome {
            panic!("only the remote store is asked")
        }

        fn block(&self, _: &Check<'_>, _: Micros, _: Micros) {
            panic!("only the remote store is asked")
        }
    }

    /// Returns the answer of a store that takes this many minutes, as are the budget and the caller's
    /// deadline. Each call has a runtime of its own, whose paused clock starts at the real time. That
    /// goes on, but less than a minute passes.
    fn answer_after(takes: u64, budget: u64, deadline: Option<u64>) -> Answer {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(try_answer_after(takes, budget, deadline))
    }

    async fn try_answer_after(takes: u64, budget: u64, deadline: Option<u64>) -> Answer {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let clock = Clock::default();
        let deadline = deadline.map(|left| clock.monotonic_now() + minutes(left));
        let limit = Arc::new(fixed_window(1, Micros::SECOND));
        let check = Check { op: Op::PEEK, ..take(1, 1, &limit) };
        let (checks, accounting) = ([check], Accounting::AllOrNothing);
        let call = Call { checks: &checks, accounting, now: Micros::ZERO, deadline };
        let [slow, local] = [takes, 0].map(|takes| SlowStore(minutes(takes)));
        let config = StackConfig { budget: minutes(budget), ..StackConfig::default() };
        let stack = Stack::new(slow, local, config, clock);
        let answers = stack.ask(&call).await;
        assert_eq!(answers.each.len(), 1);
        let not_sent = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
        let unsent = u64::from(answers.each[0] == not_sent);
        assert_eq!(stack.stats().overruns.load(Ordering::Relaxed), unsent);
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
        for (left, budget) in [(100, 80), (10, 8), (5, 3), (3, 1), (2, 0)] {
            let waits = wait_max(millis(60_000), now, Some(now + millis(left)));
            assert_eq!(waits, millis(budget), "{left} ms");
        }
    }

    #[test]
    fn a_call_without_time_left_is_not_sent() {
        let not_sent = Answer::Unanswered { executed: ExecutionStatus::NotExecuted };
        assert_eq!(answer_after(0, 6, Some(0)), not_sent);
    }
}
