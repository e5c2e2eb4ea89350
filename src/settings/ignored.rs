//! Settings of envoyproxy/ratelimit that we do not have and that are worth a word at the start.
//!
//! Not here: those that we honour (`table`, in the column of their names), those that would change
//! what is served (`source` refuses them).

use std::fmt;

use super::Settings;
use super::precedence::{Texts, nearest};
use super::table::TABLE;

/// Something to say at the start: a name and why its value has no effect, or a risk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The setting, by the name that was used.
    pub name: String,
    /// What to know.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.text)
    }
}

/// How a name of theirs is recognised, and what to say.
struct Theirs {
    /// The name, or its start where it ends with `*`.
    name: &'static str,
    why: &'static str,
}

/// Why their way of sending statistics has no effect.
const NO_STATSD: &str = "statistics are not pushed; scrape /metrics on the HTTP port";
const OTLP_BY_ENDPOINT: &str =
    "traces are sent where OTEL_EXPORTER_OTLP_ENDPOINT is set, over gRPC";
const BY_RESOURCE: &str = "say it in OTEL_RESOURCE_ATTRIBUTES";
const NO_MEMCACHED: &str = "there is no memcached store";
const NO_XDS: &str = "policies come from files, not from a control plane";
const ONE_STORE: &str = "one Redis serves all units; REDIS_URL is used for per-second limits too";
const NOT_NEEDED: &str = "connections are kept and shared here; there is nothing to tune";

/// Theirs without effect here.
const NOT_HONOURED: &[Theirs] = &[
    Theirs { name: "USE_STATSD", why: NO_STATSD },
    Theirs { name: "STATSD_*", why: NO_STATSD },
    Theirs { name: "USE_DOG_STATSD*", why: NO_STATSD },
    Theirs { name: "DOG_STATSD_*", why: NO_STATSD },
    Theirs { name: "EXTRA_TAGS", why: NO_STATSD },
    Theirs { name: "STATS_FLUSH_INTERVAL", why: NO_STATSD },
    Theirs { name: "DISABLE_STATS", why: "counters cost next to nothing and stay on" },
    Theirs {
        name: "PROMETHEUS_MAPPER_YAML",
        why: "metric names are fixed; labels are domain and rule",
    },
    Theirs {
        name: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        why: "times are in seconds, as Prometheus asks",
    },
    Theirs { name: "TRACING_ENABLED", why: OTLP_BY_ENDPOINT },
    Theirs { name: "TRACING_EXPORTER_PROTOCOL", why: OTLP_BY_ENDPOINT },
    Theirs { name: "TRACING_SERVICE_NAMESPACE", why: BY_RESOURCE },
    Theirs { name: "TRACING_SERVICE_INSTANCE_ID", why: BY_RESOURCE },
    Theirs { name: "MEMCACHE_*", why: NO_MEMCACHED },
    Theirs { name: "CONFIG_GRPC_XDS_*", why: NO_XDS },
    Theirs { name: "XDS_CLIENT_*", why: NO_XDS },
    Theirs {
        name: "FORCE_START_WITHOUT_INITIAL_CONFIG",
        why: "a start without a valid policy ends with exit code 65",
    },
    Theirs {
        name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        why: "always so: nothing is served before a policy is loaded",
    },
    Theirs {
        name: "EXPIRATION_JITTER_MAX_SECONDS",
        why: "keys expire when they stop to matter; no jitter is needed",
    },
    Theirs { name: "REDIS_PERSECOND*", why: ONE_STORE },
    Theirs { name: "REDIS_PIPELINE_*", why: NOT_NEEDED },
    Theirs { name: "REDIS_CLUSTER_PIPELINE_PARALLELISM", why: NOT_NEEDED },
    Theirs { name: "REDIS_POOL_ON_EMPTY_BEHAVIOR", why: NOT_NEEDED },
    Theirs {
        name: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        why: "readiness does not depend on Redis: one blip would remove every replica",
    },
    Theirs { name: "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", why: "always so" },
    Theirs { name: "REDIS_STARTUP_*", why: "the start does not wait for Redis" },
    Theirs {
        name: "GRPC_MAX_CONNECTION_AGE_GRACE",
        why: "connections that are asked to go finish their calls first",
    },
];

