//! The composition root: reads what the process is told, loads the policy, builds the parts, serves
//! and leaves in order. The only room that may name every other.
//!
//! Not here: decisions of any kind.

mod attempt;
mod certificates;
mod debug_client;
mod descriptor;
mod engine;
mod environment;
mod failure;
mod figures;
mod files;
mod levels;
mod live;
mod load;
mod node_figures;
mod open_files;
mod operate;
mod otlp;
mod pages;
mod ports;
mod profile;
mod rates;
mod redis_config;
mod rehearse;
mod reload;
mod serve;
mod store;
mod switching;

pub use crate::settings;
pub use debug_client::order;
pub use descriptor::descriptor;
pub use engine::Engine;
pub use environment::{FileFault, environment, read_text, settings_file, write_text};
pub use failure::Failure;
pub use files::{Fingerprint, Places, ReadFault};
pub use load::{Loaded, check, schema};
pub use rehearse::{Asked, explain};
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
