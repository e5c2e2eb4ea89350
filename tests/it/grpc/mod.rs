//! The gRPC server over real connections, with a fixed decider (`test_server::Bench`) behind it.
//!
//! Not here: decisions (`decisions`), attacks on the real process (`hostile`).

mod field_numbers;
mod graceful_shutdown;
mod health;
mod incomplete_requests;
mod malformed_calls;
mod mutual_tls;
mod request_validation;
mod server_limits;
pub(crate) mod test_server;
