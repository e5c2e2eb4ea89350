//! Messages of Envoy's Rate Limit Service, as far as this client uses them. Unknown fields are skipped.
//!
//! Written by hand, so that no `.proto` file has to be compiled. Texts of a request are bytes: the
//! encoding is the same, and a header value that is not UTF-8 is counted instead of making the call fail.

use bytes::Bytes;

/// `overall_code` of a rejected request.
pub(crate) const OVER_LIMIT: i32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    /// `google.protobuf.UInt64Value`: present and 0 is different from absent.
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub(crate) value: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) request_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) raw_body: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeaderValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// Request of `tidegate.v1.Limits/Check`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) requests: Vec<RateLimitRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) results: Vec<CheckResult>,
}

/// Request of `tidegate.v1.Limits/Reserve`. Also a `SettleRequest`, which has the same numbers and no ttl.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReserveRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint64, tag = "3")]
    pub(crate) amount: u64,
    #[prost(message, optional, tag = "4")]
    pub(crate) ttl: Option<Seconds>,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) id: Bytes,
}

/// `google.protobuf.Duration` without nanoseconds.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Seconds {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReserveResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) id: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(crate) response: Option<RateLimitResponse>,
}

/// One of the two.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckResult {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<RateLimitResponse>,
    #[prost(message, optional, tag = "2")]
    pub(crate) error: Option<RpcStatus>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}
