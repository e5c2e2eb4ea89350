//! Wiring: from settings to the parts, and from the parts to what operators see of them.
//!
//! Not here: starting and stopping them (`serve`).

pub(crate) mod admin_routes;
pub(crate) mod certificate_reload;
#[cfg(test)]
mod metric_tables;
pub(crate) mod otlp_exporters;
pub(crate) mod redis_config;
pub(crate) mod redis_metrics;
pub(crate) mod server_config;
pub(crate) mod store_metrics;
pub(crate) mod store_setup;
