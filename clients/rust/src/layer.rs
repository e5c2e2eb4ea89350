//! A tower layer: asks before each request, and answers rejections itself, immediately.
//!
//! gRPC requests are recognised by their content type and answered as gRPC, so that one layer serves axum and
//! tonic, also on the same port.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::call::Call;
use crate::client::Client;
use crate::decision::{Decision, Failure, Outcome};
use crate::mapping::{Mapping, PeerAddr, RequestParts};
use crate::response_body::ResponseBody;

/// `grpc-status` of RESOURCE_EXHAUSTED and UNAVAILABLE.
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");

/// Layer that limits the requests of a service. See [`Client::layer`].
///
/// A rejected request is answered with 429, or RESOURCE_EXHAUSTED for gRPC, and the headers and the body of
/// the decision. Without a decision, [`crate::OnFailure`] says whether the request passes or is answered with
/// 503 or UNAVAILABLE. A request that passes carries an [`Admission`] in its extensions.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    client: Client,
    mapping: Arc<Mapping>,
}

impl RateLimitLayer {
    pub(crate) fn new(client: Client, mapping: Mapping) -> RateLimitLayer {
        RateLimitLayer { client, mapping: Arc::new(mapping) }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { client: self.client.clone(), mapping: Arc::clone(&self.mapping), inner }
    }
}

/// Service made by a [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    client: Client,
    mapping: Arc<Mapping>,
    inner: S,
}

/// How a request was admitted, as an extension of the request.
#[derive(Clone, Debug)]
pub struct Admission {
    client: Client,
    call: Arc<Call>,
    outcome: Outcome,
    marks: Vec<(HeaderName, HeaderValue)>,
}

impl Admission {
    /// [`Decision::marks`](crate::Decision::marks) of the decision.
    pub fn marks(&self) -> &[(HeaderName, HeaderValue)] {
        &self.marks
    }

    /// [`Outcome::Allowed`], or [`Outcome::Failed`] if the client lets requests pass on failure.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Refunds what the request charged, for example because its work failed.
    ///
    /// # Errors
    ///
    /// Returns why the service may not have refunded it.
    pub async fn refund(&self) -> Result<(), Failure> {
        match self.outcome {
            Outcome::Allowed => self.client.refund(&self.call).await,
            Outcome::Rejected | Outcome::Failed => Ok(()),
        }
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: http_body::Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    // Boxed, because a named future would have to spell out that of an async function.
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // The clone was not asked whether it is ready; the original was.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let client = self.client.clone();
        let call = Arc::new(self.mapping.call(&RequestParts {
            method: request.method().as_str(),
            path: request.uri().path(),
            headers: request.headers(),
            peer: peer(request.extensions()),
        }));
        let is_grpc = is_grpc(request.headers());
        Box::pin(async move {
            let (decision, hold) = client.hold(&call).await;
            if !decision.passes() {
                return Ok(rejection(decision, is_grpc));
            }
            let (outcome, marks) = (decision.outcome(), decision.marks);
            request.extensions_mut().insert(Admission { client, call, outcome, marks });
            let mut response = inner.call(request).await?;
            for (name, value) in decision.headers {
                response.headers_mut().append(name, value);
            }
            Ok(response.map(|body| ResponseBody::inner(body, hold)))
        })
    }
}

fn is_grpc(headers: &http::HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    // Not grpc-web, whose status is part of the body.
    let Some(rest) = kind.strip_prefix(b"application/grpc") else { return false };
    matches!(rest.first(), None | Some(b'+' | b';'))
}

/// The response instead of the service's.
fn rejection<R>(decision: Decision, is_grpc: bool) -> Response<ResponseBody<R>> {
    let rejected = decision.outcome() == Outcome::Rejected;
    let mut response = Response::new(ResponseBody::of_bytes(Bytes::new()));
    if is_grpc {
        let headers = response.headers_mut();
        headers.extend(decision.headers);
        let (code, message) = if rejected {
            (RESOURCE_EXHAUSTED, "rate limit exceeded")
        } else {
            (UNAVAILABLE, "the rate limit could not be checked")
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", code);
        headers.insert("grpc-message", HeaderValue::from_static(message));
        return response;
    }
    *response.status_mut() =
        if rejected { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::SERVICE_UNAVAILABLE };
    for (name, value) in decision.headers {
        response.headers_mut().append(name, value);
    }
    *response.body_mut() = ResponseBody::of_bytes(decision.body);
    response
}

/// The other end of the connection, if somebody noted it.
fn peer(extensions: &http::Extensions) -> Option<IpAddr> {
    if let Some(PeerAddr(address)) = extensions.get() {
        return Some(address.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) =
        extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>()
    {
        return Some(address.ip());
    }
    #[cfg(feature = "grpc-server")]
    {
        use tonic::transport::server::TcpConnectInfo;
        if let Some(address) =
            extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr)
        {
            return Some(address.ip());
        }
        #[cfg(feature = "grpc-server")]
        if let Some(info) =
            extensions.get::<tonic::transport::server::TlsConnectInfo<TcpConnectInfo>>()
        {
            return info.get_ref().remote_addr().map(|address| address.ip());
        }
    }
    None
}
