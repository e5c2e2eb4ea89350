//! Tidegate answers one question, very often: *may this request pass?*
//!
//! The way of a request, and the modules in the order in which it meets them:
//!
//! ```text
//! bytes → wire::decode → Request → policy::Matcher → Checks → Store::apply → Outcomes → Decision → wire::encode → bytes
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`server`] | sockets, TLS, HTTP/2 and the gRPC services |
//! | [`wire`] | bytes to a [`domain::Request`] and a [`domain::Decision`] to bytes |
//! | [`decide`] | the heart: match → apply → combine |
//! | [`policy`] | YAML → rules; a request → the checks it must pass |
//! | [`store`] | counts: the [`store::Store`] contract, in memory and in Redis |
//! | [`algorithm`] | the pure arithmetic of each algorithm |
//! | [`resilience`] | deadline, breaker, fallback, cached refusals: each wraps a store |
//! | [`domain`] | the words all of them share |
//! | [`clock`] | the only place that asks for the time |
//! | [`telemetry`], [`admin`] | what operators see |
//! | [`settings`], [`app`], [`cli`] | how the parts are configured, put together and started |

pub mod server;

pub mod wire;

pub mod decide;

pub mod policy;

pub mod store;

pub mod algorithm;

pub mod resilience;

pub mod domain;

pub mod clock;

pub mod telemetry;

pub mod admin;

pub mod settings;

pub mod app;

pub mod cli;
