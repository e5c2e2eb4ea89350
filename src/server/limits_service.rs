//! `tidegate.v1.Limits`: many decisions in one call, and access to individual counters.
//!
//! Each request of a batch is decoded, authorized, decided and counted like a single call. HTTP/2
//! processing, gRPC framing, and reading the clock happen only once per batch. Calls of this
//! service are not traced. Batches take turns with the other calls of their worker, and the number
//! of their decisions in flight is bounded for the process.
//!
//! Not here: encoding and decoding (`wire::limits_messages`).

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use prost::Message as _;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task;
use tokio::time::timeout;
use tonic::Status;

use super::authz::{Caller, EVERY_DOMAIN};
use super::rls_service::{
    CallTimestamps, DEADLINE_MIN, Decide, RlsService, classify_outcome, deadline_exceeded,
};
use crate::decide::{CallLimits, CounterSnapshot};
use crate::domain::{CounterAccess, HoldId, Lock, Op, Permissions, RpcOutcome};
use crate::policy::OverrideEntry;
use crate::store::owned_tasks::box_in_place;
use crate::wire::decode::{self, DecodedRequest};
use crate::wire::encode::{OptionalParts, ResponseBuffer, ResponseInput};
use crate::wire::limits_messages::{self, EncodedResults};
use crate::wire::messages::{
    CountersResponse, DeleteOverrideRequest, ListOverridesRequest, OverrideChanged,
};
use crate::wire::override_messages;

/// Number of decisions after which a batch lets the other calls of its worker run: about 100 µs of
/// work. With more, a few batches on one worker would make its other calls late.
const DECISIONS_PER_TURN: usize = 32;

/// Maximum number of decisions of batches in flight in the process. One that waits for Redis takes
/// about 15 KB, so these take about 120 MiB. Eight batches of the maximum size fit.
const DECISIONS_IN_FLIGHT_MAX: usize = 8_192;

/// Maximum number of decisions of batches that wait for the store together. A single call to Redis may queue
/// behind all of them. They fill four writes: two on each of the two connections to a Redis node.
const DECISIONS_AT_STORE_MAX: usize = 512;

/// Maximum number of checks of a batch, as a multiple of the maximum of a call. A call with the
/// maximum of 2,048 checks takes a worker about a millisecond.
pub(super) const CHECKS_FACTOR: usize = 16;

/// Time that a call without a deadline may take, one hour. The store answers sooner.
const DEADLINE_MAX: Duration = Duration::from_secs(3_600);

/// Limit on the decisions of batches in flight in the process.
#[derive(Debug)]
pub(crate) struct BatchDecisions {
    free: Semaphore,
    at_store: Semaphore,
    rejected: AtomicU64,
}

impl Default for BatchDecisions {
    fn default() -> Self {
        BatchDecisions {
            free: Semaphore::new(DECISIONS_IN_FLIGHT_MAX),
            at_store: Semaphore::new(DECISIONS_AT_STORE_MAX),
            rejected: AtomicU64::new(0),
        }
    }
}

impl BatchDecisions {
    /// Returns the number of decisions in flight.
    pub(crate) fn in_flight(&self) -> usize {
        DECISIONS_IN_FLIGHT_MAX - self.free.available_permits()
    }

    /// Returns the number of batches that were rejected because of this limit.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Reserves decisions for a batch until the permit is dropped. Returns RESOURCE_EXHAUSTED if
    /// too many are in flight. Does not wait, because waiting batches would hold their messages.
    fn reserve(&self, count: usize) -> Result<SemaphorePermit<'_>, Status> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.free.try_acquire_many(count).map_err(|_| {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            Status::resource_exhausted(format!(
                "more than {DECISIONS_IN_FLIGHT_MAX} decisions of batches would be in flight; retry \
                 after a pause, with fewer or smaller batches at a time"
            ))
        })
    }

    /// Waits until `count` more decisions may be sent to the store, and reserves them until the permit
    /// is dropped. Batches take turns. Meanwhile, continues with the decisions that `waiting` holds for
    /// the batch: the others may wait for these.
    async fn enter_store<F: Future<Output = ()>>(
        &self,
        count: usize,
        waiting: &mut FuturesUnordered<F>,
    ) -> Option<SemaphorePermit<'_>> {
        let mut permit = pin!(self.at_store.acquire_many(count as u32));
        loop {
            tokio::select! {
                biased;
                permit = &mut permit => return permit.ok(),
                Some(()) = waiting.next() => {}
            }
        }
    }
}

