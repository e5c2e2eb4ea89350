//! Answers of a store: one per check, with receipts for what was charged.
//!
//! Not here: what the answers mean for the caller (`decide`).

use std::sync::Arc;

use super::{Check, CounterKey, Hits, Limit, Micros};

/// Whether a check passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The hits are available (for a peek: one hit is).
    Pass,
    /// They are not.
    Refuse,
}

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the check passes.
    pub verdict: Verdict,
    /// Hits charged to the counter; 0 for a refusal, a peek, a refund, and a passing check of a
    /// rejected all-or-nothing call.
    pub charged: Hits,
    /// Single hits that could be taken next, after this call; rounded down.
    pub available: Hits,
    /// On a refusal, the wait after which the same check would pass if nobody else called; rounded
    /// up to the algorithm's tick. `None` if the check passes or if waiting does not help.
    pub retry_after: Option<Micros>,
    /// Time until the counter is unused: the window's end, or a full bucket. Rounded up.
    pub reset_after: Micros,
    /// What was charged, if `charged` is not 0.
    pub taken: Option<ChargeRecord>,
}

impl Outcome {
    /// A pass that charges nothing and leaves `available` hits.
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

    /// A refusal that does not depend on a counter: nothing is available for `wait`.
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

    /// The outcome after its charge has been refunded. `reset_after` stays: it may be too long for
    /// a moment, never too short.
    #[must_use]
    pub fn refunded(&self, capacity: Hits) -> Outcome {
        let left = self.available.0.saturating_add(self.charged.0);
        let available = Hits(left).min(capacity);
        Outcome { charged: Hits::ZERO, taken: None, available, ..*self }
    }
}

/// What a store charged to one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeRecord {
    /// Hits charged; at least 1.
    pub hits: Hits,
    /// When, by the store's clock.
    pub at: Micros,
    /// Start of the window that was charged; zero if the algorithm has no windows.
    pub window: Micros,
    /// Entry of a log or slot table, or class of a hybrid limit; zero otherwise.
    pub entry: u128,
}

/// Proof of a charge. `Store::refund` returns the hits to the counter; each receipt must be used at
/// most once.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The counter.
    pub key: CounterKey,
    /// The limit that the hits were charged under.
    pub limit: Arc<Limit>,
    /// What was charged.
    pub taken: ChargeRecord,
}

impl Receipt {
    /// Returns the receipt of a check, or `None` if it charged nothing.
    pub fn of(check: &Check<'_>, outcome: &Outcome) -> Option<Receipt> {
        outcome.taken.map(|taken| Receipt { key: check.key, limit: Arc::clone(check.limit), taken })
    }

    /// Undoes the charges of a rejected all-or-nothing call: returns the receipts to refund and
    /// changes the answers to what they are after the refund. Debts stay charged.
    ///
    /// Call this only with answers of the store that will get the refund.
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

/// Whether a call without an answer was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionStatus {
    /// It was not; it may be sent again.
    NotExecuted,
    /// Unknown. A call that charges must not be sent again.
    Unknown,
}

/// Answer of a store to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The check was decided.
    Decided(Outcome),
    /// The check was skipped, because another one had already rejected the call.
    NotAsked,
    /// The store did not answer in time.
    Unanswered {
        /// Whether the check may have been executed.
        executed: ExecutionStatus,
    },
}

impl Answer {
    /// Returns the outcome, if the check was decided.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Answer::Decided(outcome) => Some(outcome),
            Answer::NotAsked | Answer::Unanswered { .. } => None,
        }
    }

    /// Returns the verdict, if the check was decided.
    pub fn verdict(&self) -> Option<Verdict> {
        self.outcome().map(|outcome| outcome.verdict)
    }
}

/// Which component decided a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The memory store, as configured.
    Memory,
    /// Redis.
    Redis,
    /// The local store, because Redis did not answer in time.
    Local,
    /// The local store, because too many calls were waiting for Redis.
    Shed,
    /// The refusal cache.
    Cached,
    /// No store: no limit applied.
    Policy,
}

impl Source {
    /// The word used in metadata, metrics and logs.
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

/// Answer of a store to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// One per check, in the call's order.
    ///
    /// A `Vec`, because `domain` has no dependencies; its allocation costs 20 ns of a decision's
    /// 5,000.
    pub each: Vec<Answer>,
    /// Which component decided.
    pub source: Source,
}
