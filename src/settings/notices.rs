//! Startup notices about envoyproxy/ratelimit settings without effect, unknown `TIDEGATE_`
//! variables, and risky settings.
//!
//! `table` has the envoyproxy/ratelimit settings that Tidegate supports; `precedence` rejects
//! unsupported settings that change decisions.

use std::fmt;

use super::Settings;
use super::precedence::{TextMap, similar_name};
use super::table::TABLE;

/// Startup notice about a setting that has no effect or carries a risk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Name of the flag or environment variable, as the operator wrote it.
    pub name: String,
    /// Explanation of the setting's effect or risk.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.text)
    }
}

/// Environment variable of envoyproxy/ratelimit that Tidegate ignores.
struct IgnoredVariable {
    /// Name of the variable; a trailing `*` matches any suffix.
    name: &'static str,
    reason: &'static str,
}

const NO_STATSD: &str = "statistics are not pushed; scrape /metrics on the HTTP port";
const OTLP_BY_ENDPOINT: &str = "set OTEL_EXPORTER_OTLP_ENDPOINT to export traces over gRPC";
const BY_RESOURCE: &str = "set it in OTEL_RESOURCE_ATTRIBUTES";
const NO_MEMCACHED: &str = "there is no memcached store";
const NO_XDS: &str = "policies come from files, not from a control plane";
const ONE_STORE: &str = "one Redis serves all units; REDIS_URL is used for per-second limits too";
const NOT_NEEDED: &str = "all calls share a few connections; there is nothing to tune";

const IGNORED_VARIABLES: &[IgnoredVariable] = &[
    IgnoredVariable { name: "USE_STATSD", reason: NO_STATSD },
    IgnoredVariable { name: "STATSD_*", reason: NO_STATSD },
    IgnoredVariable { name: "USE_DOG_STATSD*", reason: NO_STATSD },
    IgnoredVariable { name: "DOG_STATSD_*", reason: NO_STATSD },
    IgnoredVariable { name: "EXTRA_TAGS", reason: NO_STATSD },
    IgnoredVariable { name: "STATS_FLUSH_INTERVAL", reason: NO_STATSD },
    IgnoredVariable {
        name: "DISABLE_STATS",
        reason: "statistics stay on; they cost almost nothing",
    },
    IgnoredVariable {
        name: "PROMETHEUS_MAPPER_YAML",
        reason: "metric names are fixed; labels are domain and rule",
    },
    IgnoredVariable {
        name: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        reason: "times are in seconds, as Prometheus recommends",
    },
    IgnoredVariable { name: "TRACING_ENABLED", reason: OTLP_BY_ENDPOINT },
    IgnoredVariable { name: "TRACING_EXPORTER_PROTOCOL", reason: OTLP_BY_ENDPOINT },
    IgnoredVariable { name: "TRACING_SERVICE_NAMESPACE", reason: BY_RESOURCE },
    IgnoredVariable { name: "TRACING_SERVICE_INSTANCE_ID", reason: BY_RESOURCE },
    IgnoredVariable { name: "MEMCACHE_*", reason: NO_MEMCACHED },
    IgnoredVariable { name: "CONFIG_GRPC_XDS_*", reason: NO_XDS },
    IgnoredVariable { name: "XDS_CLIENT_*", reason: NO_XDS },
    IgnoredVariable {
        name: "FORCE_START_WITHOUT_INITIAL_CONFIG",
        reason: "without a valid policy the process exits with code 65",
    },
    IgnoredVariable {
        name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        reason: "always true: the service starts only with a policy",
    },
    IgnoredVariable {
        name: "EXPIRATION_JITTER_MAX_SECONDS",
        reason: "keys expire when they no longer matter; no jitter is needed",
    },
    IgnoredVariable { name: "REDIS_PERSECOND*", reason: ONE_STORE },
    IgnoredVariable { name: "REDIS_PIPELINE_*", reason: NOT_NEEDED },
    IgnoredVariable { name: "REDIS_CLUSTER_PIPELINE_PARALLELISM", reason: NOT_NEEDED },
    IgnoredVariable { name: "REDIS_POOL_ON_EMPTY_BEHAVIOR", reason: NOT_NEEDED },
    IgnoredVariable {
        name: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        reason: "readiness does not depend on Redis: a short outage would remove every replica",
    },
    IgnoredVariable { name: "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", reason: "always true" },
    IgnoredVariable { name: "REDIS_STARTUP_*", reason: "the start does not wait for Redis" },
    IgnoredVariable {
        name: "GRPC_MAX_CONNECTION_AGE_GRACE",
        reason: "a closing connection always finishes its calls",
    },
];

