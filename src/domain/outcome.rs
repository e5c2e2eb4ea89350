//! Answers of a store: one per check, with a receipt for every charge.
//!
//! Not here: turning answers into a decision (`decide`).

use std::sync::Arc;

use super::named_enum::named_enum;
use super::{Accounting, Algorithm, Check, CounterKey, FailureKind, Fraction, Hits, Limit, Micros};

/// Verdict of a limit on one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Enough hits are available for the check.
    Pass,
    /// Not enough hits are available for the check.
    Refuse,
}

/// Outcome of one check that a store has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the limit lets the check pass.
    pub verdict: Verdict,
    /// Number of hits charged to the counter. Refunds and checks of 0 hits (peeks) charge nothing.
    /// Refusals, and all checks of a rejected all-or-nothing call, charge nothing unless the check
    /// [always charges](Check::charges_always).
    pub charged: Hits,
    /// Number of hits available after this call, rounded down: how many more checks of one hit
    /// would pass.
    pub available: Hits,
    /// Number of hits that are held after this call, in the outcome of a peek on a limit with
    /// [`Limit::reserve`]; otherwise 0.
    pub held: Hits,
    /// Time until a refused check would pass if no other call were made, rounded up to the
    /// algorithm's tick. `None` if the check passes or if waiting does not help.
    pub retry_after: Option<Micros>,
    /// Time until the full limit is available again, that is, until the window ends or the bucket
    /// is full. Rounded up.
    pub reset_after: Micros,
    /// Record of the charge, hold, or lease renewal; `None` if the check charged and held no hits and
    /// renewed no lease.
    pub taken: Option<ChargeRecord>,
}

impl Outcome {
    /// Returns an outcome that passes, charges nothing, and reports `available` hits.
    pub fn pass(available: Hits) -> Outcome {
        Outcome {
            verdict: Verdict::Pass,
            charged: Hits::ZERO,
            available,
            held: Hits::ZERO,
            retry_after: None,
            reset_after: Micros::ZERO,
            taken: None,
        }
    }

    /// Returns a refusal that is not based on any counter: no hits are available until `wait` has
    /// passed.
    pub fn refuse_for(wait: Micros) -> Outcome {
        let (verdict, retry_after) = (Verdict::Refuse, Some(wait));
        Outcome { verdict, retry_after, reset_after: wait, ..Outcome::pass(Hits::ZERO) }
    }

    /// Returns the outcome of a check that passes after `wait`: now if it is zero, never if it is
    /// `None`. Charges nothing, and reports `available` hits.
    pub fn after(wait: Option<Micros>, available: Hits) -> Outcome {
        let passes = wait == Some(Micros::ZERO);
        let verdict = if passes { Verdict::Pass } else { Verdict::Refuse };
        let retry_after = wait.filter(|_| !passes);
        Outcome { verdict, retry_after, ..Outcome::pass(available) }
    }

    /// Returns this outcome with its charge refunded. `capacity` is the maximum number of
    /// available hits. `reset_after` does not change, so it may be too long but is never too
    /// short.
    #[must_use]
    pub fn refunded(&self, capacity: Hits) -> Outcome {
        let left = self.available.0.saturating_add(self.charged.0);
        let available = Hits(left).min(capacity);
        Outcome { charged: Hits::ZERO, taken: None, available, ..*self }
    }
}

/// Record of a charge to one counter, with everything needed to refund it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeRecord {
    /// Hits charged, at least 1. For a lease renewal, the hits that the holder had before the
    /// renewal. For a hold, the hits that it held before; 0 if it was new or settled.
    pub hits: Hits,
    /// Time of the charge by the store's clock, in microseconds since the Unix epoch. For a hold, the
    /// time at which it ends.
    pub at: Micros,
    /// Start of the window that was charged; zero if the algorithm has no windows. For a lease
    /// renewal, the time at which the old lease would have ended. For a hold, the time at which its
    /// former hold would have ended; zero if there was none.
    pub window: Micros,
    /// Identifier of the charge within its counter: the log entry, the slot holder, or the hold. For a hybrid
    /// limit, the credits that were taken from the pool rather than from the class's own bucket.
    /// Zero for other algorithms.
    pub entry: u128,
}

