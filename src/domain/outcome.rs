//! What a store answers: one outcome per check, and the receipts of what was taken.
//!
//! Not here: what it means for the caller (`decide`).

use std::sync::Arc;

use super::{Check, Hits, Key, Limit, Micros};

/// Whether a check passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The hits are there (for a peek: one hit is).
    Pass,
    /// They are not.
    Refuse,
}

/// One check's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the check passes.
    pub verdict: Verdict,
    /// How many hits this call took from the counter; 0 for a refusal, a peek, a refund, and a
    /// passing check of a refused all-or-nothing call.
    pub charged: Hits,
    /// How many single hits could be taken next, after this call; rounded down.
    pub available: Hits,
    /// On a refusal: after how long the same check would pass if nobody else called; rounded up to
    /// the algorithm's tick. `None` where it passes, and where waiting does not help.
    pub retry_after: Option<Micros>,
    /// Time until nothing is used any more: the window's end, or the bucket full. Rounded up.
    pub reset_after: Micros,
    /// What was taken, where `charged` is not 0; with it the hits can be refunded once.
    pub taken: Option<ChargeRecord>,
}

impl Outcome {
    /// The outcome once its charge is on its way back. `reset_after` stays: for a moment it is
    /// longer than the truth, never shorter.
    #[must_use]
    pub fn refunded(&self, capacity: Hits) -> Outcome {
        let left = self.available.0.saturating_add(self.charged.0);
        let available = Hits(left).min(capacity);
        Outcome { charged: Hits::ZERO, taken: None, available, ..*self }
    }
}

/// The part of a receipt that the store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeRecord {
    /// How many hits.
    pub hits: Hits,
    /// When, by the store's clock.
    pub at: Micros,
    /// In which window (its beginning); zero where the algorithm has none.
    pub window: Micros,
    /// Under which entry of a log or slot table; zero elsewhere.
    pub entry: u128,
}

/// Proof of a charge: what `Store::refund` returns to the counter, once.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The counter.
    pub key: Key,
    /// The limit it was charged under.
    pub limit: Arc<Limit>,
    /// What was taken.
    pub taken: ChargeRecord,
}

impl Receipt {
    /// The receipt of a check, or `None` if it charged nothing.
    pub fn of(check: &Check<'_>, outcome: &Outcome) -> Option<Receipt> {
        outcome.taken.map(|taken| Receipt { key: check.key, limit: Arc::clone(check.limit), taken })
    }
}

/// Whether a call that brought no answer was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// It was not: it may be sent again.
    No,
    /// Nobody knows: a consuming call must never be sent again.
    Unknown,
}

/// What a store says of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was decided.
    Decided(Outcome),
    /// It was not asked, because another check had refused the call already.
    NotAsked,
    /// The store gave no answer in time.
    Unanswered {
        /// Whether it may have been carried out.
        executed: Executed,
    },
}

impl Answer {
    /// The outcome, if the check was decided.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Answer::Decided(outcome) => Some(outcome),
            Answer::NotAsked | Answer::Unanswered { .. } => None,
        }
    }
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The embedded memory store, as configured.
    Memory,
    /// Redis.
    Redis,
    /// The local store, because Redis could not be asked in time.
    Local,
    /// The local store, because too many calls waited for Redis already.
    Shed,
    /// A refusal that was remembered.
    Cached,
    /// No limit applied: no store was asked.
    Policy,
}

impl Source {
    /// The word used in metadata, metrics and logs.
    pub const fn word(self) -> &'static str {
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

/// A store's answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// One per check, in the call's order.
    ///
    /// A `Vec`: its one allocation (20 ns of a decision's 5,000) buys a domain without
    /// dependencies.
    pub each: Vec<Answer>,
    /// Who decided.
    pub source: Source,
}
