//! The binary as Envoy Gateway starts it, and what tests ask it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::certificate_authority::{Authority, Identity};
use crate::support::http::{get, post};
use crate::support::tidegate_process::{Tidegate, directory, linked, metric};
use crate::support::wait::until;

/// The binary under the name of the program that it replaces, without an environment. Envoy Gateway
/// runs `/bin/ratelimit`.
pub(crate) fn ratelimit(files: &TempDir) -> Command {
    linked(&files.path().join("ratelimit"))
}

/// Writes the files of Envoy Gateway's certificate volume.
pub(crate) fn write_certificates(directory: &Path, authority: &Authority, own: &Identity) {
    fs::create_dir_all(directory).unwrap();
    for (name, text) in
        [("ca.crt", &authority.certificate), ("tls.crt", &own.certificate), ("tls.key", &own.key)]
    {
        fs::write(directory.join(name), text).unwrap();
    }
}

/// The environment of Envoy Gateway's Deployment, letter for letter but for paths, ports, and the
/// address of Redis.
pub(crate) fn envoy_gateway_environment(
    server: &str,
    redis: &str,
    certificates: &Path,
) -> Vec<(&'static str, String)> {
    let file = |name: &str| certificates.join(name).display().to_string();
    let fixed = [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", server),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", redis),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ];
    let files = [
        ("GRPC_SERVER_TLS_CERT", file("tls.crt")),
        ("GRPC_SERVER_TLS_KEY", file("tls.key")),
        ("GRPC_SERVER_TLS_CA_CERT", file("ca.crt")),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", file("tls.crt")),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", file("tls.key")),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", file("ca.crt")),
    ];
    fixed.into_iter().map(|(name, text)| (name, text.to_owned())).chain(files).collect()
}

/// Serves with the policy of a control plane in plain text, in memory.
pub(crate) fn plain(server: &str, more: &[(&str, &str)], arguments: &[&str]) -> Tidegate {
    let files = directory(&[]);
    let mut command = crate::support::tidegate_process::tidegate();
    command
        .args(["serve", "--config-type", "grpc_xds_sotw", "--xds-server", server])
        .args(["--xds-node-id", "test"])
        .env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "50ms")
        .args(arguments)
        .envs(more.iter().copied());
    Tidegate::start(&mut command, files)
}

/// Asks `/json` once for a client: the status of the HTTP response.
pub(crate) fn ask(serving: &Tidegate, domain: &str, client: &str) -> u16 {
    let entries = json!([{ "key": "client", "value": client }]);
    let body = json!({ "domain": domain, "descriptors": [{ "entries": entries }] });
    post(serving.port("http"), "/json", &body.to_string()).status
}

/// The requests per unit of each rule in force, by its path.
pub(crate) fn rules(serving: &Tidegate) -> Vec<(String, u64)> {
    let policy: Value =
        serde_json::from_str(&get(serving.port("debug"), "/policy").body).expect("JSON");
    let rule = |rule: &Value| {
        let number = rule["limits"][0]["requests_per_unit"].as_u64().unwrap_or_default();
        (rule["rule"].as_str().unwrap_or_default().to_owned(), number)
    };
    policy["rules"].as_array().expect("rules").iter().map(rule).collect()
}

/// Waits until exactly these rules are in force.
pub(crate) fn enforces(serving: &Tidegate, expected: &[(&str, u64)]) {
    let expected: Vec<_> =
        expected.iter().map(|(path, number)| ((*path).to_owned(), *number)).collect();
    until(&format!("the rules {expected:?}"), || (rules(serving) == expected).then_some(()));
}

/// Waits until a metric has a value.
pub(crate) fn counts(serving: &Tidegate, name: &str, value: u64) {
    until(&format!("{name} {value}"), || (metric(serving, name) == value).then_some(()));
}

/// Waits until so many rules are in force.
pub(crate) fn enforces_count(serving: &Tidegate, count: usize) {
    until(&format!("{count} rules"), || (rules(serving).len() == count).then_some(()));
}
