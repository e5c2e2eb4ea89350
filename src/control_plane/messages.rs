//! Rust types that prost generates from the messages of control planes in `proto/`. A list of
//! descriptors is encoded bytes, which `resource` decodes level by level.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::too_many_lines,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/control_plane/messages.rs"));

#[cfg(test)]
pub(crate) use ratelimit::config::ratelimit::v3::RateLimitReplace;
pub(crate) use ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
