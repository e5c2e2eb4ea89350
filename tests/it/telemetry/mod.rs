//! Metrics and traces as a receiver of OTLP gets them: the real binary, a real Redis, and a gRPC
//! server in this process that keeps what it is sent.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    reason = "a test says what is wrong by panicking, and waits with a deadline of its own"
)]

mod call;
mod metrics;
mod page;
mod receiver;
mod traces;

#[path = "../cli/http.rs"]
#[allow(dead_code, reason = "shared support that no crate uses up")]
mod http;
#[path = "../cli/process.rs"]
#[allow(dead_code, reason = "shared support that no crate uses up")]
mod process;
#[path = "../support/process.rs"]
#[allow(dead_code, reason = "shared support that no crate uses up")]
mod redis;
