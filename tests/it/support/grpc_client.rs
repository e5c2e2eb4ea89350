//! A gRPC client of the rate limit service, with requests and responses that are quick to write and
//! to compare.

use std::time::Duration;

use serde_json::{Map, Value};
use tidegate::domain::{Override, Unit};
use tonic::Status;
use tonic::transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::messages::rate_limit_descriptor::{Entry, RateLimitOverride};
use super::messages::rate_limit_response::{Code, DescriptorStatus};
use super::messages::{
    HeaderValue, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
    RateLimitUnit,
};

#[derive(Clone, Debug, Default)]
pub struct ClientSettings {
    /// `HOST:PORT`.
    pub target: String,
    /// Of connecting and of each call.
    pub timeout: Option<Duration>,
    pub tls: Option<ClientTls>,
}

/// Certificates and keys are PEM text.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    pub authority: Vec<u8>,
    /// The client's certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    pub server_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallRequest {
    pub domain: String,
    pub descriptors: Vec<CallDescriptor>,
    /// Of each descriptor that does not say; 0 means 1.
    pub hits: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallDescriptor {
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    pub hits: Option<u64>,
    pub refund: bool,
    pub limit: Option<Override>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CallResponse {
    /// Whether the overall code is OVER_LIMIT.
    pub refused: bool,
    /// The name of the overall code.
    pub code: &'static str,
    pub statuses: Vec<ResponseStatus>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub metadata: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseStatus {
    pub refused: bool,
    pub limit: Option<ResponseLimit>,
    pub remaining: u32,
    pub reset_seconds: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseLimit {
    pub name: String,
    pub requests_per_unit: u32,
    pub unit: &'static str,
    pub unit_multiplier: u32,
}

/// Why a call got no response.
#[derive(Debug)]
pub enum CallError {
    Connect(transport::Error),
    /// The server's status, or that of a connection that ended.
    Status(Box<Status>),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Connect(error) => error.fmt(f),
            CallError::Status(status) => status.fmt(f),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Client(RateLimitServiceClient<Channel>);

impl Client {
    pub async fn connect(settings: &ClientSettings) -> Result<Self, CallError> {
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", settings.target))
            .map_err(CallError::Connect)?
            .tcp_nodelay(true);
        if let Some(timeout) = settings.timeout {
            endpoint = endpoint.connect_timeout(timeout).timeout(timeout);
        }
        if let Some(tls) = &settings.tls {
            endpoint = endpoint.tls_config(tls.config()).map_err(CallError::Connect)?;
        }
        let channel = endpoint.connect().await.map_err(CallError::Connect)?;
        Ok(Client(RateLimitServiceClient::new(channel)))
    }

    pub async fn send(&mut self, request: &CallRequest) -> Result<CallResponse, CallError> {
        let answer = self.0.should_rate_limit(request.encode()).await;
        answer
            .map(|answer| CallResponse::decode(&answer.into_inner()))
            .map_err(|status| CallError::Status(Box::new(status)))
    }
}

impl ClientTls {
    fn config(&self) -> ClientTlsConfig {
        let authority = Certificate::from_pem(&self.authority);
        let mut config = ClientTlsConfig::new().ca_certificate(authority);
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        match &self.server_name {
            Some(name) => config.domain_name(name),
            None => config,
        }
    }
}

impl CallRequest {
    fn encode(&self) -> RateLimitRequest {
        RateLimitRequest {
            domain: self.domain.clone().into(),
            descriptors: self.descriptors.iter().map(CallDescriptor::encode).collect(),
            hits_addend: self.hits,
        }
    }
}

impl CallDescriptor {
    fn encode(&self) -> RateLimitDescriptor {
        let entry = |(key, value): &(Vec<u8>, Vec<u8>)| Entry {
            key: key.clone().into(),
            value: value.clone().into(),
        };
        RateLimitDescriptor {
            entries: self.entries.iter().map(entry).collect(),
            limit: self.limit.map(|limit| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: wire_unit(limit.unit).into(),
                unit_multiplier: Some(limit.unit_multiplier),
            }),
            hits_addend: self.hits,
            is_negative_hits: self.refund,
        }
    }
}

/// The protocol has no week.
fn wire_unit(unit: Unit) -> RateLimitUnit {
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

impl CallResponse {
    fn decode(answer: &RateLimitResponse) -> CallResponse {
        let header = |header: &HeaderValue| (header.key.clone(), header.value.clone());
        let metadata = answer.dynamic_metadata.clone();
        CallResponse {
            refused: answer.overall_code() == Code::OverLimit,
            code: answer.overall_code().as_str_name(),
            statuses: answer.statuses.iter().map(ResponseStatus::decode).collect(),
            headers: answer.response_headers_to_add.iter().map(header).collect(),
            body: answer.raw_body.clone(),
            metadata: metadata.map(json_object),
        }
    }
}

impl ResponseStatus {
    fn decode(status: &DescriptorStatus) -> ResponseStatus {
        let reset = status.duration_until_reset.as_ref();
        ResponseStatus {
            refused: status.code() == Code::OverLimit,
            limit: status.current_limit.as_ref().map(|limit| ResponseLimit {
                name: limit.name.clone(),
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit().as_str_name(),
                unit_multiplier: limit.unit_multiplier.unwrap_or(1),
            }),
            remaining: status.limit_remaining,
            reset_seconds: reset.and_then(|reset| u64::try_from(reset.seconds).ok()),
        }
    }
}

fn json_object(from: prost_types::Struct) -> Value {
    Value::Object(
        from.fields.into_iter().map(|(key, value)| (key, json(value))).collect::<Map<_, _>>(),
    )
}

/// Whole numbers are integers, as in proto-JSON.
fn json(value: prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(truth)) => truth.into(),
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 => (number as i64).into(),
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json).collect(),
        Some(Kind::StructValue(of)) => json_object(of),
    }
}
