//! Table of all settings. A row defines a field of [`Settings`], its flag (`--grpc-port`), its
//! environment variable (`TIDEGATE_GRPC_PORT`), the variables of envoyproxy/ratelimit and
//! OpenTelemetry that also set it, the default, a parser with bounds, and the help text for flags
//! and docs/SETTINGS.md.
//!
//! To add a setting, add one row. A row whose name is an environment variable has no flag: the
//! deployments that set it have the variable of envoyproxy/ratelimit or OpenTelemetry already.

use std::path::PathBuf;
use std::time::Duration;

use super::domain_grants::parse_grants;
use super::otlp_settings::TraceSampler;
use super::precedence;
use super::precedence::{SettingValue, Sources};
use super::setting_error::SettingError;
use super::setting_row::{Redaction, SettingRow};
use super::value_types::{
    HeaderFamily, LEVEL_NAMES, LEVELS, OnOff, PolicySourceKind, RedisType, SecretText,
    duration_or_millis_parser, duration_parser, keyword_parser, number_parser, pairs_parser,
    parse_address, parse_backend, parse_flag, parse_header_list, parse_host, parse_key_prefix,
    parse_on_off, parse_otlp_url, parse_path, parse_paths, parse_peers, parse_ratio,
    parse_replicas, parse_secret, parse_secret_line, parse_server, parse_text, size_parser,
};
use crate::domain::{
    Charge, CounterAccess, DomainGrant, LineFormat, ResetFormat, RetryAfterFormat, ValueDisplay,
    Verbosity,
};

