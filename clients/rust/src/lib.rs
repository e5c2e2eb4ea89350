#![doc = include_str!("../README.md")]

mod builder;
mod call;
mod client;
mod decision;
mod degraded;
mod diagnosis;
mod hold;
mod layer;
mod mapping;
mod messages;
#[cfg(any(feature = "opentelemetry", feature = "prometheus"))]
mod metrics;
mod reservation;
mod response_body;
mod wait;

pub use builder::{BuildError, Builder, OnFailure};
pub use call::{Call, Descriptor, VALUE_BYTES_MAX};
pub use client::{Client, ConnectError, Counters};
pub use decision::{Decision, Failure, Outcome};
pub use hold::Hold;
pub use layer::{Admission, RateLimit, RateLimitLayer};
pub use mapping::{IPV6_PREFIX, Mapping, MappingError, PeerAddr, RequestParts, address_entry};
#[cfg(feature = "prometheus")]
pub use metrics::PrometheusCollector;
#[cfg(feature = "opentelemetry")]
pub use metrics::observe;
pub use reservation::{Estimate, OnUnsettled, Reservation};
pub use response_body::ResponseBody;
