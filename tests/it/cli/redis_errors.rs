//! Redis that is connected but replies with errors: log, `/readyz`, metrics, and the live page say
//! which, from the start and later.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use crate::support::acl;
use crate::support::heavy;
use crate::support::http;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, asked, directory, ran, tidegate};
use crate::support::wait::until;

const DENIED: &str = "Redis denied the login or a command";
const ERROR: &str = "Redis replied with an error";
const REPLICA: &str = "the Redis node is not a master";

/// What a server that replies with errors must lead to.
struct Row {
    name: &'static str,
    /// Starts the server, with the user of the tests; what must stay alive with it.
    start: fn() -> (Server, Option<Server>),
    /// The line of the log, and parts of its `reason` and `advice`.
    line: &'static str,
    reason: &'static str,
    advice: &'static str,
    /// Name of the kind in metrics.
    kind: &'static str,
}

fn started(lines: &[&str]) -> Server {
    let user = acl::line(acl::SINGLE);
    Server::start(&[&[&*user], lines].concat())
}

/// A server whose user lacks these permissions.
fn without(permissions: &[&str]) -> (Server, Option<Server>) {
    let all = acl::SINGLE.split_whitespace();
    let rules: Vec<&str> = all.filter(|rule| !permissions.contains(rule)).collect();
    (Server::start(&[&acl::line(&rules.join(" "))]), None)
}

fn configured(server: Server, name: &str, value: &str) -> Server {
    server.ask(&["CONFIG", "SET", name, value]);
    server
}

/// Sends a command whose reply comes late or never. Holds no server, so that the end of a test kills it: a
/// busy one would keep a core from all other tests.
fn send_in_background(server: &Server, command: &'static [&'static str]) {
    let client = server.client();
    thread::spawn(move || {
        let mut connection = client.get_connection().expect("a connection");
        drop(redis::cmd(command[0]).arg(&command[1..]).query::<redis::Value>(&mut connection));
    });
}

/// A server that is busy with a command until it is killed.
fn occupied(lines: &[&str], command: &'static [&'static str], code: &str) -> Server {
    let server = started(lines);
    send_in_background(&server, command);
    until("the server is occupied", || {
        let error = server.try_ask(&["GET", "tg1z"]).err()?;
        (error.code() == Some(code)).then_some(())
    });
    server
}

fn loading() -> Server {
    let lines = [
        "enable-debug-command yes",
        "key-load-delay 10000",
        "rdbcompression no",
        "loading-process-events-interval-bytes 1024",
    ];
    let fill = "for i = 1, 20000 do redis.call('SET', 'filler' .. i, string.rep('x', 1000)) end";
    let server = started(&lines);
    server.ask(&["EVAL", fill, "0"]);
    send_in_background(&server, &["DEBUG", "RELOAD"]);
    until("the server is loading", || {
        let error = server.try_ask(&["GET", "tg1z"]).err()?;
        (error.code() == Some("LOADING")).then_some(())
    });
    server
}

/// Lets a test change the directory.
const PROTECTED: &str = "enable-protected-configs yes";

/// Lets a server fail to save its data.
fn no_longer_saves(server: &Server) {
    let gone = server.dir.path().join("gone");
    std::fs::create_dir(&gone).unwrap();
    server.ask(&["CONFIG", "SET", "dir", &gone.display().to_string()]);
    std::fs::remove_dir(&gone).unwrap();
    server.ask(&["CONFIG", "SET", "save", "3600 1"]);
    server.ask(&["BGSAVE"]);
    until("saving fails", || {
        let info: String = redis::from_redis_value(server.ask(&["INFO", "persistence"])).unwrap();
        info.contains("rdb_last_bgsave_status:err").then_some(())
    });
}

fn replica() -> (Server, Option<Server>) {
    let primary = Server::start(&[]);
    let server = started(&[&format!("replicaof 127.0.0.1 {}", primary.port)]);
    (server, Some(primary))
}

