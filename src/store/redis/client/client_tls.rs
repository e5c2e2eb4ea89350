//! TLS for connections to Redis: parsing certificates at the start and whenever they change.
//!
//! Not here: reading files (`app`), connecting (`dialer`).

use std::sync::{Arc, Mutex, PoisonError};

use redis::{Client, ClientTlsConfig, ConnectionAddr, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::config::{Address, RedisConfigError, Tls, TlsReloader};

/// TLS certificates for new connections, with the function that rereads them.
#[derive(Debug)]
pub(crate) struct ClientTls {
    reloader: Option<TlsReloader>,
    loaded: Mutex<LoadedTls>,
}

/// Certificates as last read, and the parsed certificates in use. The latter are older if those
/// last read are invalid.
#[derive(Debug)]
struct LoadedTls {
    /// Certificates that the reloader returned last, valid or not.
    latest: Arc<Tls>,
    /// Address that contains the parsed certificates in use. Its host and port are replaced for
    /// each connection. The `redis` crate has no other public type that holds parsed certificates.
    template: ConnectionAddr,
    /// Number of times that `template` has been replaced.
    generation: u64,
}

impl ClientTls {
    /// Parses the certificates, which new connections use until a reload.
    ///
    /// # Errors
    ///
    /// Returns [`RedisConfigError::Tls`] if a certificate or private key cannot be parsed.
    pub(crate) fn new(
        tls: &Tls,
        reloader: Option<TlsReloader>,
    ) -> Result<ClientTls, RedisConfigError> {
        let loaded = LoadedTls {
            latest: Arc::new(tls.clone()),
            template: build_address_template(tls)?,
            generation: 0,
        };
        Ok(ClientTls { reloader, loaded: Mutex::new(loaded) })
    }

    /// Rereads the certificates and returns the generation of those in use. If the new
    /// certificates are invalid, logs a warning once and keeps the old ones. Called once per
    /// connection attempt.
    pub(crate) fn refresh(&self) -> u64 {
        let read = self.reloader.as_ref().and_then(TlsReloader::read);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tls) = read.filter(|tls| *tls != *loaded.latest) else {
            return loaded.generation;
        };
        match build_address_template(&tls) {
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

    /// Returns the address for a TLS connection, or `None` for a Unix socket, which does not use
    /// TLS.
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

/// Parses certificates and returns an address with a placeholder host that contains them.
fn build_address_template(tls: &Tls) -> Result<ConnectionAddr, RedisConfigError> {
    // `redis` uses the process's default crypto provider. The call fails if one is installed
    // already, and any provider will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // `redis` accepts a file without certificates as an empty list of authorities, and then every
    // connection fails. Reject such a file here.
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
