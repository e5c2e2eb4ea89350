//! The client: one shared connection, a bounded number of pending calls, a timeout for each.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::uri::PathAndQuery;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::builder::{Builder, TIMEOUT_MAX};
use crate::call::Call;
use crate::decision::{Decision, Failure, Outcome};
use crate::degraded::Degraded;
use crate::hold::{self, Hold};
use crate::layer::RateLimitLayer;
use crate::mapping::Mapping;
use crate::messages::{
    CheckRequest, CheckResponse, RateLimitRequest, RateLimitResponse, ReserveRequest,
    ReserveResponse,
};

pub(crate) const CHECK: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const CHECK_MANY: &str = "/tidegate.v1.Limits/Check";
/// Not the entries `tidegate.hold` and `tidegate.settle` of Envoy's service, which would save two messages: they have
/// no ttl, their id would have to be made here, and a server that does not know them finds no limit and lets the call
/// pass.
pub(crate) const RESERVE: &str = "/tidegate.v1.Limits/Reserve";
const SETTLE: &str = "/tidegate.v1.Limits/Settle";
/// Maximum size of a response: a status and its limit for each descriptor, headers, a body of the policy.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;
/// Maximum size of the response to a batch of 1,024 calls, which is the service's bound: 4 KiB each.
const BATCH_RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Timeout of a call for which nobody waits.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of such calls on their way. A further one is dropped: the lease, or the ttl, ends by itself.
const BACKGROUND_MAX: u64 = 1_000;

/// Numbers of calls by outcome, since the client was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that the limits let pass.
    pub allowed: u64,
    /// Calls that a limit rejected.
    pub rejected: u64,
    /// Calls without a decision.
    pub failed: u64,
}

/// Why [`Client::connect`] did not connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    failure: Failure,
    reason: String,
}

impl ConnectError {
    /// How the call failed.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }
}

impl fmt::Display for ConnectError {
    /// The reason, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for ConnectError {}

/// Client of a rate limit service. Clones share the connection, the bounds, and the counters.
///
/// The first call without a decision is logged with its reason, and the first decision after it, as warnings of
/// [`tracing`].
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) channel: Channel,
    pub(crate) runtime: Handle,
    pub(crate) degraded: Arc<Degraded>,
    pub(crate) timeout: Duration,
    pub(crate) fails_open: bool,
    pub(crate) pending: Arc<Semaphore>,
    pub(crate) counts: Counts,
}

#[derive(Default)]
pub(crate) struct Counts {
    allowed: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    in_background: AtomicU64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters = self.counters();
        f.debug_struct("Client").field("counters", &counters).finish_non_exhaustive()
    }
}

impl Client {
    /// Returns a builder of a client for the service at `http://HOST:PORT` or, with TLS,
    /// `https://HOST:PORT`, and for this domain of its policy.
    pub fn builder(address: &str, domain: &str) -> Builder {
        Builder::new(address, domain)
    }

    /// Connects before the first call, so that it does not pay for the handshake, and asks whether the server has
    /// the rate limit service. Nothing is charged or counted.
    ///
    /// # Errors
    ///
    /// Returns the reason if there is no answer within `timeout`, at most an hour.
    pub async fn connect(&self, timeout: Duration) -> Result<(), ConnectError> {
        let timeout = timeout.min(TIMEOUT_MAX);
        // Servers reject a request without descriptors before they look at limits.
        let domain = self.shared.degraded.domain.clone();
        let message = RateLimitRequest { domain, ..RateLimitRequest::default() };
        let sent =
            self.send_within::<_, RateLimitResponse>(CHECK, message, RESPONSE_BYTES_MAX, timeout);
        let failure = match sent.await {
            Ok(_) | Err(Failure::Status(Code::InvalidArgument, _)) => return Ok(()),
            // envoyproxy/ratelimit
            Err(Failure::Status(Code::Unknown, message)) if message.contains("descriptor") => {
                return Ok(());
            }
            Err(failure) => failure,
        };
        let reason = self.shared.degraded.endpoint.diagnose(&failure, CHECK, timeout).await;
        Err(ConnectError { failure, reason })
    }

