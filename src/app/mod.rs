//! Composition root: reads settings, loads the policy, builds and connects all components, serves,
//! and shuts down. Only this module may import every other one.

mod exit_codes;
mod files_and_env;
mod rlimit;

mod control_plane_policy;
mod load_policy;
mod policy_files;
mod policy_source;
mod policy_watcher;
mod watcher_thread;

mod http_ports;
mod serve;
mod signals;
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
pub use files_and_env::{
    FileError, environment, read_settings_file, read_text_file, write_text_file,
};
pub use load_policy::{CheckedPolicy, Fingerprint, LoadedPolicy, check, schema};
pub use offline_engine::{OfflineEngine, plain_descriptor, to_entries};
pub use serve::serve;

use std::path::Path;

use crate::settings::{self, DropIn, Notice, SettingValue, Settings, Sources, TextMap};
use crate::tls::ClientCertificates;

/// Validated settings, with the source of each value.
#[derive(Clone, Debug)]
pub struct Configuration {
    settings: Settings,
    values: Vec<SettingValue>,
    environment: TextMap,
    drop_in: Option<DropIn>,
}

impl Configuration {
    /// Parses and validates all settings.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Settings`] with a list of all invalid settings.
    pub fn read(sources: Sources) -> Result<Configuration, Failure> {
        let (settings, values) = Settings::read(&sources).map_err(Failure::Settings)?;
        let Sources { environment, drop_in, .. } = sources;
        Ok(Configuration { settings, values, environment, drop_in })
    }

    /// Lists every setting with its value and source, one per line. Secrets are hidden.
    pub fn report(&self) -> String {
        settings::report(&self.values)
    }

    /// Returns startup notices about settings that have no effect or pose a risk.
    pub fn notices(&self) -> Vec<Notice> {
        settings::find_notices(&self.environment, self.drop_in.as_ref(), &self.settings)
    }
}

/// Runs a future to completion on the current thread, in a Tokio runtime created for it.
///
/// # Errors
///
/// Returns [`Failure::Runtime`] if the runtime cannot be created.
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
/// Returns [`Failure::File`] if the file cannot be read or exceeds 1 MiB.
pub fn read_pem_file(path: &Path) -> Result<Vec<u8>, Failure> {
    Ok(files_and_env::read_secret_file(path)?.into_bytes())
}

/// Reads the PEM files of a TLS client: CA certificates, and the client's certificate chain and
/// private key.
fn read_certificates(
    authority: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientCertificates, Failure> {
    let authority = authority.map(read_pem_file).transpose()?;
    let identity = match identity {
        Some((chain, key)) => Some((read_pem_file(chain)?, read_pem_file(key)?)),
        None => None,
    };
    Ok(ClientCertificates { authority, identity, skip_hostname: false })
}
