//! OTLP over HTTP/1.1: sends protobuf messages in POST requests.
//!
//! Each request opens a new connection. Exports are seconds apart, and a collector behind a load
//! balancer may have been replaced in the meantime.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tokio::time;

use super::{OtlpError, OtlpTarget};
use crate::domain::with_causes;
use crate::tls::TlsError;

/// Maximum size of the headers of a collector's response, 64 KiB. The body of the response is not
/// read.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;

/// HTTP client for one OTLP endpoint.
#[derive(Clone, Debug)]
pub(super) struct HttpSender {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
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
    /// Returns an error if the target's endpoint, headers or CA are invalid.
    pub(super) fn new(target: &OtlpTarget) -> Result<HttpSender, OtlpError> {
        let url = target.endpoint_with_scheme();
        let invalid =
            || OtlpError::Endpoint(format!("{:?} is not an http or https URL", target.endpoint));
        let endpoint: Uri = url.parse().map_err(|_| invalid())?;
        if endpoint.host().is_none_or(str::is_empty) {
            return Err(invalid());
        }
        let config = match endpoint.scheme_str() {
            Some("http") => build_unused_config(),
            Some("https") => target.certificates.build_config("http/1.1"),
            _ => return Err(invalid()),
        };
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        let config = config.map_err(|error| OtlpError::Tls(error.to_string()))?;
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .http1_max_buf_size(RESPONSE_HEAD_BYTES_MAX)
            .build(HttpsConnector::from((connector, config)));
        let mut headers = build_header_map(&target.headers)?;
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

/// Returns a TLS configuration that trusts nobody, for an endpoint without TLS.
fn build_unused_config() -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    let roots = RootCertStore::empty();
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

fn build_header_map(pairs: &[(String, String)]) -> Result<HeaderMap, OtlpError> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let invalid = || OtlpError::Header(name.clone());
        let key = HeaderName::try_from(name.as_str()).map_err(|_| invalid())?;
        headers.insert(key, HeaderValue::from_str(value).map_err(|_| invalid())?);
    }
    Ok(headers)
}