const ROWS: &[Row] = &[
    Row {
        name: "no +evalsha",
        start: || without(&["+evalsha"]),
        line: DENIED,
        reason: "NOPERM",
        advice: "ACL SETUSER tidegate ~tg1* +hello",
        kind: "denied",
    },
    Row {
        name: "no +script|load",
        start: || without(&["+script|load"]),
        line: DENIED,
        reason: "NOPERM",
        advice: "+script|load +evalsha",
        kind: "denied",
    },
    Row {
        name: "another prefix",
        start: || {
            let rules = acl::SINGLE.replace("~tg1*", "~limits:*");
            (Server::start(&[&acl::line(&rules)]), None)
        },
        line: DENIED,
        reason: "NOPERM",
        advice: "~tg1* ",
        kind: "denied",
    },
    Row {
        name: "no write commands",
        start: || without(&["+set", "+incr", "+incrby"]),
        line: DENIED,
        reason: "can't run this command",
        advice: "+set +incr +incrby",
        kind: "denied",
    },
    Row {
        name: "no read commands",
        start: || without(&["+get", "+mget"]),
        line: DENIED,
        reason: "can't run this command",
        advice: "+get +mget",
        kind: "denied",
    },
    Row {
        name: "no clock",
        start: || without(&["+time"]),
        line: DENIED,
        reason: "can't run this command",
        advice: "+time",
        kind: "denied",
    },
    Row {
        name: "wrong password",
        start: || {
            let line = acl::line(acl::SINGLE).replace(acl::PASSWORD, "another");
            (Server::start(&[&line]), None)
        },
        line: DENIED,
        reason: "WRONGPASS",
        advice: "--redis-auth-file",
        kind: "denied",
    },
    Row {
        name: "full",
        start: || (configured(started(&[]), "maxmemory", "1"), None),
        line: ERROR,
        reason: "OOM",
        advice: "raise maxmemory",
        kind: "out_of_memory",
    },
    Row {
        name: "full from its configuration",
        start: || (started(&["maxmemory 1", "maxmemory-policy noeviction"]), None),
        line: ERROR,
        reason: "OOM",
        advice: "raise maxmemory",
        kind: "out_of_memory",
    },
    Row {
        name: "a replica",
        start: replica,
        line: REPLICA,
        reason: "READONLY",
        advice: "the primary is 127.0.0.1:",
        kind: "read_only",
    },
    Row {
        name: "a replica whose primary is down",
        start: || (started(&["replicaof 127.0.0.1 1"]), None),
        line: REPLICA,
        reason: "READONLY",
        advice: "the primary is 127.0.0.1:1:",
        kind: "read_only",
    },
    Row {
        name: "a replica without its primary's data",
        start: || {
            let server = configured(started(&[]), "replica-serve-stale-data", "no");
            server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
            (server, None)
        },
        line: ERROR,
        reason: "MASTERDOWN",
        advice: "lost its master",
        kind: "cluster_down",
    },
    Row {
        name: "loading",
        start: || (loading(), None),
        line: ERROR,
        reason: "LOADING",
        advice: "wait until Redis has loaded",
        kind: "loading",
    },
    Row {
        name: "a busy script",
        start: || {
            let lines = ["busy-reply-threshold 1"];
            (occupied(&lines, &["EVAL", "while true do end", "0"], "BUSY"), None)
        },
        line: ERROR,
        reason: "BUSY",
        advice: "SCRIPT KILL",
        kind: "busy",
    },
    Row {
        name: "it cannot save",
        start: || {
            let server = started(&[PROTECTED]);
            no_longer_saves(&server);
            (server, None)
        },
        line: ERROR,
        reason: "MISCONF",
        advice: "free the disk",
        kind: "unsaved",
    },
    Row {
        name: "too few replicas",
        start: || (started(&["min-replicas-to-write 1"]), None),
        line: ERROR,
        reason: "NOREPLICAS",
        advice: "min-replicas-to-write 0",
        kind: "no_replicas",
    },
    Row {
        name: "a proxy without HELLO",
        start: || (started(&["rename-command HELLO \"\""]), None),
        line: ERROR,
        reason: "unknown command 'HELLO'",
        advice: "does not support HELLO 3",
        kind: "script",
    },
    Row {
        name: "a proxy without SCRIPT",
        start: || (started(&["rename-command SCRIPT \"\""]), None),
        line: ERROR,
        reason: "unknown command",
        advice: "SCRIPT LOAD",
        kind: "script",
    },
    Row {
        name: "a proxy without EVALSHA",
        start: || (started(&["rename-command EVALSHA \"\""]), None),
        line: ERROR,
        reason: "unknown command",
        advice: "Redis itself",
        kind: "script",
    },
];

