//! Secrets appear on no port, in no log, in no error. And outside input cannot forge a line in a
//! log or on a terminal.

use std::fs;
use std::net::SocketAddr;

use crate::support::http::{get, send};
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, run, run_with, tidegate};
use crate::support::wait::until;

/// Every secret is made from this, so that one search finds any.
const SECRET: &str = "hunter2";

/// Everything that a process says to whoever asks.
fn pages(serving: &Tidegate) -> String {
    let of = |port: SocketAddr, paths: &[&str]| {
        paths.iter().map(|path| get(port, path).body).collect::<Vec<_>>().join("\n")
    };
    let public = ["/", "/healthz", "/readyz", "/healthcheck", "/metrics", "/json"];
    let debug =
        ["/", "/rlconfig", "/config", "/policy", "/counter", "/overrides", "/pprof", "/none"];
    let explained = "/explain?domain=edge&descriptor=client%3Dann";
    let texts = [
        of(serving.port("http"), &public),
        of(serving.port("debug"), &debug),
        of(serving.port("debug"), &[explained]),
        serving.log(),
    ];
    texts.join("\n")
}

#[test]
fn passwords_keys_and_tokens_are_on_no_page_and_in_no_log_even_where_they_are_wrong() {
    // A server that wants another password: what it says to ours is logged.
    let server = Server::start(&[]);
    server.ask(&["CONFIG", "SET", "requirepass", "quite-another"]);
    let files = directory(&[
        ("policy.yaml", FIVE_A_DAY),
        ("password", &format!("ann:{SECRET}-of-redis\n")),
        ("key", &format!("{SECRET}-of-keys\n")),
        ("token", &format!("{SECRET}-of-the-debug-port\n")),
    ]);
    let path = |name: &str| files.path().join(name).display().to_string();
    let mut command = tidegate();
    command.args(["serve", "--policy", &path("policy.yaml"), "--log-level", "trace"]);
    command.args(["--redis-url", &format!("127.0.0.1:{}", server.port)]);
    command.args(["--redis-auth-file", &path("password"), "--key-secret-file", &path("key")]);
    command.args(["--debug-token-file", &path("token")]);
    command.env("TIDEGATE_REDIS_SENTINEL_AUTH", format!("{SECRET}-of-sentinels"));
    let serving = Tidegate::start(&mut command, files);
    until("the login fails", || serving.logged("Redis denied the login or a command"));
    let order = format!(
        "POST /reset?domain=edge&descriptor=client%3Dann HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Length: 0\r\nAuthorization: Bearer {SECRET}-of-somebody\r\n\r\n"
    );
    assert!(matches!(send(serving.port("debug"), &order).status, 401 | 403));
    assert!(serving.ask("ann").starts_with("OK"));
    let said = pages(&serving);
    assert!(said.contains("redis-auth-file") && said.contains("tidegate_"), "{said}");
    assert!(!said.contains(SECRET), "{said}");
    // A password that was rotated to something that no file can be.
    let password = serving.directory().join("password");
    fs::remove_file(&password).unwrap();
    fs::create_dir(&password).unwrap();
    until("that is said", || serving.logged("cannot read the Redis password file"));
    assert!(!serving.log().contains(SECRET));
}

#[test]
fn a_file_that_was_named_by_mistake_is_not_quoted() {
    let secret = format!("{SECRET}\n{SECRET}");
    let files = [("policy.yaml", FIVE_A_DAY), ("secret", &*secret)];
    for arguments in [
        "serve --policy policy.yaml --grpc-server-use-tls --grpc-server-tls-cert secret \
         --grpc-server-tls-key secret --grpc-client-tls-cacert secret",
        "serve --policy policy.yaml --redis-url 127.0.0.1:1 --redis-tls --redis-tls-cacert secret",
        "serve --settings secret",
    ] {
        let ran = run_with(&files, &arguments.split(' ').collect::<Vec<_>>()).with_code(64);
        assert!(!ran.err.is_empty() && !ran.err.contains(SECRET), "{arguments:?}: {}", ran.err);
    }
}

/// Names that would forge a line, or colour or reorder what follows.
const FORGED: &str = "x\n{\"level\":\"ERROR\",\"message\":\"forged\"}\r\u{1b}[31m\u{7f}\u{85}\u{9b}31m\u{2028}\
                      \u{2029}\u{200e}\u{200f}\u{61c}\u{202a}\u{202e}\u{2066}\u{2069}";

/// What of it must not be printed as it is.
fn needs_escape(c: char) -> bool {
    FORGED.contains(c) && (c.is_control() || !c.is_ascii())
}

#[test]
fn a_name_cannot_write_a_line_of_its_own() {
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let policy = files.path().join("policy.yaml").display().to_string();
    let one_line = |what: &str, said: &str| {
        assert!(said.contains("forged"), "{what}: {said}");
        assert!(!said.lines().any(|line| line.starts_with('{')), "{what}: {said}");
        assert!(!said.contains(|c| c != '\n' && needs_escape(c)), "{what}: {said:?}");
    };
    let files_named =
        [["serve", "--settings", FORGED], ["serve", "--policy", FORGED], ["check", FORGED, FORGED]];
    for arguments in files_named {
        one_line(arguments[0], &run(&arguments).err);
    }
    let named =
        ["serve", "--policy", &policy, "--grpc-server-use-tls", "--grpc-server-tls-key", FORGED];
    one_line("a key", &run(&[&named[..], &["--grpc-server-tls-cert", FORGED]].concat()).err);
    one_line("a header", &run(&["serve", "--policy", &policy, "--limit-name-header", FORGED]).err);
    // A malformed address may contain a secret.
    let host = run(&["serve", "--policy", &policy, "--grpc-host", FORGED]).err;
    assert!(host.contains("(hidden)") && !host.contains("forged"), "{host}");
    one_line("a domain", &run(&["explain", "--policy", &policy, FORGED, "client=a"]).out);
}

