//! Decision on a request, as plain values borrowed from the policy, and the [`Observer`] trait that
//! receives decisions.
//!
//! Not here: making a decision (`decide`), encoding it (`wire`).

use std::time::Duration;

use super::named_enum::named_enum;
use super::{
    CounterKey, Entry, Hits, HolderToken, Micros, Outcome, Rate, Request, Source, Trace,
    TraceParent,
};

named_enum! {
    /// Rate limit code of a response or of a descriptor's status, as in `RateLimitResponse`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Code {
        /// The request or descriptor is within its limits.
        Ok => "OK",
        /// The request or descriptor exceeds a limit.
        OverLimit => "OVER_LIMIT",
    }
}

/// Identifier of a policy rule. The ids within a policy are consecutive, and an id is not reused
/// while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u32);

/// Limit that a descriptor's status reports to the caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatusLimit<'p> {
    /// Rate as written in the policy or in the request override.
    pub rate: Rate,
    /// Name of the limit; empty if it has none.
    pub name: &'p str,
    /// Capacity of the limit, in hits.
    pub capacity: Hits,
}

impl StatusLimit<'_> {
    /// Returns the limit to report, in hits: `requests_per_unit` or, if larger, the capacity. A
    /// bucket's `burst` can exceed `requests_per_unit`, and the reported `remaining` must not
    /// exceed the reported limit.
    pub fn reported_limit(&self) -> Hits {
        Hits(u64::from(self.rate.requests_per_unit)).max(self.capacity)
    }
}

/// Status of one descriptor in the response.
#[derive(Clone, Copy, Debug)]
pub struct Status<'p> {
    /// Code for this descriptor: `OverLimit` if one of the descriptor's checks was refused, unless
    /// the rule is in shadow mode.
    pub code: Code,
    /// Limit to report, or `None` if no limit applied or the store did not answer.
    pub shown: Option<StatusLimit<'p>>,
    /// Value of `limit_remaining`, in hits: 0 on `OverLimit`, and `u32::MAX` for an unlimited rule.
    pub remaining: u32,
    /// On `OverLimit`, the time until a retry may pass or, if waiting does not help, the
    /// [`Limit::blocked_duration`](super::Limit::blocked_duration). On `Ok`, the time until the
    /// counter is back at its full capacity, or `None` if no limit applied or the state of the
    /// counter is unknown.
    pub reset: Option<Micros>,
    /// Rule that matched the descriptor, or `None` if no rule did. The rule determines the metadata
    /// and the response body.
    pub rule: Option<RuleId>,
    /// Whether the descriptor is a quota descriptor. If a request has quota descriptors, at least
    /// one quota group must pass.
    pub quota: bool,
    /// Whether a descriptor of the same quota group is over a limit. If so, this descriptor does
    /// not count as passing, even if its own code is `Ok`.
    pub group_refused: bool,
}

/// Whether the `retry_after` of a rejected request is exact or a lower bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPrecision {
    /// The wait is exact: a retry at the end of the wait passes, provided that no other request is
    /// charged in the meantime.
    Exact,
    /// The wait is a lower bound. A retry may have to wait longer, for example because the wait of
    /// another limit is unknown.
    AtLeast,
}

/// Limit that rejected the request.
#[derive(Clone, Copy, Debug)]
pub struct LimitedBy<'p> {
    /// Name of the limit or, if it has none, the path of the rule in the policy.
    pub name: &'p str,
    /// Rule that the limit belongs to, or `None` for a request override.
    pub rule: Option<RuleId>,
    /// Time until a retry may pass, or `None` if waiting does not help.
    pub retry_after: Option<Micros>,
    /// Whether `retry_after` is exact or a lower bound.
    pub precision: WaitPrecision,
}

/// Header that an admitted call carries to the upstream (`mark` in the policy).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Name of the header in lower case: a token that neither routing nor framing uses.
    pub name: Box<str>,
    /// Value of the header: visible ASCII characters and inner spaces.
    pub value: Box<str>,
}

