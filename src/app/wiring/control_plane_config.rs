//! Builds the control plane client from the settings, and reads the client's certificates and the
//! file with policy defaults.
//!
//! `control_plane` makes the connections.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::app::process::exit_codes::Failure;
use crate::app::process::files_and_env::{open_regular_file, read_certificates, unreadable};
use crate::app::process::watcher_thread::WatchedValue;
use crate::control_plane::{
    BackoffConfig, Client, ConnectionConfig, ControlPlaneStatus, ReadDefaults, TlsConfig,
};
use crate::policy::{FILE_BYTES_MAX, Options, PolicyDefaults, Source};
use crate::settings::Settings;
use crate::tls::CertificateReader;

/// Builds the control plane client from the settings.
///
/// # Errors
///
/// Returns an error if a certificate or the file with policy defaults cannot be read.
pub(crate) fn build_client(
    settings: &Settings,
    status: Arc<ControlPlaneStatus>,
) -> Result<Client, Failure> {
    let (host, port) = settings.xds_server.clone();
    let unless_zero = |duration: Duration| (!duration.is_zero()).then_some(duration);
    let san = &settings.xds_tls_san;
    let tls = match settings.xds_tls {
        true => Some(TlsConfig {
            server_name: (!san.is_empty()).then(|| san.clone()),
            read: watch_certificates(settings)?,
        }),
        false => None,
    };
    let connection = ConnectionConfig { host, port, tls };
    let random_fraction =
        if settings.xds_backoff_jitter { settings.xds_backoff_random } else { 0.0 };
    let backoff = BackoffConfig {
        initial: settings.xds_backoff_initial,
        // If only the first wait is set, and is longer than the default maximum, it is the maximum.
        max: settings.xds_backoff_max.max(settings.xds_backoff_initial),
        random_fraction,
        connect_retry: unless_zero(settings.xds_connect_retry),
    };
    Ok(Client {
        connection,
        backoff,
        node_id: settings.xds_node_id.clone(),
        node_metadata: settings.xds_node_metadata.clone(),
        headers: settings.xds_headers.header_pairs(),
        message_bytes_max: settings.xds_message_size,
        defaults: settings.policy_defaults.as_deref().map(watch_policy_defaults).transpose()?,
        status,
    })
}

/// Starts a thread that reads the control plane client's certificates every second.
fn watch_certificates(settings: &Settings) -> Result<CertificateReader, Failure> {
    let settings = settings.clone();
    let read = move || {
        let identity = settings.xds_tls_cert.as_deref().zip(settings.xds_tls_key.as_deref());
        read_certificates(settings.xds_tls_cacert.as_deref(), identity)
    };
    let on_failure = |error: &Failure| tracing::error!(%error, "cannot read the certificates for the control plane");
    let latest = WatchedValue::start("xds-tls", read, on_failure)?;
    Ok(CertificateReader::new(move || latest.get()))
}

/// Starts a thread that reads the policy defaults every second. Returns a function that provides
/// the result of the last read: the defaults, or `None` if the file is unreadable or invalid.
fn watch_policy_defaults(path: &Path) -> Result<ReadDefaults, Failure> {
    let path = path.to_owned();
    let read = move || read_policy_defaults(&path);
    let on_failure = |error: &Failure| {
        tracing::error!(%error, "policy defaults not reloaded, the last good ones stay in force");
    };
    let latest = WatchedValue::start("policy-defaults", read, on_failure)?;
    Ok(Arc::new(move || latest.get()))
}

/// Reads the `--policy-defaults` file, which sets defaults for the domains that a control plane
/// sends. The file may be at most 4 MiB in size.
fn read_policy_defaults(path: &Path) -> Result<PolicyDefaults, Failure> {
    let failure = |error| Failure::policy_files(unreadable(path)(error));
    let (file, _) = open_regular_file(path).map_err(failure)?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(failure)?;
    let source = Source { name: path.display().to_string(), text };
    PolicyDefaults::read(&source, &Options::default()).map_err(Failure::Policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    fn client(variables: &[(&str, &str)]) -> Client {
        let sources = Sources::from_environment(variables);
        build_client(&Settings::read(&sources).unwrap().0, Arc::default()).unwrap()
    }

    #[test]
    fn waits_of_the_client_are_those_of_the_settings() {
        let unset = client(&[]);
        let expected = BackoffConfig {
            initial: Duration::from_millis(500),
            max: Duration::from_secs(5),
            random_fraction: 0.5,
            connect_retry: None,
        };
        assert_eq!(unset.backoff, expected);
        let changed = client(&[
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "9s"),
            ("XDS_CLIENT_BACKOFF_JITTER", "false"),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s"),
        ]);
        let expected = BackoffConfig {
            initial: Duration::from_secs(9),
            max: Duration::from_secs(9),
            random_fraction: 0.0,
            connect_retry: Some(Duration::from_secs(3)),
        };
        assert_eq!(changed.backoff, expected);
    }
}
