//! Policies from a control plane over xDS, on one aggregated stream (ADS). Each response contains
//! all resources (state of the world), and the client acknowledges or rejects it.
//!
//! | file | what it does |
//! |---|---|
//! | `client` | keeps a stream open and applies its responses |
//! | `connection` | settings of a connection, TLS |
//! | `backoff` | waits between attempts to connect |
//! | `discovery_response` | bounded decoding of a response |
//! | `acknowledgement` | whether to send an ACK or a NACK, and when |
//! | `last_good` | active domains after a response |
//! | `resource`, `messages` | decoding of resources |
//! | `client_status` | counters and state for metrics and the live page |
//!
//! Not here: compiling descriptors (`policy`), building the policy and activating it (`app`).

mod acknowledgement;
mod backoff;
mod client;
mod client_status;
mod connection;
mod discovery_response;
mod last_good;
mod messages;
mod resource;

pub use backoff::BackoffConfig;
pub use client::{Client, PolicyReceiver, ReadDefaults, ResponseEffect};
pub use client_status::{ControlPlaneState, ControlPlaneStatus};
pub use connection::{ConnectionConfig, TlsConfig};
pub use last_good::{DomainUpdate, LastGood, RESOURCES_MAX, RawResource, Rejection};
