//! Startup notices about envoyproxy/ratelimit settings without effect, unknown variables and
//! arguments, and risky settings.
//!
//! The envoyproxy/ratelimit settings that Tidegate supports are in `table`; `precedence` rejects
//! unsupported settings that change decisions.

use std::fmt;
use std::net::IpAddr;

use super::Settings;
use super::drop_in::DropIn;
use super::precedence::{TextMap, find_similar_name};
use super::table::{SettingRow, TABLE};
use super::value_types::CounterAccessSetting;
use crate::domain::nearest_word;

/// Startup notice about a setting that has no effect or carries a risk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Kind of problem that the notice reports.
    pub kind: NoticeKind,
    /// Name of the flag, environment variable, or argument.
    pub name: String,
    /// Text of the notice: advice for an unknown name, the reason why a setting has no effect, or a
    /// risk.
    pub text: String,
}

/// Kind of a startup notice. Each kind has its own log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// An environment variable that is not a setting and is probably misspelled.
    UnknownVariable,
    /// A command-line argument that neither Tidegate nor envoyproxy/ratelimit supports.
    UnknownArgument,
    /// A setting that has no effect, such as one that only envoyproxy/ratelimit supports.
    NoEffect,
    /// A valid value, or a missing setting, that carries a risk.
    Risk,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Notice { name, text, .. } = self;
        match self.kind {
            NoticeKind::UnknownVariable => write!(f, "unknown environment variable {name}: {text}"),
            NoticeKind::UnknownArgument => write!(f, "unknown argument {name}: {text}"),
            NoticeKind::NoEffect => write!(f, "{name} has no effect: {text}"),
            NoticeKind::Risk => write!(f, "{name} {text}"),
        }
    }
}

/// Environment variable of envoyproxy/ratelimit that Tidegate ignores.
struct IgnoredVariable {
    /// Name of the variable; a trailing `*` matches any suffix.
    name: &'static str,
    reason: &'static str,
}

const NO_STATSD_REASON: &str = "statistics are not pushed; scrape /metrics on the HTTP port";
const NO_MEMCACHED_REASON: &str = "there is no memcached store";
const ONE_REDIS_REASON: &str =
    "one Redis serves all units; REDIS_URL is used for per-second limits too";
const NO_TUNING_REASON: &str = "all calls share a few connections; there is nothing to tune";

const IGNORED_VARIABLES: &[IgnoredVariable] = &[
    IgnoredVariable { name: "USE_STATSD", reason: NO_STATSD_REASON },
    IgnoredVariable { name: "STATSD_*", reason: NO_STATSD_REASON },
    IgnoredVariable { name: "USE_DOG_STATSD*", reason: NO_STATSD_REASON },
    IgnoredVariable { name: "DOG_STATSD_*", reason: NO_STATSD_REASON },
    IgnoredVariable { name: "EXTRA_TAGS", reason: NO_STATSD_REASON },
    IgnoredVariable { name: "STATS_FLUSH_INTERVAL", reason: NO_STATSD_REASON },
    IgnoredVariable {
        name: "DISABLE_STATS",
        reason: "statistics stay on; they cost almost nothing",
    },
    IgnoredVariable {
        name: "PROMETHEUS_MAPPER_YAML",
        reason: "the names and labels are those of envoyproxy/ratelimit's default mapper",
    },
    IgnoredVariable {
        name: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        reason: "times are in seconds, as Prometheus recommends",
    },
    IgnoredVariable { name: "MEMCACHE_*", reason: NO_MEMCACHED_REASON },
    IgnoredVariable {
        name: "GRPC_SERVER_TLS_CA_CERT",
        reason: "envoyproxy/ratelimit does not read it either, and no client certificate is \
                 required; GRPC_CLIENT_TLS_CACERT requires one",
    },
    IgnoredVariable {
        name: "EXPIRATION_JITTER_MAX_SECONDS",
        reason: "keys expire when they no longer matter; no jitter is needed",
    },
    IgnoredVariable { name: "REDIS_PERSECOND*", reason: ONE_REDIS_REASON },
    IgnoredVariable { name: "REDIS_PIPELINE_*", reason: NO_TUNING_REASON },
    IgnoredVariable { name: "REDIS_CLUSTER_PIPELINE_PARALLELISM", reason: NO_TUNING_REASON },
    IgnoredVariable { name: "REDIS_POOL_ON_EMPTY_BEHAVIOR", reason: NO_TUNING_REASON },
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

/// Environment variables of envoyproxy/ratelimit that are accepted without a notice, because
/// Tidegate always does what they usually ask for: it watches files and links, it does not charge a
/// counter over its limit, it caches rejections, and an address of Redis says which network it has.
const ACCEPTED_VARIABLES: [&str; 4] = [
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "REDIS_SOCKET_TYPE",
    "RUNTIME_WATCH_ROOT",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
];

/// Prefixes of the environment variables of envoyproxy/ratelimit. In drop-in mode, an unknown
/// variable with one of these prefixes causes a notice, because its name is probably misspelled.
const COMPAT_PREFIXES: [&str; 9] = [
    "CONFIG_GRPC_XDS_",
    "GRPC_CLIENT_TLS_",
    "GRPC_SERVER_TLS_",
    "LIMIT_",
    "PROMETHEUS_",
    "REDIS_",
    "RUNTIME_",
    "TRACING_",
    "XDS_CLIENT_",
];

impl IgnoredVariable {
    fn matches(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == self.name,
        }
    }
}

