//! Rate limit service: decodes a request, decides it, and encodes the response.
//!
//! Reads the clock once per call and enforces the caller's deadline. If the store does not respond
//! and the rule says `on_store_failure: error`, the call fails with UNAVAILABLE, so that the
//! caller's failure mode applies. Not here: framing (`framing`), sockets (`listener`), decisions
//! (`decide`).

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use prost::Message as _;
use tonic::{Code, Status};

use super::authz::Caller;
use crate::clock::Clock;
use crate::decide::{DecideError, Decider};
use crate::domain::{
    Bounds, Decision, InvalidReason, Micros, Observer, Request, RpcOutcome, Trace,
};
use crate::policy::Policy;
use crate::store::{Store, current_trace};
use crate::wire::decode::{self, DecodeError, DecodedRequest};
use crate::wire::encode::ResponseInput;
use crate::wire::messages::RateLimitResponse;
use crate::wire::proto_json;
use crate::wire::proto_json::JsonReply;
use crate::wire::response_config::ResponseConfig;
use crate::wire::traceparent;

/// Full name of the rate limit service, as used in health checks and reflection.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// HTTP path of `ShouldRateLimit`, the only method of the rate limit service.
pub(crate) const SHOULD_RATE_LIMIT_PATH: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Minimum time needed to answer a call: about the time to decode, decide, and encode. A call with
/// less time left immediately fails with DEADLINE_EXCEEDED and charges nothing.
pub const DEADLINE_MIN: Duration = Duration::from_micros(10);

/// Decides rate limit requests. Implemented by [`Decider`], and by a stub in protocol tests.
pub trait Decide: Send + Sync + 'static {
    /// Decides `request` before `deadline`. Passes the decision to `respond`, together with the
    /// policy that the decision borrows from.
    ///
    /// # Errors
    ///
    /// Returns a [`DecideError`].
    fn decide<R: Send>(
        &self,
        request: &Request<'_>,
        now: Micros,
        deadline: Option<Instant>,
        respond: impl FnOnce(&Decision<'_>, &Policy) -> R + Send,
    ) -> impl Future<Output = Result<R, DecideError>> + Send;

    /// Returns the observer that is notified of decisions and calls.
    fn observer(&self) -> &dyn Observer {
        &()
    }
}

impl<S: Store, O: Observer> Decide for Decider<S, O> {
    async fn decide<R: Send>(
        &self,
        request: &Request<'_>,
        now: Micros,
        deadline: Option<Instant>,
        respond: impl FnOnce(&Decision<'_>, &Policy) -> R + Send,
    ) -> Result<R, DecideError> {
        let policy = self.policy();
        let decision = self.decide_by(&policy, request, now, deadline).await?;
        Ok(respond(&decision, &policy))
    }

    fn observer(&self) -> &dyn Observer {
        Decider::<S, O>::observer(self)
    }
}

/// Rate limit service that answers encoded requests with encoded responses.
#[derive(Debug)]
pub struct RateLimit<D> {
    decider: Arc<D>,
    clock: Clock,
    response_config: ResponseConfig,
    /// Bounds on the size of a request.
    bounds: Bounds,
    /// Randomly keyed hasher for the jitter of `Retry-After`, so that callers cannot predict the
    /// jitter.
    random_state: RandomState,
}

impl<D: Decide> RateLimit<D> {
    /// Creates a rate limit service whose requests `decider` decides.
    pub fn new(decider: Arc<D>, clock: Clock, response_config: ResponseConfig) -> Self {
        RateLimit {
            decider,
            clock,
            response_config,
            bounds: Bounds::DEFAULT,
            random_state: RandomState::new(),
        }
    }

    /// Sets the bounds on the size of a request.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        RateLimit { bounds, ..self }
    }

    /// Returns the maximum size of an encoded request, in bytes.
    pub fn message_bytes_max(&self) -> usize {
        self.bounds.message_bytes_max
    }

    /// Counts a call that was rejected before its message was complete.
    pub(crate) fn count_invalid(&self, reason: InvalidReason) {
        self.decider.observer().on_invalid(reason);
    }

    /// Returns the clock that measures deadlines.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Answers an encoded `RateLimitRequest` from `caller`. `deadline` is the time until the
    /// caller stops waiting, and `trace` is the result of [`start_trace`](Self::start_trace).
    ///
    /// # Errors
    ///
    /// Returns INVALID_ARGUMENT if the request cannot be decoded, PERMISSION_DENIED if the caller
    /// has no grant for the domain, DEADLINE_EXCEEDED if there is too little time left, or
    /// UNAVAILABLE if the store did not respond and no fallback applies. Header values that come
    /// from a downstream client never cause an error.
    pub(crate) async fn answer(
        &self,
        message: Bytes,
        deadline: Option<Duration>,
        caller: &Caller,
        trace: Option<Arc<Trace>>,
    ) -> Result<RateLimitResponse, Status> {
        let observer = self.decider.observer();
        if !observer.wants_timing() && trace.is_none() {
            return self.decide_encoded(message, deadline, None, caller, None).await;
        }
        let began = self.clock.monotonic();
        let answered = match &trace {
            None => self.decide_encoded(message, deadline, Some(began), caller, None).await,
            // Boxed, so that the future of calls without a trace stays small.
            Some(trace) => {
                let answer =
                    self.decide_encoded(message, deadline, Some(began), caller, Some(trace));
                Box::pin(current_trace::scope(Arc::clone(trace), answer)).await
            }
        };
        let outcome = classify_outcome(&answered);
        observer.on_response(outcome, self.clock.monotonic() - began);
        if let Some(trace) = &trace {
            observer.on_trace(trace, outcome);
        }
        answered
    }