impl Theirs {
    fn is(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == self.name,
        }
    }
}

/// What to say at the start about the environment and the settings.
pub fn notices(environment: &Texts, settings: &Settings) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut notice = |name: &str, text: String| {
        notices.push(Notice { name: name.to_owned(), text });
    };
    let off = |text: &str| {
        text.is_empty() || ["false", "0", "f"].contains(&text.to_ascii_lowercase().as_str())
    };
    let given = environment.iter().filter(|(_, text)| !off(text)).map(|(name, _)| name);
    for name in given {
        if let Some(theirs) = NOT_HONOURED.iter().find(|theirs| theirs.is(name)) {
            notice(name, format!("not honoured: {}", theirs.why));
        }
        if name.starts_with("TIDEGATE_") && !TABLE.iter().any(|row| row.variable() == *name) {
            let plain = name.trim_start_matches("TIDEGATE_");
            let hint =
                nearest(TABLE, plain).map_or(String::new(), |near| format!("; --{near} is near"));
            notice(name, format!("is no setting and has no effect{hint}"));
        }
    }
    if settings.runtime_root.is_some() && settings.policy.is_empty() && !settings.counts_in_redis()
    {
        notice(
            "REDIS_URL",
            "is not set: counting in this process's memory; replicas do not share limits"
                .to_owned(),
        );
    }
    if !settings.otlp_is_grpc() {
        notice("--otlp-protocol", "is not grpc: neither metrics nor traces are sent".to_owned());
    }
    if settings.counts_in_redis() {
        if settings.key_secret.is_empty() && settings.key_secret_file.is_none() {
            notice(
                "--key-secret",
                "is not set: keys in Redis are hashed with a key that everybody knows, which \
                 does not hide personal data"
                    .to_owned(),
            );
        }
        if settings.replicas == 1 {
            notice(
                "--replicas",
                "is 1: while Redis is away each replica grants the whole limit".to_owned(),
            );
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::precedence::refused;
    use crate::settings::{Settings, Sources};

    fn environment(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn said(pairs: &[(&str, &str)]) -> Vec<String> {
        let environment = environment(pairs);
        let sources = Sources { environment: environment.clone(), ..Sources::default() };
        let (settings, _) = Settings::read(&sources).unwrap();
        notices(&environment, &settings).iter().map(Notice::to_string).collect()
    }

    #[test]
    fn a_setting_of_theirs_that_has_no_effect_is_named() {
        let said = said(&[("USE_STATSD", "true"), ("TRACING_ENABLED", "true")]);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[1].starts_with("USE_STATSD: not honoured"), "{said:?}");
    }

    #[test]
    fn one_that_is_switched_off_is_not() {
        assert_eq!(said(&[("USE_STATSD", "false"), ("MEMCACHE_TLS", "")]), Vec::<String>::new());
    }

    #[test]
    fn a_misspelt_variable_of_ours_is_named() {
        let said = said(&[("TIDEGATE_GRPCPORT", "1")]);
        assert!(said[0].contains("--grpc-port is near"), "{said:?}");
    }

    #[test]
    fn what_would_serve_something_else_is_refused() {
        for (name, text) in [("BACKEND_TYPE", "memcache"), ("CONFIG_TYPE", "GRPC_XDS_SOTW")] {
            let faults = refused(&environment(&[(name, text)]));
            assert!(faults[0].to_string().starts_with(name), "{faults:?}");
        }
        assert!(
            refused(&environment(&[("BACKEND_TYPE", "redis"), ("CONFIG_TYPE", "FILE")])).is_empty()
        );
    }
}
