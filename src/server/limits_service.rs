//! `tidegate.v1.Limits`: many decisions in one call, and access to individual counters.
//!
//! Each request of a batch is decoded, authorized, decided and counted like a single call. HTTP/2
//! processing, gRPC framing, and reading the clock happen only once per batch. Calls of this
//! service are not traced.
//!
//! Not here: encoding and decoding (`wire::limits_messages`).

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use prost::Message as _;
use tonic::Status;

use super::authz::{Caller, CounterAccess};
use super::rls_service::{CallTimestamps, Decide, RlsService, classify_outcome, unauthorized};
use crate::decide::{CounterSnapshot, CounterSnapshots};
use crate::domain::RpcOutcome;
use crate::wire::decode::{self, DecodedRequest};
use crate::wire::encode::{OptionalParts, ResponseBuffer, ResponseInput};
use crate::wire::limits_messages::{self, EncodedResults};
use crate::wire::messages::Counter;

/// Method of `tidegate.v1.Limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitsMethod {
    Check,
    Peek,
    Refund,
    ReadCounters,
    ResetCounters,
}

impl LimitsMethod {
    /// Returns the method with this HTTP path; `None` if the service has no such method.
    pub(crate) fn from_path(path: &str) -> Option<LimitsMethod> {
        Some(match path.strip_prefix("/tidegate.v1.Limits/")? {
            "Check" => LimitsMethod::Check,
            "Peek" => LimitsMethod::Peek,
            "Refund" => LimitsMethod::Refund,
            "ReadCounters" => LimitsMethod::ReadCounters,
            "ResetCounters" => LimitsMethod::ResetCounters,
            _ => return None,
        })
    }

    /// Returns the minimum access that the method requires.
    fn required_access(self) -> CounterAccess {
        match self {
            LimitsMethod::Check => CounterAccess::Off,
            LimitsMethod::Peek | LimitsMethod::ReadCounters => CounterAccess::Read,
            LimitsMethod::Refund | LimitsMethod::ResetCounters => CounterAccess::Write,
        }
    }
}

impl<D: Decide> RlsService<D> {
    /// Processes a unary call: maps an encoded request from `caller` to an encoded response.
    ///
    /// # Errors
    ///
    /// Returns PERMISSION_DENIED if `--counter-access` does not permit the method, and otherwise
    /// the errors of [`answer`](Self::answer). For a batch, an error applies to the whole batch.
    pub(crate) async fn call_limits(
        &self,
        method: LimitsMethod,
        message: Bytes,
        deadline: Option<Duration>,
        caller: &Caller,
    ) -> Result<Vec<u8>, Status> {
        if method.required_access() > self.counter_access {
            return Err(Status::permission_denied("--counter-access does not permit this method"));
        }
        match method {
            LimitsMethod::Check => {
                let batch = decode::split_batch(&message, &self.bounds);
                let requests = batch.map_err(|error| self.reject_invalid(error))?;
                Ok(self.decide_batch(&requests, deadline, caller).await)
            }
            LimitsMethod::Peek => self.peek(&message, caller).await,
            LimitsMethod::Refund => {
                let refund = self.to_refund_request(message)?;
                self.answer(refund, deadline, caller, None).await
            }
            LimitsMethod::ReadCounters => {
                self.read_or_reset_counters(&message, caller, false).await
            }
            LimitsMethod::ResetCounters => {
                self.read_or_reset_counters(&message, caller, true).await
            }
        }
    }

    /// Decides the requests of a batch independently. Sends all of them to the store before it
    /// waits for the first answer, so that the commands for one Redis node are written together.
    ///
    /// A single future decides requests one after the other, until it has to wait for the store.
    /// Then another future continues with the remaining requests. This saves memory, because the
    /// future of a decision takes several kilobytes: with the memory store, one future decides the
    /// whole batch.
    async fn decide_batch(
        &self,
        requests: &[&[u8]],
        deadline: Option<Duration>,
        caller: &Caller,
    ) -> Vec<u8> {
        let observer = self.decider.observer();
        let started = observer.wants_timing().then(|| self.clock.monotonic_now());
        let times = CallTimestamps { now: self.clock.now(), started };
        let batch = Batch {
            requests,
            deadline,
            times,
            caller,
            next: AtomicUsize::new(0),
            parts: OptionalParts::new(),
            results: Mutex::default(),
        };
        let mut waiting = FuturesUnordered::new();
        while batch.next.load(Ordering::Relaxed) < requests.len() {
            // Boxed, because pushing the future itself would copy it three times.
            waiting.push(box_in_place(|| self.decide_in_turn(&batch)));
            // Polls only the new future, and those that were woken meanwhile.
            poll_fn(|cx| Poll::Ready(waiting.poll_next_unpin(cx).is_ready())).await;
        }
        while waiting.next().await.is_some() {}
        drop(waiting);
        let BatchResults { encoded, outcomes } =
            batch.results.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(started) = started {
            let took = self.clock.monotonic_now() - started;
            for outcome in RpcOutcome::ALL {
                (0..outcomes[outcome as usize]).for_each(|_| observer.on_response(outcome, took));
            }
        }
        encoded.into_response()
    }

