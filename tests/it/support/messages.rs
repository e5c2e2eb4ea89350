//! The messages of the service with their clients, generated from the same files as the service's.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::too_many_lines,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

pub use envoy::config::core::v3::HeaderValue;
pub use envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
pub use envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
pub use envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response};
pub use envoy::r#type::v3::RateLimitUnit;