fn ready(serving: &Tidegate) -> String {
    http::get(serving.port("http"), "/readyz").body
}

/// The kinds of error replies that a metric counts.
fn kinds(serving: &Tidegate) -> BTreeSet<String> {
    let text = http::get(serving.port("http"), "/metrics").body;
    let lines = text.lines().filter(|line| line.starts_with("tidegate_redis_errors_total{"));
    let counted = lines.filter(|line| !line.ends_with(" 0"));
    let kind = |line: &str| line.split("kind=\"").nth(1)?.split('"').next().map(str::to_owned);
    counted.filter_map(kind).collect()
}

fn text<'v>(line: &'v Value, field: &str) -> &'v str {
    line[field].as_str().unwrap_or_default()
}

/// Waits for a line with a message, and for a part of its reason.
fn logged(serving: &Tidegate, message: &str, reason: &str) -> Value {
    until(&format!("{message:?} because of {reason} in\n{}", serving.log()), || {
        let log = serving.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .into_iter()
            .find(|line| line["message"] == message && text(line, "reason").contains(reason))
    })
}

fn check(row: &Row) {
    let (server, _with) = (row.start)();
    let serving = Tidegate::on_redis(&server, FIVE_A_DAY, &["--redis-timeout", "2s"]);
    let line = logged(&serving, row.line, row.reason);
    let name = row.name;
    let node = format!("127.0.0.1:{}", server.port);
    assert_eq!(line["node"], *node, "{name}");
    assert!(text(&line, "advice").contains(row.advice), "{name}: {line}");
    if row.advice.contains('+') || row.advice.contains('~') {
        let (_, commands) = acl::SINGLE.split_once("-@all ").expect("the documented ACL");
        assert!(text(&line, "advice").ends_with(commands), "{name}: {line}");
    }
    assert!(serving.logged("Redis is connected").is_none(), "{name}: {}", serving.log());
    // Without a call yet.
    until(&format!("/readyz of {name} has the reason"), || {
        let ready = ready(&serving);
        (ready.starts_with("ready, degraded") && ready.contains(row.reason)).then_some(())
    });
    let outage = logged(&serving, "degraded: deciding without Redis", row.reason);
    assert!(outage["undecided_percent"].is_null(), "{name}: no call was made: {outage}");
    for client in ["ann", "bob", "cem"] {
        asked(&serving, client);
    }
    assert!(ready(&serving).contains(row.reason), "{name}: {}", ready(&serving));
    assert_eq!(kinds(&serving), BTreeSet::from([row.kind.to_owned()]), "{name}");
    let now = http::get(serving.port("debug"), "/now").body;
    assert!(now.contains(&format!("{:?}:", row.kind)), "{name}: {now}");
    assert!(serving.logged("no longer degraded").is_none(), "{name}: {}", serving.log());
    let twice = serving.log().matches(&format!("{:?}", row.line)).count();
    assert_eq!(twice, 1, "{name}: {}", serving.log());
}

#[test]
fn a_redis_that_replies_with_errors_is_named_from_the_start() {
    let _turn = heavy::blocking_turn();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let check_the_rest = || {
        while let Some(row) = ROWS.get(next.fetch_add(1, Ordering::Relaxed)) {
            if std::panic::catch_unwind(|| check(row)).is_err() {
                failed.lock().unwrap().push(row.name);
            }
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(check_the_rest))));
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}

/// What breaks a server that worked, and mends it; and what the log says.
type Break = (&'static str, fn(&Server), fn(&Server), &'static str);