/// Decision on a rate limit request.
#[derive(Clone, Debug)]
pub struct Decision<'p> {
    /// Overall code of the response.
    pub code: Code,
    /// One status per descriptor, in the order of the request.
    ///
    /// A `Vec`, because the `domain` module has no dependencies, not even on `smallvec`.
    pub statuses: Vec<Status<'p>>,
    /// Limit that rejected the request, or `None` if the request was admitted or the store did not
    /// answer. If several limits rejected the request, this is the limit that determines when a
    /// retry may pass. It has the longest wait among the required limits and the limits of the
    /// quota group that recovers first. A limit that never recovers has the longest wait. On a tie,
    /// the first limit in request order is reported.
    pub limited_by: Option<LimitedBy<'p>>,
    /// Component that decided the request: a store, the refusal cache, or the policy alone.
    pub source: Source,
    /// Whether global shadow mode changed the code to `Ok`, because the request was over a limit or
    /// the store did not answer.
    pub shadowed: bool,
    /// Whether the domain of the request exists in the policy.
    pub domain_known: bool,
    /// Token with which the caller can release its concurrency slots. `None` unless the request was
    /// admitted, acquired slots and named no holder.
    pub slot: Option<HolderToken>,
    /// Headers for the upstream, at most one for each name; empty if the call was rejected.
    pub marks: Vec<&'p Mark>,
    /// Id with which the caller can settle its hold. `None` unless the request was admitted and holds
    /// hits.
    pub hold: Option<HoldId>,
}

/// Id of the hold of an admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldId {
    /// The id that the request has sent.
    Sent,
    /// The id that Tidegate has made.
    Generated(HolderToken),
}

/// Event for one check of a decided request, passed to [`Observer::on_check`].
#[derive(Clone, Copy, Debug)]
pub struct CheckEvent {
    /// Rule of the check, or `None` for a request override.
    pub rule: Option<RuleId>,
    /// Hits that the check asks to charge or refund, whether or not it passes; 0 for a peek.
    pub hits: Hits,
    /// Capacity of the limit, in hits.
    pub capacity: Hits,
    /// Outcome of the check. A check that the store did not decide counts as passed without a
    /// charge.
    pub outcome: Outcome,
    /// Whether the store decided the check. If not, another check had already rejected the call, or
    /// the store did not answer.
    pub decided: bool,
    /// Whether the rule is in shadow mode.
    pub shadow: bool,
    /// Whether the call that contains this check was admitted.
    pub admitted: bool,
    /// Whether the check refunds its hits rather than charging them.
    pub is_refund: bool,
    /// Whether the check is a peek, because the descriptor has `hits_addend: 0`. A peek charges
    /// nothing.
    pub is_peek: bool,
    /// Hits of a bill that were not charged; `None` if the check is not a bill or was charged in
    /// full.
    pub lost_bill: Option<LostBill>,
    /// Whether the check was refused by a limit with `block`: its key was blocked, or now is.
    pub is_blocked: bool,
    /// Component that decided the check: a store, the refusal cache, or the policy alone.
    pub source: Source,
}

/// Domain and path of a checked rule whose metrics show descriptor values from the request. Passed
/// to [`Observer::on_detailed_check`].
#[derive(Clone, Copy)]
pub struct DetailedCheck<'a> {
    /// Domain of the rule.
    pub domain: &'a str,
    /// Path of the rule, without descriptor values from the request.
    pub rule_path: &'a str,
    /// Function that returns the path of the rule with the descriptor values from the request. Each
    /// call allocates.
    pub detailed_path: &'a dyn Fn() -> String,
}

/// Hits of a bill that were not charged. A bill is a descriptor with its own `hits_addend` above
/// 0, which reports hits that the caller has already used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBill {
    /// Number of the bill's hits that were not charged; at least 1.
    pub hits: Hits,
    /// Reason why the hits were not charged.
    pub cause: LossCause,
}

