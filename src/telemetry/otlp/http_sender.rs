//! OTLP over HTTP/1.1: sends protobuf messages in POST requests.
//!
//! Each request opens a new connection. Exports are seconds apart, and a collector behind a load
//! balancer may have been replaced in the meantime.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;

use super::{OtlpError, OtlpTarget};

/// Maximum size of the headers of a collector's response, 64 KiB. The body of the response is not
/// read.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;

/// HTTP client for one OTLP endpoint. Clones share their configuration.
#[derive(Clone)]
pub(super) struct HttpSender {
    endpoint: Arc<HttpEndpoint>,
    timeout: Duration,
    /// Tokio runtime that runs the requests, so that callers need not be in a Tokio runtime.
    runtime: Handle,
}

struct HttpEndpoint {
    host: String,
    port: u16,
    path: String,
    headers: HeaderMap,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for HttpSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSender").finish_non_exhaustive()
    }
}

/// Reason why an export over HTTP failed. The next export may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HttpSendError {
    /// The collector did not respond within the timeout, or this process is shutting down.
    Timeout,
    /// The connection failed. Contains the reason.
    Connection(String),
    /// The collector responded with a status other than 2xx.
    Status(StatusCode),
}

impl fmt::Display for HttpSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpSendError::Timeout => f.write_str("no response in time"),
            HttpSendError::Connection(reason) => f.write_str(reason),
            HttpSendError::Status(status) => write!(f, "the collector answered {status}"),
        }
    }
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
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(invalid)?.to_owned();
        // Brackets surround an IPv6 address in a URL, but not elsewhere.
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (default_port, tls) = match uri.scheme_str() {
            Some("http") => (80, None),
            Some("https") => {
                let name = ServerName::try_from(bare.clone()).map_err(|_| invalid())?;
                let config = target.certificates.build_config("http/1.1");
                let config = config.map_err(|error| OtlpError::Tls(error.to_string()))?;
                (443, Some((TlsConnector::from(config), name)))
            }
            _ => return Err(invalid()),
        };
        let port = uri.port_u16().unwrap_or(default_port);
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let mut headers = build_header_map(&target.headers)?;
        let host_header = HeaderValue::from_str(&format!("{host}:{port}"));
        headers.insert(HOST, host_header.map_err(|_| invalid())?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let endpoint = HttpEndpoint { host: bare, port, path, headers, tls };
        let (endpoint, timeout) = (Arc::new(endpoint), target.timeout);
        Ok(HttpSender { endpoint, timeout, runtime: Handle::current() })
    }

    /// Sends one message. Can be awaited on any executor.
    ///
    /// # Errors
    ///
    /// Returns an error if the collector does not accept the message within the timeout.
    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), HttpSendError> {
        let (endpoint, timeout) = (Arc::clone(&self.endpoint), self.timeout);
        let request = self.runtime.spawn(async move {
            match tokio::time::timeout(timeout, endpoint.send(message)).await {
                Ok(result) => result,
                Err(_) => Err(HttpSendError::Timeout),
            }
        });
        // The task fails only if the runtime shuts down.
        request.await.unwrap_or(Err(HttpSendError::Timeout))
    }
}

impl HttpEndpoint {
    async fn send(&self, message: Vec<u8>) -> Result<(), HttpSendError> {
        let failed = |error: std::io::Error| HttpSendError::Connection(error.to_string());
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(failed)?;
        match &self.tls {
            None => self.post(stream, message).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(failed)?;
                self.post(stream, message).await
            }
        }
    }

    async fn post(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        message: Vec<u8>,
    ) -> Result<(), HttpSendError> {
        let failed = |error: hyper::Error| HttpSendError::Connection(error.to_string());
        let mut builder = http1::Builder::new();
        builder.max_buf_size(RESPONSE_HEAD_BYTES_MAX);
        let (mut sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let mut request = Request::new(Full::new(Bytes::from(message)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self
            .path
            .parse()
            .map_err(|_| HttpSendError::Connection("the path is not valid".to_owned()))?;
        *request.headers_mut() = self.headers.clone();
        let mut exchange = pin!(sender.send_request(request));
        let response = tokio::select! {
            response = &mut exchange => response,
            // The connection may end before its last response has been passed on.
            _ = connection => exchange.await,
        };
        match response.map_err(failed)?.status() {
            status if status.is_success() => Ok(()),
            status => Err(HttpSendError::Status(status)),
        }
    }
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
