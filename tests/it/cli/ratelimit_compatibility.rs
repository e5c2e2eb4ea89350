//! Tidegate in place of the envoyproxy/ratelimit image: its program name, its environment, its file
//! layout.

use std::path::Path;

use crate::control_plane::served::{self, envoy_gateway_environment};
use crate::support::certificate_authority::Authority;
use crate::support::http::get;
use crate::support::redis_server::Server as RedisServer;
use crate::support::tidegate_process::{
    FIVE_A_DAY, Tidegate, directory, linked, ran, run, tidegate,
};

/// Each of its settings that we honour, with a value that is neither side's default.
const HONOURED: &[(&str, &str)] = &[
    ("HOST", "127.0.0.1"),
    ("PORT", "18080"),
    ("GRPC_HOST", "127.0.0.1"),
    ("GRPC_PORT", "18081"),
    ("GRPC_UDS", "/tmp/sock"),
    ("DEBUG_HOST", "127.0.0.2"),
    ("DEBUG_PORT", "16070"),
    ("REDIS_TYPE", "CLUSTER"),
    ("REDIS_URL", "redis:6379,redis2:6379"),
    ("REDIS_AUTH", "password"),
    ("REDIS_SENTINEL_AUTH", "password"),
    ("REDIS_TLS", "true"),
    ("REDIS_TLS_CACERT", "/ca.pem"),
    ("REDIS_TLS_CLIENT_CERT", "/cert.pem"),
    ("REDIS_TLS_CLIENT_KEY", "/key.pem"),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
    ("REDIS_POOL_SIZE", "11"),
    ("REDIS_TIMEOUT", "9s"),
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_APPDIRECTORY", "limits"),
    ("RUNTIME_IGNOREDOTFILES", "false"),
    ("LOG_LEVEL", "debug"),
    ("LOG_FORMAT", "json"),
    ("CACHE_KEY_PREFIX", "prod:"),
    ("NEAR_LIMIT_RATIO", "0.7"),
    ("SHADOW_MODE", "true"),
    ("QUOTA_MODE", "true"),
    ("MERGE_DOMAIN_CONFIG", "true"),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
    ("LIMIT_LIMIT_HEADER", "x-limit"),
    ("LIMIT_REMAINING_HEADER", "x-remaining"),
    ("LIMIT_RESET_HEADER", "x-reset"),
    ("RESPONSE_DYNAMIC_METADATA", "true"),
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/s.pem"),
    ("GRPC_SERVER_TLS_KEY", "/s.key"),
    ("GRPC_CLIENT_TLS_CACERT", "/c.pem"),
    ("GRPC_CLIENT_TLS_SAN", "envoy"),
    ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_ADDR", ":19090"),
    ("PROMETHEUS_PATH", "/m"),
    ("TRACING_ENABLED", "true"),
    ("TRACING_EXPORTER_PROTOCOL", "grpc"),
    ("TRACING_SERVICE_NAME", "limits"),
    ("TRACING_SERVICE_NAMESPACE", "edge"),
    ("TRACING_SERVICE_INSTANCE_ID", "1"),
    ("TRACING_SAMPLING_RATE", "0.5"),
];

#[test]
fn every_supported_variable_of_ratelimit_takes_effect() {
    let mut command = tidegate();
    command.args(["serve", "--print-settings"]).envs(HONOURED.iter().copied());
    let printed = ran(&mut command).with_code(0).out;
    for (name, _) in HONOURED {
        assert!(printed.contains(&format!("  # environment {name}\n")), "{name}:\n{printed}");
    }
}

