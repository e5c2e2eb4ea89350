//! Addresses of Redis, the control plane, and collectors: passwords in them log in, and appear nowhere.

use std::fmt::Write as _;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use proptest::prelude::*;
use proptest::sample::select;
use tidegate::settings::{Settings, Sources, TABLE, find_notices, report};

use crate::support::http::get;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, ran, run, tidegate};

/// Serves on this Redis, and waits until it is connected or known to be unreachable.
fn serving(environment: &[(&str, &str)]) -> Tidegate {
    Tidegate::with_files(&[("policy.yaml", FIVE_A_DAY)], &[], environment)
}

#[test]
fn a_password_in_the_address_of_redis_is_decoded_once() {
    let server = Server::start(&[]);
    for (user, password, encoded) in [
        ("slash", "p/s", "p%2Fs"),
        ("azure", "a+b/c=", "a%2Bb%2Fc%3D"),
        ("plain", "a+b=", "a+b="),
        ("marks", "a?b#c,d%e", "a%3Fb%23c%2Cd%25e"),
        ("at", "a@b:c", "a@b:c"),
        ("twice", "p%2Fs", "p%252Fs"),
    ] {
        let secret = format!(">{password}");
        server.ask(&["ACL", "SETUSER", user, "on", &secret, "~*", "&*", "+@all"]);
        let url = format!("redis://{user}:{encoded}@127.0.0.1:{}", server.port);
        let serving = serving(&[("REDIS_URL", &url), ("TIDEGATE_REQUIRE_REDIS", "true")]);
        let log = serving.log();
        assert!(!log.contains("degraded") && !log.contains("WRONGPASS"), "{url}: {log}");
        for form in [password, encoded] {
            assert!(!log.contains(form), "{log}");
        }
    }
}

#[test]
fn a_password_in_the_address_of_a_sentinel_goes_to_the_sentinel() {
    let master = Server::start(&[]);
    master.ask(&["CONFIG", "SET", "requirepass", "of-master"]);
    let watch = format!("sentinel monitor counters 127.0.0.1 {} 1", master.port);
    let sentinel = Server::start_sentinel(&[&watch, "sentinel auth-pass counters of-master"]);
    sentinel.ask(&["ACL", "SETUSER", "default", "resetpass", ">guard/1"]);
    let at = |login: &str| format!("counters,redis://{login}127.0.0.1:{}", sentinel.port);
    let serving = |url: &str| {
        serving(&[("REDIS_TYPE", "sentinel"), ("REDIS_URL", url), ("REDIS_AUTH", "of-master")])
    };
    let log = serving(&at(":guard%2F1@")).log();
    assert!(!log.contains("degraded") && !log.contains("guard"), "{log}");
    for (login, advice) in [
        ("", "the sentinel requires a password: set --redis-sentinel-auth"),
        (":wrong@", "correct it in --redis-url or --redis-sentinel-auth"),
    ] {
        let line = serving(&at(login)).logged_in_time("no sentinel names a master");
        assert!(line["advice"].as_str().is_some_and(|text| text.contains(advice)), "{line}");
    }
}

#[test]
fn unavailable_from_a_live_service_is_not_a_port_where_nothing_listens() {
    let policy = format!("on_store_failure: error\n{FIVE_A_DAY}");
    let serving = Tidegate::policy(&policy, &["--redis-url", "127.0.0.1:1"]);
    let target = serving.port("grpc").to_string();
    let ran = run(&["ask", &target, "edge", "client=ann"]).with_code(69);
    assert!(ran.err.contains("or a proxy in front of it, is unavailable"), "{}", ran.err);
    assert!(!ran.err.contains("nothing listens"), "{}", ran.err);
}

/// Texts that are no address, or none that is supported, with a secret in the place of `{}`.
const TEMPLATES: [&str; 30] = [
    "redis://ann:{}@h:1",
    "REDISS://:{}@h/3",
    "redis://{}@h:1",
    "redis://{}:@h:1",
    "ann:{}@h:1",
    "{}@h",
    "redis://ann:{}@",
    "redis://ann:{}@h:99999",
    "redis://ann:{}@h h",
    "redis://ann:{}%40h",
    "redis:///ann:{}@h",
    "redis//ann:{}@h",
    "redis:ann:{}@h",
    "//ann:{}@h",
    "http://ann:{}@h:1",
    "https://ann:{}@h:1/v1?a=b",
    "grpc://u:{}@h:1",
    "memcached://u:{}@h:1",
    "dns://u:{}@h/h:1",
    "unix://ann:{}@/run/s",
    "redis://h?password={}",
    "redis://h/3?a=b&auth={}",
    "redis://h?{}",
    "redis://h#{}",
    "http://h:4318/v1?token={}",
    "unix:///run/s?pass={}",
    "/run/s?pass={}",
    "h:6379,password={},ssl=True",
    "m,redis://:{}@a:1,b:2",
    "redis://ann:{}@a:1,redis://ann:{}@b:2",
];

