//! The documentation against the program: code blocks run, generated pages match their tables,
//! shipped policies compile without warnings.

mod api_users_page;
mod code_blocks;
mod debug_port_page;
mod metrics_page;
mod performance_page;
mod policy_keys_page;
mod redis_page;
mod runbook;
mod security_page;
mod settings_page;
mod shipped_policies;
mod vocabulary;
