//! gRPC client of the rate limit service, for `tidegate ask`.
//!
//! Not here: parsing arguments and printing (`cli`).

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

pub use super::error::WireError;
use super::messages::limits_client::LimitsClient;
use super::messages::rate_limit_descriptor::{Entry, RateLimitOverride};
use super::messages::rate_limit_service_client::RateLimitServiceClient;
use super::messages::{
    CheckRequest, CheckResult, HeaderValue, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse, RateLimitUnit, check_result, rate_limit_response as wire,
};
use super::proto_json;
use super::struct_json::struct_to_json;
use crate::domain::{Bounds, Override, Unit, with_causes};
use crate::peer_protocol::{Peer, detect_peer};

/// Settings of a [`Client`].
#[derive(Clone, Debug, Default)]
pub struct ClientSettings {
    /// Address of the server, as `HOST:PORT`.
    pub target: String,
    /// Timeout for connecting and for each call; `None` means no timeout.
    pub timeout: Option<Duration>,
    /// TLS settings; `None` means plaintext.
    pub tls: Option<ClientTls>,
}

/// TLS settings of the client, with certificates and keys as PEM text.
#[derive(Clone, Default)]
pub struct ClientTls {
    /// CA certificates for verifying the server's certificate.
    pub authority: Vec<u8>,
    /// Certificate and private key of the client; `None` if the client presents no certificate.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// DNS name or IP address that the server's certificate must contain; `None` means the host in
    /// [`ClientSettings::target`].
    pub server_name: Option<String>,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// Rate limit request to send with [`Client::send`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallRequest {
    /// Policy domain of the request.
    pub domain: String,
    /// Descriptors of the request. The statuses in the response have the same order.
    pub descriptors: Vec<CallDescriptor>,
    /// Hits for each descriptor that does not set [`CallDescriptor::hits`]; 0 means 1.
    pub hits: u32,
}

/// Descriptor of a [`CallRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallDescriptor {
    /// Entries as pairs of key and value, both of which may contain any bytes.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Hits of this descriptor; `None` means [`CallRequest::hits`]. `Some(0)` only checks the
    /// limit.
    pub hits: Option<u64>,
    /// Whether to refund the hits instead of charging them.
    pub refund: bool,
    /// Request override, which replaces the policy's limit; `None` if there is none.
    pub limit: Option<Override>,
}

/// Response to a [`CallRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct CallResponse {
    /// Whether the overall code is OVER_LIMIT.
    pub refused: bool,
    /// Name of the overall code, such as `OVER_LIMIT`.
    pub code: &'static str,
    /// One status per descriptor, in the order of the request.
    pub statuses: Vec<ResponseStatus>,
    /// Names and values of the response headers.
    pub headers: Vec<(String, String)>,
    /// HTTP body that Envoy sends to the client of a rejected request; empty if there is none.
    pub body: Vec<u8>,
    /// Dynamic metadata of the response as JSON; `None` if it has none.
    pub metadata: Option<Value>,
    /// Complete response as proto-JSON.
    pub json: Value,
}

/// Status of one descriptor of a [`CallResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseStatus {
    /// Whether the descriptor's code is OVER_LIMIT.
    pub refused: bool,
    /// Limit that the server reports for the descriptor; `None` if it reports none, for example
    /// because no rule matched.
    pub limit: Option<ResponseLimit>,
    /// Number of hits that are still available.
    pub remaining: u32,
    /// Seconds until the full limit is available again or, on OVER_LIMIT, until a retry can
    /// succeed; `None` if the server does not report a reset time.
    pub reset_seconds: Option<u64>,
}

/// Limit that the server reports for a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseLimit {
    /// Name of the limit; empty if it has none.
    pub name: String,
    /// Number of hits allowed per window of `unit_multiplier` time units.
    pub requests_per_unit: u32,
    /// Name of the time unit, such as `MINUTE`.
    pub unit: &'static str,
    /// Number of time units in a window, at least 1.
    pub unit_multiplier: u32,
}

/// gRPC connection to a rate limit server.
#[derive(Clone, Debug)]
pub struct Client {
    rate_limit_client: RateLimitServiceClient<Channel>,
    limits_client: LimitsClient<Channel>,
}