    /// Starts a trace for a call with these request headers, or returns `None` if the call is not
    /// sampled.
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

    /// Decodes a request, decides it, and builds the response. `began` is the time at which the
    /// call started, or `None` if its duration is not needed.
    async fn decide_encoded(
        &self,
        encoded: Bytes,
        deadline: Option<Duration>,
        began: Option<Instant>,
        caller: &Caller,
        trace: Option<&Trace>,
    ) -> Result<RateLimitResponse, Status> {
        if deadline.is_some_and(|deadline| deadline < DEADLINE_MIN) {
            return Err(deadline_exceeded());
        }
        let invalid = |error: DecodeError| {
            self.decider.observer().on_invalid(error.reason());
            error
        };
        let bounds = &self.bounds;
        let message = decode::decode_message(encoded.clone(), bounds).map_err(invalid)?;
        let decoded = DecodedRequest::new(&message, bounds).map_err(invalid)?;
        if !caller.is_authorized(decoded.domain) {
            return Err(Status::permission_denied("this caller is not authorized for this domain"));
        }
        let descriptors = decoded.descriptors();
        let request = decoded.request(&descriptors);
        let now = self.clock.now();
        let random = self.random(&encoded, now);
        let response_config = &self.response_config;
        // Reuses the start of a timed call, because reading the clock is the main cost of timing.
        let start = || began.unwrap_or_else(|| self.clock.monotonic());
        let until = deadline.and_then(|left| start().checked_add(left));
        let decision = self.decider.decide(&request, now, until, |decision, rules| {
            let descriptors = &*descriptors;
            if let Some(trace) = trace {
                trace.record_decision(request.domain, descriptors.len(), decision);
            }
            let request = &decoded;
            ResponseInput { request, descriptors, decision, rules, response_config, now, random }
                .message()
        });
        let decision = match deadline {
            // tokio registers the timer only if the decision is not ready at the first poll.
            Some(deadline) => {
                tokio::time::timeout(deadline, decision).await.map_err(|_| deadline_exceeded())?
            }
            None => decision.await,
        };
        decision.map_err(|error| match error {
            DecideError::Unavailable => Status::unavailable("the store gave no answer in time"),
            DecideError::TooManyChecks { checks_max } => {
                self.decider.observer().on_invalid(InvalidReason::Checks);
                let message = format!("the request needs more than {checks_max} checks");
                Status::invalid_argument(message)
            }
        })
    }

    /// Answers an encoded `RateLimitRequest` with an encoded `RateLimitResponse`, for callers in
    /// the same process.
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
        let answer = self.answer(message, deadline, &Caller::Unrestricted, None).await?;
        Ok(answer.encode_to_vec())
    }

    /// Returns a pseudo-random number for the jitter of `Retry-After`, or 0 if no jitter is
    /// configured.
    fn random(&self, encoded: &[u8], now: Micros) -> u64 {
        if self.response_config.retry_spread_percent == 0 {
            0
        } else {
            self.random_state.hash_one((encoded, now.0))
        }
    }

    /// Answers a `RateLimitRequest` in proto-JSON, like the `/json` endpoint of
    /// envoyproxy/ratelimit: 200 for OK, 429 for OVER_LIMIT, and 400 for an invalid request. If
    /// the store is unavailable, returns 503, whereas envoyproxy/ratelimit returns 400.
    pub async fn answer_json(&self, body: &[u8]) -> JsonReply {
        let message = match proto_json::request(body, self.bounds.message_bytes_max) {
            Ok(message) => message,
            Err(fault) => {
                self.decider.observer().on_invalid(fault.reason());
                return JsonReply::bad_request(&fault.to_string());
            }
        };
        // Unrestricted, because the settings reject `/json` together with grants: its callers
        // present no certificate.
        match self.answer(message, None, &Caller::Unrestricted, None).await {
            Ok(response) => JsonReply::from_response(&response),
            Err(status) if status.code() == Code::Unavailable => {
                JsonReply::unavailable(status.message())
            }
            Err(status) => JsonReply::bad_request(status.message()),
        }
    }
}

/// Classifies the result of a call for the metrics.
fn classify_outcome(answered: &Result<RateLimitResponse, Status>) -> RpcOutcome {
    match answered.as_ref().map_err(Status::code) {
        Ok(_) => RpcOutcome::Decided,
        Err(Code::DeadlineExceeded) => RpcOutcome::Late,
        Err(Code::Unavailable) => RpcOutcome::Unavailable,
        Err(_) => RpcOutcome::Invalid,
    }
}

fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("the deadline was over before the decision")
}
