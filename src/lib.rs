//! Tidegate answers one question, very often: *may this request pass?*
//!
//! A request takes this path through the modules:
//!
//! ```text
//! bytes → wire::decode → Request → policy::Matcher → Checks
//!       → Store::apply → Outcomes → Decision → wire::encode → bytes
//! ```
//!
//! | module | responsibility |
//! |---|---|
//! | [`server`] | sockets, TLS, HTTP/2 and the gRPC services |
//! | [`wire`] | decodes bytes into a [`domain::Request`], encodes a [`domain::Decision`] into bytes |
//! | [`decide`] | decides a request: match, apply, combine |
//! | [`control_plane`] | receives policies over xDS |
//! | [`policy`] | compiles YAML into rules, and finds the checks that a request must pass |
//! | [`store`] | keeps counters: the [`store::Store`] contract, in memory and in Redis |
//! | [`algorithm`] | the arithmetic of each algorithm, as pure functions |
//! | [`resilience`] | deadline, fallback and refusal cache; each wraps a store |
//! | [`domain`] | types that all modules share |
//! | [`pem`], [`peer_protocol`] | parses certificates; finds out what a server speaks |
//! | [`clock`] | the only module that reads the operating system's clocks |
//! | [`telemetry`], [`admin`] | metrics, traces, logs, HTTP ports |
//! | [`settings`], [`app`], [`cli`] | configuration, composition and the command line |

#[cfg(feature = "server")]
pub mod server;

#[cfg(feature = "server")]
pub mod wire;

pub mod decide;

#[cfg(feature = "server")]
pub mod control_plane;

pub mod policy;

pub mod store;

pub mod algorithm;

#[cfg(feature = "redis")]
pub mod resilience;

pub mod domain;

#[cfg(feature = "redis")]
pub mod pem;

#[cfg(feature = "redis")]
pub mod peer_protocol;

pub mod clock;

#[cfg(feature = "server")]
pub mod telemetry;

#[cfg(feature = "server")]
pub mod admin;

#[cfg(feature = "server")]
pub mod settings;

#[cfg(feature = "server")]
pub mod app;

#[cfg(feature = "server")]
pub mod cli;
