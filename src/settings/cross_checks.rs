//! Validation of settings that depend on one another.

use std::time::Duration;

use super::setting_error::SettingError;
use super::table::Settings;
use super::value_types::{OnOff, PolicySourceKind};
use crate::domain::CounterAccess;

/// Maximum time reserved at the end of `--hard-limit` for the steps after the gRPC drain: closing
/// the HTTP ports and exiting. If `--hard-limit` is below 10 s, only a tenth of it is reserved.
const EXIT_TIME_MAX: Duration = Duration::from_secs(1);

impl Settings {
    /// Returns the maximum duration of the gRPC drain, including its delay: `--hard-limit` less the
    /// time reserved for the exit.
    pub(crate) fn drain_limit(&self) -> Duration {
        self.hard_limit - EXIT_TIME_MAX.min(self.hard_limit / 10)
    }

    /// Returns one error for each conflict between settings.
    pub(super) fn find_conflicts(&self) -> Vec<SettingError> {
        let mut errors = Vec::new();
        let mut conflict = |is_broken: bool, names: &str, advice: &str| {
            errors.extend(is_broken.then(|| SettingError::conflict(names, advice)));
        };
        let has_cacert = self.grpc_client_tls_cacert.is_some();
        let has_domains = !self.grpc_client_domains.is_empty();
        let lacks_identity =
            self.grpc_server_tls_cert.is_none() || self.grpc_server_tls_key.is_none();

        let advice = "TLS needs a certificate and its private key: give --grpc-server-tls-cert FILE and \
                      --grpc-server-tls-key FILE, both in PEM";
        conflict(self.grpc_server_use_tls && lacks_identity, "--grpc-server-use-tls", advice);
        let advice = "it identifies callers by their certificates: add --grpc-client-tls-cacert";
        conflict(has_domains && !has_cacert, "--grpc-client-domains", advice);
        let names = "--grpc-client-domains, --grpc-uds";
        let advice = "a Unix socket cannot have client certificates: set only one of the two";
        conflict(has_domains && self.grpc_uds.is_some(), names, advice);
        let names = "--grpc-client-domains, --json on";
        let advice = "the HTTP port cannot check client certificates: leave --json at auto";
        conflict(has_domains && self.json == OnOff::On, names, advice);
        let has_counter_access = self.counter_access != CounterAccess::Off;
        let names = "--batches off, --counter-access";
        let advice = "--counter-access permits methods of tidegate.v1.Limits, which --batches off \
                      turns off: set only one of the two";
        conflict(!self.batches && has_counter_access, names, advice);
        let names = "--hard-limit, --drain-delay";
        let advice = "the hard limit ends the drain: it must exceed the delay by more than 1s or, \
                      below 10s, by more than a tenth of the hard limit";
        conflict(self.drain_limit() <= self.drain_delay, names, advice);
        let has_both = !self.key_secret.is_empty() && self.key_secret_file.is_some();
        conflict(has_both, "--key-secret, --key-secret-file", "set only one of them");
        let is_relative = !self.prometheus_path.starts_with('/');
        conflict(is_relative, "--prometheus-path", "must start with a slash");

        let has_half = self.redis_tls_client_cert.is_some() != self.redis_tls_client_key.is_some();
        let names = "--redis-tls-client-cert, --redis-tls-client-key";
        conflict(has_half, names, "a client certificate needs its private key: give both");

        if let Some((one, other, port)) = self.shared_port() {
            let advice = format!("{one} and {other} are both {port}: give each its own port");
            conflict(true, "ports", &advice);
        }

        let uses_control_plane = self.config_type == PolicySourceKind::ControlPlane;
        let has_both = uses_control_plane && !self.policy.is_empty();
        let advice = "the policy comes from the control plane: remove one of the two";
        conflict(has_both, "--policy, --config-type grpc_xds_sotw", advice);
        let is_unused = !uses_control_plane && self.policy_defaults.is_some();
        let advice = "it only applies to policies from a control plane: add --config-type grpc_xds_sotw, or remove it";
        conflict(is_unused, "--policy-defaults", advice);
        let has_half = self.xds_tls_cert.is_some() != self.xds_tls_key.is_some();
        let advice = "a client certificate and its key belong together: give both";
        conflict(has_half, "--xds-tls-cert, --xds-tls-key", advice);
        let has_files = self.xds_tls_cert.is_some() || self.xds_tls_cacert.is_some();
        let is_plain = uses_control_plane && !self.xds_tls && has_files;
        let advice = "without TLS, the connection is in plain text: add --xds-tls";
        conflict(is_plain, "--xds-tls-…", advice);

        if self.counts_in_redis() {
            errors.extend(self.redis().err());
        }
        // envoyproxy/ratelimit ignores such settings. In its place, they cause notices.
        if !self.drop_in {
            let unused = self.unused_tls_settings().into_iter();
            errors.extend(unused.map(|(names, advice)| SettingError::conflict(names, advice)));
        }
        errors.extend(self.otlp().err());
        errors
    }

    /// Returns the flags of two ports that are the same, and the port.
    fn shared_port(&self) -> Option<(&'static str, &'static str, u16)> {
        let (prometheus_host, prometheus_port) = &self.prometheus_addr;
        let ports = [
            ("--grpc-port", &self.grpc_host, self.grpc_port, self.grpc_uds.is_none()),
            ("--http-port", &self.http_host, self.http_port, true),
            ("--debug-port", &self.debug_host, self.debug_port, true),
            ("--prometheus-addr", prometheus_host, *prometheus_port, self.use_prometheus),
        ];
        let is_any = |host: &str| host == "0.0.0.0" || host == "::";
        let pairs = ports
            .iter()
            .enumerate()
            .flat_map(|(nth, one)| ports.iter().skip(nth + 1).map(move |other| (one, other)));
        pairs
            .filter(|(one, other)| one.2 == other.2 && one.2 != 0 && one.3 && other.3)
            .find(|(one, other)| one.1 == other.1 || is_any(one.1) || is_any(other.1))
            .map(|(one, other)| (one.0, other.0, one.2))
    }

