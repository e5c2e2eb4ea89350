//! Startup notices about envoyproxy/ratelimit settings without effect, unknown variables and
//! arguments, and risky settings.
//!
//! The envoyproxy/ratelimit settings that Tidegate supports are in `table`; `precedence` rejects
//! unsupported settings that change decisions.

use std::net::IpAddr;

use super::drop_in_mode::DropIn;
use super::foreign_names::find_own_name;
use super::precedence::{TextMap, is_service_link};
use super::redis_settings::{is_redis_url, redis_advice};
use super::setting_row::SettingRow;
use super::table::{Settings, TABLE};
use crate::domain::{CounterAccess, nearest_word};

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

/// Environment variables of envoyproxy/ratelimit without an effect, and why they have none. A
/// trailing `*` matches any suffix.
const IGNORED_VARIABLES: &[(&[&str], &str)] = &[
    (
        &[
            "USE_STATSD",
            "STATSD_*",
            "USE_DOG_STATSD*",
            "DOG_STATSD_*",
            "EXTRA_TAGS",
            "STATS_FLUSH_INTERVAL",
        ],
        "statistics are not pushed to statsd; scrape /metrics on the HTTP port",
    ),
    (&["DISABLE_STATS"], "statistics stay on; they cost almost nothing"),
    (
        &["PROMETHEUS_MAPPER_YAML"],
        "the names and labels are those of envoyproxy/ratelimit's default mapper",
    ),
    (
        &["PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"],
        "times are in seconds, as Prometheus recommends",
    ),
    (&["MEMCACHE_*"], "memcached is not supported; counters are in Redis or in memory"),
    (
        &["GRPC_SERVER_TLS_CA_CERT"],
        "envoyproxy/ratelimit does not read it either, and no client certificate is required; \
         GRPC_CLIENT_TLS_CACERT requires one",
    ),
    (
        &["EXPIRATION_JITTER_MAX_SECONDS"],
        "keys expire when they no longer matter; no jitter is needed",
    ),
    (
        &["REDIS_PERSECOND*"],
        "one Redis serves all units; REDIS_URL is used for per-second limits too",
    ),
    (
        &["REDIS_PIPELINE_*", "REDIS_CLUSTER_PIPELINE_PARALLELISM", "REDIS_POOL_ON_EMPTY_BEHAVIOR"],
        "all calls share a few connections; there is nothing to tune",
    ),
    (
        &["REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"],
        "readiness does not depend on Redis: a short outage would remove every replica",
    ),
    (&["REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR"], "always true"),
    (&["REDIS_STARTUP_*"], "the start does not wait for Redis"),
    (&["GRPC_MAX_CONNECTION_AGE_GRACE"], "a closing connection always finishes its calls"),
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

/// Returns the reason why a variable of envoyproxy/ratelimit has no effect; `None` if it is not one
/// of [`IGNORED_VARIABLES`].
fn ignored_reason(name: &str) -> Option<&'static str> {
    let matches = |ignored: &&str| match ignored.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *ignored,
    };
    let row = IGNORED_VARIABLES.iter().find(|(names, _)| names.iter().any(matches));
    row.map(|(_, reason)| *reason)
}

