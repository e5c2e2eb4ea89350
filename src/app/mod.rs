//! The composition root: reads what the process is told, loads the policy, builds the parts, serves
//! and leaves in order. The only room that may name every other.
//!
//! Not here: decisions of any kind.

mod try_request;

mod admin_client;
mod descriptor_arg;
mod environment;
mod exit_codes;
mod offline_engine;

mod load_policy;
mod log_level;
mod page_data;
mod policy_files;

mod admin_actions;
mod rlimit;

mod profile;
mod rates;

mod explain_offline;
mod policy_reload;
mod serve;
mod wiring;

mod runtime_overrides;

pub use crate::settings;
pub use admin_client::order;
pub use descriptor_arg::descriptor;
pub use environment::{FileError, environment, read_text, settings_file, write_text};
pub use exit_codes::Failure;
pub use explain_offline::{Asked, explain};
pub use load_policy::{Loaded, check, schema};
pub use offline_engine::Engine;
pub use policy_files::{Fingerprint, Places, ReadError};
pub use serve::serve;

use std::future::Future;
use std::path::Path;

use settings::{Given, Notice, Settings, Sources, Texts};

/// Settings that were read, with where each one is from.
#[derive(Clone, Debug)]
pub struct Configured {
    settings: Settings,
    given: Vec<Given>,
    environment: Texts,
}

impl Configured {
    /// Every setting with its value and where it is from; secrets hidden.
    pub fn report(&self) -> String {
        settings::report(&self.given)
    }

    /// What to know before it starts.
    pub fn notices(&self) -> Vec<Notice> {
        settings::notices(&self.environment, &self.settings)
    }
}

/// Reads every setting.
///
/// # Errors
///
/// [`Failure::Settings`] with every fault at once.
pub fn configure(sources: Sources) -> Result<Configured, Failure> {
    let (settings, given) = Settings::read(&sources).map_err(Failure::Settings)?;
    Ok(Configured { settings, given, environment: sources.environment })
}

/// Runs a future to its end on this thread.
///
/// # Errors
///
/// [`Failure::Runtime`] if the system grants no runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    Ok(runtime.block_on(future))
}

/// Reads a file of certificates or with a key.
///
/// # Errors
///
/// [`Failure::File`].
pub fn pem_file(path: &Path) -> Result<Vec<u8>, Failure> {
    Ok(environment::secret_file(path)?.into_bytes())
}
