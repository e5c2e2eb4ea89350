//! Attacks on the real process over the network: malformed and extreme requests, floods, HTTP/2
//! abuse, wrong certificates, leaked secrets. `coverage_table` lists which test covers which input.

mod certificate_rotation;
mod chart_memory;
mod client_certificates;
pub(crate) mod coverage_table;
mod extreme_requests;
mod half_received;
mod http2_abuse;
mod key_flood;
mod overload;
mod secret_leaks;
pub(crate) mod target;
pub(crate) mod tls_callers;
mod unread_answers;
mod unreadable_callers;
