//! Rate limit service: decodes a request, decides it, and encodes the response.
//!
//! Reads the clock once per call and enforces the caller's deadline. If the store does not respond
//! and the rule says `on_store_failure: error`, the call fails with UNAVAILABLE, so that the
//! caller's failure mode applies.
//!
//! Not here: framing (`framing`), sockets (`listener`), decisions (`decide`).

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use tonic::{Code, Status};

use super::authz::Caller;
use super::limits_service::{BatchDecisions, CHECKS_FACTOR, OverrideControl};
use crate::clock::Clock;
use crate::decide::{CallLimits, CounterSnapshots, DecideError, Decider};
use crate::domain::{
    Bounds, CALL_WORK_MAX, CounterAccess, Decision, Descriptor, Entry, HttpReply, InvalidReason,
    Micros, Observer, Op, Permissions, Request, RpcOutcome, Trace,
};
use crate::policy::Policy;
use crate::store::{Store, current_trace};
use crate::wire::decode::{DecodeError, DecodedRequest, Descriptors};
use crate::wire::encode::{OptionalParts, ResponseBuffer, ResponseInput};
use crate::wire::forward_auth;
use crate::wire::forward_auth::MissingHeader;
use crate::wire::proto_json;
use crate::wire::response_config::ResponseConfig;
use crate::wire::traceparent;

/// Full name of the rate limit service, as used in health checks and reflection.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// HTTP path of `ShouldRateLimit`, the only method of the rate limit service.
pub(crate) const SHOULD_RATE_LIMIT_PATH: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Minimum time until a call's deadline: about the time to decode, decide, and encode. A call with
/// less time left immediately fails with DEADLINE_EXCEEDED and charges nothing.
pub const DEADLINE_MIN: Duration = Duration::from_micros(10);

/// Decides rate limit requests. Implemented by [`Decider`], and by a stub in protocol tests.
pub trait Decide: Send + Sync + 'static {
    /// Returns the active policy, from which the decisions on a request borrow. Call it once per
    /// request.
    fn policy(&self) -> impl Deref<Target = Arc<Policy>> + Send;

    /// Decides `request` within `limits`.
    ///
    /// # Errors
    ///
    /// Returns a [`DecideError`].
    fn decide<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
        limits: CallLimits<'_>,
    ) -> impl Future<Output = Result<Decision<'p>, DecideError>> + Send;

    /// Predicts the decision on `request` without charging anything.
    ///
    /// # Errors
    ///
    /// Returns a [`DecideError`].
    fn peek<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> impl Future<Output = Result<Decision<'p>, DecideError>> + Send;

    /// Applies `op`, [`Op::PEEK`] or [`Op::RESET`], to the counters of a descriptor, and returns their
    /// states afterwards.
    fn counters<'p>(
        &self,
        policy: &'p Policy,
        domain: &str,
        entries: &[Entry<'_>],
        op: Op,
        now: Micros,
    ) -> impl Future<Output = CounterSnapshots<'p>> + Send;

    /// Returns the observer that is notified of decisions and calls.
    fn observer(&self) -> &dyn Observer {
        &()
    }
}

impl<S: Store, O: Observer> Decide for Decider<S, O> {
    fn policy(&self) -> impl Deref<Target = Arc<Policy>> + Send {
        Decider::policy(self)
    }

    async fn decide<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
        limits: CallLimits<'_>,
    ) -> Result<Decision<'p>, DecideError> {
        self.decide_by(policy, request, now, limits).await
    }

    async fn peek<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<Decision<'p>, DecideError> {
        Ok(self.dry_run(policy, request, now).await?.decision)
    }

    async fn counters<'p>(
        &self,
        policy: &'p Policy,
        domain: &str,
        entries: &[Entry<'_>],
        op: Op,
        now: Micros,
    ) -> CounterSnapshots<'p> {
        Decider::counters(self, policy, domain, entries, op, now).await
    }

    fn observer(&self) -> &dyn Observer {
        Decider::<S, O>::observer(self)
    }
}

