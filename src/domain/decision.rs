//! The decision: what the caller is told, as plain values borrowed from the policy.
//!
//! Not here: how it is reached (`decide`), how it is put on the wire (`wire::encode`).

use std::sync::Arc;
use std::time::Duration;

use super::{Entry, Hits, HolderToken, Key, Micros, Outcome, Parent, Rate, Source, Trace};

/// The answer's code, for the call and for each descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// May pass.
    Ok,
    /// May not.
    OverLimit,
}

/// A rule's number: the first of its policy's rules has that policy's first number, the others
/// follow without a gap. While the process lives no two of its policies share a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u32);

/// The limit that a status shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatusLimit<'p> {
    /// The rate as written.
    pub rate: Rate,
    /// The limit's own name; empty where it has none.
    pub name: &'p str,
    /// The capacity: what headers of ours show as the limit where it exceeds the rate's number.
    pub capacity: Hits,
}

/// One descriptor's status.
#[derive(Clone, Copy, Debug)]
pub struct Status<'p> {
    /// OVER_LIMIT iff an unshadowed check of this descriptor refused.
    pub code: Code,
    /// The limit; `None` where no rule matched, the rule is unlimited or replaced, or the
    /// descriptor was not asked.
    pub shown: Option<StatusLimit<'p>>,
    /// What `limit_remaining` says: 0 on OVER_LIMIT, 4,294,967,295 where unlimited.
    pub remaining: u32,
    /// On OVER_LIMIT the retry-after (`None` if waiting does not help), on OK the time until
    /// nothing is used any more; `None` without a limit.
    pub reset: Option<Micros>,
    /// The rule that matched, for metadata and bodies.
    pub rule: Option<RuleId>,
    /// Whether the status has a say only together with the other quota descriptors.
    pub quota: bool,
}

/// What refused the call.
#[derive(Clone, Copy, Debug)]
pub struct LimitedBy<'p> {
    /// The limit's name or, where it has none, the rule's path in the policy.
    pub name: &'p str,
    /// The rule; `None` for a limit that the caller brought along.
    pub rule: Option<RuleId>,
    /// How long to wait; `None` if waiting does not help.
    pub retry_after: Option<Micros>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Decision<'p> {
    /// May it pass?
    pub code: Code,
    /// One per descriptor, in order.
    ///
    /// A `Vec`: the encoder sends as many, and the domain has no dependencies.
    pub statuses: Vec<Status<'p>>,
    /// On a refusal: the refusing limit with the longest wait (waiting that never helps is the
    /// longest); ties in the caller's order.
    pub limited_by: Option<LimitedBy<'p>>,
    /// Who decided.
    pub source: Source,
    /// The decision was OVER_LIMIT, and global shadow mode let it pass.
    pub shadowed: bool,
    /// The policy has the domain that the caller names.
    pub domain_known: bool,
    /// The holder that was made up for the slots this call took: only where it was admitted, took a
    /// slot, and the caller named no holder of its own. The caller names it to return them.
    pub slot: Option<HolderToken>,
}

/// What an observer is told of one check: numbers only, and the rule's id.
#[derive(Clone, Copy, Debug)]
pub struct CheckEvent {
    /// The rule; `None` for a limit that the caller brought along.
    pub rule: Option<RuleId>,
    /// The hits asked for.
    pub hits: Hits,
    /// The limit's capacity.
    pub capacity: Hits,
    /// What the store said.
    pub outcome: Outcome,
    /// The check had no say.
    pub shadow: bool,
    /// The call was admitted.
    pub admitted: bool,
    /// The hits were returned, not asked for.
    pub is_refund: bool,
    /// Who decided.
    pub source: Source,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcOutcome {
    /// With a decision, whichever.
    Decided,
    /// It asked for what cannot be decided.
    Invalid,
    /// Its deadline was over first.
    Late,
    /// The store gave no answer, and nothing stood in for it.
    Unavailable,
}

impl RpcOutcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [RpcOutcome; 4] =
        [RpcOutcome::Decided, RpcOutcome::Invalid, RpcOutcome::Late, RpcOutcome::Unavailable];

    /// The word used in metrics: the gRPC status that the caller gets.
    pub const fn word(self) -> &'static str {
        match self {
            RpcOutcome::Decided => "ok",
            RpcOutcome::Invalid => "invalid_argument",
            RpcOutcome::Late => "deadline_exceeded",
            RpcOutcome::Unavailable => "unavailable",
        }
    }
}

/// What an observer is told of a check that refused.
#[derive(Clone, Copy, Debug)]
pub struct RefusalEvent<'a> {
    /// The rule; `None` for a limit that the caller brought along.
    pub rule: Option<RuleId>,
    /// The limit's position among those of the rule.
    pub limit: usize,
    /// The counter.
    pub counter: Key,
    /// The entries that make the counter, as the caller sent them; where a pattern's values share
    /// a counter, the pattern stands for the value.
    pub entries: &'a [Entry<'a>],
    /// The refusal has no say: the rule is in shadow mode, or another quota descriptor passes.
    pub shadow: bool,
}

/// Somebody who is told of every decision and alters none (metrics, traces).
///
/// Called on the request path: an implementation must not allocate, lock or log.
pub trait Observer: Send + Sync + 'static {
    /// One check was decided.
    fn checked(&self, facts: &CheckEvent);
    /// One check refused; told before [`checked`](Self::checked), also where it has no say.
    fn refused(&self, _: &RefusalEvent<'_>) {}
    /// A return of concurrency slots named no holder, so that it freed nothing.
    fn release_without_holder(&self) {}
    /// A call was decided.
    fn decided(&self, decision: &Decision<'_>);
    /// Whether [`answered`](Self::answered) wants to know; else nobody asks for the time.
    fn times(&self) -> bool {
        false
    }
    /// A call was answered, so long after it had been read.
    fn answered(&self, _: RpcOutcome, _: Duration) {}
    /// Whether any call may be traced; else nobody looks for its caller's place in a trace.
    fn traces(&self) -> bool {
        false
    }
    /// Whether a call is to be traced, by its caller's place in a trace: asked before anything is
    /// written down of it.
    fn samples(&self, _: Option<&Parent>) -> bool {
        false
    }
    /// A traced call was answered. The one that may take its time, since few calls are.
    fn traced(&self, _: &Trace, _: RpcOutcome) {}
}

impl<T: Observer> Observer for Arc<T> {
    fn checked(&self, facts: &CheckEvent) {
        T::checked(self, facts);
    }
    fn refused(&self, refused: &RefusalEvent<'_>) {
        T::refused(self, refused);
    }
    fn release_without_holder(&self) {
        T::release_without_holder(self);
    }
    fn decided(&self, decision: &Decision<'_>) {
        T::decided(self, decision);
    }
    fn times(&self) -> bool {
        T::times(self)
    }
    fn answered(&self, ending: RpcOutcome, took: Duration) {
        T::answered(self, ending, took);
    }
    fn traces(&self) -> bool {
        T::traces(self)
    }
    fn samples(&self, parent: Option<&Parent>) -> bool {
        T::samples(self, parent)
    }
    fn traced(&self, trace: &Trace, ending: RpcOutcome) {
        T::traced(self, trace, ending);
    }
}

impl Observer for () {
    fn checked(&self, _: &CheckEvent) {}
    fn decided(&self, _: &Decision<'_>) {}
}