    /// Asks for a decision. Returns within the timeout, never sleeps, and never repeats a call.
    ///
    /// A call without descriptors passes without asking, as in Envoy, and is not counted. Slots that a call takes
    /// here are free when their lease ends; use [`Client::hold`] to release them.
    pub async fn check(&self, call: &Call) -> Decision {
        self.check_as(call, &Bytes::new()).await
    }

    /// Asks for many decisions in one call of Tidegate's own service; other servers do not have it. There is one
    /// decision for each call, in the same order. A call may pass while others do not.
    ///
    /// The timeout is that of one decision. The service takes up to 1,024 calls together; if there are more, all fail.
    pub async fn check_many(&self, calls: &[Call]) -> Vec<Decision> {
        let asks = |call: &&Call| !call.descriptors.is_empty() && call.mistake().is_none();
        let domain = &self.shared.degraded.domain;
        let message = |call: &Call| call.check_message(domain, &Bytes::new());
        let requests: Vec<RateLimitRequest> = calls.iter().filter(asks).map(message).collect();
        let expected = requests.len();
        let answer: Result<CheckResponse, Failure> = if requests.is_empty() {
            Ok(CheckResponse::default())
        } else {
            self.send(CHECK_MANY, CheckRequest { requests }, BATCH_RESPONSE_BYTES_MAX).await
        };
        let mut results = answer.and_then(|answer| {
            let complete = answer.results.len() == expected;
            if complete { Ok(answer.results.into_iter()) } else { Err(Failure::malformed()) }
        });
        calls
            .iter()
            .map(|call| {
                if call.descriptors.is_empty() {
                    return Decision::allowed();
                }
                let answer = match (call.mistake(), &mut results) {
                    (Some(mistake), _) => Err(mistake),
                    (None, Err(failure)) => Err(failure.clone()),
                    (None, Ok(results)) => {
                        results.next().ok_or_else(Failure::malformed).and_then(Failure::of_result)
                    }
                };
                self.decide(answer, CHECK_MANY)
            })
            .collect()
    }

    /// Asks for a decision, and takes the slots of the descriptors with [`crate::Descriptor::hold`]. They
    /// are released when the guard is dropped. The guard is `None` if no slot was taken.
    pub async fn hold(&self, call: &Call) -> (Decision, Option<Hold>) {
        if !call.holds_slots() {
            return (self.check(call).await, None);
        }
        let holder = hold::new_holder();
        // Created before the call: if its caller goes away, the service may have taken the slot.
        let hold = Hold::new(self.clone(), call.clone(), holder.clone());
        let decision = self.check_as(call, &holder).await;
        match decision.outcome() {
            Outcome::Allowed => (decision, Some(hold)),
            Outcome::Rejected => {
                hold.forget();
                (decision, None)
            }
            // The server may have taken a slot: dropping the guard releases it.
            Outcome::Failed => (decision, None),
        }
    }

    /// Refunds what the call charged, for example because the work failed. Slots are not refunded.
    ///
    /// # Errors
    ///
    /// Returns why the service may not have refunded it.
    pub async fn refund(&self, call: &Call) -> Result<(), Failure> {
        let message = call.refund_message(&self.shared.degraded.domain);
        if message.descriptors.is_empty() {
            return Ok(());
        }
        let sent = self.send::<_, RateLimitResponse>(CHECK, message, RESPONSE_BYTES_MAX);
        sent.await.map(drop)
    }

    /// Returns a layer for axum, tonic, and other tower services.
    pub fn layer(&self, mapping: Mapping) -> RateLimitLayer {
        RateLimitLayer::new(self.clone(), mapping)
    }

    /// HOST:PORT of the server.
    pub fn address(&self) -> String {
        self.shared.degraded.endpoint.address()
    }

    /// Domain of the policy.
    pub fn domain(&self) -> &str {
        &self.shared.degraded.domain
    }

    /// Returns the numbers of calls by outcome.
    pub fn counters(&self) -> Counters {
        let counts = &self.shared.counts;
        Counters {
            allowed: counts.allowed.load(Ordering::Relaxed),
            rejected: counts.rejected.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
        }
    }

    async fn check_as(&self, call: &Call, holder: &Bytes) -> Decision {
        if call.descriptors.is_empty() {
            return Decision::allowed();
        }
        if let Some(mistake) = call.mistake() {
            return self.decide(Err(mistake), CHECK);
        }
        let message = call.check_message(&self.shared.degraded.domain, holder);
        self.decide(self.send(CHECK, message, RESPONSE_BYTES_MAX).await, CHECK)
    }