#[test]
fn a_variable_of_the_environment_cannot_forge_a_line_of_the_log() {
    let variable = format!("TIDEGATE_{FORGED}");
    let serving = Tidegate::with_files(&[("policy.yaml", FIVE_A_DAY)], &[], &[(&variable, "1")]);
    let notice = serving.logged_in_time("unknown environment variable, ignored");
    assert!(notice["name"].as_str().is_some_and(|name| name.contains("forged")));
    assert!(serving.logged("forged").is_none());
    let log = serving.log();
    assert!(!log.contains(|c| c != '\n' && needs_escape(c)), "{log:?}");
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("{line}"));
    }
    assert_eq!(notice["name"], format!("TIDEGATE_{FORGED}"), "nothing of it is lost");
}

#[test]
fn a_policy_files_name_cannot_forge_a_line_of_a_log_in_text() {
    let name = format!("{FORGED}.yaml");
    let without_effect = format!("{FIVE_A_DAY}  - key: tenant\n");
    // No machine has this address, so that it ends.
    let nowhere = ["--grpc-host", "192.0.2.1"];
    let arguments = [&["serve", "--log-format", "text", "--policy", "."], &nowhere[..]].concat();
    let told = run_with(&[(&name, &without_effect)], &arguments).with_code(69).err;
    let warned = |line: &str| line.contains("policy warning") && line.contains("forged");
    assert!(told.lines().any(warned), "{told:?}");
    assert!(!told.contains(|c| c != '\n' && needs_escape(c)), "{told:?}");
}

#[test]
fn what_a_caller_writes_is_in_no_log() {
    let serving = Tidegate::policy(FIVE_A_DAY, &["--log-level", "trace"]);
    let values = ["plain-but-private", "203.0.113.99", "x\n{\"message\":\"forged\"}"];
    for value in values {
        for _ in 0..7 {
            serving.ask(value);
        }
    }
    let said = [serving.log(), get(serving.port("http"), "/metrics").body].concat();
    for value in ["plain-but-private", "203.0.113.99", "forged"] {
        assert!(!said.contains(value), "{value}: {said}");
    }
}

#[test]
fn a_header_that_envoy_would_not_check_ends_the_start() {
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let policy = files.path().join("policy.yaml").display().to_string();
    let settings = [
        "--limit-name-header",
        "--limit-limit-header",
        "--limit-remaining-header",
        "--limit-reset-header",
    ];
    let names = [
        "x\r\nset-cookie: a",
        "x y",
        ":status",
        "content-length",
        "transfer-encoding",
        "connection",
        "host",
        "x:",
        "\u{fc}",
    ];
    for setting in settings {
        for name in names {
            let arguments = ["--limit-response-headers-enabled", "true", setting, name];
            let ran = run(&[&["serve", "--policy", &policy][..], &arguments].concat());
            assert_eq!(ran.code, 64, "{setting} {name:?}: {}", ran.err);
        }
    }
    // And what a policy would put into one.
    let bodies = ["text/plain\\r\\nx: y", "text", "text/pl\\u00fcin"];
    for content_type in bodies {
        let text =
            format!("{FIVE_A_DAY}body: {{text: \"no\", content_type: \"{content_type}\"}}\n");
        run_with(&[("policy.yaml", &text)], &["check", "policy.yaml"]).with_code(65);
    }
}

#[test]
fn a_limits_name_is_made_harmless_before_it_is_a_header() {
    let name = "per \u{fc}ser: 100% \u{202e}";
    let policy = FIVE_A_DAY.replace("name: daily", &format!("name: \"{name}\""));
    let serving = Tidegate::policy(&policy, &["--limit-name-header", "x-limited-by"]);
    for _ in 0..5 {
        serving.ask("ann");
    }
    let told = serving.ask("ann");
    let header = told.lines().find(|line| line.contains("x-limited-by")).expect("the header");
    let value = header.split_once(": ").expect("a value").1;
    assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header}");
    assert!(value.contains("%C3%BC"), "{header}");
}

/// A value that places its counters in a slot is no exception.
#[test]
fn keys_in_redis_have_no_text_of_a_caller_one_length_and_an_end() {
    let server = Server::start(&[]);
    let policy = FIVE_A_DAY.replace("edge\n", "edge\nhash_tag: [client]\n");
    let address = format!("127.0.0.1:{}", server.port);
    let patient = ["--redis-url", &address, "--redis-budget", "10s", "--require-redis", "true"];
    let serving = Tidegate::policy(&policy, &patient);
    let long = "private-".repeat(4_000);
    for value in ["private-name", "{private-slot}", "203.0.113.99", &long] {
        assert!(serving.ask(value).contains("4 left"));
    }
    let keys: Vec<String> = redis::from_redis_value(server.ask(&["KEYS", "tg1w*"])).unwrap();
    assert_eq!(keys.len(), 4, "{keys:?}");
    for key in keys {
        assert!(!["private", "203.0", "client"].iter().any(|text| key.contains(text)), "{key}");
        assert_eq!(key.len(), "tg1w:{}:".len() + 2 * 22, "{key}");
        let left: i64 = redis::from_redis_value(server.ask(&["PTTL", &key])).unwrap();
        assert!(left > 0, "{key} has no end");
    }
}