/// Method of `tidegate.v1.Limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitsMethod {
    Check,
    Peek,
    Refund,
    ReadCounters,
    ResetCounters,
    Reserve,
    Settle,
    SetOverride,
    DeleteOverride,
    ListOverrides,
}

/// Page of overrides: ids, overrides, whether the policy has their targets; and the id after which the
/// next page starts.
pub(crate) type OverridePage = (Vec<(String, OverrideEntry, bool)>, Option<String>);

/// Overrides that operators set at run time.
pub(crate) trait OverrideControl: fmt::Debug + Send + Sync {
    /// Sets an override, and returns a message for the operator, or the reason why it cannot be set.
    fn set(&self, entry: OverrideEntry) -> BoxFuture<'_, Result<String, String>>;

    /// Deletes an override, and returns a message for the operator, or the reason why it cannot.
    fn delete(&self, id: String) -> BoxFuture<'_, Result<String, String>>;

    /// Lists overrides in force, of one domain or, if that is empty, of all: those after an id.
    fn list(&self, domain: &str, after: &str) -> OverridePage;
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
            "Reserve" => LimitsMethod::Reserve,
            // A release is a settle without an amount.
            "Settle" | "Release" => LimitsMethod::Settle,
            "SetOverride" => LimitsMethod::SetOverride,
            "DeleteOverride" => LimitsMethod::DeleteOverride,
            "ListOverrides" => LimitsMethod::ListOverrides,
            _ => return None,
        })
    }

    /// Returns the minimum access that the method requires.
    fn required_access(self) -> CounterAccess {
        match self {
            LimitsMethod::Check | LimitsMethod::Reserve | LimitsMethod::Settle => {
                CounterAccess::Off
            }
            LimitsMethod::Peek | LimitsMethod::ReadCounters | LimitsMethod::ListOverrides => {
                CounterAccess::Read
            }
            LimitsMethod::Refund
            | LimitsMethod::ResetCounters
            | LimitsMethod::SetOverride
            | LimitsMethod::DeleteOverride => CounterAccess::Write,
        }
    }
}

