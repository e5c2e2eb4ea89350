//! Whoever means harm, against the program as it is shipped: the real process on ports of its own,
//! asked over the network by callers that lie, flood, hold on and send nonsense. The tables of `rows`
//! say which test covers which bad input.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "a test says what is wrong by panicking, and waits with a deadline of its own"
)]

mod callers;
mod calls;
mod certificates;
mod flood;
mod harness;
mod http2;
mod rotation;
mod rows;
mod secrets;

#[path = "../support/authority.rs"]
#[allow(unreachable_pub, reason = "shared support")]
mod authority;

#[path = "../cli/http.rs"]
#[allow(dead_code, reason = "shared support that no crate uses up")]
mod http;

#[path = "../cli/process.rs"]
#[allow(dead_code, reason = "shared support that no crate uses up")]
mod process;

#[path = "../grpc/raw.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared support that no crate uses up")]
mod raw;

#[path = "../support/proof.rs"]
#[allow(unreachable_pub, reason = "shared support")]
mod proof;

#[path = "../support/process.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared support that no crate uses up")]
mod redis;