/// Rate limit service that maps encoded requests to encoded responses.
#[derive(Debug)]
pub struct RlsService<D> {
    pub(super) decider: Arc<D>,
    pub(super) clock: Clock,
    pub(super) response_config: ResponseConfig,
    /// Bounds on the size of a request.
    pub(crate) bounds: Bounds,
    /// Access that callers have to the methods of `tidegate.v1.Limits` other than `Check`.
    pub(crate) counter_access: CounterAccess,
    /// Permissions of callers without grants; by default all.
    pub(crate) open_permissions: Permissions,
    /// Whether callers may use `tidegate.v1.Limits`.
    pub(crate) has_limits_service: bool,
    /// Overrides at run time; `None` if callers cannot set any.
    pub(crate) overrides: Option<Arc<dyn OverrideControl>>,
    pub(crate) batch_decisions: BatchDecisions,
    /// Randomly keyed hasher for the jitter of `Retry-After`, so that callers cannot predict the
    /// jitter.
    random_state: RandomState,
}

impl<D: Decide> RlsService<D> {
    /// Creates a rate limit service that decides requests with `decider`.
    pub fn new(decider: Arc<D>, clock: Clock, response_config: ResponseConfig) -> Self {
        RlsService {
            decider,
            clock,
            response_config,
            bounds: Bounds::DEFAULT,
            counter_access: CounterAccess::Off,
            open_permissions: Permissions::ALL,
            has_limits_service: true,
            overrides: None,
            batch_decisions: BatchDecisions::default(),
            random_state: RandomState::new(),
        }
    }

    /// Returns the number of decisions of batches in flight.
    pub fn batch_decisions_in_flight(&self) -> usize {
        self.batch_decisions.in_flight()
    }

    /// Counts an invalid request by the reason for its rejection.
    pub(crate) fn count_invalid(&self, reason: InvalidReason) {
        self.decider.observer().on_invalid(reason);
    }

    /// Processes an encoded `RateLimitRequest` from `caller` and returns the encoded response.
    /// `deadline` is the time until the caller stops waiting, and `trace` is the result of
    /// [`start_trace`](Self::start_trace).
    ///
    /// # Errors
    ///
    /// Returns INVALID_ARGUMENT if the request cannot be decoded, PERMISSION_DENIED if the caller
    /// has no grant for the domain or lacks a permission that the request needs, DEADLINE_EXCEEDED if there is too little time left, or
    /// UNAVAILABLE if the store did not respond and no fallback applies. Header values that come
    /// from a downstream client never cause an error.
    pub(crate) async fn answer(
        &self,
        message: Bytes,
        deadline: Option<Duration>,
        caller: &Caller,
        trace: Option<Arc<Trace>>,
    ) -> Result<Vec<u8>, Status> {
        let observer = self.decider.observer();
        let (now, started) = (self.clock.now(), self.clock.monotonic_now());
        let times = CallTimestamps { now, started, deadline };
        let mut response = Vec::new();
        let parts = OptionalParts::new();
        let out = ResponseBuffer { bytes: &mut response, parts: &parts };
        let answered = match &trace {
            None => {
                // Pinned here, because awaiting the future by value would copy it.
                pin!(self.decide_encoded(&message, times, caller, None, None, out)).await
            }
            // Boxed, so that the future of calls without a trace stays small.
            Some(trace) => {
                let answer = self.decide_encoded(&message, times, caller, Some(trace), None, out);
                Box::pin(current_trace::scope(Arc::clone(trace), answer)).await
            }
        };
        let outcome = classify_outcome(&answered);
        observer.on_response(outcome, self.clock.monotonic_now() - started);
        if let Some(trace) = &trace {
            observer.on_trace(trace, outcome);
        }
        answered.map(|()| response)
    }

    /// Starts a trace for a call with the request headers `headers`. Returns `None` if the call is
    /// not sampled.
    pub(crate) fn start_trace(&self, headers: &HeaderMap) -> Option<Arc<Trace>> {
        let observer = self.decider.observer();
        if !observer.tracing_enabled() {
            return None;
        }
        let parent = traceparent::parse_header(headers);
        observer.should_sample(parent.as_ref()).then(|| {
            let clock = self.clock.clone();
            Arc::new(Trace::begin(parent, move || clock.now()))
        })
    }

