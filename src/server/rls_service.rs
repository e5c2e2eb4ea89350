//! The rate limit service: decodes a request, decides it, encodes the response.
//!
//! Reads the clock once and keeps the caller's deadline. Answers UNAVAILABLE if the store did not
//! respond and the rule says `on_store_failure: error`, so that the caller's failure mode applies. Not
//! here: framing (`framing`), sockets (`listener`), the decision (`decide`).

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
use crate::decide::{Decider, Unavailable};
use crate::domain::{Decision, Micros, Observer, Request, RpcOutcome, Trace};
use crate::policy::Policy;
use crate::store::{Store, current_trace};
use crate::wire::decode::{self, DecodedRequest};
use crate::wire::encode::Answer;
use crate::wire::messages::RateLimitResponse;
use crate::wire::proto_json;
use crate::wire::proto_json::JsonReply;
use crate::wire::response_config::ResponseConfig;
use crate::wire::traceparent;

/// Full name of the service, for health checks and reflection.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The path of its one method.
pub(crate) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Shortest deadline worth deciding: decoding, deciding and encoding take about as long. A call with
/// less time left gets DEADLINE_EXCEEDED at once and consumes nothing.
pub const DEADLINE_MIN: Duration = Duration::from_micros(10);

/// Decides requests: a [`Decider`] in the service, a stub in tests of the protocol.
pub trait Decide: Send + Sync + 'static {
    /// Decides `request` before `deadline`, and passes the decision to `respond` together with the
    /// policy it borrows from.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if the store did not respond and no fallback applies.
    fn decide<R: Send>(
        &self,
        request: &Request<'_>,
        now: Micros,
        deadline: Option<Instant>,
        respond: impl FnOnce(&Decision<'_>, &Policy) -> R + Send,
    ) -> impl Future<Output = Result<R, Unavailable>> + Send;

    /// Returns the observer of decisions and calls.
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
    ) -> Result<R, Unavailable> {
        let policy = self.policy();
        let decision = self.decide_by(&policy, request, now, deadline).await?;
        Ok(respond(&decision, &policy))
    }

    fn observer(&self) -> &dyn Observer {
        Decider::<S, O>::observer(self)
    }
}

/// The rate limit service.
#[derive(Debug)]
pub struct RateLimit<D> {
    decider: Arc<D>,
    clock: Clock,
    response_config: ResponseConfig,
    /// Keyed hash that spreads waits; its numbers cannot be predicted from outside.
    random_state: RandomState,
}

impl<D: Decide> RateLimit<D> {
    /// The service over `decider`.
    pub fn new(decider: Arc<D>, clock: Clock, response_config: ResponseConfig) -> Self {
        RateLimit { decider, clock, response_config, random_state: RandomState::new() }
    }

    /// Answers an encoded `RateLimitRequest` of `caller`; `deadline` is how long the caller waits,
    /// `traced` what [`sampled`](Self::sampled) said.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT for a request beyond the bounds of `decode`, PERMISSION_DENIED for a domain
    /// that was not granted to the caller, DEADLINE_EXCEEDED, UNAVAILABLE. None of them because of
    /// anything that a downstream client put into a header.
    pub(crate) async fn answer(
        &self,
        message: Bytes,
        deadline: Option<Duration>,
        caller: &Caller,
        traced: Option<Arc<Trace>>,
    ) -> Result<RateLimitResponse, Status> {
        let observer = self.decider.observer();
        if !observer.wants_timing() && traced.is_none() {
            return self.decided(message, deadline, None, caller, None).await;
        }
        let began = self.clock.monotonic();
        let answered = match &traced {
            None => self.decided(message, deadline, Some(began), caller, None).await,
            // Boxed, so that the calls without a trace do not carry the room for it.
            Some(trace) => {
                let decided = self.decided(message, deadline, Some(began), caller, Some(trace));
                Box::pin(current_trace::scope(Arc::clone(trace), decided)).await
            }
        };
        let ending = ending(&answered);
        observer.on_response(ending, self.clock.monotonic() - began);
        if let Some(trace) = &traced {
            observer.on_trace(trace, ending);
        }
        answered
    }

