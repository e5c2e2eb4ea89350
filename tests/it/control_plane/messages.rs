//! The messages of control planes as written in `proto/`, with the server's side, and short ways to
//! build resources.

#![allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/control_plane_server/messages.rs"));

use prost::Message as _;
use prost_types::Any;

pub(crate) use envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
pub(crate) use envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
pub(crate) use ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A resource whose name is its domain, as Envoy Gateway names them.
pub(crate) fn resource(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> Any {
    let domain = domain.to_owned();
    let message = RateLimitConfig { name: domain.clone(), domain, descriptors };
    Any { type_url: TYPE_URL.to_owned(), value: message.encode_to_vec() }
}

/// A limit per year for each value of a key, so that no window ends during a test.
pub(crate) fn yearly(key: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    let unit = RateLimitUnit::Year.into();
    RateLimitDescriptor {
        key: key.to_owned(),
        rate_limit: Some(RateLimitPolicy { unit, requests_per_unit, ..Default::default() }),
        ..Default::default()
    }
}

/// A domain with a limit per year for each client.
pub(crate) fn domain(name: &str, requests_per_unit: u32) -> Any {
    resource(name, vec![yearly("client", requests_per_unit)])
}

/// A domain with two descriptors of the same key.
pub(crate) fn broken(name: &str) -> Any {
    resource(name, vec![yearly("client", 1), yearly("client", 2)])
}
