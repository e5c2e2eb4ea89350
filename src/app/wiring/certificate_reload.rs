//! Loads the certificates of the gRPC port, and reloads them when their files change. Invalid
//! certificates are logged and counted, and the previous ones stay active.
//!
//! Each poll compares the contents of the files, which are only a few kilobytes. This detects every
//! way to replace a certificate: swapping the links of a Kubernetes Secret, replacing the file, or
//! overwriting it. A change takes effect once two polls read the same contents, because a writer
//! may have replaced the certificate but not yet the key.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::app::process::exit_codes::Failure;
use crate::app::process::files_and_env::escape_path;
use crate::app::process::files_and_env::read_pem_file;
use crate::app::process::watcher_thread::{POLL_INTERVAL, Poll};
use crate::clock::Clock;
use crate::server::{Tls, TlsMaterial};
use crate::settings::Settings;
use crate::tls::TlsError;
use crate::wire::WireError;

/// Reloader that replaces the certificate, the private key, and the client CA of the gRPC port when
/// their files change.
pub(crate) struct CertificateReloader {
    settings: Settings,
    pub(crate) tls: Tls,
    /// Hash of the certificate files when certificates from them were last activated or rejected, `None`
    /// if they were unreadable. Only a hash is kept, so that private keys do not stay in memory.
    handled: Option<blake3::Hash>,
    /// Hash of the certificate files at the last poll. New certificates are activated only if two
    /// consecutive polls find the same.
    last_poll: Option<blake3::Hash>,
}

impl CertificateReloader {
    /// Loads the configured certificates. Returns `None` if TLS is off.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read or is invalid.
    pub(crate) fn new(settings: &Settings) -> Result<Option<CertificateReloader>, Failure> {
        let Some(material) = read_material(settings).transpose()? else { return Ok(None) };
        let tls = Tls::new(&material).map_err(|error| tls_failure(settings, &material, error))?;
        let expires_secs = tls.counters().expires_secs.load(Ordering::Relaxed);
        let now_secs = Clock::System.now().0 / 1_000_000;
        if expires_secs <= now_secs {
            let file = settings.grpc_server_tls_cert.as_deref().map(escape_path);
            let second = i64::try_from(expires_secs).ok();
            let expired = second.and_then(|second| jiff::Timestamp::from_second(second).ok());
            let expired = expired.map(|time| time.to_string());
            let advice = "callers reject it: renew it; Tidegate reads it again without a restart";
            tracing::warn!(file, expired, advice, "the server certificate has expired");
        }
        let state = Some(hash(&material));
        let settings = settings.clone();
        Ok(Some(CertificateReloader { settings, tls, handled: state, last_poll: state }))
    }

    /// Reads the files, and activates those that have changed. Returns the time until the next poll.
    pub(crate) fn poll(&mut self, poll: Poll) -> Duration {
        if poll == Poll::Requested {
            // Two polls, because a change takes effect at the second poll that finds it.
            self.poll_once();
        }
        self.poll_once();
        POLL_INTERVAL
    }

    fn poll_once(&mut self) {
        // The settings enabled TLS at startup and do not change.
        let Some(read) = read_material(&self.settings) else { return };
        let state = read.as_ref().ok().map(hash);
        let is_stable = std::mem::replace(&mut self.last_poll, state) == state;
        if state == self.handled || !is_stable {
            return;
        }
        self.handled = state;
        let replaced = match read {
            Ok(material) => {
                let replaced = self.tls.replace(&material, Clock::System.now());
                replaced.map_err(|error| Failure::from(WireError::Tls(error)))
            }
            Err(failure) => {
                self.tls.count_reload(false);
                Err(failure)
            }
        };
        match replaced {
            Ok(()) => {
                let expires_secs = self.tls.counters().expires_secs.load(Ordering::Relaxed);
                tracing::info!(expires_secs, "certificates replaced");
            }
            Err(failure) => {
                let error = failure.to_string();
                tracing::error!(error, "certificates not replaced, the old ones stay in force");
            }
        }
    }
}

/// Reads a PEM file. An error names the flag that sets its path.
fn read_pem(flag: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    read_pem_file(path).map_err(|error| Failure::Usage(format!("{flag}: {error}")))
}