named_enum! {
    /// Reason why a bill was not charged in full.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LossCause {
        /// The bill was rejected, and a rejected bill is not charged under `charge: admitted`. Metrics
        /// count such bills only for rules that have also received descriptors with `hits_addend: 0`.
        /// For other rules, the hits may be charged before they are used, and a rejection loses
        /// nothing.
        Rejected => "rejected",
        /// The counter is already as far beyond its limit as it may be. For example, a bucket can be
        /// charged at most twice its capacity.
        DebtBound => "debt_bound",
    }
}

named_enum! {
    /// Outcome of a rate limit RPC, as counted by metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RpcOutcome {
        /// The RPC returned a decision, either OK or OVER_LIMIT.
        Decided => "ok",
        /// The request was invalid, so the RPC failed with INVALID_ARGUMENT.
        Invalid => "invalid_argument",
        /// The caller's deadline passed before the response was ready, so the RPC failed with
        /// DEADLINE_EXCEEDED.
        Late => "deadline_exceeded",
        /// The store did not respond in time and no fallback applied, so the RPC failed with
        /// UNAVAILABLE.
        Unavailable => "unavailable",
    }
}

named_enum! {
    /// Reason why a call was invalid. Metrics count invalid calls by reason. They would go unnoticed
    /// otherwise, because by default Envoy admits a request if its rate limit call fails.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum InvalidReason {
        /// The Protobuf message cannot be decoded, or the JSON body is invalid.
        Malformed => "malformed",
        /// The message exceeds [`Bounds::message_bytes_max`](super::Bounds::message_bytes_max).
        MessageSize => "message_size",
        /// The message exceeds [`Bounds::fields_max`](super::Bounds::fields_max).
        Fields => "fields",
        /// The domain is missing, empty, or not UTF-8.
        Domain => "domain",
        /// The request has no descriptors.
        NoDescriptors => "no_descriptors",
        /// The request exceeds [`Bounds::descriptors_max`](super::Bounds::descriptors_max).
        Descriptors => "descriptors",
        /// A descriptor exceeds [`Bounds::entries_max`](super::Bounds::entries_max).
        Entries => "entries",
        /// An entry has no key.
        EmptyKey => "empty_key",
        /// A request override has an unknown unit.
        OverrideUnit => "override_unit",
        /// A descriptor holds hits, settles, or refunds at the same time.
        HoldConflict => "hold_conflict",
        /// The request exceeds [`Bounds::checks_max`](super::Bounds::checks_max).
        Checks => "checks",
        /// The batch is empty or exceeds
        /// [`Bounds::batch_requests_max`](super::Bounds::batch_requests_max).
        Requests => "requests",
        /// The caller lacks a permission that the request needs; see
        /// [`Permissions`](super::Permissions).
        Permission => "permission",
    }
}

/// Counter of one check, passed to [`Observer::on_refusal`] and [`Observer::on_pass`].
#[derive(Clone, Copy, Debug)]
pub struct KeyEvent<'a> {
    /// Rule of the check, or `None` for a request override.
    pub rule: Option<RuleId>,
    /// Position of the limit among the limits of its rule, from 0; 0 for a request override.
    pub limit: usize,
    /// Key of the counter of the check.
    pub counter: CounterKey,
    /// Descriptor entries that select the counter, as the caller sent them. If all values that
    /// match a pattern share one counter, the entry contains the pattern instead of the value.
    pub entries: &'a [Entry<'a>],
    /// Whether the check was refused without rejecting the call, because of shadow mode or because a
    /// quota group of the call passes.
    pub shadow: bool,
}

/// Event for one check that has brought its counter near the limit, passed to [`Observer::on_near`].
#[derive(Clone, Copy, Debug)]
pub struct NearEvent<'a> {
    /// Rule of the check.
    pub rule: RuleId,
    /// Name of the limit; empty if it has none.
    pub limit: &'a str,
    /// Key of the counter.
    pub counter: CounterKey,
    /// Descriptor entries that select the counter, as for [`KeyEvent::entries`].
    pub entries: &'a [Entry<'a>],
    /// Hits that are used or held after the call.
    pub used: Hits,
    /// Hits that are available in an unused counter.
    pub usable: Hits,
}

