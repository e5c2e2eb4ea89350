//! The debug port: policy, refused callers, dry runs, live activity, log level, profile, access
//! control.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::http::{self, Reply};
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, asked};
use crate::support::wait::until;

const TOKEN: &str = "between-friends";

fn serving(arguments: &[&str]) -> Tidegate {
    let files = [("policy.yaml", FIVE_A_DAY), ("token", TOKEN)];
    Tidegate::with_files(&files, &[&["--debug-token-file", "token"], arguments].concat(), &[])
}

fn json(serving: &Tidegate, path: &str) -> Value {
    let reply = http::get(serving.port("debug"), path);
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    assert!(reply.head.contains("content-type: application/json"), "{}", reply.head);
    serde_json::from_str(&reply.body).unwrap()
}

fn send(serving: &Tidegate, request: &str) -> Reply {
    http::send(serving.port("debug"), request)
}

fn with_token(serving: &Tidegate, method: &str, path: &str) -> Reply {
    send(
        serving,
        &format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\
             Authorization: Bearer {TOKEN}\r\n\r\n"
        ),
    )
}

#[test]
fn policy_route_lists_rules_with_file_line_and_switches() {
    let serving = serving(&[]);
    let policy = json(&serving, "/policy");
    let rule = &policy["rules"][0];
    assert_eq!((&policy["rules_total"], &rule["rule"]), (&1.into(), &"edge.client".into()));
    assert!(rule["file"].as_str().unwrap().ends_with("policy.yaml"), "{rule}");
    assert_eq!(rule["line"], 4, "where the descriptor begins");
    let limit = &rule["limits"][0];
    let told =
        ["name", "requests_per_unit", "unit", "algorithm", "capacity"].map(|key| &limit[key]);
    assert_eq!(serde_json::json!(told), serde_json::json!(["daily", 5, "year", "fixed_window", 5]));
    assert_eq!(limit["counter_of"], serde_json::json!(["client"]));
    assert_eq!(with_token(&serving, "POST", "/override?target=edge&mode=deny&for=60").status, 200);
    let listed = json(&serving, "/policy?search=CLIENT");
    assert_eq!(listed["rules"][0]["overrides"], serde_json::json!(["deny"]));
    assert_eq!(listed["rules"][0]["limits"][0]["capacity"], 0);
    assert_eq!(json(&serving, "/policy?search=nobody")["rules_found"], 0);
    assert_eq!(json(&serving, "/policy?most=0")["rules"], serde_json::json!([]));
}

#[test]
fn a_page_rejects_unknown_repeated_and_wrong_parameters() {
    let serving = serving(&[]);
    for (path, bad) in [
        ("/top", &["by=most", "scope=10.0.0.1:6070", "by=used&by=near", "peers=10.0.0.1"][..]),
        ("/history", &["rules=101", "rules=-1", "scope=x", "scope=all&scope=all", "rule=a"]),
        ("/policy", &["most=x", "serach=a", "most=1&most=2"]),
        ("/counter", &["", "domain=edge", "domain=&descriptor=a=b", "descriptor=a=b"]),
        ("/explain", &["", "domain=edge", "descriptor=a=b", "domain=edge&descriptor=a=b&hits=1"]),
    ] {
        for query in bad {
            let reply = http::get(serving.port("debug"), &format!("{path}?{query}"));
            assert_eq!(reply.status, 400, "{path}?{query}: {}", reply.body);
        }
    }
    assert_eq!(http::get(serving.port("debug"), "/history?rules=100&scope=replica").status, 200);
}

#[test]
fn top_route_lists_refused_keys_with_their_counters() {
    let serving = serving(&["--top-values", "shortened"]);
    for _ in 0..8 {
        asked(&serving, "ann");
    }
    asked(&serving, "bob");
    let top = json(&serving, "/top");
    for span in ["now", "last_hour", "last_day"] {
        let limits = top[span]["limits"].as_array().unwrap();
        assert_eq!((limits.len(), &limits[0]["rule"]), (1, &"edge.client".into()), "{span}");
        let key = &limits[0]["keys"][0];
        assert_eq!((&key["key"], &key["count"]), (&"client=ann".into(), &3.into()));
    }
    let counter = top["now"]["limits"][0]["keys"][0]["counter"].as_str().unwrap().to_owned();
    let explained = http::get(serving.port("debug"), "/explain?domain=edge&descriptor=client=ann");
    assert!(explained.body.contains(&counter), "`explain` names the same counter");
}

#[test]
fn by_default_values_appear_nowhere_in_clear_text() {
    let serving = serving(&[]);
    for _ in 0..6 {
        asked(&serving, "secret-name");
    }
    let reply = http::get(serving.port("debug"), "/top").body;
    let top: Value = serde_json::from_str(&reply).unwrap();
    assert_eq!(top["now"]["limits"][0]["keys"][0]["key"], "client");
    assert!(!reply.contains("secret"), "{reply}");
}

#[test]
fn try_predicts_the_answer_and_charges_nothing() {
    let serving = serving(&[]);
    for call in 0..7 {
        let tried = json(&serving, "/try?domain=edge&descriptor=client=ann");
        assert_eq!(tried["charges_nothing"], true);
        assert_eq!(tried["descriptors"][0]["limits"][0]["available"], 5_u64.saturating_sub(call));
        let code = if asked(&serving, "ann") == 200 { "OK" } else { "OVER_LIMIT" };
        assert_eq!(tried["code"], code, "call {call}");
    }
    let tried = json(&serving, "/try?domain=edge&descriptor=client=bob&hits=6");
    assert_eq!((&tried["code"], &tried["limited_by"]), (&"OVER_LIMIT".into(), &"daily".into()));
    for bad in ["/try", "/try?domain=edge", "/try?domain=edge&descriptor=%3Dv", "/try?hits=-1"] {
        assert_eq!(http::get(serving.port("debug"), bad).status, 400, "{bad}");
    }
}

