//! Decision on a request, as plain values borrowed from the policy, and the [`Observer`] of
//! decisions.
//!
//! Not here: making a decision (`decide`), encoding it (`wire`).

use std::sync::Arc;
use std::time::Duration;

use super::{
    CounterKey, Entry, Hits, HolderToken, Micros, Outcome, Rate, Source, Trace, TraceParent,
};

/// Result of a whole request or of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request or descriptor is within its limits.
    Ok,
    /// The request or descriptor exceeds a limit.
    OverLimit,
}

/// Number of a policy rule. The rules of one policy are numbered without gaps, and no number is
/// reused while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u32);

/// Limit that the status of a descriptor reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatusLimit<'p> {
    /// Rate as written in the policy or in the request override.
    pub rate: Rate,
    /// Name of the limit; empty if it has none.
    pub name: &'p str,
    /// Capacity in hits. Response headers report it instead of the rate if it is larger.
    pub capacity: Hits,
}

/// Status of one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Status<'p> {
    /// Result of the descriptor: `OverLimit` if an enforced check of this descriptor was refused.
    /// Refused shadow checks do not count.
    pub code: Code,
    /// Limit to report; `None` if no rule matched, or if the rule is unlimited or replaced.
    pub shown: Option<StatusLimit<'p>>,
    /// Value of `limit_remaining`: 0 on `OverLimit`, 4,294,967,295 if unlimited.
    pub remaining: u32,
    /// On `OverLimit`, wait until a retry may pass (`None` if waiting does not help). On `Ok`, time
    /// until the counter is unused. `None` without a limit, and if the limit was not asked and
    /// nothing is known about its counter.
    pub reset: Option<Micros>,
    /// Rule that matched, for metadata and response bodies.
    pub rule: Option<RuleId>,
    /// Whether this is a quota descriptor. A request passes if at least one of its quota
    /// descriptors does.
    pub quota: bool,
}

/// Precision of the wait of a rejected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPrecision {
    /// The shortest wait after which the request passes if nobody else calls.
    Exact,
    /// The longest wait that is known. A limit that was not asked may need a longer one.
    AtLeast,
}

/// Limit that rejected the request.
#[derive(Clone, Copy, Debug)]
pub struct LimitedBy<'p> {
    /// Name of the limit or, if it has none, the path of the rule in the policy.
    pub name: &'p str,
    /// Rule of the limit; `None` for a request override.
    pub rule: Option<RuleId>,
    /// Wait until a retry may pass; `None` if waiting does not help.
    pub retry_after: Option<Micros>,
    /// Precision of `retry_after`.
    pub precision: WaitPrecision,
}

/// Decision on a request.
#[derive(Clone, Debug)]
pub struct Decision<'p> {
    /// Result of the request.
    pub code: Code,
    /// One status per descriptor, in the order of the request.
    ///
    /// A `Vec`, because `domain` has no dependencies.
    pub statuses: Vec<Status<'p>>,
    /// If the request was rejected, the limit that rejects it longest: of the required limits the
    /// one with the longest wait, or of the quota descriptors the one with the shortest wait if
    /// that is longer. A limit that no wait satisfies counts as the longest; on a tie, the first in
    /// the order of the request wins.
    pub limited_by: Option<LimitedBy<'p>>,
    /// Component that decided the request.
    pub source: Source,
    /// Whether global shadow mode let a rejected request pass.
    pub shadowed: bool,
    /// Whether the policy contains the domain of the request.
    pub domain_known: bool,
    /// Token of the generated holder, if the request was admitted, took concurrency slots and named
    /// no holder. The caller sends the token back to release the slots.
    pub slot: Option<HolderToken>,
}

/// Describes one decided check to an [`Observer`].
#[derive(Clone, Copy, Debug)]
pub struct CheckEvent {
    /// Rule of the check; `None` for a request override.
    pub rule: Option<RuleId>,
    /// Hits that the check takes or refunds.
    pub hits: Hits,
    /// Capacity of the limit, in hits.
    pub capacity: Hits,
    /// Result of the check. If the store was not asked, a pass without a charge.
    pub outcome: Outcome,
    /// Whether the check was decided. If not, another check had already rejected the call.
    pub decided: bool,
    /// Whether the rule is in shadow mode.
    pub shadow: bool,
    /// Whether the call was admitted.
    pub admitted: bool,
    /// Whether the hits are refunded rather than taken.
    pub is_refund: bool,
    /// Component that decided the check.
    pub source: Source,
}

/// Result of an RPC, as counted in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcOutcome {
    /// The response was a decision.
    Decided,
    /// The request was invalid.
    Invalid,
    /// The deadline of the request passed before the response was ready.
    Late,
    /// The store did not answer, and no fallback decided the call.
    Unavailable,
}

impl RpcOutcome {
    /// All outcomes, in the order of their discriminants.
    pub const ALL: [RpcOutcome; 4] =
        [RpcOutcome::Decided, RpcOutcome::Invalid, RpcOutcome::Late, RpcOutcome::Unavailable];

    /// Returns the gRPC status of the response, in lower case, as used in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            RpcOutcome::Decided => "ok",
            RpcOutcome::Invalid => "invalid_argument",
            RpcOutcome::Late => "deadline_exceeded",
            RpcOutcome::Unavailable => "unavailable",
        }
    }
}

/// Describes one refused check to an [`Observer`].
#[derive(Clone, Copy, Debug)]
pub struct RefusalEvent<'a> {
    /// Rule of the check; `None` for a request override.
    pub rule: Option<RuleId>,
    /// Position of the limit among the limits of its rule, from 0.
    pub limit: usize,
    /// Key of the counter.
    pub counter: CounterKey,
    /// Entries that select the counter, as the caller sent them. If all values that match a pattern
    /// share one counter, the pattern takes the place of the value.
    pub entries: &'a [Entry<'a>],
    /// Whether the refusal has no effect, because the rule is in shadow mode or because another
    /// quota descriptor passes.
    pub shadow: bool,
}

/// Receives events about decisions, for metrics and traces. It cannot change them.
///
/// Its methods are called on the request path: an implementation must not allocate, lock or log.
pub trait Observer: Send + Sync + 'static {
    /// Called for each decided check.
    fn on_check(&self, event: &CheckEvent);
    /// Called for each check that refused, shadow checks included, before
    /// [`on_check`](Self::on_check).
    fn on_refusal(&self, _: &RefusalEvent<'_>) {}
    /// Called when a request returns a concurrency slot without naming the holder, so that no slot
    /// is released.
    fn release_without_holder(&self) {}
    /// Called for each decision.
    fn on_decision(&self, decision: &Decision<'_>);
    /// Returns whether [`on_response`](Self::on_response) needs the duration. If not, the server
    /// does not read the clock for it.
    fn wants_timing(&self) -> bool {
        false
    }
    /// Called for each response, with the time since the request was read.
    fn on_response(&self, _: RpcOutcome, _: Duration) {}
    /// Returns whether any request may be traced. If not, trace headers are not parsed.
    fn tracing_enabled(&self) -> bool {
        false
    }
    /// Returns whether to trace a request, given the trace context of its caller.
    fn should_sample(&self, _: Option<&TraceParent>) -> bool {
        false
    }
    /// Called with the trace of each sampled request, once the response is ready. May allocate and
    /// lock, because few requests are sampled.
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