/// Encoded request for [`Client::send_batch`].
#[derive(Clone, Debug)]
pub struct BatchRequest(Bytes);

impl BatchRequest {
    /// Parses a `RateLimitRequest` in proto-JSON, the format of `/json`.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if `text` is too long, is not JSON, or has an unknown or invalid
    /// field.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let request = proto_json::parse_request(text.as_bytes(), Bounds::DEFAULT.message_bytes_max);
        request.map(BatchRequest).map_err(|error| error.to_string())
    }
}

/// Result of one request in a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchItemResult {
    /// Response to a request that the server decided.
    Response(Box<CallResponse>),
    /// Error for a request that was not decided: the server returned an error or no result.
    Error {
        /// Name of the gRPC status code, such as `InvalidArgument`.
        code: String,
        /// Error message from the server, or `the server sent no result`.
        message: String,
    },
}

impl Client {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::Target`] for a malformed target, and [`WireError::Connect`] if the
    /// server cannot be reached or TLS fails.
    pub async fn connect(settings: &ClientSettings) -> Result<Self, WireError> {
        let target = settings.target.clone();
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{target}"))
            .map_err(|_| WireError::Target { target: target.clone() })?
            .tcp_nodelay(true);
        if let Some(timeout) = settings.timeout {
            endpoint = endpoint.connect_timeout(timeout).timeout(timeout);
        }
        let failed = |source| WireError::Connect { target: target.clone(), source };
        if let Some(tls) = &settings.tls {
            endpoint = endpoint.tls_config(tls.build_config()).map_err(failed)?;
        }
        let channel = endpoint.connect().await.map_err(failed)?;
        let limits_client = LimitsClient::new(channel.clone());
        Ok(Client { rate_limit_client: RateLimitServiceClient::new(channel), limits_client })
    }

    /// Sends one request and returns the response.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::Refused`] with the gRPC status if the call fails.
    pub async fn send(&mut self, request: &CallRequest) -> Result<CallResponse, WireError> {
        let answer = self.rate_limit_client.should_rate_limit(encode_request(request)).await;
        answer
            .map(|answer| decode_response(&answer.into_inner()))
            .map_err(|status| WireError::Refused { status: Box::new(status) })
    }

    /// Sends a batch to `tidegate.v1.Limits` and returns one result per request, in the same
    /// order.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::Refused`] with the gRPC status if the batch as a whole fails.
    pub async fn send_batch(
        &mut self,
        requests: &[BatchRequest],
    ) -> Result<Vec<BatchItemResult>, WireError> {
        let requests = requests.iter().map(|BatchRequest(request)| request.clone()).collect();
        let answer = self.limits_client.check(CheckRequest { requests }).await;
        let answer = answer.map_err(|status| WireError::Refused { status: Box::new(status) })?;
        Ok(answer.into_inner().results.into_iter().map(decode_result).collect())
    }
}

fn decode_result(CheckResult { result }: CheckResult) -> BatchItemResult {
    let (code, message) = match result {
        Some(check_result::Result::Response(response)) => {
            return BatchItemResult::Response(Box::new(decode_response(&response)));
        }
        Some(check_result::Result::Error(error)) => (error.code.into(), error.message),
        None => (tonic::Code::Unknown, "the server sent no result".to_owned()),
    };
    BatchItemResult::Error { code: format!("{code:?}"), message }
}

