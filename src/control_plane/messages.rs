//! Rust types that prost generates from the control plane's messages in `proto/`. A list of
//! descriptors is kept as encoded bytes, which `resource` decodes level by level.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::too_many_lines,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/control_plane/messages.rs"));

pub(crate) use envoy::config::core::v3::Node;
pub(crate) use envoy::service::discovery::v3::DiscoveryRequest;
pub(crate) use envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
pub(crate) use google::rpc::Status;
#[cfg(test)]
pub(crate) use ratelimit::config::ratelimit::v3::RateLimitReplace;
pub(crate) use ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