impl<D: Decide> RlsService<D> {
    /// Processes a unary call: maps an encoded request from `caller` to an encoded response.
    ///
    /// # Errors
    ///
    /// Returns PERMISSION_DENIED if `--counter-access` does not permit the method or the caller
    /// lacks the permission that it needs, RESOURCE_EXHAUSTED if too many decisions of batches are
    /// in flight, and otherwise the errors of [`answer`](Self::answer). For a batch, an error
    /// applies to the whole batch.
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
                let _in_flight = self.batch_decisions.reserve(requests.len())?;
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
            LimitsMethod::SetOverride
            | LimitsMethod::DeleteOverride
            | LimitsMethod::ListOverrides => self.call_overrides(method, &message, caller).await,
            LimitsMethod::Reserve | LimitsMethod::Settle => {
                let is_settle = method == LimitsMethod::Settle;
                let started = self.clock.monotonic_now();
                let answered =
                    self.reserve_or_settle(&message, is_settle, started, deadline, caller).await;
                let outcome = classify_outcome(&answered);
                let took = self.clock.monotonic_now() - started;
                self.decider.observer().on_response(outcome, took);
                answered
            }
        }
    }

    /// Sets, deletes, or lists overrides. Returns the encoded response, or an error if the request is
    /// invalid or unauthorized.
    async fn call_overrides(
        &self,
        method: LimitsMethod,
        message: &[u8],
        caller: &Caller,
    ) -> Result<Vec<u8>, Status> {
        const CHANGE: Permissions = Permissions { refund: true, limits: true, peek: false };
        let no_overrides = || Status::unimplemented("this service has no overrides");
        let overrides = self.overrides.as_deref().ok_or_else(no_overrides)?;
        let (id, answer) = match method {
            LimitsMethod::ListOverrides => {
                let decoded = override_messages::decode(message, "ListOverridesRequest");
                let ListOverridesRequest { domain, after } =
                    decoded.map_err(|error| self.reject_invalid(error))?;
                let granted = if domain.is_empty() { EVERY_DOMAIN } else { &domain };
                let peek = Permissions { peek: true, ..Permissions::NONE };
                self.authorize(caller, granted, &[], peek)?;
                let (listed, next) = overrides.list(&domain, &after);
                return Ok(override_messages::encode_page(listed, next));
            }
            LimitsMethod::DeleteOverride => {
                let decoded = override_messages::decode(message, "DeleteOverrideRequest");
                let DeleteOverrideRequest { domain, id } =
                    decoded.map_err(|error| self.reject_invalid(error))?;
                self.authorize(caller, &domain, &[], CHANGE)?;
                if OverrideEntry::domain_of_id(&id).as_deref() != Some(&*domain) {
                    return Err(Status::not_found("no override of this domain has this id"));
                }
                (id.clone(), overrides.delete(id).await)
            }
            _ => {
                let entry =
                    override_messages::decode_set(message).map_err(Status::invalid_argument)?;
                self.authorize(caller, &entry.target.domain, &[], CHANGE)?;
                (entry.id(), overrides.set(entry).await)
            }
        };
        let message = answer.map_err(Status::failed_precondition)?;
        Ok(OverrideChanged { id, message }.encode_to_vec())
    }

    /// Holds hits, or settles a hold. Returns the encoded `ReserveResponse` or `RateLimitResponse`, or an
    /// error in the same cases as [`answer`](Self::answer).
    async fn reserve_or_settle(
        &self,
        message: &[u8],
        is_settle: bool,
        started: Instant,
        deadline: Option<Duration>,
        caller: &Caller,
    ) -> Result<Vec<u8>, Status> {
        let now = self.clock.now();
        let decoded = DecodedRequest::decode_hold(message, &self.bounds, is_settle);
        let decoded = decoded.map_err(|error| self.reject_invalid(error))?;
        let descriptors = decoded.descriptors();
        self.authorize(caller, decoded.domain, &descriptors, Permissions::NONE)?;
        let (request, policy) = (decoded.request(&descriptors), self.decider.policy());
        if deadline.is_some_and(|left| left < DEADLINE_MIN) {
            return Err(deadline_exceeded());
        }
        let left = deadline.unwrap_or(DEADLINE_MAX);
        let deadline = deadline.and_then(|left| started.checked_add(left));
        let limits = CallLimits { deadline, batch_checks: None };
        let decision = self.decider.decide(&policy, &request, now, limits);
        let decision = timeout(left, decision).await.map_err(|_| deadline_exceeded())?;
        let decision = &decision.map_err(|error| self.reject_undecided(error))?;
        let (rules, response_config) = (&**policy, &self.response_config);
        let (request, descriptors, random) = (&decoded, &*descriptors, self.random(message, now));
        let mut response = Vec::new();
        ResponseInput { request, descriptors, decision, rules, response_config, now, random }
            .encode(ResponseBuffer { bytes: &mut response, parts: &OptionalParts::new() });
        if is_settle {
            return Ok(response);
        }
        let sent = descriptors.iter().find_map(|descriptor| descriptor.hold);
        let id = match &decision.hold {
            None => b"",
            Some(HoldId::Sent) => sent.map_or(&b""[..], |hold| hold.id()),
            Some(HoldId::Generated(token)) => token.as_str().as_bytes(),
        };
        Ok(limits_messages::encode_reserved(id, &response))
    }

    /// Decides the requests of a batch independently. Sends as many of them to the store as may wait
    /// for it ([`DECISIONS_AT_STORE_MAX`]) before it waits for the first answer, so that the commands
    /// of one turn for a Redis node are written together.
    ///
    /// A single future decides requests one after the other, until it has to wait for the store.
    /// Then another future continues with the remaining requests. This saves memory, because the
    /// future of a decision takes several kilobytes: with the memory store, one future decides the
    /// whole batch.
    ///
    /// Lets other calls of the worker run after each turn of [`DECISIONS_PER_TURN`] requests, or of
    /// as many checks as one call may have, and again while the answers of the store arrive.
    async fn decide_batch(
        &self,
        requests: &[&[u8]],
        deadline: Option<Duration>,
        caller: &Caller,
    ) -> Vec<u8> {
        let observer = self.decider.observer();
        let (now, started) = (self.clock.now(), self.clock.monotonic_now());
        let times = CallTimestamps { now, started, deadline };
        let batch = Batch {
            requests,
            times,
            caller,
            next: AtomicUsize::new(0),
            turn_end: AtomicUsize::new(0),
            checks_left: AtomicUsize::new(CHECKS_FACTOR * self.bounds.checks_max),
            turn_checks_end: AtomicUsize::new(0),
            parts: OptionalParts::new(),
            results: Lock::default(),
        };
        let mut waiting = FuturesUnordered::new();
        while let Some(count) = batch.start_turn(self.bounds.checks_max) {
            let at_store =
                self.batch_decisions.enter_store(count, &mut waiting).await.map(Arc::new);
            while batch.has_turn() {
                let at_store = at_store.clone();
                // Boxed, because pushing the future itself would copy it three times.
                waiting.push(box_in_place(|| self.decide_in_turn(&batch, at_store)));
                // Polls only the new future, and those that were woken meanwhile.
                poll_fn(|cx| Poll::Ready(waiting.poll_next_unpin(cx).is_ready())).await;
            }
            if batch.next.load(Ordering::Relaxed) < requests.len() {
                task::yield_now().await;
            }
        }
        let mut finished = 0_usize;
        while waiting.next().await.is_some() {
            finished += 1;
            if finished.is_multiple_of(DECISIONS_PER_TURN) {
                task::yield_now().await;
            }
        }
        drop(waiting);
        let BatchResults { encoded, outcomes } = batch.results.into_inner();
        let took = self.clock.monotonic_now() - started;
        for outcome in RpcOutcome::ALL {
            (0..outcomes[outcome as usize]).for_each(|_| observer.on_response(outcome, took));
        }
        encoded.into_response()
    }

    /// Decides requests of a batch one after the other, until the turn ends. Holds the permit of the
    /// turn until then.
    async fn decide_in_turn(&self, batch: &Batch<'_>, _at_store: Option<Arc<SemaphorePermit<'_>>>) {
        let Batch { requests, times, caller, checks_left, parts, results, .. } = batch;
        let mut response = Vec::new();
        while batch.has_turn() {
            let position = batch.next.fetch_add(1, Ordering::Relaxed);
            let Some(request) = requests.get(position) else { return };
            response.clear();
            let out = ResponseBuffer { bytes: &mut response, parts };
            // Pinned here, because awaiting the future by value would copy it.
            let checks = Some(checks_left);
            let result =
                pin!(self.decide_encoded(request, *times, caller, None, checks, out)).await;
            // Never contended, because one task polls all futures of the batch.
            let mut results = results.lock();
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
        let descriptors = decoded.descriptors();
        let peek = Permissions { peek: true, ..Permissions::NONE };
        self.authorize(caller, decoded.domain, &descriptors, peek)?;
        let request = decoded.request(&descriptors);
        let response_config = &self.response_config;
        let policy = self.decider.policy();
        let peeked = self.decider.peek(&policy, &request, now).await;
        let decision = &peeked.map_err(|error| self.reject_undecided(error))?;
        let (request, descriptors, rules) = (&decoded, &*descriptors, &**policy);
        let mut response = Vec::new();
        ResponseInput { request, descriptors, decision, rules, response_config, now, random }
            .encode(ResponseBuffer { bytes: &mut response, parts: &OptionalParts::new() });
        Ok(response)
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
        let descriptors = decoded.descriptors();
        let needed = Permissions { refund: reset, peek: !reset, limits: false };
        self.authorize(caller, decoded.domain, &descriptors, needed)?;
        let entries = descriptors.first().map_or(&[][..], |descriptor| descriptor.entries);
        let (now, policy) = (self.clock.now(), self.decider.policy());
        let op = if reset { Op::RESET } else { Op::PEEK };
        let counters = self.decider.counters(&policy, decoded.domain, entries, op, now).await;
        if reset {
            // The log names only the rule, because a descriptor's values may be personal data.
            if let Some(CounterSnapshot { rule, .. }) = counters.each.first() {
                tracing::warn!(rule, counters = counters.each.len(), "counters reset by a caller");
            }
        }
        let counters = counters.each.iter().map(
            |CounterSnapshot { rule, name, capacity, outcome, .. }| {
                limits_messages::build_counter(rule, name, *capacity, outcome.as_ref())
            },
        );
        Ok(CountersResponse { counters: counters.collect() }.encode_to_vec())
    }
}