    /// Decides requests of a batch one after the other, until none is left.
    async fn decide_in_turn(&self, batch: &Batch<'_>) {
        let Batch { requests, deadline, times, caller, next, parts, results } = batch;
        let mut response = Vec::new();
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some(request) = requests.get(position) else { return };
            response.clear();
            let out = ResponseBuffer { bytes: &mut response, parts };
            // Pinned here, because awaiting the future by value would copy it.
            let result =
                pin!(self.decide_encoded(request, *deadline, *times, caller, None, out)).await;
            // Never contended, because one task polls all futures of the batch.
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.outcomes[classify_outcome(&result) as usize] += 1;
            results.encoded.push(position, result.map(|()| &*response));
        }
    }

    /// Predicts the decision on an encoded request without charging any hits. Returns the encoded
    /// response, or an error if the request is invalid, unauthorized, or cannot be decided.
    async fn peek(&self, message: &[u8], caller: &Caller) -> Result<Vec<u8>, Status> {
        let now = self.clock.now();
        let random = self.random(message, now);
        let decoded = DecodedRequest::decode(message, &self.bounds);
        let decoded = decoded.map_err(|error| self.reject_invalid(error))?;
        if !caller.is_authorized(decoded.domain) {
            return Err(unauthorized());
        }
        let descriptors = decoded.descriptors();
        let request = decoded.request(&descriptors);
        let response_config = &self.response_config;
        let peeked = self.decider.peek(&request, now, |decision, rules| {
            let (request, descriptors) = (&decoded, &*descriptors);
            let mut response = Vec::new();
            ResponseInput { request, descriptors, decision, rules, response_config, now, random }
                .encode(ResponseBuffer { bytes: &mut response, parts: &OptionalParts::new() });
            response
        });
        peeked.await.map_err(|error| self.reject_undecided(error))
    }

    /// Converts an encoded request into an encoded refund request, in which every descriptor
    /// refunds its hits. Returns an error if the request cannot be decoded.
    fn to_refund_request(&self, message: Bytes) -> Result<Bytes, Status> {
        let decoded = decode::decode_message(message, &self.bounds);
        let mut request = decoded.map_err(|error| self.reject_invalid(error))?;
        for descriptor in &mut request.descriptors {
            descriptor.is_negative_hits = true;
        }
        Ok(request.encode_to_vec().into())
    }

    /// Returns the encoded counters of a descriptor. If `reset` is true, resets them first. Returns
    /// an error if the request is invalid or unauthorized.
    async fn read_or_reset_counters(
        &self,
        message: &[u8],
        caller: &Caller,
        reset: bool,
    ) -> Result<Vec<u8>, Status> {
        let decoded = limits_messages::decode_counters_request(message, &self.bounds);
        let decoded = decoded.map_err(|error| self.reject_invalid(error))?;
        if !caller.is_authorized(decoded.domain) {
            return Err(unauthorized());
        }
        let descriptors = decoded.descriptors();
        let entries = descriptors.first().map_or(&[][..], |descriptor| descriptor.entries);
        let now = self.clock.now();
        let respond = |counters: &CounterSnapshots<'_>| {
            if reset {
                // The log names only the rule, because a descriptor's values may be personal data.
                let rule = counters.each.first().map_or("", |counter| counter.rule);
                tracing::warn!(rule, counters = counters.each.len(), "counters reset by a caller");
            }
            limits_messages::encode_counters(counters.each.iter().map(to_counter_message).collect())
        };
        Ok(self.decider.counters(decoded.domain, entries, now, reset, respond).await)
    }
}

fn to_counter_message(snapshot: &CounterSnapshot<'_>) -> Counter {
    let state = snapshot.outcome.map(|outcome| (outcome.available, outcome.reset_after));
    limits_messages::build_counter(snapshot.rule, snapshot.name, snapshot.capacity, state)
}

/// Requests of a batch, and the results so far.
struct Batch<'a> {
    requests: &'a [&'a [u8]],
    deadline: Option<Duration>,
    times: CallTimestamps,
    caller: &'a Caller,
    /// Position of the next request to decide.
    next: AtomicUsize,
    /// Room for the optional parts of all results together.
    parts: OptionalParts,
    results: Mutex<BatchResults>,
}

/// Results of the requests in a batch.
#[derive(Default)]
struct BatchResults {
    encoded: EncodedResults,
    /// Number of results per outcome, indexed by [`RpcOutcome`].
    outcomes: [usize; RpcOutcome::ALL.len()],
}

/// Boxes the future that `make` returns, which is constructed in the box. `Box::pin` would copy it.
fn box_in_place<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}
