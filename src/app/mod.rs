//! Composition root: reads settings, loads the policy, builds and connects all components, serves,
//! and shuts down. Only this module may import every other one.

mod process;

mod active_policy;
mod control_plane_policy;
mod load_policy;
mod policy_files;
mod policy_source;
mod policy_watcher;
mod watched_files;

mod http_ports;
mod serve;
mod wiring;

mod admin_actions;
mod admin_wiring;
mod debug_port;
mod live_page_data;
mod log_level;
mod operator_overrides;
mod peers;
mod request_rates;
mod try_request;

mod admin_client;
mod explain_offline;
mod offline_engine;

pub use admin_client::{get_from_debug_port, post_to_debug_port};
pub use explain_offline::{SampleRequest, explain};
pub use load_policy::{CheckedPolicy, Fingerprint, LoadedPolicy, check, load_paths, schema};
pub use offline_engine::{OfflineEngine, to_entries};
pub use process::exit_codes::Failure;
pub use process::files_and_env::{
    FileError, environment, read_pem_file, read_settings_file, read_text_file, write_text_file,
};
pub use serve::serve;

use crate::settings::{self, Notice, SettingValue, Settings, Sources};

/// Validated settings, with the source of each value.
#[derive(Clone, Debug)]
pub struct Configuration {
    settings: Settings,
    values: Vec<SettingValue>,
    /// Startup notices about settings that have no effect or pose a risk.
    notices: Vec<Notice>,
}

impl Configuration {
    /// Parses and validates all settings.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Usage`] with a list of all invalid settings.
    pub fn read(sources: Sources) -> Result<Configuration, Failure> {
        let (settings, values) = Settings::read(&sources)?;
        let Sources { environment, drop_in, .. } = &sources;
        let notices = settings::find_notices(environment, drop_in.as_ref(), &settings);
        Ok(Configuration { settings, values, notices })
    }

    /// Lists every setting with its value and source, one per line. Secrets are hidden.
    pub fn report(&self) -> String {
        settings::report(&self.values)
    }
}

/// Runs a future to completion on the current thread, in a Tokio runtime created for it.
///
/// # Errors
///
/// Returns [`Failure::Unavailable`] if the runtime cannot be created.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::runtime)?;
    Ok(runtime.block_on(future))
}
