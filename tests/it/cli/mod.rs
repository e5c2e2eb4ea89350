//! The program as people and orchestrators meet it: exit codes, subcommands, settings and where they
//! came from, ports, reloads, leaving. Every test runs the real binary, on ports of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking, and waits with a deadline of its own"
)]

mod commands;
mod compatibility;
mod degraded;
mod exit_codes;
mod http;
mod leaving;
mod live;
mod operating;
mod ports;
mod process;
mod redis_figures;
mod reloading;
mod secured;
mod settings;

#[path = "../support/acl.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared support that no crate uses up")]
mod acl;

#[path = "../support/process.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared support that no crate uses up")]
mod redis;
