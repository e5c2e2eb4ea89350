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
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::builder::{Builder, OnFailure};
use crate::call::Call;
use crate::decision::{Decision, Failure, Outcome};
use crate::hold::{self, Hold};
use crate::layer::RateLimitLayer;
use crate::mapping::Mapping;
use crate::messages::{RateLimitRequest, RateLimitResponse};

const CHECK: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Maximum size of a response: a status and its limit for each descriptor, headers, a body of the policy.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;
/// Timeout of a release, for which nobody waits.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of releases on their way. A further one is dropped, and its lease ends by itself.
const RELEASES_MAX: usize = 1_000;

/// How many calls ended how, since the client was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that the limits let pass.
    pub allowed: u64,
    /// Calls that a limit rejected.
    pub rejected: u64,
    /// Calls without a decision.
    pub failed: u64,
}

/// Client of a rate limit service. Clones share the connection, the bounds, and the counters.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) channel: Channel,
    pub(crate) runtime: Handle,
    pub(crate) domain: String,
    pub(crate) timeout: Duration,
    pub(crate) on_failure: OnFailure,
    pub(crate) pending: Arc<Semaphore>,
    pub(crate) counts: Counts,
}

#[derive(Default)]
pub(crate) struct Counts {
    allowed: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    releases: AtomicU64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters = self.counters();
        f.debug_struct("Client").field("counters", &counters).finish_non_exhaustive()
    }
}

impl Client {
    /// Starts the settings of a client for the service at `http://HOST:PORT` or, with TLS,
    /// `https://HOST:PORT`, and for this domain of its policy.
    pub fn builder(address: &str, domain: &str) -> Builder {
        Builder::new(address, domain)
    }

    /// Asks for a decision. Returns within the timeout, never sleeps, and never repeats a call.
    ///
    /// A call without descriptors passes without asking, as in Envoy, and is not counted.
    pub async fn check(&self, call: &Call) -> Decision {
        self.check_as(call, &Bytes::new()).await
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
            // Whether a slot was taken is unknown: dropping the guard releases it.
            Outcome::Failed => (decision, None),
        }
    }

    /// Refunds what the call charged, for example because the work failed. Slots are not refunded.
    ///
    /// # Errors
    ///
    /// Returns why the service may not have refunded it.
    pub async fn refund(&self, call: &Call) -> Result<(), Failure> {
        let message = call.refund_message(&self.shared.domain);
        if message.descriptors.is_empty() {
            return Ok(());
        }
        self.send(message).await.map(drop)
    }

    /// Returns a layer for axum, tonic, and other tower services.
    pub fn layer(&self, mapping: Mapping) -> RateLimitLayer {
        RateLimitLayer::new(self.clone(), mapping)
    }

    /// How many calls ended how.
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
        let response = self.send(call.check_message(&self.shared.domain, holder)).await;
        let decision = match response {
            Ok(response) => Decision::of_response(response, SystemTime::now()),
            Err(failure) => Decision::failed(failure, self.shared.on_failure == OnFailure::Allow),
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

    async fn send(&self, message: RateLimitRequest) -> Result<RateLimitResponse, Failure> {
        let shared = &self.shared;
        let _pending = shared.pending.try_acquire().map_err(|_| Failure::Busy)?;
        let sent = timeout(shared.timeout, unary(&shared.channel, message, shared.timeout));
        match sent.await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => Err(Failure::of(&status)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    /// Releases slots without anybody waiting.
    pub(crate) fn release_in_background(&self, call: &Call, holder: &Bytes) {
        let releases = &self.shared.counts.releases;
        if releases.fetch_add(1, Ordering::AcqRel) >= RELEASES_MAX as u64 {
            releases.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let message = call.release_message(&self.shared.domain, holder);
        let shared = Arc::clone(&self.shared);
        self.shared.runtime.spawn(async move {
            let call = unary(&shared.channel, message, RELEASE_TIMEOUT);
            // A release that fails leaves the slot to its lease.
            drop(timeout(RELEASE_TIMEOUT, call).await);
            shared.counts.releases.fetch_sub(1, Ordering::AcqRel);
        });
    }

    pub(crate) fn new(shared: Shared) -> Client {
        Client { shared: Arc::new(shared) }
    }
}

async fn unary(
    channel: &Channel,
    message: RateLimitRequest,
    deadline: Duration,
) -> Result<RateLimitResponse, Status> {
    let mut service = Grpc::new(channel.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX);
    service.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = Request::new(message);
    // Tells the service, too, so that it does not work for nobody.
    request.set_timeout(deadline);
    let path = PathAndQuery::from_static(CHECK);
    Ok(service.unary(request, path, ProstCodec::default()).await?.into_inner())
}
