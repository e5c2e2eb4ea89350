//! The certificates of the gRPC port: read at the start, and again when their files change; those
//! that cannot be used are refused, logged and counted, and the old ones stay.
//!
//! It compares content, once per poll: certificates are a few kilobytes, and content is what a
//! Secret's swapped links, a file that is replaced and one that is written over have in common. A
//! change counts once two polls agree on it: certificate and key are two files, and whoever writes
//! them may be between the two. Not here: what certificates mean (`wire`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::app::exit_codes::Failure;
use crate::app::pem_file;
use crate::app::settings::{DomainGrant, Settings};
use crate::clock::Clock;
use crate::server::{Grant, Tls, TlsMaterial};

/// The gRPC port's TLS, and the watch over its files.
pub(crate) struct Certificates {
    settings: Settings,
    tls: Tls,
    /// What was looked at last and put in force or refused.
    settled: Seen,
    /// What the last poll found.
    last: Seen,
}

/// What a poll found, by its hash: keys are not kept for longer than they are needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Content(blake3::Hash),
    Unreadable,
}

impl Certificates {
    /// The certificates that the settings name; `None` where there is to be no TLS.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is not what it should be.
    pub(crate) fn of(settings: &Settings) -> Result<Option<Certificates>, Failure> {
        let Some(material) = material(settings)? else { return Ok(None) };
        let tls = Tls::new(&material)?;
        let expires_secs = tls.counters().expires_secs.load(Ordering::Relaxed);
        if expires_secs <= Clock::System.now().0 / 1_000_000 {
            tracing::warn!(expires_secs, "the certificate's time is over");
        }
        let seen = Seen::Content(hash(&material));
        Ok(Some(Certificates { settings: settings.clone(), tls, settled: seen, last: seen }))
    }

    pub(crate) fn tls(&self) -> Tls {
        self.tls.clone()
    }

    /// Polls until `stop`, as often as policies are looked at.
    pub(crate) fn run(mut self, stop: &AtomicBool) {
        let every: Duration = self.settings.policy_poll;
        while !stop.load(Ordering::Relaxed) {
            thread::park_timeout(every);
            self.poll();
        }
    }

    fn poll(&mut self) {
        let read = material(&self.settings);
        let seen = match &read {
            Ok(Some(material)) => Seen::Content(hash(material)),
            // Settings do not change; where they named certificates they still do.
            Ok(None) => return,
            Err(_) => Seen::Unreadable,
        };
        let agreed = std::mem::replace(&mut self.last, seen) == seen;
        if seen == self.settled || !agreed {
            return;
        }
        self.settled = seen;
        let replaced = match read {
            Ok(Some(material)) => {
                self.tls.replace(&material, Clock::System.now()).map_err(Failure::from)
            }
            Ok(None) => return,
            Err(failure) => {
                self.tls.count(false);
                Err(failure)
            }
        };
        match replaced {
            Ok(()) => {
                let expires_secs = self.tls.counters().expires_secs.load(Ordering::Relaxed);
                tracing::info!(expires_secs, "certificates replaced");
            }
            Err(failure) => {
                let fault = failure.to_string();
                tracing::error!(fault, "certificates not replaced: the old ones stay in force");
            }
        }
    }
}

fn material(settings: &Settings) -> Result<Option<TlsMaterial>, Failure> {
    let (Some(certificate), Some(key), true) = (
        &settings.grpc_server_tls_cert,
        &settings.grpc_server_tls_key,
        settings.grpc_server_use_tls,
    ) else {
        return Ok(None);
    };
    let san = &settings.grpc_client_tls_san;
    let grant = |(domain, callers): &DomainGrant| Grant {
        domain: domain.clone(),
        callers: callers.clone(),
    };
    Ok(Some(TlsMaterial {
        certificate: pem_file(certificate)?,
        private_key: pem_file(key)?,
        client_authority: settings.grpc_client_tls_cacert.as_deref().map(pem_file).transpose()?,
        allowed_callers: (!san.is_empty()).then(|| san.clone()).into_iter().collect(),
        grants: settings.grpc_client_domains.iter().map(grant).collect(),
    }))
}

/// Of everything that comes from files.
fn hash(material: &TlsMaterial) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let authority = material.client_authority.as_deref().unwrap_or_default();
    for part in [&material.certificate, &material.private_key, authority] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize()
}