    /// The trace of a call, if it is to be traced: decided by nothing but its headers.
    pub(crate) fn sampled(&self, headers: &HeaderMap) -> Option<Arc<Trace>> {
        let observer = self.decider.observer();
        if !observer.tracing_enabled() {
            return None;
        }
        let parent = traceparent::parent(headers);
        observer.should_sample(parent.as_ref()).then(|| {
            let clock = self.clock.clone();
            Arc::new(Trace::begin(parent, move || clock.now()))
        })
    }

    async fn decided(
        &self,
        encoded: Bytes,
        deadline: Option<Duration>,
        began: Option<Instant>,
        caller: &Caller,
        trace: Option<&Trace>,
    ) -> Result<RateLimitResponse, Status> {
        if deadline.is_some_and(|deadline| deadline < DEADLINE_MIN) {
            return Err(too_late());
        }
        let message = decode::message(encoded.clone())?;
        let asked = DecodedRequest::new(&message)?;
        if !caller.is_authorized(asked.domain) {
            return Err(Status::permission_denied("this caller is not authorized for this domain"));
        }
        let descriptors = asked.descriptors();
        let request = asked.request(&descriptors);
        let now = self.clock.now();
        let random = self.random(&encoded, now);
        let response_config = &self.response_config;
        // The clock that was read already is not read again: that is what timing a call costs most.
        let since = || began.unwrap_or_else(|| self.clock.monotonic());
        let until = deadline.and_then(|left| since().checked_add(left));
        let decision = self.decider.decide(&request, now, until, |decision, rules| {
            let (asked, descriptors) = (&asked, &*descriptors);
            if let Some(trace) = trace {
                trace.record_decision(request.domain, descriptors.len(), decision);
            }
            Answer { asked, descriptors, decision, rules, response_config, now, random }.message()
        });
        let decision = match deadline {
            // The timer is armed only if the decision is not there at once.
            Some(deadline) => {
                tokio::time::timeout(deadline, decision).await.map_err(|_| too_late())?
            }
            None => decision.await,
        };
        decision.map_err(|Unavailable| Status::unavailable("the store gave no answer in time"))
    }

    /// Answers an encoded `RateLimitRequest` with an encoded `RateLimitResponse`: the service without
    /// its sockets, for whoever brings requests in another way.
    ///
    /// # Errors
    ///
    /// The status that a gRPC caller would get: INVALID_ARGUMENT, DEADLINE_EXCEEDED, UNAVAILABLE.
    pub async fn answer_encoded(
        &self,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> Result<Vec<u8>, Status> {
        let message = Bytes::copy_from_slice(message);
        let answer = self.answer(message, deadline, &Caller::Unrestricted, None).await?;
        Ok(answer.encode_to_vec())
    }

    /// Returns a number that differs from call to call if waits are spread, else 0.
    fn random(&self, encoded: &[u8], now: Micros) -> u64 {
        if self.response_config.retry_spread_percent == 0 {
            0
        } else {
            self.random_state.hash_one((encoded, now.0))
        }
    }

    /// Answers a `RateLimitRequest` in proto-JSON, as envoyproxy/ratelimit's `/json` does: 200 for
    /// OK, 429 for OVER_LIMIT, 400 for a request or a store that is at fault.
    pub async fn answer_json(&self, body: &[u8]) -> JsonReply {
        let message = match proto_json::request(body) {
            Ok(message) => message,
            Err(fault) => return JsonReply::bad_request(&fault.to_string()),
        };
        // Where callers are held to domains, the settings refuse `/json`: it shows no certificate.
        match self.answer(message, None, &Caller::Unrestricted, None).await {
            Ok(response) => JsonReply::of(&response),
            Err(status) => JsonReply::bad_request(status.message()),
        }
    }
}

fn ending(answered: &Result<RateLimitResponse, Status>) -> RpcOutcome {
    match answered.as_ref().map_err(Status::code) {
        Ok(_) => RpcOutcome::Decided,
        Err(Code::DeadlineExceeded) => RpcOutcome::Late,
        Err(Code::Unavailable) => RpcOutcome::Unavailable,
        Err(_) => RpcOutcome::Invalid,
    }
}

fn too_late() -> Status {
    Status::deadline_exceeded("the deadline was over before the decision")
}