/// Probes the protocol at the target after a failed call, and returns advice on which setting to
/// correct. Returns `None` if no wrong setting was found.
pub async fn find_advice(settings: &ClientSettings, error: &WireError) -> Option<&'static str> {
    if let WireError::Refused { status } = error
        && status.code() == tonic::Code::Unimplemented
    {
        return Some("this gRPC server is no rate limit service: correct the address");
    }
    let (host, port) = settings.target.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let step_max = settings.timeout.unwrap_or(DETECTION_STEP_TIMEOUT);
    let uses_tls = settings.tls.is_some();
    Some(match detect_peer(host, port.parse().ok()?, step_max).await {
        Peer::UnknownHost => "the host name cannot be resolved",
        Peer::ConnectionRefused => {
            "nothing listens there: start `tidegate serve`, or correct the address; the gRPC port \
             is 8081 by default"
        }
        Peer::Http => "this is an HTTP port: give the gRPC port, which is 8081 by default",
        Peer::Redis => "this is a Redis port: give the gRPC port of Tidegate, 8081 by default",
        Peer::Tls if !uses_tls => "this port uses TLS: add --ca FILE with the CA's certificate",
        Peer::Http2 | Peer::Unidentified if uses_tls => "this port uses no TLS: remove --ca",
        Peer::Tls if error_contains(error, "UnknownIssuer") => {
            "the CA in --ca did not sign the server's certificate: give the CA that did"
        }
        Peer::Tls if error_contains(error, "not valid for name") => {
            "give the name in the server's certificate with --server-name"
        }
        Peer::Tls if error_contains(error, "CertificateRequired") => {
            "the server requires a client certificate: add --cert and --key"
        }
        Peer::Tls | Peer::Http2 | Peer::Unidentified => return None,
    })
}

/// Timeout of each step of detecting the server's protocol, if the client's settings have no
/// timeout.
const DETECTION_STEP_TIMEOUT: Duration = Duration::from_secs(1);

fn error_contains(error: &WireError, word: &str) -> bool {
    with_causes(error).contains(word)
}

impl ClientTls {
    fn build_config(&self) -> ClientTlsConfig {
        let mut config =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority));
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name.clone());
        }
        config
    }
}

fn encode_request(request: &CallRequest) -> RateLimitRequest {
    RateLimitRequest {
        domain: request.domain.clone().into(),
        descriptors: request.descriptors.iter().map(encode_descriptor).collect(),
        hits_addend: request.hits,
    }
}

fn encode_descriptor(call: &CallDescriptor) -> RateLimitDescriptor {
    let entry = |(key, value): &(Vec<u8>, Vec<u8>)| Entry {
        key: key.clone().into(),
        value: value.clone().into(),
    };
    RateLimitDescriptor {
        entries: call.entries.iter().map(entry).collect(),
        limit: call.limit.map(|limit| RateLimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: to_wire_unit(limit.unit).into(),
            unit_multiplier: Some(limit.unit_multiplier),
        }),
        hits_addend: call.hits,
        is_negative_hits: call.refund,
    }
}

/// Converts a unit to its protobuf value. Request overrides have no weekly unit, so a week becomes
/// UNKNOWN, which the server rejects.
fn to_wire_unit(unit: Unit) -> RateLimitUnit {
    match unit {
        Unit::Second => RateLimitUnit::Second,
        Unit::Minute => RateLimitUnit::Minute,
        Unit::Hour => RateLimitUnit::Hour,
        Unit::Day => RateLimitUnit::Day,
        Unit::Month => RateLimitUnit::Month,
        Unit::Year => RateLimitUnit::Year,
        Unit::Week => RateLimitUnit::Unknown,
    }
}

fn decode_response(answer: &RateLimitResponse) -> CallResponse {
    let header = |header: &HeaderValue| (header.key.clone(), header.value.clone());
    CallResponse {
        refused: answer.overall_code() == wire::Code::OverLimit,
        code: answer.overall_code().as_str_name(),
        statuses: answer.statuses.iter().map(decode_status).collect(),
        headers: answer.response_headers_to_add.iter().map(header).collect(),
        body: answer.raw_body.clone(),
        metadata: answer.dynamic_metadata.as_ref().map(struct_to_json),
        json: proto_json::response_to_json(answer),
    }
}

fn decode_status(status: &wire::DescriptorStatus) -> ResponseStatus {
    ResponseStatus {
        refused: status.code() == wire::Code::OverLimit,
        limit: status.current_limit.as_ref().map(|limit| ResponseLimit {
            name: limit.name.clone(),
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit().as_str_name(),
            unit_multiplier: limit.unit_multiplier.unwrap_or(1),
        }),
        remaining: status.limit_remaining,
        reset_seconds: status
            .duration_until_reset
            .as_ref()
            .and_then(|reset| u64::try_from(reset.seconds).ok()),
    }
}
