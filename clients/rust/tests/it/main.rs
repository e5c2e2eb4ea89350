//! The client against a real Tidegate, over TLS with client certificates of a throw-away authority.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, and waits for processes"
)]

mod client;
mod degraded;
mod frozen_clock;
mod holds;
mod layer;
#[cfg(any(feature = "opentelemetry", feature = "prometheus"))]
mod metrics;
mod reservations;
mod support;
mod without_tidegate;
