//! Router: dispatches each HTTP/2 request to a service by its path.
//!
//! Not here: connections (`connection`), deciding (`rls_service`).

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use prost::Message as _;
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service as _;

use super::authz::Caller;
use super::framing;
use super::health::Health;
use super::rls_service::{Decide, RateLimit, SHOULD_RATE_LIMIT};
use crate::wire::messages::DESCRIPTORS;

/// Services of the gRPC port.
#[derive(Debug)]
pub struct Router<D> {
    rate_limit: Arc<RateLimit<D>>,
    health: Health,
    /// Health and reflection, served by tonic.
    tonic_services: Routes,
}

impl<D> Clone for Router<D> {
    fn clone(&self) -> Self {
        let Router { rate_limit, health, tonic_services } = self;
        Router {
            rate_limit: Arc::clone(rate_limit),
            health: health.clone(),
            tonic_services: tonic_services.clone(),
        }
    }
}

impl<D: Decide> Router<D> {
    /// Creates a router to the rate limit service, health, and reflection (v1 and v1alpha).
    pub fn new(rate_limit: Arc<RateLimit<D>>, health: Health) -> Self {
        let mut tonic_services = Routes::new(health.service());
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // Loading cannot fail, because the descriptors come from the build (a test calls
        // reflection). If it did, serving without reflection would be better than not serving.
        if let Ok(v1) = reflection().build_v1() {
            tonic_services = tonic_services.add_service(v1);
        }
        if let Ok(v1alpha) = reflection().build_v1alpha() {
            tonic_services = tonic_services.add_service(v1alpha);
        }
        Router { rate_limit, health, tonic_services: tonic_services.prepare() }
    }

    /// Returns the status that the health service reports.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Answers one HTTP request from `caller`.
    pub(crate) async fn call(&self, request: Request<Incoming>, caller: &Caller) -> Response<Body> {
        if let Some(rejection) = framing::reject_as_http(&request) {
            return rejection;
        }
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return match self.tonic_services.clone().call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
        }
        let deadline = framing::deadline(request.headers());
        let mut trace = self.rate_limit.start_trace(request.headers());
        let body = match framing::collect(&mut request.into_body()).await {
            Ok(body) => body,
            Err(status) => return status.into_http(),
        };
        let method = |message: Bytes| {
            let trace = trace.take();
            async move {
                let answer = self.rate_limit.answer(message, deadline, caller, trace).await?;
                Ok(tonic::Response::new(answer.encode_to_vec()))
            }
        };
        framing::respond(body, method).await
    }
}