named_enum! {
    /// Reason why no limit applies to a call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NoLimitReason {
        /// The policy does not have the domain.
        UnknownDomain => "unknown_domain",
        /// No rule of the domain has the keys of a descriptor of the call, in their order.
        UnknownKeys => "unknown_keys",
        /// The policy has the keys of a descriptor, but not its values. This is normal.
        UnlistedValue => "unlisted_value",
    }
}

/// Receives events about decisions, for metrics and traces. An observer cannot change decisions.
///
/// The methods are called on the request path, so implementations must not allocate, lock or log
/// unless a method's documentation permits it.
pub trait Observer: Send + Sync + 'static {
    /// Called once for each check of a decided request. Includes checks that were not sent to the
    /// store; see [`CheckEvent::decided`].
    fn on_check(&self, event: &CheckEvent);
    /// Called instead of [`on_check`](Self::on_check) if the checked limit is a request override in
    /// a domain of the policy.
    fn on_override_check(&self, event: &CheckEvent, _domain: &str) {
        self.on_check(event);
    }
    /// Called instead of [`on_check`](Self::on_check) if the metrics of the checked rule show
    /// descriptor values from the request. May allocate and lock, because only rules with such
    /// metrics incur the cost.
    fn on_detailed_check(&self, event: &CheckEvent, _: &DetailedCheck<'_>) {
        self.on_check(event);
    }
    /// Called once per refused check, including shadow checks, before [`on_check`](Self::on_check).
    fn on_refusal(&self, _: &KeyEvent<'_>) {}
    /// Returns whether to call [`on_pass`](Self::on_pass) for a check, and the `weight` to pass.
    fn sample_pass(&self, _: &CheckEvent) -> Option<u64> {
        None
    }
    /// Called for each check that [`sample_pass`](Self::sample_pass) selects, with the weight that it
    /// has returned.
    fn on_pass(&self, _: &KeyEvent<'_>, _: &CheckEvent, _weight: u64) {}
    /// Called once per check of a limit with `log_near` that has brought its counter near the limit. May
    /// allocate and lock, because only one call of a counter and window does so.
    fn on_near(&self, _: &NearEvent<'_>) {}
    /// Called once for each decided request that matched no rule. May lock briefly unless the reason
    /// is [`NoLimitReason::UnlistedValue`], because only a mistake in the configuration has the
    /// others. `explain` describes what was sent and how far it matched, with hashes instead of
    /// values; each call of it allocates.
    fn on_unmatched(&self, _: &Request<'_>, _: NoLimitReason, _explain: &dyn Fn() -> String) {}
    /// Called once for each call that passes only because of shadow mode, before
    /// [`on_decision`](Self::on_decision). `limit` is the limit that would have rejected it; `None`
    /// if the store did not answer. May lock, because few such calls are logged.
    fn on_shadow_pass(&self, _limit: Option<&LimitedBy<'_>>, _source: Source) {}
    /// Called when a request tries to release a concurrency slot without naming its holder. Such a
    /// release has no effect.
    fn release_without_holder(&self) {}
    /// Called once for each invalid call, with the first reason found.
    fn on_invalid(&self, _: InvalidReason) {}
    /// Called once for each request that was decided.
    fn on_decision(&self, decision: &Decision<'_>);
    /// Called once for each response, with the outcome of the RPC and the time since the request
    /// was read.
    fn on_response(&self, _: RpcOutcome, _: Duration) {}
    /// Returns whether tracing is enabled. If not, the server does not parse trace headers.
    fn tracing_enabled(&self) -> bool {
        false
    }
    /// Returns whether to trace a request. The argument is the trace context that the caller sent,
    /// or `None` if the caller sent none.
    fn should_sample(&self, _: Option<&TraceParent>) -> bool {
        false
    }
    /// Called when the response to a sampled request is ready, with the request's trace. May
    /// allocate and lock, because few requests are sampled.
    fn on_trace(&self, _: &Trace, _: RpcOutcome) {}
}

impl Observer for () {
    fn on_check(&self, _: &CheckEvent) {}
    fn on_decision(&self, _: &Decision<'_>) {}
}