/// Returns notices about environment variables and arguments that are ignored or unknown, and about
/// risky settings.
pub fn find_notices(
    environment: &TextMap,
    drop_in: Option<&DropIn>,
    settings: &Settings,
) -> Vec<Notice> {
    let mut notices = drop_in.map_or_else(Vec::new, |drop_in| {
        [find_drop_in_notices(environment, drop_in), find_unused_tls_notices(settings)].concat()
    });
    notices.extend(find_access_notices(settings));
    let mut notice = |kind: NoticeKind, name: &str, text: String| {
        notices.push(Notice { kind, name: name.to_owned(), text });
    };
    let off = |text: &str| {
        text.is_empty() || ["false", "0", "f"].contains(&text.to_ascii_lowercase().as_str())
    };
    let given = environment.iter().filter(|(_, text)| !off(text)).map(|(name, _)| name);
    for name in given {
        if let Some(ignored) = IGNORED_VARIABLES.iter().find(|ignored| ignored.matches(name)) {
            notice(NoticeKind::NoEffect, name, ignored.reason.to_owned());
        }
        if name.starts_with("TIDEGATE_") && !TABLE.iter().any(|row| row.variable() == *name) {
            let plain = name.trim_start_matches("TIDEGATE_");
            let similar = find_similar_name(TABLE, plain);
            let row = TABLE.iter().find(|row| similar == Some(row.name));
            notice(NoticeKind::UnknownVariable, name, typo_advice(row.map(SettingRow::variable)));
        }
    }
    if settings.runtime_root.is_some() && settings.policy.is_empty() && !settings.counts_in_redis()
    {
        notice(
            NoticeKind::Risk,
            "REDIS_URL",
            "is not set: counters are in memory, and replicas do not share limits".to_owned(),
        );
    }
    if settings.supported_otlp_protocol().is_none() {
        notice(
            NoticeKind::NoEffect,
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "it is neither grpc nor http/protobuf, so neither metrics nor traces are exported"
                .to_owned(),
        );
    }
    if settings.counts_in_redis() {
        if settings.key_secret.is_empty() && settings.key_secret_file.is_none() {
            notice(
                NoticeKind::Risk,
                "--key-secret",
                "is not set: keys in Redis are hashed with a public key, which does not protect \
                 personal data"
                    .to_owned(),
            );
        }
        if settings.replicas == 1 {
            notice(
                NoticeKind::Risk,
                "--replicas",
                "is 1: without Redis each replica admits the whole limit".to_owned(),
            );
        }
    }
    notices
}

/// Minimum length of a secret that cannot be guessed, in bytes: 128 random bits in base64.
const SECRET_BYTES_MIN: usize = 22;

