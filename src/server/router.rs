//! Router: dispatches each HTTP/2 request to a service by its path.
//!
//! Not here: connections (`connection`), the services themselves.

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

/// The services of the gRPC port.
#[derive(Debug)]
pub struct Router<D> {
    rate_limit: Arc<RateLimit<D>>,
    health: Health,
    others: Routes,
}

impl<D> Clone for Router<D> {
    fn clone(&self) -> Self {
        let Router { rate_limit, health, others } = self;
        Router {
            rate_limit: Arc::clone(rate_limit),
            health: health.clone(),
            others: others.clone(),
        }
    }
}

impl<D: Decide> Router<D> {
    /// Returns a router to the rate limit service, health, and reflection (v1 and v1alpha).
    pub fn new(rate_limit: Arc<RateLimit<D>>, health: Health) -> Self {
        let mut others = Routes::new(health.service());
        let described = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // The descriptors come from the build, so that loading cannot fail (a test calls reflection);
        // if it did, serving without reflection would be better than not serving.
        if let Ok(reflection) = described().build_v1() {
            others = others.add_service(reflection);
        }
        if let Ok(reflection) = described().build_v1alpha() {
            others = others.add_service(reflection);
        }
        Router { rate_limit, health, others: others.prepare() }
    }

    /// Returns the health status that callers see.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Answers one HTTP request of `caller`.
    pub(crate) async fn call(&self, request: Request<Incoming>, caller: &Caller) -> Response<Body> {
        if let Some(rejection) = framing::reject_as_http(&request) {
            return rejection;
        }
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return match self.others.clone().call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
        }
        let deadline = framing::deadline(request.headers());
        let mut trace = self.rate_limit.sampled(request.headers());
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