/// Returns notices about environment variables and arguments that are ignored or unknown, and about
/// risky settings.
pub fn find_notices(
    environment: &TextMap,
    drop_in: Option<&DropIn>,
    settings: &Settings,
) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut notice = |kind, name: &str, text: &str| {
        notices.push(Notice { kind, name: name.to_owned(), text: text.to_owned() });
    };
    if let Some(drop_in) = drop_in {
        for argument in &drop_in.ignored_arguments {
            notice(
                NoticeKind::UnknownArgument,
                argument,
                "`tidegate serve --help` lists the flags",
            );
        }
        for (names, advice) in settings.unused_tls_settings() {
            notice(NoticeKind::NoEffect, names, advice);
        }
    }
    for (kind, is_present, name, text) in possible_notices(settings) {
        if is_present {
            notice(kind, name, text);
        }
    }
    let granted = settings.grpc_client_domains.iter().map(|grant| &grant.caller);
    for name in granted.chain(Some(&settings.grpc_client_tls_san)) {
        if !name.is_empty() && !can_be_in_certificate(name) {
            let text = format!(
                "has the name {name:?}, which no certificate can have: only DNS names, and URIs \
                 with ://, are compared"
            );
            notice(NoticeKind::Risk, "--grpc-client-tls-san or --grpc-client-domains", &text);
        }
    }
    for (name, text) in environment {
        let is_off =
            text.is_empty() || ["false", "0", "f"].contains(&text.to_ascii_lowercase().as_str());
        let is_own = name.starts_with("TIDEGATE_");
        let is_known = known_variables().any(|known| known == *name);
        if let Some(reason) = ignored_reason(name) {
            if !is_off {
                notice(NoticeKind::NoEffect, name, reason);
            }
        } else if is_service_link(name, text) && (is_own || is_known) {
            notice(NoticeKind::NoEffect, name, SERVICE_LINK);
        } else if is_known || is_kubernetes_variable(name, text) {
        } else if let Some(advice) = advice_on_redis(name, text, settings.counts_in_redis()) {
            notice(NoticeKind::UnknownVariable, name, &format!("it is ignored: {advice}"));
        } else if is_own || drop_in.is_some() && has_compat_prefix(name) {
            notice(NoticeKind::UnknownVariable, name, &typo_advice(name));
        }
    }
    notices
}

/// Why a variable that Kubernetes sets has no effect.
const SERVICE_LINK: &str = "Kubernetes sets it, because the namespace has a Service of this name; it \
                            is not read as a setting. `enableServiceLinks: false` in the pod's spec \
                            removes such variables";

/// Returns advice on a variable that other programs read to find Redis: by its name or, if no Redis is
/// configured, by its value, as in DATABASE_URL.
fn advice_on_redis(name: &str, text: &str, has_redis: bool) -> Option<&'static str> {
    let is_for_redis = name.starts_with("REDIS") || name.starts_with("VALKEY");
    let by_name = redis_advice(name).filter(|_| is_for_redis).map(|(_, advice)| advice);
    let by_value = || (!has_redis && is_redis_url(text)).then(|| redis_advice("URL")).flatten();
    by_name.or_else(|| by_value().map(|(_, advice)| advice))
}

/// Minimum length of a secret that cannot be guessed, in bytes: 128 random bits in base64.
const SECRET_BYTES_MIN: usize = 22;

