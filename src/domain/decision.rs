//! The decision on a request, as plain values borrowed from the policy, and the observer of decisions.
//!
//! Not here: how a decision is made (`decide`), how it is encoded (`wire`).

use std::sync::Arc;
use std::time::Duration;

use super::{
    CounterKey, Entry, Hits, HolderToken, Micros, Outcome, Rate, Source, Trace, TraceParent,
};

/// Code of the whole response and of each descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request may pass.
    Ok,
    /// The request may not pass.
    OverLimit,
}

/// Number of a rule. The rules of one policy are numbered without gaps, and no number is used twice
/// while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u32);

/// Limit shown in a status.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatusLimit<'p> {
    /// The rate as written.
    pub rate: Rate,
    /// The limit's own name; empty where it has none.
    pub name: &'p str,
    /// The capacity; our response headers show it if it exceeds the rate's number.
    pub capacity: Hits,
}

/// Status of one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Status<'p> {
    /// OVER_LIMIT iff a check of this descriptor refused that is not in shadow mode.
    pub code: Code,
    /// The limit; `None` if no rule matched, the rule is unlimited or replaced, or the descriptor's
    /// checks were skipped.
    pub shown: Option<StatusLimit<'p>>,
    /// `limit_remaining`: 0 on OVER_LIMIT, 4,294,967,295 if unlimited.
    pub remaining: u32,
    /// On OVER_LIMIT the wait until a retry may pass (`None` if waiting does not help), on OK the time
    /// until the counter is unused. `None` without a limit.
    pub reset: Option<Micros>,
    /// The rule that matched, for metadata and bodies.
    pub rule: Option<RuleId>,
    /// Whether this is a quota descriptor, which counts only together with the others.
    pub quota: bool,
}

/// Limit that rejected the request.
#[derive(Clone, Copy, Debug)]
pub struct LimitedBy<'p> {
    /// The limit's name or, if it has none, the rule's path in the policy.
    pub name: &'p str,
    /// The rule; `None` for a request override.
    pub rule: Option<RuleId>,
    /// Wait until a retry may pass; `None` if waiting does not help.
    pub retry_after: Option<Micros>,
}

/// Decision on a request.
#[derive(Clone, Debug)]
pub struct Decision<'p> {
    /// Whether the request may pass.
    pub code: Code,
    /// One per descriptor, in order.
    ///
    /// A `Vec`, because `domain` has no dependencies.
    pub statuses: Vec<Status<'p>>,
    /// If the request was rejected, the refusing limit with the longest wait, where `None` is the
    /// longest. On a tie, the first in the caller's order.
    pub limited_by: Option<LimitedBy<'p>>,
    /// Which component decided.
    pub source: Source,
    /// Whether the request was rejected, and global shadow mode let it pass.
    pub shadowed: bool,
    /// Whether the policy has the request's domain.
    pub domain_known: bool,
    /// Generated holder of the concurrency slots that the request took, if it was admitted and named
    /// no holder of its own. The caller sends it to return the slots.
    pub slot: Option<HolderToken>,
}

/// Event of one decided check.
#[derive(Clone, Copy, Debug)]
pub struct CheckEvent {
    /// The rule; `None` for a request override.
    pub rule: Option<RuleId>,
    /// Hits that the check takes or refunds.
    pub hits: Hits,
    /// The limit's capacity.
    pub capacity: Hits,
    /// The outcome.
    pub outcome: Outcome,
    /// Whether the rule is in shadow mode.
    pub shadow: bool,
    /// Whether the call was admitted.
    pub admitted: bool,
    /// Whether the hits are refunded rather than taken.
    pub is_refund: bool,
    /// Which component decided.
    pub source: Source,
}

/// Outcome of an RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcOutcome {
    /// It was answered with a decision.
    Decided,
    /// The request was invalid.
    Invalid,
    /// Its deadline passed.
    Late,
    /// The store did not answer, and no fallback decided the call.
    Unavailable,
}

impl RpcOutcome {
    /// All outcomes, in the order of their discriminants.
    pub const ALL: [RpcOutcome; 4] =
        [RpcOutcome::Decided, RpcOutcome::Invalid, RpcOutcome::Late, RpcOutcome::Unavailable];

    /// The word used in metrics: the gRPC status of the response.
    pub const fn as_str(self) -> &'static str {
        match self {
            RpcOutcome::Decided => "ok",
            RpcOutcome::Invalid => "invalid_argument",
            RpcOutcome::Late => "deadline_exceeded",
            RpcOutcome::Unavailable => "unavailable",
        }
    }
}

/// Event of a check that refused.
#[derive(Clone, Copy, Debug)]
pub struct RefusalEvent<'a> {
    /// The rule; `None` for a request override.
    pub rule: Option<RuleId>,
    /// Position of the limit among those of the rule.
    pub limit: usize,
    /// The counter.
    pub counter: CounterKey,
    /// The entries that select the counter, as the caller sent them. Where all values of a pattern
    /// share a counter, the pattern replaces the value.
    pub entries: &'a [Entry<'a>],
    /// Whether the refusal has no effect: the rule is in shadow mode, or another quota descriptor
    /// is certain to pass.
    pub shadow: bool,
}

/// Observes decisions, for metrics and traces, without changing them.
///
/// Called on the request path: an implementation must not allocate, lock or log.
pub trait Observer: Send + Sync + 'static {
    /// Called for each decided check.
    fn on_check(&self, event: &CheckEvent);
    /// Called for each check that refused, shadow checks included, before
    /// [`on_check`](Self::on_check).
    fn on_refusal(&self, _: &RefusalEvent<'_>) {}
    /// Called if a refund of concurrency slots named no holder, so that it freed nothing.
    fn release_without_holder(&self) {}
    /// Called for each decision.
    fn on_decision(&self, decision: &Decision<'_>);
    /// Whether [`on_response`](Self::on_response) is used. If not, the clock is not read for it.
    fn wants_timing(&self) -> bool {
        false
    }
    /// Called for each response, with the time since the request was read.
    fn on_response(&self, _: RpcOutcome, _: Duration) {}
    /// Whether any request may be traced. If not, trace headers are not parsed.
    fn tracing_enabled(&self) -> bool {
        false
    }
    /// Whether to trace a request, given its trace context.
    fn should_sample(&self, _: Option<&TraceParent>) -> bool {
        false
    }
    /// Called for the response to a traced request. May allocate and lock, because few requests are
    /// traced.
    fn on_trace(&self, _: &Trace, _: RpcOutcome) {}
}

impl<T: Observer> Observer for Arc<T> {
    fn on_check(&self, event: &CheckEvent) {
        T::on_check(self, event);
    }
    fn on_refusal(&self, event: &RefusalEvent<'_>) {
        T::on_refusal(self, event);
    }
    fn release_without_holder(&self) {
        T::release_without_holder(self);
    }
    fn on_decision(&self, decision: &Decision<'_>) {
        T::on_decision(self, decision);
    }
    fn wants_timing(&self) -> bool {
        T::wants_timing(self)
    }
    fn on_response(&self, outcome: RpcOutcome, took: Duration) {
        T::on_response(self, outcome, took);
    }
    fn tracing_enabled(&self) -> bool {
        T::tracing_enabled(self)
    }
    fn should_sample(&self, parent: Option<&TraceParent>) -> bool {
        T::should_sample(self, parent)
    }
    fn on_trace(&self, trace: &Trace, outcome: RpcOutcome) {
        T::on_trace(self, trace, outcome);
    }
}

impl Observer for () {
    fn on_check(&self, _: &CheckEvent) {}
    fn on_decision(&self, _: &Decision<'_>) {}
}
