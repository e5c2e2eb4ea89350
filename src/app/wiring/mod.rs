//! Builds the components of the service from settings, and the tables of their metrics.

pub(crate) mod certificate_reload;
pub(crate) mod control_plane_config;
pub(crate) mod control_plane_metrics;
pub(crate) mod otlp_exporters;
pub(crate) mod process_metrics;
pub(crate) mod redis_config;
pub(crate) mod redis_metrics;
pub(crate) mod server_config;
pub(crate) mod store_metrics;
pub(crate) mod store_setup;
#[cfg(test)]
mod tests;
