//! Rust types that prost generates from the files in `proto/`, and the encoded descriptors of these
//! files.
//!
//! Private to `wire`, `server`, and the gRPC client in `cli`; other modules work with
//! `domain::Request` and `domain::Decision`.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::too_many_lines,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

pub(crate) use self::tidegate::v1::{
    CheckRequest, CheckResult, Counter, CountersResponse, DeleteOverrideRequest,
    ListOverridesRequest, ListOverridesResponse, ListedOverride, Override, OverrideChanged,
    OverrideNumbers, SetOverrideRequest, check_result, limits_client, r#override,
};
pub(crate) use envoy::config::core::v3::HeaderValue;
pub(crate) use envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor,
};
pub(crate) use envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response, rate_limit_service_client,
};
pub(crate) use envoy::r#type::v3::RateLimitUnit;
pub(crate) use google::rpc::Status as ErrorStatus;

/// Encoded `google.protobuf.FileDescriptorSet` of the services, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