    /// Decodes a request, decides it, and appends the encoded response to `out`. `batch_checks` is
    /// the number of checks that the request's batch may still make. Returns the errors of
    /// [`answer`](Self::answer), and INVALID_ARGUMENT if the batch needs more checks.
    pub(super) async fn decide_encoded(
        &self,
        encoded: &[u8],
        times: CallTimestamps,
        caller: &Caller,
        trace: Option<&Trace>,
        batch_checks: Option<&AtomicUsize>,
        out: ResponseBuffer<'_>,
    ) -> Result<(), Status> {
        let CallTimestamps { now, started, deadline } = times;
        if deadline.is_some_and(|deadline| deadline < DEADLINE_MIN) {
            return Err(deadline_exceeded());
        }
        let mut decoded = DecodedRequest::default();
        decoded.read(encoded, &self.bounds).map_err(|error| self.reject_invalid(error))?;
        let mut descriptors = Descriptors::new();
        decoded.push_descriptors(&mut descriptors);
        self.authorize(caller, decoded.domain, &descriptors, Permissions::NONE)?;
        let request = decoded.request(&descriptors);
        let random = self.random(encoded, now);
        let response_config = &self.response_config;
        let until = deadline.and_then(|left| started.checked_add(left));
        let limits = CallLimits { deadline: until, batch_checks };
        let policy = self.decider.policy();
        // Pinned here, because a future that is passed on by value is copied.
        let decision = pin!(self.decider.decide(&policy, &request, now, limits));
        let decision = match deadline {
            // tokio registers the timer only if the decision is not ready at the first poll.
            Some(deadline) => {
                tokio::time::timeout(deadline, decision).await.map_err(|_| deadline_exceeded())?
            }
            None => decision.await,
        };
        let decision = &decision.map_err(|error| self.reject_undecided(error))?;
        if let Some(trace) = trace {
            trace.record_decision(request.domain, descriptors.len(), decision);
        }
        let (request, descriptors, rules) = (&decoded, &*descriptors, &**policy);
        ResponseInput { request, descriptors, decision, rules, response_config, now, random }
            .encode(out);
        Ok(())
    }

    /// Checks that the caller may use `domain`, and that it has the permissions that the
    /// descriptors and the method need.
    ///
    /// # Errors
    ///
    /// Returns PERMISSION_DENIED.
    pub(super) fn authorize(
        &self,
        caller: &Caller,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        of_method: Permissions,
    ) -> Result<(), Status> {
        let Some(permitted) = caller.permissions(domain, self.open_permissions) else {
            let message = "this caller is not authorized for this domain";
            return Err(Status::permission_denied(message));
        };
        // By default, every caller has every permission, and the descriptors need not be read.
        if permitted == Permissions::ALL
            || permitted.include(Permissions::needed_by(descriptors).union(of_method))
        {
            return Ok(());
        }
        self.count_invalid(InvalidReason::Permission);
        let message = "this caller is not authorized to refund, peek, or send limits in this domain; see \
                       --grpc-client-domains, --refunds, --peeks, --request-limits";
        Err(Status::permission_denied(message))
    }

    /// Counts an invalid request, and converts its decoding error into a gRPC status.
    pub(super) fn reject_invalid(&self, error: DecodeError) -> Status {
        self.count_invalid(error.reason());
        error.into()
    }

    /// Converts the reason why a request was not decided into a gRPC status. If the request needed
    /// too many checks, also counts it as invalid.
    pub(super) fn reject_undecided(&self, error: DecideError) -> Status {
        match error {
            DecideError::Unavailable => Status::unavailable("Redis did not answer in time"),
            DecideError::TooManyChecks { checks_max, in_batch } => {
                self.count_invalid(InvalidReason::Checks);
                Status::invalid_argument(if in_batch {
                    let checks_max = CHECKS_FACTOR * checks_max;
                    format!(
                        "the batch needs more than {checks_max} checks; send fewer requests in it"
                    )
                } else {
                    format!("the request needs more than {checks_max} checks")
                })
            }
            DecideError::TooMuchWork => {
                self.count_invalid(InvalidReason::Checks);
                let message = format!(
                    "the request needs more than {CALL_WORK_MAX} us of Redis: 12 for a window or \
                     bucket, 50 for a sliding log or hybrid counter, 60 with reserve, 30 and 1 for each slot for \
                     concurrency; split its descriptors over several requests, or ask for fewer slots"
                );
                Status::invalid_argument(message)
            }
        }
    }