    /// Turns an answer into a decision, and counts it.
    pub(crate) fn decide(
        &self,
        answer: Result<RateLimitResponse, Failure>,
        path: &'static str,
    ) -> Decision {
        let decision = match answer {
            Ok(response) => {
                self.shared.degraded.end();
                Decision::of_response(response, SystemTime::now())
            }
            Err(failure) => {
                self.shared.degraded.fail(&failure, path);
                Decision::failed(failure, self.shared.fails_open)
            }
        };
        let counts = &self.shared.counts;
        let counter = match decision.outcome() {
            Outcome::Allowed => &counts.allowed,
            Outcome::Rejected => &counts.rejected,
            Outcome::Failed => &counts.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        decision
    }

    async fn send<M, R>(
        &self,
        path: &'static str,
        message: M,
        bytes_max: usize,
    ) -> Result<R, Failure>
    where
        M: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        self.send_within(path, message, bytes_max, self.shared.timeout).await
    }

    async fn send_within<M, R>(
        &self,
        path: &'static str,
        message: M,
        bytes_max: usize,
        deadline: Duration,
    ) -> Result<R, Failure>
    where
        M: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let shared = &self.shared;
        let _pending = shared.pending.try_acquire().map_err(|_| Failure::Busy)?;
        let sent = unary(&shared.channel, path, message, bytes_max, deadline);
        match timeout(deadline, sent).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => Err(Failure::of(&status)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    /// Releases slots without anybody waiting.
    pub(crate) fn release_in_background(&self, call: &Call, holder: &Bytes) {
        let message = call.release_message(&self.shared.degraded.domain, holder);
        self.send_in_background(CHECK, message);
    }

    /// Sends a message of a reservation. The id stays as it is if there is none in the answer, as in that to a renewal
    /// that was rejected.
    pub(crate) async fn reserve_as(&self, message: ReserveRequest, id: &mut Bytes) -> Decision {
        let answer = self.send::<_, ReserveResponse>(RESERVE, message, RESPONSE_BYTES_MAX).await;
        self.decide(
            answer.map(|answer| {
                if !answer.id.is_empty() {
                    *id = answer.id;
                }
                answer.response.unwrap_or_default()
            }),
            RESERVE,
        )
    }

    pub(crate) async fn settle(&self, message: ReserveRequest) -> Result<(), Failure> {
        let sent = self.send::<_, RateLimitResponse>(SETTLE, message, RESPONSE_BYTES_MAX);
        sent.await.map(drop)
    }

    pub(crate) fn settle_in_background(&self, message: ReserveRequest) {
        self.send_in_background(SETTLE, message);
    }

    /// One that fails leaves a slot to its lease, and a hold to its ttl.
    fn send_in_background(&self, path: &'static str, message: impl prost::Message + 'static) {
        let in_background = &self.shared.counts.in_background;
        if in_background.fetch_add(1, Ordering::AcqRel) >= BACKGROUND_MAX {
            in_background.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.shared.runtime.spawn(async move {
            let call = unary::<_, RateLimitResponse>(
                &shared.channel,
                path,
                message,
                RESPONSE_BYTES_MAX,
                BACKGROUND_TIMEOUT,
            );
            drop(timeout(BACKGROUND_TIMEOUT, call).await);
            shared.counts.in_background.fetch_sub(1, Ordering::AcqRel);
        });
    }

    pub(crate) fn new(shared: Shared) -> Client {
        Client { shared: Arc::new(shared) }
    }
}

async fn unary<M, R>(
    channel: &Channel,
    path: &'static str,
    message: M,
    bytes_max: usize,
    deadline: Duration,
) -> Result<R, Status>
where
    M: prost::Message + 'static,
    R: prost::Message + Default + 'static,
{
    let mut service = Grpc::new(channel.clone()).max_decoding_message_size(bytes_max);
    service.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = Request::new(message);
    // The service gets the timeout, too, so that it drops a call that nobody waits for.
    request.set_timeout(deadline);
    let path = PathAndQuery::from_static(path);
    Ok(service.unary(request, path, ProstCodec::default()).await?.into_inner())
}
