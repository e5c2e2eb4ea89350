//! TLS towards Redis: certificates parsed once, and again when new ones are found.
//!
//! Not here: reading files (`app`), connecting (`dialer`).

use std::sync::{Arc, Mutex, PoisonError};

use redis::{Client, ClientTlsConfig, ConnectionAddr, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::config::{Address, RedisConfigError, Tls, TlsReloader};

/// The certificates for new connections, and their reloader.
#[derive(Debug)]
pub(crate) struct ClientTls {
    reloader: Option<TlsReloader>,
    loaded: Mutex<LoadedTls>,
}

#[derive(Debug)]
struct LoadedTls {
    /// What the reloader returned last, valid or not.
    latest: Arc<Tls>,
    /// An address over TLS, of which host and port are replaced. It is the only public place where
    /// the library keeps parsed certificates.
    template: ConnectionAddr,
    /// How often the template was replaced.
    generation: u64,
}

impl ClientTls {
    /// Parses the first certificates.
    pub(crate) fn new(
        tls: &Tls,
        reloader: Option<TlsReloader>,
    ) -> Result<ClientTls, RedisConfigError> {
        let loaded =
            LoadedTls { latest: Arc::new(tls.clone()), template: template(tls)?, generation: 0 };
        Ok(ClientTls { reloader, loaded: Mutex::new(loaded) })
    }

    /// Reloads the certificates, and returns the generation of those in use. Invalid ones are
    /// logged once and the old ones stay. Called once per connection attempt, never by a call.
    pub(crate) fn refresh(&self) -> u64 {
        let read = self.reloader.as_ref().and_then(TlsReloader::read);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tls) = read.filter(|tls| *tls != *loaded.latest) else {
            return loaded.generation;
        };
        match template(&tls) {
            Ok(template) => {
                loaded.template = template;
                loaded.generation += 1;
                tracing::info!("reloaded the certificates for Redis");
            }
            Err(error) => {
                tracing::error!(%error, "invalid certificates for Redis: the old ones stay in use");
            }
        }
        loaded.latest = Arc::new(tls);
        loaded.generation
    }

    /// The address over TLS; `None` for a unix socket.
    pub(crate) fn connection_addr(&self, address: &Address) -> Option<ConnectionAddr> {
        let Address::Tcp(host, port) = address else { return None };
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let ConnectionAddr::TcpTls { insecure, tls_params, .. } = &loaded.template else {
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
    // The library uses the process's default provider. An error only says that one is installed
    // already, and any provider will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The library accepts a file without certificates as an empty list of authorities, and every
    // connection would then fail. Reject it here instead.
    let chain = tls.client.as_ref().map(|(chain, _)| chain);
    for pem in [tls.ca.as_ref(), chain].into_iter().flatten() {
        let parsed = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        if !parsed.is_ok_and(|certificates| !certificates.is_empty()) {
            let reason = "a certificate file is not a PEM list";
            return Err(RedisConfigError::Tls(reason.to_owned()));
        }
    }
    let certificates = TlsCertificates {
        client_tls: tls.client.as_ref().map(|(chain, key)| ClientTlsConfig {
            client_cert: chain.clone(),
            client_key: key.clone(),
        }),
        root_cert: tls.ca.clone(),
    };
    let client = Client::build_with_tls("rediss://replaced:1", certificates)
        .map_err(|error| RedisConfigError::Tls(error.to_string()))?;
    let mut address = client.get_connection_info().addr().clone();
    address.set_danger_accept_invalid_hostnames(tls.skip_hostname);
    Ok(address)
}
