//! Checks of settings that depend on each other.

use super::SettingError;
use super::table::Settings;
use super::value_types::{OnOff, StoreKind};

impl Settings {
    /// Returns an error for each conflict between settings.
    pub(super) fn conflicts(&self) -> Vec<SettingError> {
        let has_cacert = self.grpc_client_tls_cacert.is_some();
        let has_domains = !self.grpc_client_domains.is_empty();
        let lacks_server_cert =
            self.grpc_server_tls_cert.is_none() || self.grpc_server_tls_key.is_none();
        let rules: [(bool, &'static str, &'static str); 11] = [
            (
                self.grpc_server_use_tls && lacks_server_cert,
                "--grpc-server-use-tls",
                "give --grpc-server-tls-cert and --grpc-server-tls-key",
            ),
            (
                has_cacert && !self.grpc_server_use_tls,
                "--grpc-client-tls-cacert",
                "client certificates need TLS: add --grpc-server-use-tls",
            ),
            (
                !self.grpc_client_tls_san.is_empty() && !has_cacert,
                "--grpc-client-tls-san",
                "names are checked on certificates: add --grpc-client-tls-cacert",
            ),
            (
                has_domains && !has_cacert,
                "--grpc-client-domains",
                "callers are identified by certificates: add --grpc-client-tls-cacert",
            ),
            (
                has_domains && self.grpc_uds.is_some(),
                "--grpc-client-domains, --grpc-uds",
                "a Unix socket has no client certificates: give one of them",
            ),
            (
                has_domains && self.json == OnOff::On,
                "--grpc-client-domains, --json on",
                "the HTTP port has no client certificates: leave --json at auto",
            ),
            (
                self.hard_limit <= self.drain_delay,
                "--hard-limit, --drain-delay",
                "the hard limit ends the drain: it must be longer than the delay",
            ),
            (
                self.policy_size < self.policy_file_size,
                "--policy-size, --policy-file-size",
                "the size of all files must be at least the size of one",
            ),
            (
                !self.key_secret.is_empty() && self.key_secret_file.is_some(),
                "--key-secret, --key-secret-file",
                "give one of them",
            ),
            (
                self.store == StoreKind::Redis && self.redis_url.is_empty(),
                "--store redis",
                "give --redis-url, or --store memory",
            ),
            (
                !self.prometheus_path.starts_with('/'),
                "--prometheus-path",
                "must start with a slash",
            ),
        ];
        let broken = rules.into_iter().filter(|(is_broken, ..)| *is_broken);
        let mut errors: Vec<SettingError> = broken
            .map(|(_, names, advice)| SettingError::Conflict { names, advice: advice.to_owned() })
            .collect();
        if self.counts_in_redis() {
            errors.extend(self.redis().err());
        }
        errors.extend(self.otlp().err());
        errors
    }

    /// Whether counters are in Redis.
    pub fn counts_in_redis(&self) -> bool {
        match self.store {
            StoreKind::Auto => !self.redis_url.is_empty(),
            StoreKind::Memory => false,
            StoreKind::Redis => true,
        }
    }
}