const LATER: &[Break] = &[
    (
        "denied",
        |server| drop(server.ask(&["ACL", "SETUSER", acl::USER, "-evalsha"])),
        |server| drop(server.ask(&["ACL", "SETUSER", acl::USER, "+evalsha"])),
        "NOPERM",
    ),
    (
        "out_of_memory",
        |server| drop(server.ask(&["CONFIG", "SET", "maxmemory", "1"])),
        |server| drop(server.ask(&["CONFIG", "SET", "maxmemory", "0"])),
        "OOM",
    ),
    (
        "read_only",
        |server| drop(server.ask(&["REPLICAOF", "127.0.0.1", "1"])),
        |server| drop(server.ask(&["REPLICAOF", "NO", "ONE"])),
        "READONLY",
    ),
    (
        "unsaved",
        no_longer_saves,
        |server| drop(server.ask(&["CONFIG", "SET", "save", ""])),
        "MISCONF",
    ),
    (
        "no_replicas",
        |server| drop(server.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"])),
        |server| drop(server.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"])),
        "NOREPLICAS",
    ),
];

#[test]
fn an_error_that_begins_later_is_named_and_ends_with_an_answer_that_decides() {
    let _turn = heavy::blocking_turn();
    for (kind, break_it, mend, reason) in LATER {
        let server = started(&[PROTECTED]);
        let policy = FIVE_A_DAY.replace(": 5}", ": 1000000}");
        let serving = Tidegate::on_redis(&server, &policy, &["--redis-budget", "5s"]);
        asked(&serving, "ann");
        assert_eq!(ready(&serving), "ready\n", "{kind}");
        break_it(&server);
        until(&format!("{kind} is noticed"), || {
            asked(&serving, "ann");
            (kinds(&serving).contains(*kind) && ready(&serving).contains(reason)).then_some(())
        });
        logged(&serving, "degraded: deciding without Redis", reason);
        let line = until(&format!("{kind} is logged"), || {
            [DENIED, ERROR, REPLICA].into_iter().find_map(|line| serving.logged(line))
        });
        assert!(text(&line, "reason").contains(reason), "{line}");
        mend(&server);
        until(&format!("{kind} is over"), || {
            asked(&serving, "ann");
            serving.logged("no longer degraded")
        });
        let ended = serving.logged("no longer degraded").expect("a line");
        assert!(text(&ended, "reason").contains(reason), "{ended}");
        until("it is ready", || (ready(&serving) == "ready\n").then_some(()));
    }
}

#[test]
fn require_store_ends_with_the_error_that_redis_replied_with() {
    let rows = ROWS.iter().filter(|row| ["no +evalsha", "full", "a replica"].contains(&row.name));
    let check = |row: &Row| {
        let (server, _with) = (row.start)();
        let login = format!("{}:{}", acl::USER, acl::PASSWORD);
        let files = directory(&[("policy.yaml", FIVE_A_DAY), ("auth", &login)]);
        let path = |name: &str| files.path().join(name).display().to_string();
        let mut command = tidegate();
        command.args(["serve", "--policy", &path("policy.yaml"), "--require-redis", "true"]);
        command.args(["--redis-url", &format!("127.0.0.1:{}", server.port)]);
        command.args(["--redis-auth-file", &path("auth")]);
        command.args(["--grpc-port", "0", "--http-port", "0", "--debug-port", "0"]);
        let ran = ran(&mut command).with_code(69);
        let end = ran.err.lines().last().unwrap_or_default().to_owned();
        assert!(end.contains(row.reason) && end.contains(row.advice), "{}: {end}", row.name);
    };
    thread::scope(|scope| rows.for_each(|row| drop(scope.spawn(move || check(row)))));
}

fn on_cluster(addresses: &[u16], arguments: &[&str]) -> Tidegate {
    let policy = FIVE_A_DAY.replace(": 5}", ": 1000000}");
    let urls: Vec<String> = addresses.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = urls.join(",");
    let redis = ["--redis-type", "cluster", "--redis-url", &url, "--redis-budget", "5s"];
    Tidegate::policy(&policy, &[&redis, arguments].concat())
}

/// The configuration of a cluster that serves slots even if others have no node.
const PARTIAL: &str = "cluster-require-full-coverage no";

/// A cluster of one server, with these slots.
fn alone(lines: &[&str], slots: &[&str]) -> Server {
    let server = Server::start(&[&["cluster-enabled yes"], lines].concat());
    server.ask(&[&["CLUSTER", "ADDSLOTSRANGE"], slots].concat());
    if lines.contains(&PARTIAL) {
        until("the cluster is up", || {
            let info: String = redis::from_redis_value(server.ask(&["CLUSTER", "INFO"])).unwrap();
            info.contains("cluster_state:ok").then_some(())
        });
    }
    server
}

#[test]
fn a_cluster_with_a_slot_that_nobody_owns_is_used_and_the_slot_is_named() {
    for (slots, count, named) in [
        (&["1", "16383"][..], 1, "0"),
        (&["0", "16382"], 1, "16383"),
        (&["0", "99", "101", "16383"], 1, "100"),
        (&["0", "99", "110", "16383"], 10, "100-109"),
        (&["0", "99", "101", "199", "202", "16383"], 3, "100,200-201"),
    ] {
        let server = alone(&[PARTIAL], slots);
        let serving = on_cluster(&[server.port], &["--require-redis", "true"]);
        let line = serving.logged_in_time("hash slots have no node");
        assert_eq!((&line["count"], &line["slots"]), (&count.into(), &named.into()), "{line}");
        let ready_line = serving.logged("ready").expect("it is ready");
        assert_eq!(ready_line["addresses"], format!("127.0.0.1:{}", server.port));
        (0..20).for_each(|client| {
            asked(&serving, &client.to_string());
        });
        assert_eq!(ready(&serving), "ready\n", "{}", serving.log());
    }
}

#[test]
fn a_cluster_that_serves_no_slot_while_one_has_no_node_is_named() {
    let server = alone(&["cluster-require-full-coverage yes"], &["1", "16383"]);
    let serving = on_cluster(&[server.port], &["--redis-timeout", "2s"]);
    let line = logged(&serving, ERROR, "CLUSTERDOWN");
    assert!(text(&line, "advice").contains("cluster-require-full-coverage no"), "{line}");
    serving.logged_in_time("hash slots have no node");
    logged(&serving, "degraded: deciding without Redis", "CLUSTERDOWN");
    server.ask(&["CLUSTER", "ADDSLOTS", "0"]);
    until("Redis decides", || {
        asked(&serving, "ann");
        (ready(&serving) == "ready\n").then_some(())
    });
}

#[test]
fn a_node_that_denies_is_not_reached_and_one_dead_shard_is_degraded_by_its_breaker() {
    let _turn = heavy::blocking_turn();
    let mut cluster = Cluster::start(&[]);
    cluster.nodes[1].ask(&["ACL", "SETUSER", "default", "-evalsha"]);
    let port = cluster.nodes[0].port;
    let required = ["--require-redis", "true", "--grpc-port", "0", "--http-port", "0"];
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--policy", &files.path().join("policy.yaml").display().to_string()]);
    command.args(["--redis-type", "cluster", "--redis-url", &format!("127.0.0.1:{port}")]);
    let ran = ran(command.args(required).args(["--debug-port", "0"])).with_code(69);
    let end = ran.err.lines().last().unwrap_or_default();
    let denied = format!("127.0.0.1:{}: NOPERM", cluster.nodes[1].port);
    assert!(end.contains(&denied) && end.contains("+cluster|shards"), "{end}");
    cluster.nodes[1].ask(&["ACL", "SETUSER", "default", "+evalsha"]);
    let replica = cluster.replica_of(2);
    cluster.nodes[replica].kill();
    cluster.nodes[2].kill();
    let ports = [cluster.nodes[0].port, cluster.nodes[1].port];
    let serving = on_cluster(&ports, &["--require-redis", "true"]);
    until("the dead shard's breaker opens", || {
        ready(&serving).starts_with("ready, degraded").then_some(())
    });
    let dead = format!("127.0.0.1:{}", cluster.nodes[2].port);
    assert!(ready(&serving).contains(&dead), "{}", ready(&serving));
}

#[test]
fn ready_names_the_store_and_its_addresses_without_secrets() {
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    assert_eq!(serving.logged("ready").expect("a line")["store"], "memory");
    let server = Server::start(&[&acl::line(acl::SINGLE).replace(acl::PASSWORD, "s3cr3t")]);
    let url = format!("redis://{}:s3cr3t@127.0.0.1:{}", acl::USER, server.port);
    let serving = Tidegate::policy(FIVE_A_DAY, &["--redis-url", &url, "--require-redis", "true"]);
    let line = serving.logged("ready").expect("a line");
    assert_eq!(line["store"], "redis");
    assert_eq!(line["addresses"], format!("127.0.0.1:{}", server.port));
    assert!(!serving.log().contains("s3cr3t"), "{}", serving.log());
}