/// Returns a tuple for each notice that depends on values of settings: its kind, whether it is
/// present, the name of the setting, and the text.
fn possible_notices(settings: &Settings) -> [(NoticeKind, bool, &'static str, &'static str); 7] {
    let is_loopback = match settings.debug_host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => settings.debug_host.eq_ignore_ascii_case("localhost"),
    };
    let is_anonymous = settings.grpc_client_tls_cacert.is_none() && settings.grpc_uds.is_none();
    let writes = settings.counter_access == CounterAccess::Write;
    let secret = settings.key_secret.reveal();
    let has_secret = !secret.is_empty() || settings.key_secret_file.is_some();
    let has_redis = settings.counts_in_redis();
    let is_compat = settings.runtime_root.is_some() && settings.policy.is_empty();
    [
        (
            NoticeKind::Risk,
            !is_loopback,
            "--debug-host",
            "is not a loopback address: everyone who reaches the debug port sees rules and values, \
             and the operator token is sent without TLS",
        ),
        (
            NoticeKind::Risk,
            writes && is_anonymous,
            "--counter-access",
            "is write without client certificates: everyone who reaches the gRPC port can reset \
             counters",
        ),
        (
            NoticeKind::Risk,
            !settings.peers.is_empty() && !has_redis && !has_secret,
            "--peers",
            "is set with counters in memory and without --key-secret: replicas cannot recognize the \
             keys of others, so /top lists a key once for each replica",
        ),
        (
            NoticeKind::Risk,
            !secret.is_empty() && secret.len() < SECRET_BYTES_MIN,
            "--key-secret",
            "is shorter than 22 characters: it can be guessed; use 128 random bits",
        ),
        (
            NoticeKind::Risk,
            is_compat && !has_redis,
            "REDIS_URL",
            "is not set: counters are in memory, and replicas do not share limits",
        ),
        (
            NoticeKind::NoEffect,
            settings.supported_otlp_protocol().is_none(),
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "it is neither grpc nor http/protobuf, so neither metrics nor traces are exported",
        ),
        (
            NoticeKind::Risk,
            has_redis && !has_secret,
            "--key-secret",
            "is not set: anyone can compute the hashes in Redis' keys, so they do not protect \
             personal data; set 128 random bits, the same on every replica",
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

/// Returns all environment variables that set something.
fn known_variables() -> impl Iterator<Item = String> {
    let compat = TABLE.iter().flat_map(|row| row.compat_names).map(|name| (*name).to_owned());
    TABLE.iter().map(SettingRow::variable).chain(compat)
}

/// Returns whether a variable has a prefix of those of envoyproxy/ratelimit, and is none that it
/// reads without effect here.
fn has_compat_prefix(name: &str) -> bool {
    COMPAT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        && !ACCEPTED_VARIABLES.contains(&name)
}

/// Returns advice for an unknown environment variable.
fn typo_advice(name: &str) -> String {
    let known: Vec<String> = known_variables().collect();
    let own = name.strip_prefix("TIDEGATE_").and_then(find_own_name);
    let row = TABLE.iter().find(|row| Some(row.name) == own).map(SettingRow::variable);
    let similar = || nearest_word(name, known.iter().map(String::as_str)).map(str::to_owned);
    match row.or_else(similar) {
        Some(similar) => format!("did you mean {similar}?"),
        None => "unset it, or correct its name: `tidegate serve --help` lists all".to_owned(),
    }
}

/// Returns whether Kubernetes sets a variable for a Service in the same namespace, such as
/// REDIS_SERVICE_HOST or REDIS_PORT_6379_TCP for the Service `redis`.
fn is_kubernetes_variable(name: &str, text: &str) -> bool {
    let has_port_number = |(_, rest): (&str, &str)| rest.starts_with(|c: char| c.is_ascii_digit());
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || is_service_link(name, text)
        || name.split_once("_PORT_").is_some_and(has_port_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, Sources};

    fn shown(Notice { kind, name, text }: &Notice) -> String {
        match kind {
            NoticeKind::UnknownVariable => format!("unknown environment variable {name}: {text}"),
            NoticeKind::UnknownArgument => format!("unknown argument {name}: {text}"),
            NoticeKind::NoEffect => format!("{name} has no effect: {text}"),
            NoticeKind::Risk => format!("{name} {text}"),
        }
    }

    fn environment(pairs: &[(&str, &str)]) -> TextMap {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn notices_for(pairs: &[(&str, &str)]) -> Vec<String> {
        let environment = environment(pairs);
        let sources = Sources { environment: environment.clone(), ..Sources::default() };
        let (settings, _) = Settings::read(&sources).unwrap();
        find_notices(&environment, None, &settings).iter().map(shown).collect()
    }

    fn drop_in_notices_for(pairs: &[(&str, &str)], arguments: &[&str]) -> Vec<String> {
        let ignored_arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let drop_in = Some(DropIn { ignored_arguments });
        let environment = environment(pairs);
        let sources = Sources { environment: environment.clone(), drop_in, ..Sources::default() };
        let (settings, _) = Settings::read(&sources).unwrap();
        let notices = find_notices(&environment, sources.drop_in.as_ref(), &settings);
        notices.iter().map(shown).collect()
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
        assert_eq!(notices[2], misspelt);
        assert!(notices[1].starts_with("GRPC_SERVER_TLS_CA_CERT has no effect: "), "{notices:?}");
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
        for name in ["--grpc-server-tls-cert, --grpc-server-tls-key", "--redis-tls-…"] {
            let start = format!("{name} has no effect: without TLS, ");
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
        for (name, own) in [
            ("TIDEGATE_CONFIG", "TIDEGATE_POLICY"),
            ("TIDEGATE_PORT", "TIDEGATE_GRPC_PORT"),
            ("TIDEGATE_REDIS", "TIDEGATE_REDIS_URL"),
            ("TIDEGATE_REDIS_PASSWORD", "TIDEGATE_REDIS_AUTH"),
            ("TIDEGATE_TLS_CERT", "TIDEGATE_GRPC_SERVER_TLS_CERT"),
            ("TIDEGATE_WORKERS", "TIDEGATE_THREADS"),
        ] {
            let notices = notices_for(&[(name, "1")]);
            assert!(notices[0].ends_with(&format!("did you mean {own}?")), "{notices:?}");
        }
    }

    #[test]
    fn a_variable_that_other_programs_read_for_redis_gets_a_notice() {
        for (name, text, part) in [
            ("REDIS_HOST", "redis", "set REDIS_URL to the address"),
            ("REDIS_PORT", "6379", "set REDIS_URL to the address"),
            ("REDIS_URI", "redis:6379", "set REDIS_URL to the address"),
            ("VALKEY_URL", "valkey://h", "set REDIS_URL to the address"),
            ("REDIS_CLUSTER_NODES", "a:1,b:1", "set REDIS_URL to the address"),
            ("DATABASE_URL", "rediss://:hunter2@h", "set REDIS_URL to the address"),
            ("REDISCLOUD_URL", "redis://:hunter2@h", "set REDIS_URL to the address"),
            ("CACHE_ADDR", "REDIS://:hunter2@h", "set REDIS_URL to the address"),
            ("REDIS_PASSWORD", "hunter2", "set REDIS_AUTH"),
            ("REDIS_USERNAME", "ann", "set REDIS_AUTH"),
            ("VALKEY_PASSWORD", "hunter2", "set REDIS_AUTH"),
            ("REDISCLI_AUTH", "hunter2", "set REDIS_AUTH"),
            ("REDIS_DB", "3", "as path in REDIS_URL"),
            ("REDIS_DATABASE", "3", "as path in REDIS_URL"),
            ("REDIS_SENTINEL_HOSTS", "a:1", "set REDIS_TYPE=sentinel"),
            ("REDIS_SSL", "true", "set REDIS_TLS=true"),
        ] {
            let notices = notices_for(&[(name, text)]);
            assert_eq!(notices.len(), 1, "{notices:?}");
            let start = format!("unknown environment variable {name}: it is ignored: ");
            assert!(notices[0].starts_with(&start) && notices[0].contains(part), "{notices:?}");
            assert!(!notices[0].contains("hunter2"), "{notices:?}");
        }
        for (name, text) in
            [("DATABASE_URL", "postgres://h"), ("REDISCOVERY", "1"), ("REDIS_AUTH", "pw")]
        {
            assert_eq!(notices_for(&[(name, text)]), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn the_address_of_a_kubernetes_service_is_no_setting() {
        let link = "tcp://10.0.0.1:8081";
        for name in
            ["GRPC_PORT", "DEBUG_PORT", "TIDEGATE_GRPC_PORT", "TIDEGATE_HTTP_PORT", "TIDEGATE_PORT"]
        {
            let notices = notices_for(&[(name, link)]);
            assert_eq!(notices.len(), 1, "{notices:?}");
            let start = format!("{name} has no effect: Kubernetes sets it, because the namespace");
            assert!(notices[0].starts_with(&start), "{notices:?}");
        }
        for (name, text) in [
            ("REDIS_PORT", "tcp://10.0.0.1:6379"),
            ("SHOP_PORT", "udp://10.0.0.1:53"),
            ("TIDEGATE_SERVICE_HOST", "10.0.0.1"),
            ("TIDEGATE_SERVICE_PORT_GRPC", "8081"),
            ("TIDEGATE_PORT_8081_TCP", link),
            ("TIDEGATE_PORT_8081_TCP_ADDR", "10.0.0.1"),
            ("VALKEY_SERVICE_PORT", "6379"),
        ] {
            assert_eq!(notices_for(&[(name, text)]), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn a_setting_that_would_change_decisions_is_rejected() {
        let read = |name, text| Settings::read(&Sources::from_environment(&[(name, text)]));
        let error = read("BACKEND_TYPE", "memcache").unwrap_err()[0].to_string();
        assert!(error.starts_with("BACKEND_TYPE"), "{error}");
        let error = read("CONFIG_TYPE", "GRPC_XDS_DELTA").unwrap_err()[0].to_string();
        assert!(error.contains("file, grpc_xds_sotw"), "{error}");
        assert!(read("CONFIG_TYPE", "GRPC_XDS_SOTW").is_ok());
        assert!(read("BACKEND_TYPE", "redis").is_ok());
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
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].starts_with("--key-secret is not set: "), "{notices:?}");
        for secret in ["TIDEGATE_KEY_SECRET", "TIDEGATE_KEY_SECRET_FILE"] {
            let notices = notices_for(&[url, (secret, SECRET)]);
            assert_eq!(notices, Vec::<String>::new(), "{secret}");
        }
    }
}
