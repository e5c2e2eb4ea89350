//! The service without its Redis: calls are answered, and metrics, logs and the debug port show it.

use serde_json::Value;

use crate::support::http;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, ProcessOutput, Tidegate, asked, metric, run};
use crate::support::wait::until;

const REHEARSED: &str = r#"degraded_calls_total{reason="rehearsed"}"#;

fn serving(server: &Server) -> Tidegate {
    let files = [("policy.yaml", FIVE_A_DAY), ("token", "t")];
    let url = format!("127.0.0.1:{}", server.port);
    // So long that only what a test does to Redis makes it late, not a busy machine.
    let redis = ["--redis-url", &url, "--redis-budget", "5s"];
    Tidegate::with_files(&files, &[&redis[..], &["--debug-token-file", "token"]].concat(), &[])
}

fn ready(serving: &Tidegate) -> String {
    let reply = http::get(serving.port("http"), "/readyz");
    assert_eq!(reply.status, 200, "readiness does not depend on Redis");
    reply.body
}

fn lines(serving: &Tidegate, message: &str) -> usize {
    let is_it = |line: &&str| {
        serde_json::from_str::<Value>(line).is_ok_and(|line| line["message"] == message)
    };
    serving.log().lines().filter(is_it).count()
}

#[test]
fn a_killed_redis_is_reported_and_grants_no_fresh_burst() {
    let mut server = Server::start(&[]);
    let serving = serving(&server);
    for _ in 0..3 {
        assert_eq!(asked(&serving, "ann"), 200);
    }
    assert_eq!(ready(&serving), "ready\n");
    server.kill();
    assert_eq!(asked(&serving, "ann"), 200);
    assert_eq!(asked(&serving, "ann"), 200);
    for _ in 0..10 {
        assert_eq!(asked(&serving, "ann"), 429);
    }
    assert!(ready(&serving).starts_with("ready, degraded"), "{}", ready(&serving));
    assert_eq!(metric(&serving, "degraded"), 1);
    assert_eq!(metric(&serving, "degraded_admitted_calls_total"), 2);
    assert_eq!(metric(&serving, "degraded_over_admission_bound"), 2, "only these two");
    assert_eq!(metric(&serving, "degraded_replicas"), 1);
    assert_eq!(lines(&serving, "degraded: deciding without Redis"), 1, "{}", serving.log());
    let counter = "/counter?domain=edge&descriptor=client=ann";
    let counter = http::get(serving.port("debug"), counter).body;
    assert!(counter.contains("by local"), "{counter}");
}

#[test]
fn leave_store_simulates_an_outage() {
    let server = Server::start(&[]);
    let serving = serving(&server);
    let order = |path: &str| {
        assert_eq!(http::order(serving.port("debug"), path, "t").status, 200, "{path}");
    };
    assert_eq!(asked(&serving, "ann"), 200);
    order("/leave-redis");
    assert_eq!(asked(&serving, "ann"), 200);
    assert_eq!(metric(&serving, REHEARSED), 1);
    order("/return-to-redis");
    assert_eq!(asked(&serving, "ann"), 200);
    assert_eq!(metric(&serving, REHEARSED), 1);
    order("/leave-redis?for=1");
    assert_eq!(asked(&serving, "bob"), 200);
    until("the rehearsal to end", || {
        let before = metric(&serving, REHEARSED);
        asked(&serving, "cem");
        (metric(&serving, REHEARSED) == before).then_some(())
    });
}

/// What docs/DEPLOYING.md says of a rehearsal.
#[test]
fn a_rehearsed_outage_is_reported_enforces_limits_and_ends_on_command() {
    let server = Server::start(&[]);
    let serving = serving(&server);
    let token = serving.directory().join("token").display().to_string();
    let debug = serving.port("debug").to_string();
    let rehearse = |more: &[&str]| -> ProcessOutput {
        let side = ["rehearse-outage", "--debug", &debug, "--debug-token-file", &token];
        run(&[&side, more].concat())
    };
    for _ in 0..5 {
        assert_eq!(asked(&serving, "ann"), 200);
    }
    let ran = rehearse(&["--for", "1h"]).with_code(0);
    assert!(ran.out.contains("for 3600 s"), "{}", ran.out);
    assert!(ready(&serving).starts_with("ready, degraded"), "{}", ready(&serving));
    assert_eq!(metric(&serving, "degraded"), 1);
    assert!(serving.log().contains("to rehearse an outage"), "{}", serving.log());
    assert_eq!(asked(&serving, "ann"), 429, "its limit stays used");
    for _ in 0..5 {
        assert_eq!(asked(&serving, "bob"), 200);
    }
    assert_eq!(asked(&serving, "bob"), 429, "limits are enforced");
    assert_eq!(metric(&serving, "degraded_over_admission_bound"), 5);
    rehearse(&["--end"]).with_code(0);
    assert_eq!(asked(&serving, "ann"), 429);
    assert_eq!(asked(&serving, "bob"), 200, "Redis does not know the hits of the rehearsal");
    until("Redis decides all calls again", || (metric(&serving, "degraded") == 0).then_some(()));
    let ran = rehearse(&["--end", "--for", "1h"]).with_code(64);
    assert!(ran.err.contains("--for"), "{}", ran.err);
}
