//! Names that other programs give to Tidegate's settings.

use super::setting_row::SettingRow;
use crate::domain::nearest_word;

/// Names that other programs give to a setting, and ours.
const OTHER_NAMES: &[(&[&str], &str)] = &[
    (&["config", "config-file", "conf", "policies", "policy-file", "rules", "limits"], "policy"),
    (&["port", "addr", "address", "listen", "bind", "grpc-addr", "grpc"], "grpc-port"),
    (&["host", "listen-host", "bind-address"], "grpc-host"),
    (&["http", "http-addr", "metrics-port", "admin-port", "health-port"], "http-port"),
    (&["redis", "redis-addr", "redis-address", "redis-host", "redis-uri", "valkey"], "redis-url"),
    (&["redis-password", "redis-user", "password"], "redis-auth"),
    (&["redis-prefix", "prefix", "key-prefix", "redis-key-prefix"], "cache-key-prefix"),
    (&["redis-db", "redis-database", "db"], "redis-url"),
    (&["tls", "use-tls", "ssl"], "grpc-server-use-tls"),
    (&["cert", "tls-cert", "cert-file", "ssl-cert"], "grpc-server-tls-cert"),
    (&["key", "tls-key", "key-file", "ssl-key"], "grpc-server-tls-key"),
    (&["ca", "client-ca", "tls-ca", "ca-file"], "grpc-client-tls-cacert"),
    (&["verbose", "debug", "log", "loglevel"], "log-level"),
    (&["workers", "concurrency", "cpus"], "threads"),
    (&["timeout", "redis-command-timeout"], "redis-budget"),
    (&["shutdown-timeout", "grace-period", "drain-timeout"], "hard-limit"),
    (&["dry-run", "shadow", "audit"], "shadow-mode"),
    (&["otlp", "otel", "tracing", "otel-endpoint"], "otlp-endpoint"),
    (&["xds", "control-plane", "xds-address", "ads"], "xds-server"),
    (&["unix-socket", "socket", "uds"], "grpc-uds"),
    (&["instances", "replica-count"], "replicas"),
    (&["token", "token-file", "admin-token"], "debug-token-file"),
];

/// Returns the flag that other programs call by this name, if any.
pub(super) fn find_own_name(name: &str) -> Option<&'static str> {
    let plain = name.trim_start_matches('-').to_ascii_lowercase().replace('_', "-");
    OTHER_NAMES.iter().find(|(others, _)| others.contains(&&*plain)).map(|(_, own)| *own)
}

/// Returns the flag that is meant by an unknown name: one that other programs call so, or one with a
/// similar name.
pub fn find_similar_name(table: &'static [SettingRow], name: &str) -> Option<&'static str> {
    let flags = table.iter().filter(|row| row.has_flag()).map(|row| row.name);
    find_own_name(name).or_else(|| nearest_word(name, flags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TABLE;

    #[test]
    fn names_of_other_programs_lead_to_a_setting() {
        for (_, own) in OTHER_NAMES {
            assert!(TABLE.iter().any(|row| row.name == *own), "{own}");
        }
        for name in OTHER_NAMES.iter().flat_map(|(others, _)| *others) {
            let is_own = TABLE.iter().any(|row| row.name == *name);
            assert!(!is_own, "{name} is a setting");
        }
        for (name, own) in [
            ("config", "policy"),
            ("--config", "policy"),
            ("PORT", "grpc-port"),
            ("redis_password", "redis-auth"),
            ("tls_cert", "grpc-server-tls-cert"),
            ("grpc-prot", "grpc-port"),
        ] {
            assert_eq!(find_similar_name(TABLE, name), Some(own), "{name}");
        }
    }
}
