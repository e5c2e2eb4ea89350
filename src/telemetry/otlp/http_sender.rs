//! OTLP over HTTP/1.1: sends protobuf messages in POST requests.
//!
//! Each request opens a new connection. Exports are seconds apart, and a collector behind a load
//! balancer may have been replaced in the meantime.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::runtime::Handle;
use tokio::time;

use super::OtlpTarget;
use crate::domain::with_causes;
use crate::tls::Connector;

/// Maximum size of the headers of a collector's response, 64 KiB. The body of the response is not
/// read.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;

/// HTTP client for one OTLP endpoint.
#[derive(Clone, Debug)]
pub(crate) struct HttpSender {
    client: Client<Connector, Full<Bytes>>,
    endpoint: Uri,
    headers: HeaderMap,
    timeout: Duration,
    /// Tokio runtime that runs the requests, so that callers need not be in a Tokio runtime.
    runtime: Handle,
}

impl HttpSender {
    /// Creates a client for `target`. Must be called within a Tokio runtime, which runs the
    /// requests.
    ///
    /// # Errors
    ///
    /// Returns the reason if the target's endpoint, headers or CA are invalid.
    pub(super) fn new(target: &OtlpTarget) -> Result<HttpSender, String> {
        let (endpoint, connector) = target.build_connector("http/1.1")?;
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .http1_max_buf_size(RESPONSE_HEAD_BYTES_MAX)
            .build(connector);
        let mut headers = target.build_headers()?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let (timeout, runtime) = (target.timeout, Handle::current());
        Ok(HttpSender { client, endpoint, headers, timeout, runtime })
    }

    /// Sends one message. Can be awaited on any executor.
    ///
    /// # Errors
    ///
    /// Returns the reason if the collector does not accept the message within the timeout.
    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), String> {
        let mut request = Request::new(Full::new(Bytes::from(message)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.endpoint.clone();
        *request.headers_mut() = self.headers.clone();
        let (response, timeout) = (self.client.request(request), self.timeout);
        let response = self.runtime.spawn(async move { time::timeout(timeout, response).await });
        match response.await {
            Ok(Ok(Ok(response))) if response.status().is_success() => Ok(()),
            Ok(Ok(Ok(response))) => Err(format!("the collector answered {}", response.status())),
            Ok(Ok(Err(error))) => Err(with_causes(&error)),
            // The task fails only if the runtime shuts down.
            Ok(Err(_)) | Err(_) => Err("no response in time".to_owned()),
        }
    }
}
