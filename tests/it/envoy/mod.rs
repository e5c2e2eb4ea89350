//! A real Envoy, a backend and the real `tidegate` binary: what a client sees.
//!
//! Every test builds a `Stand` of its own from the files that ship in `config/`, on ports that the
//! system picks, and takes it down again, also when it fails. Nothing here judges how long an answer
//! took; what is waited for is a condition, with a deadline.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    reason = "a test crate: it stops at the first surprise, and reads the clock to know what a limit may admit"
)]

mod backend;
mod bootstrap;
mod client;
mod dice;
mod edge;
mod exports;
mod nginx;
mod oracle;
mod pages;
mod policies;
#[path = "../support/process.rs"]
#[allow(dead_code, reason = "shared with other test crates")]
mod redis_server;
mod settings_page;
mod stand;
mod tidegate;
mod wait;

mod answers;
mod api_users;
mod asked_by_nginx;
mod awkward_values;
mod charged_afterwards;
mod examples;
mod failed_logins;
mod failover;
mod in_flight;
mod layers;
mod several_at_once;
mod who_is_at_fault;
