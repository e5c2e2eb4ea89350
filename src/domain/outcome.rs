//! Answers of a store: one per check, with a receipt for every charge.
//!
//! Not here: turning answers into a decision (`decide`).

use std::sync::Arc;

use super::{Check, CounterKey, Hits, Limit, Micros};

/// Verdict on one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Enough hits are available. For a peek, at least one.
    Pass,
    /// Not enough hits are available.
    Refuse,
}

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the check passes.
    pub verdict: Verdict,
    /// Hits charged to the counter; 0 for refusals, peeks and refunds, and for passing checks of a
    /// rejected all-or-nothing call.
    pub charged: Hits,
    /// Number of single hits that could be taken after this call, rounded down.
    pub available: Hits,
    /// Wait after which a refused check would pass if nobody else called, rounded up to the
    /// algorithm's tick. `None` if the check passes or if waiting does not help.
    pub retry_after: Option<Micros>,
    /// Time until the counter is unused, rounded up: the end of the window, or a full bucket.
    pub reset_after: Micros,
    /// Record of the charge; `None` if `charged` is 0.
    pub taken: Option<ChargeRecord>,
}

impl Outcome {
    /// Returns a pass that charges nothing and reports `available` hits.
    pub fn pass(available: Hits) -> Outcome {
        Outcome {
            verdict: Verdict::Pass,
            charged: Hits::ZERO,
            available,
            retry_after: None,
            reset_after: Micros::ZERO,
            taken: None,
        }
    }

    /// Returns a refusal without a counter: nothing is available until `wait` has passed.
    pub fn refuse_for(wait: Micros) -> Outcome {
        Outcome {
            verdict: Verdict::Refuse,
            charged: Hits::ZERO,
            available: Hits::ZERO,
            retry_after: Some(wait),
            reset_after: wait,
            taken: None,
        }
    }

    /// Returns the outcome after a refund of its charge. `reset_after` does not change, so it may
    /// be too long, but never too short.
    #[must_use]
    pub fn refunded(&self, capacity: Hits) -> Outcome {
        let left = self.available.0.saturating_add(self.charged.0);
        let available = Hits(left).min(capacity);
        Outcome { charged: Hits::ZERO, taken: None, available, ..*self }
    }
}

/// Record of a charge to one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeRecord {
    /// Hits charged; at least 1.
    pub hits: Hits,
    /// Time of the charge, by the store's clock.
    pub at: Micros,
    /// Start of the window that was charged; zero for algorithms without windows.
    pub window: Micros,
    /// Entry of a sliding log or of a concurrency limit, or class of a hybrid limit; zero
    /// otherwise.
    pub entry: u128,
}

/// Receipt for a charge. `Store::refund` returns its hits to the counter; each receipt must be used
/// at most once.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// Key of the counter.
    pub key: CounterKey,
    /// Limit under which the hits were charged.
    pub limit: Arc<Limit>,
    /// Record of the charge.
    pub taken: ChargeRecord,
}

impl Receipt {
    /// Returns the receipt for a check, or `None` if the check charged nothing.
    pub fn of(check: &Check<'_>, outcome: &Outcome) -> Option<Receipt> {
        outcome.taken.map(|taken| Receipt { key: check.key, limit: Arc::clone(check.limit), taken })
    }

    /// Returns the receipts to refund for a rejected all-or-nothing call, and changes the answers
    /// to what they will be after the refund. Debts stay charged.
    ///
    /// The answers must come from the store that will execute the refund.
    pub fn of_rejected_call(checks: &[Check<'_>], answers: &mut [Answer]) -> Vec<Receipt> {
        let mut receipts = Vec::new();
        for (check, answer) in checks.iter().zip(answers) {
            let Answer::Decided(outcome) = answer else { continue };
            if check.applies_when_rejected() {
                continue;
            }
            if let Some(receipt) = Receipt::of(check, outcome) {
                receipts.push(receipt);
                *outcome = outcome.refunded(check.limit.capacity());
            }
        }
        receipts
    }
}

/// Whether a store executed a call that it did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionStatus {
    /// The call was not executed and may be sent again.
    NotExecuted,
    /// The call may have been executed. If it charges hits, it must not be sent again.
    Unknown,
}

/// Answer of a store to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The store decided the check.
    Decided(Outcome),
    /// The check was skipped, because another check had already rejected the call.
    NotAsked,
    /// The check was skipped like a [`NotAsked`](Self::NotAsked) one, and a recent answer about its
    /// counter is known. For statuses only: it decides nothing.
    LastKnown {
        /// Hits that were available at that time.
        available: Hits,
        /// Time from now until the counter is unused, if known.
        reset_after: Option<Micros>,
    },
    /// The store did not answer in time.
    Unanswered {
        /// Whether the store may have executed the check.
        executed: ExecutionStatus,
    },
}

impl Answer {
    /// Returns the outcome, if the check was decided.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Answer::Decided(outcome) => Some(outcome),
            Answer::NotAsked | Answer::LastKnown { .. } | Answer::Unanswered { .. } => None,
        }
    }

    /// Returns the verdict, if the check was decided.
    pub fn verdict(&self) -> Option<Verdict> {
        self.outcome().map(|outcome| outcome.verdict)
    }
}

/// Component that decided a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The memory store, as the configured store.
    Memory,
    /// Redis.
    Redis,
    /// The local store, because Redis did not answer in time.
    Local,
    /// The local store, because too many calls were waiting for Redis.
    Shed,
    /// The refusal cache.
    Cached,
    /// The policy alone: no limit applied, so no store was asked.
    Policy,
}

impl Source {
    /// Returns the name of the source in metadata, metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Memory => "memory",
            Source::Redis => "redis",
            Source::Local => "local",
            Source::Shed => "shed",
            Source::Cached => "cached",
            Source::Policy => "policy",
        }
    }
}

/// Answers of a store to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// One answer per check, in the order of the call.
    ///
    /// A `Vec`, because `domain` has no dependencies. Its allocation takes 20 ns of the 5,000 ns
    /// that a decision takes.
    pub each: Vec<Answer>,
    /// Component that decided the call.
    pub source: Source,
}
