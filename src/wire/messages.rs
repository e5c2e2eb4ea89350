//! The messages of `proto/`, as prost generates them, and their descriptors as they are written.
//!
//! Nothing outside this room may see them: what a caller asks becomes a `domain::Request`.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::too_many_lines,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

pub(crate) use envoy::config::core::v3::HeaderValue;
pub(crate) use envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor,
};
pub(crate) use envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response, rate_limit_service_client,
};
pub(crate) use envoy::r#type::v3::RateLimitUnit;

/// The encoded `google.protobuf.FileDescriptorSet` of the service, as reflection serves it.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