impl ChargeRecord {
    /// Returns whether the record is that of a hold on a counter of this limit, not of a charge.
    pub fn is_hold(&self, limit: &Limit) -> bool {
        limit.reserve.is_some() && self.entry != 0
    }
}

/// Receipt for a charge. `Store::refund` uses it to refund the charge. Each receipt must be used
/// at most once.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// Key of the counter that was charged.
    pub key: CounterKey,
    /// Limit that the hits were charged against.
    pub limit: Arc<Limit>,
    /// Record of the charge to refund.
    pub taken: ChargeRecord,
}

impl Receipt {
    /// Returns whether the receipt is that of a hold.
    pub fn is_hold(&self) -> bool {
        self.taken.is_hold(&self.limit)
    }

    /// Returns the time that the refund takes in Redis at most, in microseconds, as measured. The
    /// refund of a log rewrites the takes after the refunded one.
    pub fn work(&self) -> u64 {
        match &self.limit.algorithm {
            Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::Bucket(_)
            | Algorithm::Concurrency(_)
            | Algorithm::Hybrid(_) => 50,
            Algorithm::SlidingLog(log) => 50 + log.hits.0,
        }
    }

    /// Returns the receipt for a check, or `None` if the check neither charged hits nor renewed a
    /// lease.
    pub fn for_check(check: &Check<'_>, outcome: &Outcome) -> Option<Receipt> {
        outcome.taken.map(|taken| Receipt { key: check.key, limit: Arc::clone(check.limit), taken })
    }

    /// Returns receipts for the charges to refund after a call is rejected, and changes `answers` to the state after the refund. Omits charges that also [apply to rejected
    /// calls](Check::applies_when_rejected).
    ///
    /// `answers` must come from the store that will execute the refund.
    pub fn for_rejected_call(
        checks: &[Check<'_>],
        accounting: Accounting,
        answers: &mut [Answer],
    ) -> Vec<Receipt> {
        let mut receipts = Vec::new();
        for (check, answer) in checks.iter().zip(answers) {
            let Answer::Decided(outcome) = answer else { continue };
            if check.applies_when_rejected(accounting) {
                continue;
            }
            if let Some(receipt) = Receipt::for_check(check, outcome) {
                receipts.push(receipt);
                *outcome = outcome.refunded(check.limit.capacity());
            }
        }
        // Of two charges to one counter, the later one is undone first.
        receipts.reverse();
        receipts
    }
}

/// Whether a call may have been executed by a store that did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionStatus {
    /// The call was not executed and may be sent again.
    NotExecuted,
    /// The call may have been executed. If it charges hits, it must not be sent again.
    Unknown,
}

/// Answer of a store to one check of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The store decided the check.
    Decided(Outcome),
    /// The check was not sent to the store, because another check had already rejected the call.
    NotAsked,
    /// The check was not sent to the store, because another check had already rejected the call,
    /// but a recent answer for its counter is known. Statuses report that answer; it does not
    /// affect admission.
    LastKnown {
        /// Number of hits available in the last known state of the counter.
        available: Hits,
        /// Time from now until the full limit is available again; `None` if unknown.
        reset_after: Option<Micros>,
    },
    /// The store did not answer in time.
    Unanswered {
        /// Whether the store may nevertheless have executed the check and charged its hits.
        executed: ExecutionStatus,
    },
}

impl Answer {
    /// Returns the outcome of the check, or `None` if the store did not decide it.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Answer::Decided(outcome) => Some(outcome),
            Answer::NotAsked | Answer::LastKnown { .. } | Answer::Unanswered { .. } => None,
        }
    }

    /// Returns the verdict on the check, or `None` if the store did not decide it.
    pub fn verdict(&self) -> Option<Verdict> {
        self.outcome().map(|outcome| outcome.verdict)
    }
}