#[test]
fn a_setting_that_would_change_decisions_ends_with_64_and_advice() {
    let cases = [
        ("BACKEND_TYPE", "memcache", "unset BACKEND_TYPE and set REDIS_URL=HOST:PORT"),
        ("CONFIG_TYPE", "GRPC_XDS_DELTA", "grpc_xds_sotw"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW", "the policy comes from the control plane"),
        ("CACHE_KEY_PREFIX", "a{b}", "must not contain braces"),
        ("CACHE_KEY_PREFIX", "a b", "blanks"),
        ("CACHE_KEY_PREFIX", "a\u{7}b", "control characters"),
    ];
    for (name, value, way_out) in cases {
        let files = directory(&[("p.yaml", FIVE_A_DAY)]);
        let mut command = tidegate();
        command.args(["serve", "--policy"]).arg(files.path()).env(name, value);
        let ran = ran(&mut command).with_code(64);
        assert!(ran.err.contains(way_out), "{name}={value}: {}", ran.err);
    }
}

#[test]
fn an_ignored_variable_of_ratelimit_is_logged_at_the_start() {
    let theirs = [("USE_STATSD", "true"), ("DISABLE_STATS", "false")];
    let serving = Tidegate::with_files(&[("policy.yaml", FIVE_A_DAY)], &[], &theirs);
    let log = serving.log();
    assert!(log.contains("USE_STATSD") && !log.contains("DISABLE_STATS"), "{log}");
}

/// Their layout: ROOT/SUBDIRECTORY/APPDIRECTORY, with files of any name.
fn their_files() -> tempfile::TempDir {
    directory(&[
        ("data/ratelimit/config/limits.conf", FIVE_A_DAY),
        ("data/ratelimit/config/more/x", &FIVE_A_DAY.replace("edge", "other")),
        ("data/ratelimit/config/..2026/limits.conf", FIVE_A_DAY),
        ("data/ratelimit/elsewhere.yaml", "not: a policy"),
    ])
}

#[test]
fn called_as_ratelimit_it_serves_the_policy_of_runtime_root() {
    let files = their_files();
    let mut command = linked(&files.path().join("ratelimit"));
    command.env("RUNTIME_ROOT", files.path().join("data"));
    command.env("RUNTIME_SUBDIRECTORY", "ratelimit");
    let serving = Tidegate::start(&mut command, files);
    assert_eq!(serving.logged_in_time("ready")["files"], 2);
    assert!(serving.ask("ann").contains("4 left"));
    assert_eq!(
        get(serving.port("debug"), "/rlconfig").body.lines().next(),
        Some("edge.client: unit=YEAR requests_per_unit=5, shadow_mode: false, quota_mode: false")
    );
}

#[test]
fn without_a_subcommand_while_runtime_root_is_set_it_serves() {
    let files = their_files();
    let mut command = tidegate();
    command.env("RUNTIME_ROOT", files.path().join("data"));
    command.env("RUNTIME_SUBDIRECTORY", "ratelimit");
    let serving = Tidegate::start(&mut command, files);
    assert!(serving.ask("ann").contains("4 left"));
    let notice = serving.logged("risky setting").expect("a warning");
    assert_eq!(notice["name"], "REDIS_URL", "counting in memory is said");
}

/// The environment that Envoy Gateway gives its rate limit service, but for the control plane.
fn environment_of_envoy_gateway(files: &Path, redis: &RedisServer) -> Vec<(&'static str, String)> {
    let (root, url) = (files.join("data"), format!("127.0.0.1:{}", redis.port));
    let all = envoy_gateway_environment("", &url, &files.join("certs"));
    let ours = [
        ("RUNTIME_ROOT", root.to_str().expect("UTF-8")),
        ("TRACING_ENABLED", "true"),
        ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
        ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
        ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-0"),
        ("TRACING_SAMPLING_RATE", "0.6"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"),
    ];
    let without_plane = all.into_iter().filter(|(name, _)| !name.starts_with("CONFIG_"));
    without_plane.chain(ours.map(|(name, text)| (name, text.to_owned()))).collect()
}

/// Writes a CA's certificate and a certificate for a name as Kubernetes mounts them, below `certs`.
fn write_certificates(files: &Path, name: &str) {
    let authority = Authority::new();
    served::write_certificates(&files.join("certs"), &authority, &authority.signs(name));
}

#[test]
fn redis_over_tls_gets_the_client_certificate_that_the_variables_name() {
    let files = their_files();
    write_certificates(files.path(), "localhost");
    let path = |name: &str| files.path().join("certs").join(name).display().to_string();
    let (ca, cert, key) = (path("ca.crt"), path("tls.crt"), path("tls.key"));
    let redis = RedisServer::start(&[
        "port 0",
        "tls-port {port}",
        "tls-auth-clients yes",
        &format!("tls-ca-cert-file {ca}"),
        &format!("tls-cert-file {cert}"),
        &format!("tls-key-file {key}"),
    ]);
    let mut command = tidegate();
    command.env("RUNTIME_ROOT", files.path().join("data"));
    command.envs([("RUNTIME_SUBDIRECTORY", "ratelimit"), ("REDIS_SOCKET_TYPE", "tcp")]);
    command.env("REDIS_URL", format!("localhost:{}", redis.port)).env("REDIS_TLS", "true");
    command.envs([("REDIS_TLS_CACERT", ca), ("REDIS_TLS_CLIENT_CERT", cert)]);
    command.env("REDIS_TLS_CLIENT_KEY", key);
    // For a busy machine.
    command.envs([("TIDEGATE_REDIS_BUDGET", "10s"), ("TIDEGATE_REQUIRE_REDIS", "true")]);
    let serving = Tidegate::start(&mut command, files);
    assert!(serving.ask("ann").contains("4 left"));
    let page = get(serving.port("http"), "/metrics").body;
    let by_redis = "tidegate_decisions_total{code=\"ok\",source=\"redis\"} 1";
    assert!(page.lines().any(|line| line == by_redis), "{page}");
}

#[test]
fn in_envoy_gateways_environment_it_starts_and_says_once_what_has_no_effect() {
    let (files, redis) = (their_files(), RedisServer::start(&[]));
    let name = "envoy-ratelimit.envoy-gateway-system.svc";
    write_certificates(files.path(), name);
    let mut command = linked(&files.path().join("ratelimit"));
    command.envs(environment_of_envoy_gateway(files.path(), &redis));
    // An argument of Envoy AI Gateway's manifest.
    command.arg("--quotaRateLimitServiceAddr=envoy-ai-gateway-ratelimit:8081");
    let serving = Tidegate::start(&mut command, files);
    let log = serving.log();
    for name in ["GRPC_SERVER_TLS_CA_CERT", "--quotaRateLimitServiceAddr", "PROMETHEUS_MAPPER_YAML"]
    {
        assert_eq!(log.matches(&format!("\"{name}\"")).count(), 1, "{name}: {log}");
    }
    for (name, _) in environment_of_envoy_gateway(serving.directory(), &redis) {
        let has_effect = !["GRPC_SERVER_TLS_CA_CERT", "PROMETHEUS_MAPPER_YAML"].contains(&name)
            && !name.starts_with("FORCE_START");
        assert!(!has_effect || !log.contains(name), "{name}: {log}");
    }
    let ca = serving.directory().join("certs/ca.crt").display().to_string();
    let target = serving.port("grpc").to_string();
    let ask = ["ask", &target, "edge", "client=ann", "--ca", &ca, "--server-name", name];
    assert!(run(&ask).with_code(0).out.contains("4 left"), "no client certificate is needed");
}

#[test]
fn files_with_a_leading_dot_are_read_if_configured() {
    let files = their_files();
    let mut command = tidegate();
    command.env("RUNTIME_ROOT", files.path().join("data"));
    command.envs([("RUNTIME_SUBDIRECTORY", "ratelimit"), ("RUNTIME_IGNOREDOTFILES", "false")]);
    let ran = ran(&mut command).with_code(65);
    assert!(ran.err.contains("..2026"), "the domain stands twice: {}", ran.err);
}