#[test]
fn try_with_several_hits_has_no_wait_and_charges_nothing() {
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    for store in [&[][..], &["--redis-url", &url, "--redis-budget", "5s"]] {
        let serving = serving(store);
        for _ in 0..3 {
            assert_eq!(asked(&serving, "ann"), 200);
        }
        for _ in 0..2 {
            let tried = json(&serving, "/try?domain=edge&descriptor=client=ann&hits=3");
            assert_eq!(
                (&tried["code"], &tried["limited_by"]),
                (&"OVER_LIMIT".into(), &"daily".into())
            );
            assert_eq!(tried["retry_after_ms"], Value::Null, "a peek knows the wait for one hit");
            let limit = &tried["descriptors"][0]["limits"][0];
            assert_eq!((&limit["available"], &limit["passes"]), (&2.into(), &false.into()));
        }
        let fits = json(&serving, "/try?domain=edge&descriptor=client=ann&hits=2");
        assert_eq!((&fits["code"], &fits["retry_after_ms"]), (&"OK".into(), &Value::Null));
        let codes = [(); 3].map(|()| asked(&serving, "ann"));
        assert_eq!(codes, [200, 200, 429], "two were left");
        let tried = json(&serving, "/try?domain=edge&descriptor=client=ann");
        let wait_ms = tried["retry_after_ms"].as_u64().unwrap_or_else(|| panic!("{tried}"));
        assert!((1..=366 * 86_400_000).contains(&wait_ms), "{tried}");
    }
}

#[test]
fn now_route_has_rates_from_the_second_request_on() {
    let serving = serving(&[]);
    let first = json(&serving, "/now");
    assert_eq!((&first["over_seconds"], &first["store"]["kind"]), (&Value::Null, &"memory".into()));
    let rate = until("a rate", || {
        asked(&serving, "ann");
        json(&serving, "/now")["rejected_per_second"].as_f64().filter(|rate| *rate > 0.0)
    });
    assert!(rate > 0.0);
    assert_eq!(json(&serving, "/now")["rules"][0]["rule"], "edge.client");
}

/// Every name of a field in a JSON value.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            fields(value, found);
        }),
        Value::Array(list) => list.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

#[test]
fn every_path_and_field_is_documented() {
    let page = include_str!("../../../docs/ADMIN.md");
    let serving = serving(&[]);
    for _ in 0..6 {
        asked(&serving, "ann");
    }
    assert_eq!(with_token(&serving, "POST", "/override?target=edge&mode=deny&for=60").status, 200);
    let mut found = BTreeSet::new();
    for path in ["/policy", "/top", "/now", "/try?domain=edge&descriptor=client=ann"] {
        fields(&json(&serving, path), &mut found);
    }
    assert!(found.len() > 50, "{found:?}");
    let list = http::get(serving.port("debug"), "/").body;
    let paths = list.split_whitespace().filter(|word| word.starts_with('/'));
    let missing: Vec<&str> = paths
        .chain(found.iter().map(String::as_str))
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "docs/ADMIN.md lacks {missing:?}");
}

#[test]
fn the_log_level_changes_for_a_while_and_returns() {
    let serving = serving(&[]);
    let level = || http::get(serving.port("debug"), "/log-level").body;
    assert_eq!(level(), "info\n");
    assert_eq!(http::post(serving.port("debug"), "/log-level?to=debug", "").status, 401);
    assert_eq!(with_token(&serving, "POST", "/log-level?to=debug&for=1").status, 200);
    assert!(level().starts_with("debug, for 1 s more, then info"), "{}", level());
    until("the configured level", || (level() == "info\n").then_some(()));
    for bad in ["to=loud", "to=info&for=0", "level=info", ""] {
        assert_eq!(with_token(&serving, "POST", &format!("/log-level?{bad}")).status, 400, "{bad}");
    }
}

#[test]
fn browsers_get_a_page_that_loads_nothing_from_elsewhere() {
    let serving = serving(&[]);
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let page = send(&serving, &format!("{head}Accept: text/html\r\n\r\n"));
    assert!(page.body.starts_with("<!doctype html>"));
    for said in ["default-src 'none'", "script-src 'sha256-", "frame-ancestors 'none'"] {
        assert!(page.head.contains(&said.to_ascii_lowercase()), "{said}: {}", page.head);
    }
    assert!(!page.head.contains("unsafe"), "{}", page.head);
    let list = send(&serving, &format!("{head}Accept: */*\r\n\r\n"));
    assert!(list.head.contains("text/plain") && list.body.contains("/top"), "{}", list.head);
    assert!(list.head.contains("x-content-type-options: nosniff"), "{}", list.head);
}

#[test]
fn a_loopback_port_rejects_registrable_host_names() {
    let serving = serving(&[]);
    let to = |host: &str| {
        send(&serving, &format!("GET /top HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    assert_eq!(to("evil.example:6070").status, 403);
    for host in ["localhost:6070", "127.0.0.1:6070", "[::1]", "tidegate"] {
        assert_eq!(to(host).status, 200, "{host}");
    }
}