/// Names of the settings that are addresses.
fn address_settings() -> Vec<String> {
    let rows = TABLE.iter().filter(|row| row.default.contains(':') || row.name.ends_with("-host"));
    let urls = TABLE.iter().filter(|row| ["ADDRESS", "URL"].contains(&row.value_name));
    rows.chain(urls).map(|row| row.variable()).collect()
}

/// Parts of a secret that no other text has, so that a part that is shown is found.
const PARTS: [&str; 4] = ["Zq7Xk", "40961", "vWp9y", "28657"];

fn secret() -> impl Strategy<Value = String> {
    let marks = "@:/?#%,[]\\ \"'=&;+é{}|^`<>!$*()~.-_".chars().map(String::from);
    let marks = marks.chain(["", "://", "%2F", "%40", "%25", "%zz"].map(str::to_owned));
    let mark = select(marks.collect::<Vec<String>>());
    let [first, second, third, fourth] = PARTS;
    let orders = vec![[first, second, third, fourth], [second, fourth, first, third]];
    (select(orders), prop::collection::vec(mark, 5)).prop_map(|(parts, marks)| {
        let mut secret = marks[4].clone();
        for (part, mark) in parts.iter().zip(marks) {
            secret += part;
            secret += &mark;
        }
        secret
    })
}

/// Everything that the settings say: their errors, or what is printed, logged, and shown of them.
fn said(name: &str, value: &str, kind: &str) -> String {
    let pairs = [(name, value), ("REDIS_TYPE", kind), ("USE_PROMETHEUS", "true")];
    let environment =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let sources = Sources { environment, ..Sources::default() };
    let mut said = String::new();
    match Settings::read(&sources) {
        Ok((settings, values)) => {
            write!(said, "{}\n{:?}", report(&values), settings.otlp()).unwrap();
            for url in settings.redis().into_iter().flat_map(|redis| redis.addresses) {
                write!(said, "{} {:?} {}", url.host, url.port, url.path).unwrap();
            }
            write!(said, "{settings:?}").unwrap();
            for notice in find_notices(&sources.environment, None, &settings) {
                write!(said, "{notice:?}").unwrap();
            }
        }
        Err(errors) => errors.iter().for_each(|error| write!(said, "{error}\n{error:?}").unwrap()),
    }
    said
}

/// Asserts that a text has no part of the secret.
fn assert_hides(said: &str, address: &str) {
    for part in PARTS {
        assert!(!said.contains(part), "{address} is shown, in part, in\n{said}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn no_part_of_a_secret_in_a_malformed_address_is_shown(
        secret in secret(),
        template in select(&TEMPLATES[..]),
        name in select(address_settings()),
        kind in select(vec!["single", "sentinel", "cluster"]),
    ) {
        let encoded = utf8_percent_encode(&secret, NON_ALPHANUMERIC).to_string();
        let decoded = percent_decode_str(&secret).decode_utf8_lossy().into_owned();
        for form in [&secret, &encoded, &decoded] {
            let address = template.replace("{}", form);
            assert_hides(&said(&name, &address, kind), &address);
        }
    }
}

#[test]
fn the_service_shows_no_secret_of_an_address() {
    let secret = PARTS.join("%2F");
    let raw = PARTS.join("/");
    let names = address_settings();
    for template in TEMPLATES {
        for form in [&secret, &raw] {
            let address = template.replace("{}", form);
            let mut command = tidegate();
            command
                .args(["serve", "--policy", "none"])
                .envs(names.iter().map(|name| (name, &address)));
            let ran = ran(&mut command).with_code(64);
            assert_hides(&(ran.out + &ran.err), &address);
        }
    }
    // An address that is valid, and where nothing listens.
    let url = format!("redis://ann:{secret}@127.0.0.1:1/3");
    let serving = serving(&[("REDIS_URL", &url)]);
    let mut shown = serving.log();
    for path in ["/config", "/now", "/top", "/", "/stats", "/policy", "/rlconfig"] {
        shown += &get(serving.port("debug"), path).body;
    }
    for path in ["/metrics", "/readyz", "/healthcheck"] {
        shown += &get(serving.port("http"), path).body;
    }
    assert!(shown.contains("127.0.0.1:1"), "{shown}");
    assert_hides(&shown, &url);
    assert!(!shown.contains(&secret) && !shown.contains(&raw));
}
