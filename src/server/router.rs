//! Router: dispatches each HTTP/2 request to a service by its path.
//!
//! Not here: connections (`connection`), deciding (`rls_service`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower_service::Service as _;

use super::authz::Caller;
use super::framing;
use super::health::Health;
use super::limits_service::LimitsMethod;
use super::receive;
use super::receive::{ArrivedBody, ReceivedBody};
use super::rls_service::{Decide, RlsService, SHOULD_RATE_LIMIT_PATH};
use crate::clock::Clock;
use crate::domain::{Hold, InvalidReason, Trace, UnreadableKind};
use crate::wire::messages::FILE_DESCRIPTOR_SET;

/// Maximum size of a request to the health or the reflection service, in bytes. With tonic's
/// default of 4 MiB, a client could make the server allocate 4 MiB by announcing a message and
/// never sending it.
const SERVICE_MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// Service to which a request is routed, with the parts of the request that the service needs.
#[derive(Debug)]
pub(crate) enum RouteMatch {
    /// Error response to a request that is not a gRPC call, and what it is.
    Rejected(UnreadableKind, Box<Response<Body>>),
    /// Call to the health or the reflection service, or to an unknown method.
    TonicService(Box<Request<Incoming>>),
    /// Call to the rate limit service or to `tidegate.v1.Limits`.
    RateLimit(RateLimitCall),
}

/// Unary method of the rate limit service or of `tidegate.v1.Limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnaryMethod {
    ShouldRateLimit,
    Limits(LimitsMethod),
}

/// Call to a [`UnaryMethod`] whose body has not been received yet.
#[derive(Debug)]
pub(crate) struct RateLimitCall {
    pub(crate) method: UnaryMethod,
    pub(crate) body: Incoming,
    /// Time until the caller's deadline; `None` if the caller has set no valid deadline.
    pub(crate) deadline: Option<Duration>,
    pub(crate) trace: Option<Arc<Trace>>,
}

/// Router for the gRPC port. Passes each request to the service that its path names.
#[derive(Debug)]
pub struct Router<D> {
    rls_service: Arc<RlsService<D>>,
    health: Health,
    /// Health and reflection services, implemented with tonic.
    tonic_services: Routes,
}

impl<D: Decide> Router<D> {
    /// Creates a router for the rate limit, health, and reflection services (reflection v1 and
    /// v1alpha).
    pub fn new(rls_service: Arc<RlsService<D>>, health: Health) -> Self {
        let mut tonic_services = Routes::new(health.service(SERVICE_MESSAGE_BYTES_MAX));
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // Loading cannot fail, because the descriptors come from the build (a test calls
        // reflection). If it did, serving without reflection would be better than not serving.
        if let Ok(v1) = reflection().build_v1() {
            tonic_services =
                tonic_services.add_service(v1.max_decoding_message_size(SERVICE_MESSAGE_BYTES_MAX));
        }
        if let Ok(v1alpha) = reflection().build_v1alpha() {
            tonic_services = tonic_services
                .add_service(v1alpha.max_decoding_message_size(SERVICE_MESSAGE_BYTES_MAX));
        }
        Router { rls_service, health, tonic_services: tonic_services.prepare() }
    }

    /// Returns the health service, which holds the server's health status.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the clock that measures deadlines.
    pub(crate) fn clock(&self) -> &Clock {
        &self.rls_service.clock
    }

    /// Selects the service for a request by its path. Rejects a request that is not a gRPC call.
    pub(crate) fn dispatch(&self, request: Request<Incoming>) -> RouteMatch {
        if let Some((kind, rejection)) = framing::reject_as_http(&request) {
            return RouteMatch::Rejected(kind, Box::new(rejection));
        }
        let path = request.uri().path();
        if path == SHOULD_RATE_LIMIT_PATH {
            return RouteMatch::RateLimit(RateLimitCall {
                method: UnaryMethod::ShouldRateLimit,
                deadline: framing::parse_grpc_timeout(request.headers()),
                trace: self.rls_service.start_trace(request.headers()),
                body: request.into_body(),
            });
        }
        match LimitsMethod::from_path(path).filter(|_| self.rls_service.has_limits_service) {
            Some(method) => RouteMatch::RateLimit(RateLimitCall {
                method: UnaryMethod::Limits(method),
                deadline: framing::parse_grpc_timeout(request.headers()),
                trace: None,
                body: request.into_body(),
            }),
            None => RouteMatch::TonicService(Box::new(request)),
        }
    }

    /// Passes a request to the health or the reflection service, and returns the response. For an
    /// unknown method, the status is UNIMPLEMENTED.
    pub(crate) async fn call_tonic_service(&self, request: Request<Body>) -> Response<Body> {
        match self.tonic_services.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Receives the body of a unary call. Waits for at most `timeout`, even if the caller's deadline is
    /// later. `hold` is the memory that the call holds. It grows with the body as it arrives. Returns
    /// the body and the time left until the deadline, which is `None` if the caller has set no valid
    /// one.
    ///
    /// # Errors
    ///
    /// Returns any error of [`receive::read_rest`].
    pub(crate) async fn receive(
        &self,
        body: &mut Incoming,
        deadline: Option<Duration>,
        timeout: Duration,
        hold: &mut Hold,
    ) -> Result<(ReceivedBody, Option<Duration>), Status> {
        let message_bytes_max = self.rls_service.bounds.message_bytes_max;
        let invalid = |status: Status| {
            if status.code() == Code::InvalidArgument {
                self.rls_service.count_invalid(InvalidReason::MessageSize);
            }
            status
        };
        let arrived =
            match receive::read_arrived(body, message_bytes_max, hold).await.map_err(invalid)? {
                ArrivedBody::Complete(body) => return Ok((body, deadline)),
                ArrivedBody::Incomplete(arrived) => arrived,
            };
        let timeout = deadline.unwrap_or(timeout).min(timeout);
        let clock = &self.rls_service.clock;
        let start = clock.monotonic_now();
        // Boxed, so that the future of a call whose body has arrived stays small.
        let rest = receive::read_rest(body, arrived, message_bytes_max, hold, timeout);
        let rest = Box::pin(rest).await;
        let body = rest.map_err(invalid)?;
        let waited = clock.monotonic_now() - start;
        Ok((body, deadline.map(|deadline| deadline.saturating_sub(waited))))
    }

    /// Processes a unary call from `caller` whose body has been received. Returns the response.
    pub(crate) async fn respond(
        &self,
        method: UnaryMethod,
        body: ReceivedBody,
        deadline: Option<Duration>,
        mut trace: Option<Arc<Trace>>,
        caller: &Caller,
    ) -> Response<Body> {
        let rls_service = &self.rls_service;
        let answer = |message: Bytes| {
            let trace = trace.take();
            async move {
                let answer = match method {
                    UnaryMethod::ShouldRateLimit => {
                        rls_service.answer(message, deadline, caller, trace).await?
                    }
                    // Boxed, so that the future of a single decision stays small.
                    UnaryMethod::Limits(method) => {
                        Box::pin(rls_service.call_limits(method, message, deadline, caller)).await?
                    }
                };
                Ok(tonic::Response::new(answer))
            }
        };
        framing::respond(body.bytes, rls_service.bounds.message_bytes_max, answer).await
    }
}