/// Returns notices about settings that let too many callers in, or none.
fn find_access_notices(settings: &Settings) -> Vec<Notice> {
    let risk =
        |name: &str, text: String| Notice { kind: NoticeKind::Risk, name: name.to_owned(), text };
    let mut notices = Vec::new();
    for (is_risky, name, text) in access_risks(settings) {
        notices.extend(is_risky.then(|| risk(name, text.to_owned())));
    }
    let granted = settings.grpc_client_domains.iter().map(|(_, name, _)| name);
    for name in granted.chain(Some(&settings.grpc_client_tls_san)) {
        if !name.is_empty() && !can_be_in_certificate(name) {
            let text = format!(
                "has the name {name:?}, which no certificate can have: only DNS names, and URIs \
                 with ://, are compared"
            );
            notices.push(risk("--grpc-client-tls-san or --grpc-client-domains", text));
        }
    }
    notices
}

/// Returns a tuple for each possible risk of who has access: whether it exists, the name of the
/// setting, and the text of the notice.
fn access_risks(settings: &Settings) -> [(bool, &'static str, &'static str); 3] {
    let is_loopback = match settings.debug_host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => settings.debug_host.eq_ignore_ascii_case("localhost"),
    };
    let is_anonymous = settings.grpc_client_tls_cacert.is_none() && settings.grpc_uds.is_none();
    let writes = settings.counter_access == CounterAccessSetting::Write;
    let secret = settings.key_secret.reveal();
    [
        (
            !is_loopback,
            "--debug-host",
            "is not a loopback address: everyone who reaches the debug port sees rules and values, \
             and the operator token is sent without TLS",
        ),
        (
            writes && is_anonymous,
            "--counter-access",
            "is write without client certificates: everyone who reaches the gRPC port can reset \
             counters",
        ),
        (
            !secret.is_empty() && secret.len() < SECRET_BYTES_MIN,
            "--key-secret",
            "is shorter than 22 characters: it can be guessed; use 128 random bits",
        ),
    ]
}

/// Returns whether a certificate may have the name as a DNS name or a URI. An IP address or an email
/// address is in a certificate as another type of name, which is not compared.
fn can_be_in_certificate(name: &str) -> bool {
    let is_printable = |c: char| c.is_ascii_graphic();
    let is_dns = |c: char| c.is_ascii_alphanumeric() || "-_.*".contains(c);
    match name.contains("://") {
        true => name.chars().all(is_printable),
        false => name.parse::<IpAddr>().is_err() && name.chars().all(is_dns),
    }
}

/// Returns advice for an unknown environment variable. `similar` is the known variable with the
/// most similar name; `None` if no name is similar.
fn typo_advice(similar: Option<String>) -> String {
    match similar {
        Some(similar) => format!("did you mean {similar}?"),
        None => "unset it, or correct its name: `tidegate serve --help` lists all".to_owned(),
    }
}

/// Returns notices about arguments and environment variables that neither Tidegate nor
/// envoyproxy/ratelimit supports.
fn find_drop_in_notices(environment: &TextMap, drop_in: &DropIn) -> Vec<Notice> {
    let argument = |name: &String| Notice {
        kind: NoticeKind::UnknownArgument,
        name: name.clone(),
        text: "`tidegate serve -h` lists the flags".to_owned(),
    };
    let known = || {
        let names = |row: &'static SettingRow| row.compat_names.iter().chain(Some(&row.name));
        TABLE.iter().flat_map(names).copied()
    };
    let is_unknown = |name: &&String| {
        COMPAT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            && !is_kubernetes_service_variable(name)
            && !known().any(|known| known == name.as_str())
            && !ACCEPTED_VARIABLES.contains(&name.as_str())
            && !IGNORED_VARIABLES.iter().any(|ignored| ignored.matches(name))
    };
    let variable = |name: &String| Notice {
        kind: NoticeKind::UnknownVariable,
        name: name.clone(),
        text: typo_advice(nearest_word(name, known()).map(str::to_owned)),
    };
    let variables = environment.keys().filter(is_unknown).map(variable);
    drop_in.ignored_arguments.iter().map(argument).chain(variables).collect()
}

/// Returns whether `name` is a variable that Kubernetes sets for a service in the same namespace,
/// such as REDIS_SERVICE_HOST or REDIS_PORT_6379_TCP for the service `redis`.
fn is_kubernetes_service_variable(name: &str) -> bool {
    let has_port_number = |(_, rest): (&str, &str)| rest.starts_with(|c: char| c.is_ascii_digit());
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.split_once("_PORT_").is_some_and(has_port_number)
}