impl IgnoredVariable {
    fn matches(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == self.name,
        }
    }
}

/// Returns notices about ignored and unknown variables and about risky settings.
pub fn find_notices(environment: &TextMap, settings: &Settings) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut notice = |name: &str, text: String| {
        notices.push(Notice { name: name.to_owned(), text });
    };
    let off = |text: &str| {
        text.is_empty() || ["false", "0", "f"].contains(&text.to_ascii_lowercase().as_str())
    };
    let given = environment.iter().filter(|(_, text)| !off(text)).map(|(name, _)| name);
    for name in given {
        if let Some(ignored) = IGNORED_VARIABLES.iter().find(|ignored| ignored.matches(name)) {
            notice(name, format!("has no effect: {}", ignored.reason));
        }
        if name.starts_with("TIDEGATE_") && !TABLE.iter().any(|row| row.variable() == *name) {
            let plain = name.trim_start_matches("TIDEGATE_");
            let hint = similar_name(TABLE, plain)
                .map_or(String::new(), |name| format!("; did you mean --{name}?"));
            notice(name, format!("is not a setting and has no effect{hint}"));
        }
    }
    if settings.runtime_root.is_some() && settings.policy.is_empty() && !settings.counts_in_redis()
    {
        notice(
            "REDIS_URL",
            "is not set: counters are in memory, and replicas do not share limits".to_owned(),
        );
    }
    if !settings.otlp_is_grpc() {
        notice(
            "--otlp-protocol",
            "is not grpc: neither metrics nor traces are exported".to_owned(),
        );
    }
    if settings.counts_in_redis() {
        if settings.key_secret.is_empty() && settings.key_secret_file.is_none() {
            notice(
                "--key-secret",
                "is not set: keys in Redis are hashed with a public key, which does not protect \
                 personal data"
                    .to_owned(),
            );
        }
        if settings.replicas == 1 {
            notice(
                "--replicas",
                "is 1: without Redis each replica admits the whole limit".to_owned(),
            );
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::precedence::find_unsupported;
    use crate::settings::{Settings, Sources};

    fn environment(pairs: &[(&str, &str)]) -> TextMap {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn notices_of(pairs: &[(&str, &str)]) -> Vec<String> {
        let environment = environment(pairs);
        let sources = Sources { environment: environment.clone(), ..Sources::default() };
        let (settings, _) = Settings::read(&sources).unwrap();
        find_notices(&environment, &settings).iter().map(Notice::to_string).collect()
    }

    #[test]
    fn an_ignored_variable_of_ratelimit_gets_a_notice() {
        let notices = notices_of(&[("USE_STATSD", "true"), ("TRACING_ENABLED", "true")]);
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(notices[1].starts_with("USE_STATSD: has no effect"), "{notices:?}");
    }

    #[test]
    fn an_ignored_variable_that_is_off_gets_none() {
        assert_eq!(
            notices_of(&[("USE_STATSD", "false"), ("MEMCACHE_TLS", "")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_misspelt_tidegate_variable_gets_a_notice() {
        let notices = notices_of(&[("TIDEGATE_GRPCPORT", "1")]);
        assert!(notices[0].contains("did you mean --grpc-port?"), "{notices:?}");
    }

    #[test]
    fn a_setting_that_would_change_decisions_is_rejected() {
        for (name, text) in [("BACKEND_TYPE", "memcache"), ("CONFIG_TYPE", "GRPC_XDS_SOTW")] {
            let errors = find_unsupported(&environment(&[(name, text)]));
            assert!(errors[0].to_string().starts_with(name), "{errors:?}");
        }
        assert!(
            find_unsupported(&environment(&[("BACKEND_TYPE", "redis"), ("CONFIG_TYPE", "FILE")]))
                .is_empty()
        );
    }
}
