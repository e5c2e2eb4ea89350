//! A Redis that is configured wrongly: the service answers, dials with backoff, and logs each line at
//! most once a minute.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tidegate::clock::Clock;

use crate::support::heavy;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{Tidegate, asked, metric};
use crate::support::wait::until;

const POLICY: &str = "
domain: edge
descriptors:
  - key: client
    rate_limit: {name: yearly, unit: year, requests_per_unit: 100000}
";

fn serving(kind: &str, addresses: &[u16]) -> Tidegate {
    let urls: Vec<String> = addresses.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = urls.join(",");
    // So long that only the fault makes a call late, not a busy machine.
    let budget = ["--redis-budget", "2s"];
    Tidegate::policy(POLICY, &[&["--redis-type", kind, "--redis-url", &url], &budget[..]].concat())
}

/// Asks a number of times, some milliseconds apart.
fn ask(serving: &Tidegate, client: &str, times: u32, pause_ms: u64) {
    for _ in 0..times {
        assert_eq!(asked(serving, client), 200);
        sleep(Duration::from_millis(pause_ms));
    }
}

/// How often each line stands in the log, by message and node.
fn lines(serving: &Tidegate) -> BTreeMap<(String, String), usize> {
    let mut lines = BTreeMap::new();
    for line in serving.log().lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        *lines.entry((text("message"), text("node"))).or_default() += 1;
    }
    lines
}

fn assert_each_line_once(serving: &Tidegate) {
    // One line for each risky setting, at the start.
    let is_repeated = |((message, _), count): &((String, String), usize)| {
        *count > 1 && message != "risky setting"
    };
    let repeated: Vec<_> = lines(serving).into_iter().filter(is_repeated).collect();
    assert!(repeated.is_empty(), "{repeated:?} in\n{}", serving.log());
}

#[test]
fn a_replica_configured_as_the_single_redis_is_dialled_with_backoff() {
    let server = Server::start(&["replicaof 127.0.0.1 1"]);
    let (serving, start) = (serving("single", &[server.port]), Clock::default().monotonic_now());
    ask(&serving, "ann", 150, 20);
    // Too few to open the breaker or to stay degraded.
    ask(&serving, "ann", 6, 1_200);
    let dials =
        metric(&serving, "redis_connects_total") + metric(&serving, "redis_dial_failures_total");
    // Each of two connections waits half a second at least, once its waits have grown.
    let lasted = Clock::default().monotonic_now() - start;
    let dials_max = 16 + 4 * (lasted.as_secs() + 1);
    assert!((2..=dials_max).contains(&dials), "{dials} dials");
    assert_each_line_once(&serving);
    // Once it is a master, it is used without a restart.
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    until("Redis decides", || {
        ask(&serving, "bob", 1, 50);
        let counters = server.ask(&["DBSIZE"]);
        (counters != redis::Value::Int(0)).then_some(())
    });
}

#[test]
fn a_redis_that_closes_idle_connections_costs_no_decision_and_one_line() {
    let server = Server::start(&["timeout 1"]);
    let serving = serving("single", &[server.port]);
    ask(&serving, "ann", 3, 0);
    until("idle connections are closed", || {
        (metric(&serving, "redis_losses_total") >= 8).then_some(())
    });
    // A connection that lasted is replaced at once, so a call finds one.
    let (mut by_redis, before) = (0, metric(&serving, "redis_items_total"));
    for _ in 0..10 {
        ask(&serving, "ann", 1, 150);
        by_redis = metric(&serving, "redis_items_total") - before;
    }
    assert!(by_redis >= 9, "{by_redis} of 10 decided by Redis");
    assert_each_line_once(&serving);
}

#[test]
fn a_slot_that_is_moved_to_nowhere_causes_no_storm_of_dials() {
    let _turn = heavy::blocking_turn();
    let mut cluster = Cluster::start(&[]);
    let serving = serving("cluster", &[cluster.nodes[0].port, cluster.nodes[1].port]);
    // A counter of the second master's.
    let (client, slot) = (0..)
        .find_map(|at| {
            let client = format!("c{at}");
            ask(&serving, &client, 1, 0);
            let keys: Vec<String> =
                redis::from_redis_value(cluster.nodes[1].ask(&["KEYS", "tg1w*"])).unwrap();
            let key = keys.into_iter().find(|key| key.contains('{'))?;
            let slot = cluster.slot_of(&key);
            Some((client, slot.to_string()))
        })
        .unwrap();
    let nowhere = cluster.id(2);
    let heir = cluster.replica_of(2);
    cluster.nodes[heir].kill();
    cluster.nodes[2].kill();
    cluster.nodes[1].ask(&["FLUSHALL"]);
    cluster.nodes[1].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &nowhere]);
    ask(&serving, &client, 200, 20);
    let moved = metric(&serving, "redis_moved_total");
    let dials = metric(&serving, "redis_dial_failures_total");
    assert!(moved > 0, "nothing was redirected");
    assert!(dials <= 60, "{dials} dials");
    assert_each_line_once(&serving);
}

#[test]
fn an_address_of_another_cluster_is_reported() {
    let alone = || {
        let server = Server::start(&["cluster-enabled yes"]);
        server.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        server
    };
    let (first, second) = (alone(), alone());
    for server in [&first, &second] {
        until("the cluster is up", || {
            let info: String = redis::from_redis_value(server.ask(&["CLUSTER", "INFO"])).unwrap();
            info.contains("cluster_state:ok").then_some(())
        });
    }
    let serving = serving("cluster", &[first.port, second.port]);
    let line = serving.logged_in_time("a configured address belongs to another Redis cluster");
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["node"], format!("127.0.0.1:{}", second.port));
    ask(&serving, "ann", 20, 20);
    let counted = |server: &Server| server.ask(&["DBSIZE"]);
    assert_ne!(counted(&first), redis::Value::Int(0), "the first one counts");
    assert_eq!(metric(&serving, "degraded_admitted_calls_total"), 0);
    assert_each_line_once(&serving);
}
