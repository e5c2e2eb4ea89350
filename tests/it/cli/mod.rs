//! The `tidegate` binary as operators and orchestrators use it: exit codes, subcommands, settings,
//! HTTP ports, policy reloads, shutdown. Every test runs the real binary on free ports.

mod addresses;
mod admin_actions;
mod calls_without_limit;
mod debug_port;
mod degraded_service;
mod exit_codes;
mod forward_auth;
mod http_ports;
mod modes;
mod peers;
mod policy_reload;
mod ratelimit_compatibility;
mod ratelimit_metrics;
mod redis_errors;
mod redis_metrics;
mod redis_misconfigured;
mod redis_start;
mod settings;
mod shutdown;
mod soft_limits;
mod subcommands;
mod test_command;
mod tls_settings;