    /// Maps an encoded `RateLimitRequest` to an encoded `RateLimitResponse`, for callers in the
    /// same process.
    ///
    /// # Errors
    ///
    /// Returns the status that a gRPC caller would get: INVALID_ARGUMENT, DEADLINE_EXCEEDED, or
    /// UNAVAILABLE.
    pub async fn answer_encoded(
        &self,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> Result<Vec<u8>, Status> {
        let message = Bytes::copy_from_slice(message);
        self.answer(message, deadline, &Caller::Unrestricted, None).await
    }

    /// Returns a pseudo-random number for the jitter of `Retry-After`, or 0 if no jitter is
    /// configured.
    pub(super) fn random(&self, encoded: &[u8], now: Micros) -> u64 {
        if self.response_config.settings.retry_jitter_percent == 0 {
            0
        } else {
            self.random_state.hash_one((encoded, now.0))
        }
    }

    /// Processes a `RateLimitRequest` in proto-JSON, like the `/json` endpoint of
    /// envoyproxy/ratelimit: 200 for OK, 429 for OVER_LIMIT, and 400 for an invalid request. If the
    /// store is unavailable, returns 503, whereas envoyproxy/ratelimit returns 400.
    pub async fn answer_json(&self, body: &[u8]) -> HttpReply {
        let message = match proto_json::parse_request(body, self.bounds.message_bytes_max) {
            Ok(message) => message,
            Err(fault) => {
                self.count_invalid(fault.reason());
                return HttpReply::text(400, &fault.to_string());
            }
        };
        match self.answer_http(message).await {
            Ok(response) => HttpReply::json(&response),
            Err(reply) => reply,
        }
    }

    /// Processes a forward-auth request from a proxy, whose `headers` describe the original HTTP
    /// request. The response has status 200 if the original request may pass, `denied_status` if
    /// not, 400 if the policy has no HTTP mapping for the domain or the request is invalid (for
    /// example, a required header is missing), and 503 if the store is unavailable.
    ///
    /// If the policy is reloaded during the call, the mapping may come from the old policy and the
    /// decision from the new one. The same can happen if the proxy builds the descriptors itself.
    pub async fn answer_forward_auth(
        &self,
        domain: &str,
        headers: &HeaderMap,
        denied_status: u16,
    ) -> HttpReply {
        let Some(mapping) = self.decider.policy().http_mapping(domain).cloned() else {
            self.count_invalid(InvalidReason::Domain);
            let message = format!("the policy has no `http` for domain {domain:?}");
            return HttpReply::text(400, &message);
        };
        let message = match forward_auth::build_request(domain, headers, &mapping) {
            Ok(Some(message)) => message,
            // Envoy does not ask without descriptors.
            Ok(None) => return HttpReply::text(200, ""),
            Err(MissingHeader(name)) => {
                self.count_invalid(InvalidReason::Malformed);
                return HttpReply::text(400, &format!("the proxy sent no valid {name}"));
            }
        };
        match self.answer_http(message).await {
            Ok(response) => HttpReply::forward_auth(&response, denied_status),
            Err(reply) => reply,
        }
    }

    async fn answer_http(&self, message: Bytes) -> Result<Vec<u8>, HttpReply> {
        // Unrestricted, because the settings reject the HTTP endpoints together with grants: their
        // callers present no certificate.
        let answer = self.answer(message, None, &Caller::Unrestricted, None).await;
        answer.map_err(|status| match status.code() {
            Code::Unavailable => HttpReply::text(503, status.message()),
            _ => HttpReply::text(400, status.message()),
        })
    }
}

/// Times at which a call started, by the wall clock and the monotonic clock, and its deadline.
/// Passed to each step of the call, because reading a clock is slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimestamps {
    /// Wall-clock time at which the call started, in microseconds since the Unix epoch. The
    /// decision uses it as the current time.
    pub(super) now: Micros,
    /// Monotonic time at which the call started.
    pub(super) started: Instant,
    /// Time until the caller stops waiting; `None` if the caller has set no valid deadline.
    pub(super) deadline: Option<Duration>,
}

/// Classifies the result of a call for the metrics.
pub(super) fn classify_outcome<T>(answered: &Result<T, Status>) -> RpcOutcome {
    match answered.as_ref().map_err(Status::code) {
        Ok(_) => RpcOutcome::Decided,
        Err(Code::DeadlineExceeded) => RpcOutcome::Late,
        Err(Code::Unavailable) => RpcOutcome::Unavailable,
        Err(_) => RpcOutcome::Invalid,
    }
}

pub(super) fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("deadline exceeded before a decision")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_counted_as_its_own_outcome() {
        let outcome = |code| classify_outcome::<()>(&Err(Status::new(code, "")));
        assert_eq!(classify_outcome(&Ok(())), RpcOutcome::Decided);
        assert_eq!(outcome(Code::DeadlineExceeded), RpcOutcome::Late);
        assert_eq!(outcome(Code::Unavailable), RpcOutcome::Unavailable);
        assert_eq!(outcome(Code::InvalidArgument), RpcOutcome::Invalid);
        assert_eq!(outcome(Code::PermissionDenied), RpcOutcome::Invalid);
    }
}
