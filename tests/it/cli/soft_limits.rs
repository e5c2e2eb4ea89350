//! Marks of soft limits, asked over `/json` and `/authz`: with Redis, from the refusal cache, and
//! without Redis.

use serde_json::Value;

use crate::support::http;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{Tidegate, metric, run};
use crate::support::wait::until;

const POLICY: &str = "
domain: edge
http:
  descriptors: [{entries: [{key: client, header: x-client}]}]
descriptors:
  - key: client
    shadow_mode: true
    rate_limit:
      unit: year
      requests_per_unit: 10
      mark: {near: {x-quota: near}, over: {x-quota: over}, near_at: 80%}
      log_near: true
";

fn serving(server: &Server, replicas: &str) -> Tidegate {
    let url = format!("127.0.0.1:{}", server.port);
    // So long that only what a test does to Redis makes it late, not a busy machine.
    let budget = ["--redis-budget", "5s"];
    let redis = ["--redis-url", &url, "--replicas", replicas];
    Tidegate::policy(POLICY, &[&redis[..], &budget].concat())
}

/// The value of the mark of an admitted call; empty if it has none.
fn mark(serving: &Tidegate, client: &str) -> String {
    let entry = format!(r#"{{"key":"client","value":"{client}"}}"#);
    let body = format!(r#"{{"domain":"edge","descriptors":[{{"entries":[{entry}]}}]}}"#);
    let reply = http::post(serving.port("http"), "/json", &body);
    assert_eq!(reply.status, 200);
    let body: Value = serde_json::from_str(&reply.body).expect("JSON");
    match &body["requestHeadersToAdd"] {
        Value::Null => String::new(),
        marks => {
            assert_eq!(marks[0]["key"], "x-quota", "{marks}");
            assert_eq!(marks.as_array().map(Vec::len), Some(1), "{marks}");
            marks[0]["value"].as_str().expect("text").to_owned()
        }
    }
}

fn marks(serving: &Tidegate, client: &str, calls: usize) -> Vec<String> {
    (0..calls).map(|_| mark(serving, client)).collect()
}

#[test]
fn redis_and_the_refusal_cache_mark_as_memory_does() {
    let server = Server::start(&[]);
    let serving = serving(&server, "1");
    let seen = marks(&serving, "ann", 12);
    assert_eq!(seen[..7], [""; 7]);
    assert_eq!(seen[7..], ["near", "near", "over", "over", "over"]);
    until("a call that the refusal cache answers", || {
        assert_eq!(mark(&serving, "ann"), "over");
        (metric(&serving, "redis_cached_rejections_total") > 0).then_some(())
    });
    assert_eq!(mark(&serving, "bob"), "");
}

#[test]
fn without_redis_a_replica_marks_by_its_share() {
    let mut server = Server::start(&[]);
    let serving = serving(&server, "2");
    assert_eq!(marks(&serving, "ann", 8).join(" ").trim(), "near");
    server.kill();
    // This replica has admitted 8 of its share of 5.
    assert_eq!(mark(&serving, "ann"), "over");
    assert_eq!(marks(&serving, "bob", 7), ["", "", "", "near", "over", "over", "over"]);
    assert_eq!(metric(&serving, "degraded"), 1);
}

#[test]
fn authz_carries_marks_as_headers_and_ask_prints_them() {
    let server = Tidegate::policy(POLICY, &[]);
    let address = server.port("http");
    let head =
        "GET /authz?domain=edge HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-client: ann\r\n";
    let heads: Vec<_> = (0..10).map(|_| http::send(address, &format!("{head}\r\n")).head).collect();
    assert!(!heads[6].contains("x-quota"), "{}", heads[6]);
    assert!(heads[7].contains("\r\nx-quota: near\r\n"), "{}", heads[7]);
    assert!(heads[9].contains("\r\nx-quota: over\r\n"), "{}", heads[9]);
    let port = server.port("grpc").to_string();
    let asked = run(&["ask", "--json", &port, "edge", "client=ann"]).with_code(0).out;
    let asked: Value = serde_json::from_str(&asked).expect("JSON");
    assert_eq!(asked["requestHeadersToAdd"][0]["value"], "over", "{asked}");

    let line = server.logged_in_time("limit nearly used up");
    assert_eq!(
        (&line["rule"], &line["used"], &line["hits"]),
        (&"edge.client".into(), &8.into(), &10.into())
    );
    assert_eq!(line["keys"], "client", "no value");
    let policy = server.directory().join("policy.yaml").display().to_string();
    let explained = run(&["explain", "--policy", &policy, "edge", "client=ann"]);
    assert!(
        explained.out.contains("mark: near at 80%: x-quota: near, over: x-quota: over, logged"),
        "{}",
        explained.out
    );
}
