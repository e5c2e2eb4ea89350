//! A real Envoy between a client and a backend, asking the real `tidegate` binary.
//!
//! Every test starts its own processes on free ports, from the files that ship in `config/`, and
//! stops them even when it fails. No test judges how long a response took; tests wait for a
//! condition, with a deadline.

mod admission_bounds;
mod backend;
mod blocked_requests;
pub mod bootstrap;
mod calls_without_limit;
mod charge_after_response;
mod concurrency_limit;
pub mod envoy_process;
mod error_statuses;
mod examples;
mod failed_logins;
mod failover;
mod first_burst;
mod forward_auth;
mod haproxy_asks;
pub mod http_client;
mod layered_limits;
mod llm_budgets;
mod model;
mod nginx_auth_request;
mod nginx_process;
mod responses;
mod several_limits;
mod slow_backend;
mod soft_limit;
pub mod stack;
pub mod tidegate_behind_envoy;
mod unusual_header_values;