macro_rules! settings {
    ($( section $section:literal; $( $(#[doc = $help:literal])+ $field:ident $name:literal [$value_name:expr]: $type:ty = $default:literal, $parser:expr, $redaction:ident, [$($compat:literal),*]; )+ )+) => {
        /// All settings of the process, parsed and validated.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $($( $(#[doc = $help])+ pub $field: $type, )+)+
            /// Whether the process is in drop-in mode, as a replacement for envoyproxy/ratelimit.
            /// In this mode, settings that envoyproxy/ratelimit would ignore are not errors.
            pub drop_in: bool,
        }

        /// Rows of all settings, in the order of `--help` and docs/SETTINGS.md.
        pub const TABLE: &[SettingRow] = &[ $($( SettingRow {
            section: $section,
            field: stringify!($field),
            name: $name,
            value_name: $value_name,
            default: $default,
            redaction: Redaction::$redaction,
            compat_names: &[$($compat),*],
            help: concat!($($help),+),
        }, )+)+ ];

        impl Settings {
            /// Parses and validates all settings. Also returns their unparsed values and sources.
            ///
            /// # Errors
            ///
            /// Returns a list of all invalid settings. Retrying does not help.
            pub fn read(
                sources: &Sources,
            ) -> Result<(Settings, Vec<SettingValue>), Vec<SettingError>> {
                let values = precedence::find_all(TABLE, sources);
                let mut errors = precedence::find_unknown_names(TABLE, sources);
                $($( let $field = precedence::parse(&values, stringify!($field), $parser, &mut errors); )+)+
                let drop_in = sources.drop_in.is_some();
                let all = || Some(Settings { $($( $field: $field?, )+)+ drop_in });
                match all() {
                    Some(settings) if errors.is_empty() => {
                        let conflicts = settings.find_conflicts();
                        if conflicts.is_empty() { Ok((settings, values)) } else { Err(conflicts) }
                    }
                    Some(_) | None => Err(errors),
                }
            }
        }
    };
}

/// Number of milliseconds in a day.
const DAY_MS: u64 = 86_400_000;

settings! {
    section "Policy files";
    /// Policy files and directories, separated by commas.
    policy "policy" ["FILE|DIR"]: Vec<PathBuf> = "", parse_paths, Plain, [];
    /// Maximum size of one policy file, up to 16MiB.
    policy_file_size "policy-file-size" ["SIZE"]: usize = "4MiB", size_parser(1_024, 16 << 20), Plain, [];
    /// Maximum total size of all policy files, up to 64MiB.
    policy_size "policy-size" ["SIZE"]: usize = "64MiB", size_parser(1_024, 64 << 20), Plain, [];
    /// Allow several files for one domain.
    merge_domain_config "merge-domain-config" ["true|false"]: bool = "false", parse_flag, Plain, ["MERGE_DOMAIN_CONFIG"];

    section "Control plane";
    /// Source of policies: file, or grpc_xds_sotw (a control plane).
    config_type "config-type" [PolicySourceKind::KEYWORDS]: PolicySourceKind = "file", keyword_parser(&PolicySourceKind::ALL, &PolicySourceKind::NAMES), Plain, ["CONFIG_TYPE"];
    /// YAML file with defaults for policy keys that have no field in the control plane's messages.
    policy_defaults "policy-defaults" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, [];
    /// File with overrides, as `tidegate override export` prints; read again every second. Overrides
    /// set at run time take precedence.
    overrides "overrides" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, [];
    /// Address of the control plane, as host:port.
    xds_server "xds-server" ["HOST:PORT"]: (String, u16) = "localhost:18000", parse_server, Address, ["CONFIG_GRPC_XDS_SERVER_URL"];
    /// xDS node id that this client sends to the control plane, which may select a policy by it.
    xds_node_id "xds-node-id" ["ID"]: String = "default", parse_text, Plain, ["CONFIG_GRPC_XDS_NODE_ID"];
    /// Metadata of this client for the control plane: name=value, separated by commas.
    xds_node_metadata "xds-node-metadata" ["NAME=VALUE,…"]: Vec<(String, String)> = "", pairs_parser('='), Plain, ["CONFIG_GRPC_XDS_NODE_METADATA"];
    /// Headers of the stream to the control plane: name:value, separated by commas.
    xds_headers "xds-headers" ["NAME:VALUE,…"]: SecretText = "", parse_header_list, Hidden, ["CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"];
    /// Connect to the control plane with TLS.
    xds_tls "xds-tls" ["true|false"]: bool = "false", parse_flag, Plain, ["CONFIG_GRPC_XDS_SERVER_USE_TLS"];
    /// Client certificate for the control plane, PEM; read again when it changes.
    xds_tls_cert "xds-tls-cert" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["CONFIG_GRPC_XDS_CLIENT_TLS_CERT"];
    /// Private key of the client certificate for the control plane, PEM.
    xds_tls_key "xds-tls-key" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["CONFIG_GRPC_XDS_CLIENT_TLS_KEY"];
    /// PEM file with the CA certificates that verify the control plane; if empty, the system's CA
    /// certificates are used.
    xds_tls_cacert "xds-tls-cacert" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["CONFIG_GRPC_XDS_SERVER_TLS_CACERT"];
    /// Name that the control plane's certificate must have; if empty, the host of --xds-server.
    xds_tls_san "xds-tls-san" ["NAME"]: String = "", parse_text, Plain, ["CONFIG_GRPC_XDS_SERVER_TLS_SAN"];
    /// Maximum size of a response from the control plane.
    xds_message_size "xds-message-size" ["SIZE"]: usize = "16MiB", size_parser(1_024, 1 << 30), Plain, ["XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"];
    /// Start without waiting for the first policy from the control plane; until it arrives, every
    /// call is answered with OK.
    force_start_without_initial_config "force-start-without-initial-config" ["true|false"]: bool = "false", parse_flag, Plain, ["FORCE_START_WITHOUT_INITIAL_CONFIG"];
    /// Become ready only after the control plane has sent the first policy.
    healthy_with_at_least_one_config_loaded "healthy-with-at-least-one-config-loaded" ["true|false"]: bool = "false", parse_flag, Plain, ["HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"];

    section "Ports";
    /// Address of the gRPC port.
    grpc_host "grpc-host" ["HOST"]: String = "0.0.0.0", parse_host, Address, ["GRPC_HOST"];
    /// The gRPC port; 0 picks a free one.
    grpc_port "grpc-port" ["PORT"]: u16 = "8081", number_parser(0, 65_535), Plain, ["GRPC_PORT"];
    /// Path of a Unix socket on which to serve gRPC instead of on the gRPC port.
    grpc_uds "grpc-uds" ["SOCKET"]: Option<PathBuf> = "", parse_path, Plain, ["GRPC_UDS"];
    /// Address of the HTTP port (probes, metrics, /json, /authz).
    http_host "http-host" ["HOST"]: String = "0.0.0.0", parse_host, Address, ["HOST"];
    /// The HTTP port; 0 picks a free one.
    http_port "http-port" ["PORT"]: u16 = "8080", number_parser(0, 65_535), Plain, ["PORT"];
    /// Address of the debug port.
    debug_host "debug-host" ["HOST"]: String = "127.0.0.1", parse_host, Address, ["DEBUG_HOST"];
    /// The debug port; 0 picks a free one.
    debug_port "debug-port" ["PORT"]: u16 = "6070", number_parser(0, 65_535), Plain, ["DEBUG_PORT"];
    /// File with the token for changes on the debug port; without it, the port is read-only.
    debug_token_file "debug-token-file" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, [];
    /// How the debug port displays the values of keys in /top: hashed (only the counter's hash) or
    /// shortened (the first 24 bytes).
    top_values "top-values" [ValueDisplay::KEYWORDS]: ValueDisplay = "hashed", keyword_parser(&ValueDisplay::ALL, &ValueDisplay::NAMES), Plain, [];
    /// Debug ports of all replicas, separated by commas, over which /top then adds up. A host may be a
    /// name with many addresses, such as a headless Service.
    peers "peers" ["HOST:PORT,…"]: Vec<(String, u16)> = "", parse_peers, Address, [];
    /// Also serve metrics on --prometheus-addr.
    use_prometheus "use-prometheus" ["true|false"]: bool = "false", parse_flag, Plain, ["USE_PROMETHEUS"];
    /// Address of the additional metrics port.
    prometheus_addr "prometheus-addr" ["HOST:PORT"]: (String, u16) = ":9090", parse_address, Address, ["PROMETHEUS_ADDR"];
    /// Path of the metrics on --prometheus-addr.
    prometheus_path "prometheus-path" ["PATH"]: String = "/metrics", parse_text, Plain, ["PROMETHEUS_PATH"];
    /// Also export metrics under the Prometheus names of envoyproxy/ratelimit.
    ratelimit_metric_names "ratelimit-metric-names" ["true|false"]: bool = "false", parse_flag, Plain, [];
    /// Serve /json and /authz on the HTTP port: auto (off if client certificates are required), on, off.
    json "json" [OnOff::KEYWORDS]: OnOff = "auto", parse_on_off, Plain, [];

    section "TLS on the gRPC port";
    /// Use TLS on the gRPC port.
    grpc_server_use_tls "grpc-server-use-tls" ["true|false"]: bool = "false", parse_flag, Plain, ["GRPC_SERVER_USE_TLS"];
    /// Certificate chain of the gRPC port, PEM.
    grpc_server_tls_cert "grpc-server-tls-cert" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["GRPC_SERVER_TLS_CERT"];
    /// Private key of the gRPC port's certificate, PEM.
    grpc_server_tls_key "grpc-server-tls-key" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["GRPC_SERVER_TLS_KEY"];
    /// CA of client certificates, PEM; if set, clients must present a certificate.
    grpc_client_tls_cacert "grpc-client-tls-cacert" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["GRPC_CLIENT_TLS_CACERT"];
    /// DNS name required in client certificates.
    grpc_client_tls_san "grpc-client-tls-san" ["NAME"]: String = "", parse_text, Plain, ["GRPC_CLIENT_TLS_SAN"];
    /// Domains that callers may use, by the names in their certificates, each with its permissions
    /// refund, peek, limits (`edge=a.test,spiffe://b:refund,limits; *=c.test`); if empty, every
    /// caller may use every domain.
    grpc_client_domains "grpc-client-domains" ["GRANTS"]: Vec<DomainGrant> = "", parse_grants, Plain, [];

    /// Serve tidegate.v1.Limits: batches of decisions (Check), and the methods of --counter-access.
    batches "batches" ["true|false"]: bool = "true", parse_flag, Plain, [];
    /// Access of callers to the counters of their domains through tidegate.v1.Limits: off, read
    /// (Peek, ReadCounters), write (also Refund, ResetCounters).
    counter_access "counter-access" [CounterAccess::KEYWORDS]: CounterAccess = "off", keyword_parser(&CounterAccess::ALL, &CounterAccess::NAMES), Plain, [];
    /// Let callers without a grant refund hits (negative hits, Refund, ResetCounters).
    refunds "refunds" ["true|false"]: bool = "true", parse_flag, Plain, [];
    /// Let callers without a grant read a counter without charging it (0 hits, Peek, ReadCounters).
    peeks "peeks" ["true|false"]: bool = "true", parse_flag, Plain, [];
    /// Let callers without a grant send a limit that replaces that of the policy.
    request_limits "request-limits" ["true|false"]: bool = "true", parse_flag, Plain, [];

    section "gRPC server";
    /// Worker threads for gRPC; 0 starts one per core of the machine or container.
    threads "threads" ["NUMBER"]: usize = "0", number_parser(0, 1_024), Plain, [];
    /// Maximum number of open gRPC connections; each further connection replaces the one that has
    /// been idle longest.
    connections "connections" ["NUMBER"]: usize = "10000", number_parser(1, 1_000_000), Plain, [];
    /// Maximum number of calls in flight per gRPC connection that the client is told; it queues
    /// further calls. The server accepts at least 1024.
    streams "streams" ["NUMBER"]: u32 = "250", number_parser(1, 100_000), Plain, [];
    /// Maximum size of the message of a gRPC call and of the body of a /json request.
    message_size "message-size" ["SIZE"]: usize = "1MiB", size_parser(65_536, 4 << 20), Plain, [];
    /// Maximum number of descriptors in a call; a call with more fails, and Envoy's default is to
    /// let such a request pass.
    descriptors "descriptors" ["NUMBER"]: usize = "2048", number_parser(1, 2_048), Plain, [];
    /// Maximum number of entries in a descriptor.
    entries "entries" ["NUMBER"]: usize = "160", number_parser(1, 160), Plain, [];
    /// Maximum number of limits that a call checks.
    checks "checks" ["NUMBER"]: usize = "2048", number_parser(1, 2_048), Plain, [];
    /// Age of a gRPC connection at which its client is asked to reconnect, to spread load; 0s
    /// disables this.
    grpc_max_connection_age "grpc-max-connection-age" ["DURATION"]: Duration = "24h", duration_parser(0, 30 * DAY_MS), Plain, ["GRPC_MAX_CONNECTION_AGE"];
    /// Time between SIGTERM (health turns NOT_SERVING) and closing connections.
    drain_delay "drain-delay" ["DURATION"]: Duration = "5s", duration_parser(0, 600_000), Plain, [];
    /// Maximum time between SIGTERM and exit.
    hard_limit "hard-limit" ["DURATION"]: Duration = "25s", duration_parser(100, 3_600_000), Plain, [];

    section "Counters";
    /// Maximum number of counters in memory.
    max_keys "max-keys" ["NUMBER"]: usize = "1000000", number_parser(1_024, 1_000_000_000), Plain, [];
    /// Secret key of the hash in counter keys; must be the same on every replica.
    key_secret "key-secret" ["SECRET"]: SecretText = "", parse_secret, Hidden, [];
    /// File with the key secret.
    key_secret_file "key-secret-file" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, [];
    /// Maximum time that a call waits for Redis; at most four fifths of the call's deadline.
    redis_budget "redis-budget" ["DURATION"]: Duration = "100ms", duration_parser(1, 60_000), Plain, [];
    /// Exit if Redis is not reached within ten seconds of startup.
    require_redis "require-redis" ["true|false"]: bool = "false", parse_flag, Plain, [];
    /// Number of replicas; while Redis is down, each enforces its share of the limits, and each
    /// prepays at most its share of the hits. If empty, replicas count each other in Redis.
    replicas "replicas" ["NUMBER"]: Option<u32> = "", parse_replicas, Plain, [];
    /// Prefix of every key in Redis.
    cache_key_prefix "cache-key-prefix" ["PREFIX"]: String = "", parse_key_prefix, Plain, ["CACHE_KEY_PREFIX"];
    /// Cache rejections and repeat them without asking Redis until their retry-after time has
    /// passed, for at most one second.
    rejection_cache "rejection-cache" ["true|false"]: bool = "true", parse_flag, Plain, [];

    section "Redis";
    /// Address of Redis: host:port, redis://, rediss://, or a Unix socket; for sentinel and
    /// cluster, a list separated by commas.
    redis_url "redis-url" ["ADDRESS"]: SecretText = "", parse_secret_line, Address, ["REDIS_URL"];
    /// Redis topology: single, sentinel (--redis-url lists the master's name, then the sentinels),
    /// or cluster (--redis-url lists nodes).
    redis_type "redis-type" [RedisType::KEYWORDS]: RedisType = "single", keyword_parser(&RedisType::ALL, &RedisType::NAMES), Plain, ["REDIS_TYPE"];
    /// Redis password, or user:password.
    redis_auth "redis-auth" ["PASSWORD"]: SecretText = "", parse_secret, Hidden, ["REDIS_AUTH"];
    /// File with the Redis password, or user:password; read again every second.
    redis_auth_file "redis-auth-file" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, [];
    /// Password of the sentinels, or user:password.
    redis_sentinel_auth "redis-sentinel-auth" ["PASSWORD"]: SecretText = "", parse_secret, Hidden, ["REDIS_SENTINEL_AUTH"];
    /// Connect to Redis with TLS.
    redis_tls "redis-tls" ["true|false"]: bool = "false", parse_flag, Plain, ["REDIS_TLS"];
    /// PEM file with the CA certificates that verify the Redis server's certificate, or with the
    /// server's own self-signed certificate; if empty, the system's CA certificates are used.
    redis_tls_cacert "redis-tls-cacert" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["REDIS_TLS_CACERT"];
    /// Client certificate for Redis, PEM.
    redis_tls_client_cert "redis-tls-client-cert" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["REDIS_TLS_CLIENT_CERT"];
    /// Private key of the Redis client certificate, PEM.
    redis_tls_client_key "redis-tls-client-key" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, ["REDIS_TLS_CLIENT_KEY"];
    /// Accept a Redis server certificate that was issued for another host name.
    redis_tls_skip_hostname_verification "redis-tls-skip-hostname-verification" ["true|false"]: bool = "false", parse_flag, Plain, ["REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"];
    /// Number of connections to each Redis server; calls share them, so a few are enough.
    redis_pool_size "redis-pool-size" ["NUMBER"]: usize = "2", number_parser(1, 1_024), Plain, ["REDIS_POOL_SIZE"];
    /// Timeout for connecting to Redis; the timeout for calls is --redis-budget.
    redis_timeout "redis-timeout" ["DURATION"]: Duration = "1s", duration_parser(10, 60_000), Plain, ["REDIS_TIMEOUT"];

    section "Decisions and responses";
    /// Decide and count as usual, but let every call pass.
    shadow_mode "shadow-mode" ["true|false"]: bool = "false", parse_flag, Plain, ["SHADOW_MODE"];
    /// Hits that are charged even beyond a limit, for domains and limits without `charge`: admitted
    /// (none), billed (those from a descriptor's own hits_addend), always (all).
    charge "charge" [Charge::KEYWORDS]: Charge = "admitted", keyword_parser(&Charge::ALL, &Charge::NAMES), Plain, [];
    /// Treat every descriptor as a quota descriptor.
    quota_mode "quota-mode" ["true|false"]: bool = "false", parse_flag, Plain, ["QUOTA_MODE"];
    /// Fraction of a limit above which hits count as near the limit, 0 to 1.
    near_limit_ratio "near-limit-ratio" ["RATIO"]: f64 = "0.8", parse_ratio, Plain, ["NEAR_LIMIT_RATIO"];
    /// Family of rate limit headers to send: none, ratelimit, x-ratelimit, both.
    headers "headers" [HeaderFamily::KEYWORDS]: HeaderFamily = "none", keyword_parser(&HeaderFamily::ALL, &HeaderFamily::NAMES), Plain, [];
    /// Send limit headers under the names in --limit-limit-header, --limit-remaining-header and
    /// --limit-reset-header.
    limit_response_headers_enabled "limit-response-headers-enabled" ["true|false"]: bool = "false", parse_flag, Plain, ["LIMIT_RESPONSE_HEADERS_ENABLED"];
    /// Name of the header with the limit.
    limit_limit_header "limit-limit-header" ["NAME"]: String = "RateLimit-Limit", parse_text, Plain, ["LIMIT_LIMIT_HEADER"];
    /// Name of the header with the remaining hits.
    limit_remaining_header "limit-remaining-header" ["NAME"]: String = "RateLimit-Remaining", parse_text, Plain, ["LIMIT_REMAINING_HEADER"];
    /// Name of the header with the time of the reset.
    limit_reset_header "limit-reset-header" ["NAME"]: String = "RateLimit-Reset", parse_text, Plain, ["LIMIT_RESET_HEADER"];
    /// Format of the reset header: seconds (from now) or unix (since 1970); RateLimit-Reset is always in seconds.
    header_reset "header-reset" [ResetFormat::KEYWORDS]: ResetFormat = "seconds", keyword_parser(&ResetFormat::ALL, &ResetFormat::NAMES), Plain, [];
    /// Format of Retry-After on rejections: off, seconds, date.
    retry_after "retry-after" ["off|seconds|date"]: Option<RetryAfterFormat> = "seconds", keyword_parser(&[None, Some(RetryAfterFormat::Seconds), Some(RetryAfterFormat::HttpDate)], &["off", "seconds", "date"]), Plain, [];
    /// Lengthen Retry-After at random by up to this percentage, to spread retries.
    retry_after_spread "retry-after-spread" ["PERCENT"]: u8 = "0", number_parser(0, 100), Plain, [];
    /// Header for the name of the exceeded limit, sent with rejections; if empty, no header is
    /// sent.
    limit_name_header "limit-name-header" ["NAME"]: String = "", parse_text, Plain, [];
    /// Send a JSON body with rejections for which the policy has none.
    rejection_body "rejection-body" ["true|false"]: bool = "false", parse_flag, Plain, [];
    /// Add dynamic metadata in the format of envoyproxy/ratelimit.
    response_dynamic_metadata "response-dynamic-metadata" ["true|false"]: bool = "false", parse_flag, Plain, ["RESPONSE_DYNAMIC_METADATA"];

    section "Metrics, traces, and logs";
    /// OTLP collector for metrics and traces, such as http://collector:4317. Everything else about
    /// the export is set by the variables of OpenTelemetry, such as OTEL_EXPORTER_OTLP_PROTOCOL.
    otlp_endpoint "otlp-endpoint" ["URL"]: String = "", parse_otlp_url, Address, ["OTEL_EXPORTER_OTLP_ENDPOINT"];
    /// Fraction of calls that are traced, 0 to 1.
    traces_ratio "traces-ratio" ["RATIO"]: f64 = "0.01", parse_ratio, Plain, ["OTEL_TRACES_SAMPLER_ARG", "TRACING_SAMPLING_RATE"];
    /// Least severe level that is logged: off, error, warn, info, debug, trace.
    log_level "log-level" ["off|panic|fatal|error|warning|warn|info|debug|trace"]: Verbosity = "info", keyword_parser(&LEVELS, &LEVEL_NAMES), Plain, ["LOG_LEVEL"];
    /// Log format: text or json.
    log_format "log-format" [LineFormat::KEYWORDS]: LineFormat = "text", keyword_parser(&LineFormat::ALL, &LineFormat::NAMES), Plain, ["LOG_FORMAT"];

    section "Tests";
    /// Interval at which Redis is asked for INFO. Not documented: only the tests of Tidegate set it,
    /// because they cannot wait so long.
    test_info_poll "TIDEGATE_TEST_INFO_POLL" ["DURATION"]: Duration = "10s", duration_parser(50, 3_600_000), Plain, [];

    section "Environment variables without a flag";
    /// Shared store of the counters: redis is the only one.
    backend_type "BACKEND_TYPE" ["redis"]: () = "redis", parse_backend, Plain, [];
    /// Root directory of an envoyproxy/ratelimit configuration; ignored if --policy is set.
    runtime_root "RUNTIME_ROOT" ["DIR"]: Option<PathBuf> = "", parse_path, Plain, [];
    /// Directory below RUNTIME_ROOT that contains RUNTIME_APPDIRECTORY.
    runtime_subdirectory "RUNTIME_SUBDIRECTORY" ["DIR"]: String = "", parse_text, Plain, [];
    /// Directory below RUNTIME_SUBDIRECTORY that contains the policy files.
    runtime_appdirectory "RUNTIME_APPDIRECTORY" ["DIR"]: String = "config", parse_text, Plain, [];
    /// Ignore files and directories below RUNTIME_ROOT that start with a dot.
    runtime_ignoredotfiles "RUNTIME_IGNOREDOTFILES" ["true|false"]: bool = "true", parse_flag, Plain, [];
    /// Fixed wait after a failed attempt to connect to the control plane; with 0s, the wait grows
    /// from XDS_CLIENT_BACKOFF_INITIAL_INTERVAL to XDS_CLIENT_BACKOFF_MAX_INTERVAL.
    xds_connect_retry "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL" ["DURATION"]: Duration = "0s", duration_parser(0, 3_600_000), Plain, [];
    /// Wait before the first attempt to reconnect to the control plane; doubles with each failure.
    xds_backoff_initial "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" ["DURATION"]: Duration = "500ms", duration_parser(10, 3_600_000), Plain, [];
    /// Maximum wait before an attempt to reconnect to the control plane.
    xds_backoff_max "XDS_CLIENT_BACKOFF_MAX_INTERVAL" ["DURATION"]: Duration = "5s", duration_parser(10, 3_600_000), Plain, [];
    /// Jitter: maximum fraction of each wait, from 0 to 1, by which it is shortened at random.
    xds_backoff_random "XDS_CLIENT_BACKOFF_RANDOM_FACTOR" ["RATIO"]: f64 = "0.5", parse_ratio, Plain, [];
    /// Shorten each wait between attempts by a random amount, so that replicas do not all reconnect together.
    xds_backoff_jitter "XDS_CLIENT_BACKOFF_JITTER" ["true|false"]: bool = "true", parse_flag, Plain, [];
    /// OTLP collector for metrics, if different from --otlp-endpoint.
    otlp_metrics_endpoint "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" ["URL"]: String = "", parse_otlp_url, Address, [];
    /// OTLP collector for traces, if different from --otlp-endpoint.
    otlp_traces_endpoint "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" ["URL"]: String = "", parse_otlp_url, Address, [];
    /// Headers for OTLP requests: name=value, separated by commas.
    otlp_headers "OTEL_EXPORTER_OTLP_HEADERS" ["NAME=VALUE,…"]: SecretText = "", parse_secret, Hidden, [];
    /// CA of the collectors' certificates, PEM; if empty, the system's CAs are used.
    otlp_certificate "OTEL_EXPORTER_OTLP_CERTIFICATE" ["FILE"]: Option<PathBuf> = "", parse_path, Plain, [];
    /// OTLP protocol: grpc, http/protobuf (or http); with any other value nothing is sent.
    otlp_protocol "OTEL_EXPORTER_OTLP_PROTOCOL" ["grpc|http/protobuf"]: String = "grpc", parse_text, Plain, ["TRACING_EXPORTER_PROTOCOL"];
    /// Timeout of OTLP requests; a number without a unit is in milliseconds.
    otlp_timeout "OTEL_EXPORTER_OTLP_TIMEOUT" ["DURATION"]: Duration = "10s", duration_or_millis_parser(1, 600_000), Plain, [];
    /// Interval of metric exports; a number without a unit is in milliseconds.
    otlp_metrics_interval "OTEL_METRIC_EXPORT_INTERVAL" ["DURATION"]: Duration = "60s", duration_or_millis_parser(100, 3_600_000), Plain, [];
    /// Metrics exporter, otlp or none; /metrics works with either.
    metrics_exporter "OTEL_METRICS_EXPORTER" ["otlp|none"]: bool = "otlp", keyword_parser(&[true, false], &["otlp", "none"]), Plain, [];
    /// Whether to export traces: auto (if a collector for them is configured), on (to localhost if
    /// none is configured), off.
    tracing_enabled "TRACING_ENABLED" ["auto|on|off"]: OnOff = "auto", parse_on_off, Plain, [];
    /// Traces exporter, otlp or none.
    traces_exporter "OTEL_TRACES_EXPORTER" ["otlp|none"]: bool = "otlp", keyword_parser(&[true, false], &["otlp", "none"]), Plain, [];
    /// Trace sampler; the default follows the sampling decision of the caller's trace context, and
    /// samples --traces-ratio of the calls without one.
    traces_sampler "OTEL_TRACES_SAMPLER" ["SAMPLER"]: TraceSampler = "parentbased_traceidratio", TraceSampler::parse, Plain, [];
    /// Service name in metrics and traces.
    service_name "OTEL_SERVICE_NAME" ["NAME"]: String = "tidegate", parse_text, Plain, ["TRACING_SERVICE_NAME"];
    /// Namespace of the service in metrics and traces (service.namespace).
    service_namespace "TRACING_SERVICE_NAMESPACE" ["NAME"]: String = "", parse_text, Plain, [];
    /// Id of this process in metrics and traces (service.instance.id); if empty, a random one.
    service_instance_id "TRACING_SERVICE_INSTANCE_ID" ["ID"]: String = "", parse_text, Plain, [];
    /// Resource attributes: name=value, separated by commas.
    resource_attributes "OTEL_RESOURCE_ATTRIBUTES" ["NAME=VALUE,…"]: String = "", parse_text, Plain, [];
    /// Disable OTLP export.
    otel_sdk_disabled "OTEL_SDK_DISABLED" ["true|false"]: bool = "false", parse_flag, Plain, [];
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_default_is_within_its_bounds() {
        let (settings, values) = Settings::read(&Sources::default()).unwrap();
        assert_eq!(settings.grpc_port, 8081);
        assert_eq!(values.len(), TABLE.len());
    }

    #[test]
    fn the_names_of_a_row_are_consistent_and_unique() {
        let mut names = BTreeSet::new();
        for row in TABLE {
            let is_consistent = row.field.replace('_', "-") == row.name || !row.has_flag();
            assert!(is_consistent, "{}", row.name);
            assert!(row.help.ends_with('.'), "{}: help is a sentence", row.name);
            assert!(names.insert(row.variable()), "{} twice", row.name);
            for compat in row.compat_names {
                assert!(names.insert((*compat).to_owned()), "{compat} twice");
            }
        }
    }

    #[test]
    fn every_invalid_setting_is_reported() {
        let flags = [("grpc-port", "70000"), ("drain-delay", "5"), ("redis-type", "disk")];
        let errors = Settings::read(&Sources::from_flags(&flags)).unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[0].to_string().contains("--grpc-port (from flag): \"70000\""));
    }
}