    /// Returns the TLS settings that have no effect because a setting that they need is missing, each
    /// with advice.
    pub(super) fn unused_tls_settings(&self) -> Vec<(&'static str, &'static str)> {
        let has_cacert = self.grpc_client_tls_cacert.is_some();
        let has_certificate =
            self.grpc_server_tls_cert.is_some() || self.grpc_server_tls_key.is_some();
        let has_redis_tls = self.redis_tls_cacert.is_some()
            || self.redis_tls_client_cert.is_some()
            || self.redis_tls_client_key.is_some()
            || self.redis_tls_skip_hostname_verification;
        let is_redis_plaintext = || self.redis().is_ok_and(|redis| !redis.uses_tls);
        let possible = [
            (
                has_certificate && !self.grpc_server_use_tls,
                "--grpc-server-tls-cert, --grpc-server-tls-key",
                "without TLS, calls are sent in plain text: add --grpc-server-use-tls",
            ),
            (
                has_cacert && !self.grpc_server_use_tls,
                "--grpc-client-tls-cacert",
                "client certificates need TLS: add --grpc-server-use-tls",
            ),
            (
                !self.grpc_client_tls_san.is_empty() && !has_cacert,
                "--grpc-client-tls-san",
                "certificate names are only checked together with a CA: add --grpc-client-tls-cacert",
            ),
            (
                self.counts_in_redis() && has_redis_tls && is_redis_plaintext(),
                "--redis-tls-…",
                "without TLS, the password is sent in plain text: add --redis-tls, or a rediss:// address",
            ),
        ];
        let unused = possible.into_iter().filter(|(is_unused, ..)| *is_unused);
        unused.map(|(_, names, advice)| (names, advice)).collect()
    }

    /// Returns whether counters are kept in Redis, and not in the memory of this process.
    pub fn counts_in_redis(&self) -> bool {
        !self.redis_url.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    /// Reads the settings from `flags`. Returns the flags that each conflict names, or an empty
    /// list if there are no conflicts.
    fn conflicts(flags: &[(&str, &str)]) -> Vec<String> {
        let names = |error: SettingError| match error {
            SettingError::Conflict(text) => text.split(": ").next().unwrap().to_owned(),
            other => panic!("{other}"),
        };
        match Settings::read(&Sources::from_flags(flags)) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.into_iter().map(names).collect(),
        }
    }

    #[test]
    fn settings_that_cannot_work_together_are_conflicts() {
        let cases: [(&[(&str, &str)], &str); 9] = [
            (&[("batches", "off"), ("counter-access", "read")], "--batches off, --counter-access"),
            (&[("drain-delay", "9s"), ("hard-limit", "10s")], "--hard-limit, --drain-delay"),
            (&[("drain-delay", "24500ms"), ("hard-limit", "25s")], "--hard-limit, --drain-delay"),
            (&[("key-secret", "a"), ("key-secret-file", "/b")], "--key-secret, --key-secret-file"),
            (&[("prometheus-path", "metrics")], "--prometheus-path"),
            (&[("grpc-client-tls-san", "a")], "--grpc-client-tls-san"),
            (&[("redis-tls-client-key", "/k")], "--redis-tls-client-cert, --redis-tls-client-key"),
            (
                &[("config-type", "grpc_xds_sotw"), ("xds-tls", "true"), ("xds-tls-cert", "/c")],
                "--xds-tls-cert, --xds-tls-key",
            ),
            (&[("config-type", "grpc_xds_sotw"), ("xds-tls-cacert", "/ca")], "--xds-tls-…"),
        ];
        for (flags, names) in cases {
            assert_eq!(conflicts(flags), [names]);
        }
    }

    #[test]
    fn two_ports_that_are_the_same_are_named() {
        let prometheus = ("prometheus-addr", ":6070");
        for (flags, names) in [
            (&[("http-port", "8081")][..], "--grpc-port and --http-port are both 8081"),
            (&[("grpc-port", "8080")], "--grpc-port and --http-port are both 8080"),
            (&[("debug-port", "8080")], "--http-port and --debug-port are both 8080"),
            (&[("grpc-port", "6070")], "--grpc-port and --debug-port are both 6070"),
            (&[prometheus, ("use-prometheus", "true")], "--debug-port and --prometheus-addr are"),
        ] {
            let errors = Settings::read(&Sources::from_flags(flags)).unwrap_err();
            let error = errors[0].to_string();
            assert!(error.starts_with(&format!("ports: {names}")), "{error}");
        }
    }

    #[test]
    fn settings_at_the_bound_of_another_are_no_conflict() {
        for flags in [
            &[("grpc-host", "10.0.0.1"), ("http-host", "10.0.0.2"), ("http-port", "8081")][..],
            &[("grpc-uds", "/run/s"), ("http-port", "8081")],
            &[("prometheus-addr", ":8080")],
            &[("grpc-port", "0"), ("http-port", "0"), ("debug-port", "0")],
            &[("drain-delay", "8999ms"), ("hard-limit", "10s")],
            &[("config-type", "grpc_xds_sotw"), ("xds-tls", "true"), ("xds-tls-cacert", "/ca")],
        ] {
            assert!(conflicts(flags).is_empty(), "{flags:?}");
        }
    }
}