named_enum! {
    /// Component that decided a call: a store, the refusal cache, or the policy alone.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Source {
        /// The memory store, if it is the configured store.
        Memory => "memory",
        /// The Redis store.
        Redis => "redis",
        /// The local store, used as a fallback because Redis did not respond in time.
        Local => "local",
        /// The refusal cache, or this replica's record of its own charges. The record is used while the
        /// store may lack charges. In both cases, the store was available but was not called.
        Cached => "cached",
        /// The policy alone: no limit applied, so the store was not called.
        Policy => "policy",
        /// The local store, used without waiting for Redis because the queues to Redis were full or no
        /// reply was expected before the deadline.
        Shed => "shed",
    }
}

/// Answers of a store to all checks of one call.
#[derive(Debug)]
pub struct Answers {
    /// One answer per check, in the order of the call.
    ///
    /// A `Vec` and not a `SmallVec`, because the `domain` module has no dependencies. Allocating it
    /// takes 20 ns of the 5,000 ns that a whole decision takes.
    pub each: Vec<Answer>,
    /// Component that decided the call, for metadata and metrics.
    pub source: Source,
    /// Reply that the store may still receive after the call's deadline. `None` if every check was
    /// answered or was not executed.
    pub late: Option<LateReply>,
    /// Part of each limit that the local store has enforced, for the checks that it decided.
    pub local_share: Fraction,
    /// Reason why checks are unanswered. `None` if all are answered, or the store does not tell.
    pub failure: Option<FailureKind>,
}

impl Answers {
    /// Creates the answers of a store that has answered in time.
    pub fn new(each: Vec<Answer>, source: Source) -> Answers {
        Answers { each, source, late: None, local_share: Fraction::WHOLE, failure: None }
    }

    /// Returns the hits that the answered checks charged to the store that all replicas share, or
    /// that will be charged there. Other charges of the local store are left out: they have no
    /// record.
    pub fn charged(&self) -> u64 {
        let is_charged_later = self.source == Source::Shed;
        let outcomes = self.each.iter().filter_map(Answer::outcome);
        let shared = outcomes.filter(|outcome| is_charged_later || outcome.taken.is_some());
        shared.map(|outcome| outcome.charged.0).sum()
    }

    /// Returns whether the store has charged some of the checks and left others unanswered.
    pub fn is_half_charged(&self) -> bool {
        let is_unanswered = |answer: &Answer| matches!(answer, Answer::Unanswered { .. });
        self.each.iter().any(is_unanswered) && self.charged() > 0
    }
}

/// What becomes of charges whose answers arrive after the call's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateFate {
    /// The call was admitted without the answers, so its charges stand.
    Keep,
    /// The call was rejected or failed, so its charges are refunded.
    Refund,
    /// The caller has left. If all of the call was charged, the charges stand, as those of a request
    /// that was admitted and then broke off. Otherwise, they are refunded.
    Unheard,
}

/// Reply that the store may receive after the call's deadline. Whoever decides the call without it
/// settles what becomes of the charges; if dropped, their fate is [`Unheard`](LateFate::Unheard).
pub struct LateReply(Option<Box<dyn FnOnce(LateFate) + Send>>);

impl LateReply {
    /// Creates a handle with the function that tells the store the fate of the charges.
    pub fn new(settle: impl FnOnce(LateFate) + Send + 'static) -> LateReply {
        LateReply(Some(Box::new(settle)))
    }

    /// Tells the store what becomes of the charges.
    pub fn settle(mut self, fate: LateFate) {
        self.tell(fate);
    }

    fn tell(&mut self, fate: LateFate) {
        if let Some(settle) = self.0.take() {
            settle(fate);
        }
    }
}

impl Drop for LateReply {
    fn drop(&mut self) {
        self.tell(LateFate::Unheard);
    }
}

impl std::fmt::Debug for LateReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LateReply(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refunded_outcome_never_has_more_available_than_the_capacity() {
        let charged = Outcome { charged: Hits(3), ..Outcome::pass(Hits(4)) };
        let after = charged.refunded(Hits(10));
        assert_eq!((after.charged, after.available, after.taken), (Hits::ZERO, Hits(7), None));
        // Hits that have refilled since the charge must not be added to those of the refund.
        assert_eq!(charged.refunded(Hits(5)).available, Hits(5));
    }
}
