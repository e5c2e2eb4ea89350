//! Metrics of Redis: what the service measures at each node, and what a node's INFO reports if the
//! ACL permits it.

use serde_json::Value;

use crate::support::acl;
use crate::support::http;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, asked};
use crate::support::wait::until;

fn serving(server: &Server) -> Tidegate {
    serving_with(server, FIVE_A_DAY)
}

fn serving_with(server: &Server, policy: &str) -> Tidegate {
    let quick = ["--redis-budget", "5s", "--rejection-cache", "false"];
    Tidegate::on_redis(server, policy, &quick)
}

/// The value of a series whose labels are the node and these.
fn of_node(server: &Server, text: &str, name: &str, more: &str) -> Option<f64> {
    let series = format!("tidegate_{name}{{node=\"127.0.0.1:{}\"{more}}} ", server.port);
    text.lines().find_map(|line| line.strip_prefix(&series)).map(|value| value.parse().unwrap())
}

fn metrics(serving: &Tidegate) -> String {
    http::get(serving.port("http"), "/metrics").body
}

#[test]
fn metrics_of_a_node_are_labeled_with_its_address() {
    let lines = [acl::line(acl::SINGLE).as_str(), "maxmemory 64mb"].map(str::to_owned);
    let server = Server::start(&[&lines[0], &lines[1], "maxmemory-policy volatile-ttl"]);
    let serving = serving(&server);
    for client in 0..7 {
        serving.ask(&format!("c{}", client % 2));
    }
    server.ask(&["SET", "somebody-elses", "1"]);
    let text = until("what Redis says of itself", || {
        let text = metrics(&serving);
        let keys = of_node(&server, &text, "redis_keys_without_expiry", "");
        (keys == Some(1.0) && text.contains("redis_script_calls_total")).then_some(text)
    });
    let seen =
        |name: &str| of_node(&server, &text, name, "").unwrap_or_else(|| panic!("{name}: {text}"));
    assert_eq!(seen("redis_items_total"), 7.0);
    assert_eq!(seen("redis_wait_seconds_count"), 7.0);
    assert_eq!(seen("redis_write_items_sum"), 7.0);
    assert_eq!(seen("redis_round_trip_seconds_count"), seen("redis_writes_total"));
    // With a probe of each connection, and the polls of overrides.
    assert!(seen("redis_script_calls_total") >= 9.0);
    assert!(seen("redis_script_seconds_total") > 0.0);
    assert!(seen("redis_commands_total") > 7.0);
    assert!(seen("redis_memory_used_bytes") > 0.0);
    assert_eq!(seen("redis_memory_max_bytes"), f64::from(64 << 20));
    assert_eq!(seen("redis_connections"), 2.0);
    let labelled = |name, more| of_node(&server, &text, name, more);
    assert_eq!(labelled("redis_eviction_info", r#",policy="volatile-ttl""#), Some(1.0));
    assert_eq!(seen("redis_breakers_open"), 0.0);
    assert_eq!(labelled("redis_errors_total", r#",kind="denied""#), Some(0.0));
    assert_eq!(labelled("redis_wait_seconds_bucket", r#",le="0.006""#), None, "le stands first");
    let bucket = format!(
        "tidegate_redis_wait_seconds_bucket{{le=\"0.006\",node=\"127.0.0.1:{}\"}}",
        server.port
    );
    assert!(text.contains(&bucket), "{text}");
}

#[test]
fn a_redis_that_denies_info_causes_one_log_line() {
    let server = Server::start(&[&format!("{} -info", acl::line(acl::SINGLE))]);
    let serving = serving(&server);
    let told = until("a line about it", || serving.logged("Redis denied INFO"));
    assert_eq!(told["permission"], "+info");
    let asked = |server: &Server| {
        let log =
            redis::from_redis_value::<Vec<redis::Value>>(server.ask(&["ACL", "LOG"])).unwrap();
        format!("{log:?}").matches("info").count()
    };
    until("it is asked again", || (asked(&server) > 0).then_some(()));
    for _ in 0..5 {
        assert!(serving.ask("ann").starts_with("OK"));
    }
    assert!(serving.ask("ann").starts_with("OVER_LIMIT"));
    let text = metrics(&serving);
    assert_eq!(of_node(&server, &text, "redis_items_total", ""), Some(6.0), "{text}");
    assert_eq!(of_node(&server, &text, "redis_keys", ""), None, "{text}");
    let is_it = |line: &&str| {
        serde_json::from_str::<Value>(line).is_ok_and(|line| line["message"] == "Redis denied INFO")
    };
    assert_eq!(serving.log().lines().filter(is_it).count(), 1, "{}", serving.log());
}

/// The value of a series without labels.
fn total(text: &str, name: &str) -> u64 {
    let series = format!("tidegate_{name}_total ");
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
}

#[test]
fn a_prepaid_limit_is_spent_without_redis_and_returned_to_it() {
    let policy =
        FIVE_A_DAY.replace("requests_per_unit: 5", "requests_per_unit: 1000000, prepay: auto");
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let serving = serving_with(&server, &policy);
    let mut calls = 0;
    let text = until("calls without Redis", || {
        for _ in 0..100 {
            assert_eq!(asked(&serving, "ann"), 200);
        }
        calls += 100;
        let text = metrics(&serving);
        (total(&text, "redis_prepaid_decisions") >= 100).then_some(text)
    });
    assert!(total(&text, "redis_prepaid_hits") >= total(&text, "redis_prepaid_decisions"));
    let redis = format!(r#"tidegate_decisions_total{{code="ok",source="redis"}} {calls}"#);
    assert!(text.contains(&redis), "no {redis}: {text}");
    // What is not spent is returned, so that the counter holds the calls.
    until("the rest is returned", || {
        let redis::Value::Array(keys) = server.ask(&["KEYS", "tg1w*"]) else { panic!("keys") };
        let key: String = redis::from_redis_value(keys.first()?.clone()).unwrap();
        (server.count(&key) % 10_000_000_000 == calls).then_some(())
    });
    let text = metrics(&serving);
    let [hits, spent, returned] = ["hits", "decisions", "returned"]
        .map(|name| total(&text, &format!("redis_prepaid_{name}")));
    assert_eq!(hits, spent + returned, "{text}");
}
