//! Composition root: reads input, loads the policy, builds the parts and connects them, serves, and
//! shuts down. The only module that may use every other one.

mod exit_codes;
mod files_and_env;
mod rlimit;

mod load_policy;
mod policy_files;
mod policy_reload;

mod serve;
mod wiring;

mod admin_actions;
mod log_level;
mod page_data;
mod rates;
mod runtime_overrides;
mod try_request;

mod admin_client;
mod descriptor_arg;
mod explain_offline;
mod offline_engine;

pub use admin_client::post_to_debug_port;
pub use descriptor_arg::parse_descriptor;
pub use exit_codes::Failure;
pub use explain_offline::{SampleRequest, explain};
pub use files_and_env::{FileError, environment, read_text, settings_file, write_text};
pub use load_policy::{LoadedPolicy, check, schema};
pub use offline_engine::{OfflineEngine, plain_descriptor, to_entries};
pub use policy_files::{Fingerprint, PolicyFileError};
pub use serve::serve;

use std::path::Path;

use crate::settings::{self, Notice, SettingValue, Settings, Sources, TextMap};

/// Settings, and where each value comes from.
#[derive(Clone, Debug)]
pub struct Configuration {
    settings: Settings,
    values: Vec<SettingValue>,
    environment: TextMap,
}

impl Configuration {
    /// Reads every setting.
    ///
    /// # Errors
    ///
    /// [`Failure::Settings`] with every invalid setting.
    pub fn read(sources: Sources) -> Result<Configuration, Failure> {
        let (settings, values) = Settings::read(&sources).map_err(Failure::Settings)?;
        Ok(Configuration { settings, values, environment: sources.environment })
    }

    /// Lists every setting with its value and where it comes from, without secrets.
    pub fn report(&self) -> String {
        settings::report(&self.values)
    }

    /// Settings without effect or with a risk.
    pub fn notices(&self) -> Vec<Notice> {
        settings::notices(&self.environment, &self.settings)
    }
}

/// Runs a future to completion on this thread.
///
/// # Errors
///
/// [`Failure::Runtime`] if the operating system refuses a runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    Ok(runtime.block_on(future))
}

/// Reads a PEM file with certificates or a private key.
///
/// # Errors
///
/// [`Failure::File`].
pub fn pem_file(path: &Path) -> Result<Vec<u8>, Failure> {
    Ok(files_and_env::secret_file(path)?.into_bytes())
}
