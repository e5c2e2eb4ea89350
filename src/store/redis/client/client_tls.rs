//! TLS towards Redis: certificates parsed once, and again when a dial finds others.
//!
//! Not here: reading files (whoever makes the configuration), dialling (`dial`).

use std::sync::{Arc, Mutex, PoisonError};

use redis::{Client, ClientTlsConfig, ConnectionAddr, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::config::{Address, RedisConfigError, Tls, TlsReloader};

/// The certificates in force for new connections.
#[derive(Debug)]
pub(crate) struct TlsClient {
    again: Option<TlsReloader>,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// What was looked at last, good or not.
    seen: Arc<Tls>,
    /// A TLS address whose host and port are replaced: its parsed certificates have no name
    /// outside the library.
    template: ConnectionAddr,
    /// How often the template was replaced: connections of different numbers differ.
    number: u64,
}

impl TlsClient {
    /// Parses the first certificates.
    pub(crate) fn new(
        tls: &Tls,
        again: Option<TlsReloader>,
    ) -> Result<TlsClient, RedisConfigError> {
        let held = Held { seen: Arc::new(tls.clone()), template: template(tls)?, number: 0 };
        Ok(TlsClient { again, held: Mutex::new(held) })
    }

    /// Looks whether there are other certificates and puts them in force; those that cannot be
    /// used are logged once, and the old ones stay. The number of those in force. Once per dial:
    /// the lock is never waited for by a call.
    pub(crate) fn refresh(&self) -> u64 {
        let read = self.again.as_ref().and_then(TlsReloader::read);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tls) = read.filter(|tls| *tls != *held.seen) else { return held.number };
        match template(&tls) {
            Ok(template) => {
                held.template = template;
                held.number += 1;
                tracing::info!("certificates of Redis replaced");
            }
            Err(fault) => {
                tracing::error!(%fault, "certificates of Redis not replaced: the old ones stay");
            }
        }
        held.seen = Arc::new(tls);
        held.number
    }

    /// That address over TLS.
    pub(crate) fn place(&self, address: &Address) -> Option<ConnectionAddr> {
        let Address::Tcp(host, port) = address else { return None };
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let ConnectionAddr::TcpTls { insecure, tls_params, .. } = &held.template else {
            return None;
        };
        Some(ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        })
    }
}

fn template(tls: &Tls) -> Result<ConnectionAddr, RedisConfigError> {
    // The library takes the process's default provider. Somebody else's is as good: an error here
    // only says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The library takes a file without a certificate for an authority that signed nobody: a fault
    // that would only show as refused connections.
    let chain = tls.client.as_ref().map(|(chain, _)| chain);
    for pem in [tls.ca.as_ref(), chain].into_iter().flatten() {
        let whole = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        if whole.is_ok_and(|certificates| !certificates.is_empty()) {
            continue;
        }
        return Err(RedisConfigError::Tls("a file of certificates is not a PEM list".to_owned()));
    }
    let certificates = TlsCertificates {
        client_tls: tls.client.as_ref().map(|(chain, key)| ClientTlsConfig {
            client_cert: chain.clone(),
            client_key: key.clone(),
        }),
        root_cert: tls.ca.clone(),
    };
    let client = Client::build_with_tls("rediss://replaced:1", certificates)
        .map_err(|fault| RedisConfigError::Tls(fault.to_string()))?;
    let mut address = client.get_connection_info().addr().clone();
    address.set_danger_accept_invalid_hostnames(tls.skip_hostname);
    Ok(address)
}