/// Converts a TLS error into a failure that names the affected flags and files.
fn tls_failure(settings: &Settings, material: &TlsMaterial, error: TlsError) -> Failure {
    let named = |flag: &str, path: &Option<PathBuf>| {
        path.as_deref().map(|path| format!("{flag} {}", escape_path(path)))
    };
    let certificate = named("--grpc-server-tls-cert", &settings.grpc_server_tls_cert);
    let key = named("--grpc-server-tls-key", &settings.grpc_server_tls_key);
    let authority = named("--grpc-client-tls-cacert", &settings.grpc_client_tls_cacert);
    let files: Vec<String> = match error {
        TlsError::Certificate => certificate.into_iter().collect(),
        TlsError::PrivateKey => key.into_iter().collect(),
        TlsError::Authority => authority.into_iter().collect(),
        _ => certificate.into_iter().chain(key).collect(),
    };
    let holds_key = String::from_utf8_lossy(&material.certificate).contains("PRIVATE KEY-----");
    let error = match error {
        TlsError::Certificate if holds_key => Failure::Usage(
            "it holds a private key: are --grpc-server-tls-cert and --grpc-server-tls-key swapped?"
                .to_owned(),
        ),
        error => Failure::from(WireError::Tls(error)),
    };
    Failure::Usage(format!("{}: {error}", files.join(", ")))
}

/// Reads the files. Returns `None` if TLS is off.
fn read_material(settings: &Settings) -> Option<Result<TlsMaterial, Failure>> {
    let certificate = settings.grpc_server_tls_cert.as_deref();
    let key = settings.grpc_server_tls_key.as_deref();
    let (certificate, key) = certificate.zip(key).filter(|_| settings.grpc_server_use_tls)?;
    let read = || {
        let authority = settings.grpc_client_tls_cacert.as_deref();
        let san = &settings.grpc_client_tls_san;
        Ok(TlsMaterial {
            certificate: read_pem("--grpc-server-tls-cert", certificate)?,
            private_key: read_pem("--grpc-server-tls-key", key)?,
            client_authority: authority
                .map(|path| read_pem("--grpc-client-tls-cacert", path))
                .transpose()?,
            allowed_callers: (!san.is_empty()).then(|| san.clone()).into_iter().collect(),
            grants: settings.grpc_client_domains.clone(),
        })
    };
    Some(read())
}

/// Returns a hash of the contents of the certificate, private key and CA files.
fn hash(material: &TlsMaterial) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let authority = material.client_authority.as_deref().unwrap_or_default();
    for part in [&material.certificate, &material.private_key, authority] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::settings::Sources;

    fn write_certificate(directory: &Path) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["tidegate.test".to_owned()]).unwrap();
        fs::write(directory.join("cert"), certificate.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(directory.join("key"), key.serialize_pem()).unwrap();
    }

    #[test]
    fn each_change_of_the_files_is_counted_once_as_a_reload_or_a_failure() {
        let files = tempfile::tempdir().unwrap();
        let path = |name: &str| files.path().join(name).display().to_string();
        let sources = Sources::from_flags(&[
            ("grpc-server-use-tls", "true"),
            ("grpc-server-tls-cert", &path("cert")),
            ("grpc-server-tls-key", &path("key")),
        ]);
        let settings = Settings::read(&sources).unwrap().0;
        write_certificate(files.path());
        let mut reloader = CertificateReloader::new(&settings).unwrap().unwrap();
        let counters = reloader.tls.counters();
        let mut counts_after_polls = || {
            (0..4).for_each(|_| reloader.poll_once());
            [&counters.reloads, &counters.reload_failures]
                .map(|count| count.load(Ordering::Relaxed))
        };
        assert_eq!(counts_after_polls(), [0, 0]);
        fs::remove_file(files.path().join("key")).unwrap();
        assert_eq!(counts_after_polls(), [0, 1], "unreadable");
        fs::write(files.path().join("key"), "no key").unwrap();
        assert_eq!(counts_after_polls(), [0, 2], "invalid");
        write_certificate(files.path());
        assert_eq!(counts_after_polls(), [1, 2]);
    }

    #[test]
    fn a_change_of_any_certificate_file_changes_the_hash() {
        let hash_of = |[certificate, private_key, authority]: [&str; 3]| {
            hash(&TlsMaterial {
                certificate: certificate.into(),
                private_key: private_key.into(),
                client_authority: Some(authority.into()),
                ..TlsMaterial::default()
            })
        };
        let loaded = hash_of(["a", "b", "c"]);
        for changed in
            [["x", "b", "c"], ["a", "x", "c"], ["a", "b", "x"], ["ab", "", "c"], ["a", "bc", ""]]
        {
            assert_ne!(hash_of(changed), loaded, "{changed:?}");
        }
    }
}