/// Returns notices about TLS settings that have no effect because a setting that they need is
/// missing. envoyproxy/ratelimit ignores such settings. Outside drop-in mode, they are errors
/// (`cross_checks`).
fn find_unused_tls_notices(settings: &Settings) -> Vec<Notice> {
    let has_no_effect = |is_present: bool, name: &str, missing: &str| {
        let text = format!("it needs {missing}");
        is_present.then(|| Notice { kind: NoticeKind::NoEffect, name: name.to_owned(), text })
    };
    let tls = settings.grpc_server_use_tls;
    let cacert = settings.grpc_client_tls_cacert.is_some();
    let certificate =
        settings.grpc_server_tls_cert.is_some() || settings.grpc_server_tls_key.is_some();
    let san = !settings.grpc_client_tls_san.is_empty();
    let redis = settings.has_unused_redis_tls_settings();
    let notices = [
        has_no_effect(certificate && !tls, "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_USE_TLS=true"),
        has_no_effect(cacert && !tls, "GRPC_CLIENT_TLS_CACERT", "GRPC_SERVER_USE_TLS=true"),
        has_no_effect(san && !cacert, "GRPC_CLIENT_TLS_SAN", "GRPC_CLIENT_TLS_CACERT"),
        has_no_effect(redis, "REDIS_TLS_*", "REDIS_TLS=true"),
    ];
    notices.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::precedence::find_unsupported_backend;
    use crate::settings::{Settings, Sources};

    fn environment(pairs: &[(&str, &str)]) -> TextMap {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn notices_for(pairs: &[(&str, &str)]) -> Vec<String> {
        let environment = environment(pairs);
        let sources = Sources { environment: environment.clone(), ..Sources::default() };
        let (settings, _) = Settings::read(&sources).unwrap();
        find_notices(&environment, None, &settings).iter().map(Notice::to_string).collect()
    }

    fn drop_in_notices_for(pairs: &[(&str, &str)], arguments: &[&str]) -> Vec<String> {
        let ignored_arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let drop_in = Some(DropIn { ignored_arguments });
        let environment = environment(pairs);
        let sources = Sources { environment: environment.clone(), drop_in, ..Sources::default() };
        let (settings, _) = Settings::read(&sources).unwrap();
        let notices = find_notices(&environment, sources.drop_in.as_ref(), &settings);
        notices.iter().map(Notice::to_string).collect()
    }

    #[test]
    fn in_drop_in_mode_each_unknown_argument_and_variable_gets_one_notice() {
        let notices = drop_in_notices_for(
            &[
                ("REDIS_URL", "redis:6379"),
                ("TIDEGATE_KEY_SECRET", SECRET),
                ("TIDEGATE_REPLICAS", "2"),
                ("GRPC_SERVER_TLS_CERTT", "/c"),
                ("GRPC_SERVER_TLS_CA_CERT", "/ca"),
                ("REDIS_SERVICE_HOST", "10.0.0.1"),
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("RUNTIME_WATCH_ROOT", "false"),
                ("REDIS_PORT_6379_TCP_ADDR", "10.0.0.1"),
                ("PATH", "/bin"),
            ],
            &["--quotaRateLimitServiceAddr"],
        );
        assert_eq!(notices.len(), 3, "{notices:?}");
        assert!(notices[0].starts_with("unknown argument --quotaRateLimitServiceAddr: "));
        let misspelt = "unknown environment variable GRPC_SERVER_TLS_CERTT: did you mean \
                        GRPC_SERVER_TLS_CERT?";
        assert_eq!(notices[1], misspelt);
        assert!(notices[2].starts_with("GRPC_SERVER_TLS_CA_CERT has no effect: "), "{notices:?}");
    }

    #[test]
    fn in_drop_in_mode_tls_files_without_tls_get_a_notice_instead_of_an_error() {
        let files = [
            ("GRPC_SERVER_TLS_CERT", "/c"),
            ("GRPC_SERVER_TLS_KEY", "/k"),
            ("REDIS_URL", "redis:6379"),
            ("REDIS_TLS_CACERT", "/ca"),
        ];
        let sources = Sources { environment: environment(&files), ..Sources::default() };
        assert_eq!(Settings::read(&sources).unwrap_err().len(), 2);
        let notices = drop_in_notices_for(&files, &[]);
        for name in ["GRPC_SERVER_TLS_CERT", "REDIS_TLS_*"] {
            let start = format!("{name} has no effect: it needs ");
            assert!(notices.iter().any(|notice| notice.starts_with(&start)), "{notices:?}");
        }
    }

    #[test]
    fn an_ignored_variable_of_ratelimit_gets_a_notice() {
        let notices = notices_for(&[("USE_STATSD", "true"), ("MEMCACHE_TLS", "true")]);
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(notices[1].starts_with("USE_STATSD has no effect: "), "{notices:?}");
    }

    #[test]
    fn an_ignored_variable_that_is_off_gets_no_notice() {
        assert_eq!(
            notices_for(&[("USE_STATSD", "false"), ("MEMCACHE_TLS", "")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_misspelled_tidegate_variable_gets_a_notice() {
        let notices = notices_for(&[("TIDEGATE_GRPCPORT", "1")]);
        assert!(notices[0].contains("did you mean TIDEGATE_GRPC_PORT?"), "{notices:?}");
    }

    #[test]
    fn a_setting_that_would_change_decisions_is_rejected() {
        let error =
            find_unsupported_backend(&environment(&[("BACKEND_TYPE", "memcache")])).unwrap();
        assert!(error.to_string().starts_with("BACKEND_TYPE"), "{error:?}");
        let environment_of = |text| environment(&[("CONFIG_TYPE", text)]);
        let read = |text| {
            Settings::read(&Sources { environment: environment_of(text), ..Sources::default() })
        };
        assert!(read("GRPC_XDS_DELTA").unwrap_err()[0].to_string().contains("file, grpc_xds_sotw"));
        assert!(read("GRPC_XDS_SOTW").is_ok());
        assert!(find_unsupported_backend(&environment(&[("BACKEND_TYPE", "redis")])).is_none());
    }

    const SECRET: &str = "0123456789abcdefghijkl";

    #[test]
    fn each_setting_that_opens_a_port_or_shortens_a_secret_gets_a_notice() {
        let tls = ["TIDEGATE_GRPC_SERVER_TLS_CERT", "TIDEGATE_GRPC_SERVER_TLS_KEY"];
        let tls = [("TIDEGATE_GRPC_SERVER_USE_TLS", "true"), (tls[0], "/c"), (tls[1], "/k")];
        let tls = [&tls[..], &[("TIDEGATE_GRPC_CLIENT_TLS_CACERT", "/ca")]].concat();
        let write = ("TIDEGATE_COUNTER_ACCESS", "write");
        let (host, secret) = ("TIDEGATE_DEBUG_HOST", "TIDEGATE_KEY_SECRET");
        let san = "TIDEGATE_GRPC_CLIENT_TLS_SAN";
        let grants = "TIDEGATE_GRPC_CLIENT_DOMAINS";
        let with_tls = |setting| [&tls[..], &[setting]].concat();
        for (settings, risky) in [
            (vec![(host, "0.0.0.0")], true),
            (vec![(host, "127.0.0.2")], false),
            (vec![(host, "localhost")], false),
            (vec![write], true),
            (with_tls(write), false),
            (vec![(secret, "s")], true),
            (vec![(secret, SECRET)], false),
            (with_tls((san, "10.0.0.1")), true),
            (with_tls((san, "ops@test")), true),
            (with_tls((san, "urn:a")), true),
            (with_tls((san, "ops.test")), false),
            (with_tls((grants, "edge=spiffe://a/b,::1")), true),
            (with_tls((grants, "edge=spiffe://a/b,a_b.test:peek")), false),
        ] {
            assert_eq!(notices_for(&settings).len(), usize::from(risky), "{settings:?}");
        }
    }

    #[test]
    fn risky_settings_of_the_store_get_a_notice_until_they_are_set() {
        let url = ("REDIS_URL", "redis:6379");
        let notices = notices_for(&[url]);
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(notices[0].starts_with("--key-secret is not set: "), "{notices:?}");
        assert!(notices[1].starts_with("--replicas is 1: "), "{notices:?}");
        for secret in ["TIDEGATE_KEY_SECRET", "TIDEGATE_KEY_SECRET_FILE"] {
            let notices = notices_for(&[url, (secret, SECRET), ("TIDEGATE_REPLICAS", "2")]);
            assert_eq!(notices, Vec::<String>::new(), "{secret}");
        }
    }
}