/// Requests of a batch, and the results so far.
struct Batch<'a> {
    requests: &'a [&'a [u8]],
    times: CallTimestamps,
    caller: &'a Caller,
    /// Position of the next request to decide.
    next: AtomicUsize,
    turn_end: AtomicUsize,
    /// Number of checks that the batch may still make.
    checks_left: AtomicUsize,
    turn_checks_end: AtomicUsize,
    /// Room for the optional parts of all results together.
    parts: OptionalParts,
    results: Lock<BatchResults>,
}

impl Batch<'_> {
    /// Starts the next turn, of at most about `checks_max` checks. Returns the maximum number of its
    /// requests, or `None` if no request is left.
    fn start_turn(&self, checks_max: usize) -> Option<usize> {
        let next = self.next.load(Ordering::Relaxed);
        let checks_left = self.checks_left.load(Ordering::Relaxed);
        self.turn_end.store(next + DECISIONS_PER_TURN, Ordering::Relaxed);
        self.turn_checks_end.store(checks_left.saturating_sub(checks_max), Ordering::Relaxed);
        let left = self.requests.len().checked_sub(next).filter(|left| *left > 0)?;
        Some(left.min(DECISIONS_PER_TURN))
    }

    /// Returns whether another request may be decided in this turn. The last request of a turn may
    /// exceed its checks.
    fn has_turn(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        next < self.turn_end.load(Ordering::Relaxed).min(self.requests.len())
            && self.checks_left.load(Ordering::Relaxed)
                >= self.turn_checks_end.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct BatchResults {
    encoded: EncodedResults,
    /// Number of results per outcome, indexed by [`RpcOutcome`].
    outcomes: [usize; RpcOutcome::ALL.len()],
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::decide::{Decider, GlobalModes};
    use crate::domain::{Answer, Answers, Call, Hits, Outcome, Receipt, Source as Decided};
    use crate::policy::{self, Policy, Secret, Source};
    use crate::store::Store;
    use crate::wire::{ResponseConfig, ResponseSettings};

    /// A domain, and a descriptor with one entry without a value.
    const REQUEST: &[u8] = b"\x0a\x01d\x12\x05\x0a\x03\x0a\x01k";

    /// Store whose calls wait for a permit.
    struct SlowStore {
        waiting: AtomicUsize,
        permits: Semaphore,
    }

    impl SlowStore {
        fn new() -> Arc<SlowStore> {
            Arc::new(SlowStore { waiting: AtomicUsize::new(0), permits: Semaphore::new(0) })
        }
    }

    impl Store for Arc<SlowStore> {
        async fn apply(&self, call: &Call<'_>) -> Answers {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.permits.acquire().await.unwrap().forget();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let answer = Answer::Decided(Outcome::pass(Hits::ONE));
            Answers::new(vec![answer; call.checks.len()], Decided::Redis)
        }

        async fn refund(&self, _: &[Receipt]) {}
    }

    /// Returns a service without rules, or with one that matches [`REQUEST`].
    fn service(store: &Arc<SlowStore>, rules: &str) -> RlsService<Decider<Arc<SlowStore>, ()>> {
        let file = Source { name: "d.yaml".into(), text: format!("domain: d\n{rules}").into() };
        let compiled = policy::compile(&[file], &policy::Options::default()).unwrap();
        let policy = Arc::new(Policy::build(compiled.domains, Secret::default()));
        let decider = Decider::new(policy, Arc::clone(store), Arc::new(()), GlobalModes::default());
        let response_config = ResponseConfig::new(ResponseSettings::default()).unwrap();
        RlsService::new(Arc::new(decider), Clock::Manual(ManualClock::default()), response_config)
    }

    fn batch(requests: usize) -> Bytes {
        [&[0x0a, REQUEST.len() as u8][..], REQUEST].concat().repeat(requests).into()
    }

    /// Returns how often a batch of valid requests lets other calls run before it is decided.
    fn count_yields(requests: usize) -> usize {
        let service = service(&SlowStore::new(), "");
        let caller = Caller::Unrestricted;
        let call = service.call_limits(LimitsMethod::Check, batch(requests), None, &caller);
        let mut call = pin!(call);
        let mut context = Context::from_waker(Waker::noop());
        let is_pending = |_: &usize| match call.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(response) => {
                assert!(!response.unwrap().is_empty());
                false
            }
        };
        (0..).take_while(is_pending).count()
    }

    #[test]
    fn a_batch_lets_other_calls_run_after_every_32_decisions() {
        let yields = [1, 32, 33, 64, 1_024].map(count_yields);
        assert_eq!(yields, [0, 0, 1, 1, 31]);
    }

    #[test]
    fn at_most_512_decisions_of_all_batches_wait_for_the_store() {
        let store = SlowStore::new();
        let rules = "descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 5}}]";
        let service = service(&store, rules);
        let caller = Caller::Unrestricted;
        let mut calls = [400, 1_024, 10].map(|requests| {
            Box::pin(service.call_limits(LimitsMethod::Check, batch(requests), None, &caller))
        });
        let mut context = Context::from_waker(Waker::noop());
        let mut answered = [false; 3];
        let mut poll_all = |answered: &mut [bool; 3]| {
            for (call, answered) in calls.iter_mut().zip(answered) {
                for _ in 0..40 {
                    *answered = *answered || call.as_mut().poll(&mut context).is_ready();
                }
            }
        };
        poll_all(&mut answered);
        let waiting = || store.waiting.load(Ordering::Relaxed);
        assert!((481..=512).contains(&waiting()), "{} wait", waiting());
        for given in 1..=1_434 {
            store.permits.add_permits(1);
            poll_all(&mut answered);
            assert!(waiting() <= 512.min(1_434 - given), "{} wait", waiting());
        }
        assert_eq!(answered, [true; 3]);
    }
}
