//! Redis Cluster of three masters, each with a replica.

#![allow(clippy::disallowed_methods, reason = "sends calls with a deadline")]

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Answer, Call, Check, ExecutionStatus, FailureKind, Hits, Micros, Op, Receipt,
    Source, Verdict,
};
use tidegate::resilience::stack::{Stack, StackConfig};
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::TopologyConfig;
use tidegate::store::redis::client::node_stats::NodeReport;
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::client::transport::Transport;
use tidegate::store::redis::script::call::NodeRequest;
use tidegate::store::redis::script::keys::{self, Prefix};
use tidegate::store::redis::script::library::ScriptCall;
use tidegate::store::redis::store::TimeSource;
use tidegate::store::{SharedStore, Store};
use tokio::sync::SemaphorePermit;

use super::counting_load::{
    COUNT, CounterRecord, Load, apply, config, counted, hits, item, open, redirects, total,
};
use crate::support::acl;
use crate::support::fault_proxy::Fault;
use crate::support::heavy;
use crate::support::limits::{self, HOUR, SECOND, START};
use crate::support::redis_cluster::{Cluster, text};
use crate::support::redis_server::{PATIENCE, Server, until};
use crate::support::requests::{send, value};

/// How many keys each master holds.
const KEYS_EACH: usize = 4;

struct Bench {
    cluster: Cluster,
    connections: RedisClient,
    _turn: SemaphorePermit<'static>,
}

async fn bench(proxied: bool) -> Bench {
    let turn = heavy::turn().await;
    let user = acl::line(acl::CLUSTER);
    let cluster =
        if proxied { Cluster::start_behind_a_proxy(&[&user]) } else { Cluster::start(&[&user]) };
    // Any node leads to all the others.
    let connections = open(config(TopologyConfig::Cluster, &[&cluster.nodes[1]])).await;
    Bench { cluster, connections, _turn: turn }
}

/// The same number of counters on every master.
fn spread(cluster: &Cluster) -> Vec<CounterRecord> {
    let mut records: Vec<CounterRecord> = Vec::new();
    for identity in 0.. {
        let home = cluster.owner(0, keys::counter_slot(&CounterRecord::new(identity, 0).key()));
        if records.iter().filter(|record| record.home == home).count() < KEYS_EACH {
            records.push(CounterRecord::new(identity, home));
        }
        if records.len() == 3 * KEYS_EACH {
            break;
        }
    }
    records
}

/// A slot of the first master's.
fn slot_of_the_first(load: &Load) -> u16 {
    keys::counter_slot(&load.book.iter().find(|record| record.home == 0).unwrap().key())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_takes_one_write_per_node() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let items: Vec<(usize, ScriptCall)> = (0..12)
        .map(|at| {
            let key = format!("tg1z:{{{at}}}");
            let slot = keys::key_slot(key.as_bytes());
            assert_eq!(slot, cluster.slot_of(&key), "our checksum is the server's");
            (cluster.owner(0, slot), ScriptCall { slot: Some(slot), ..item(&COUNT, &key) })
        })
        .collect();
    let call = |home: Option<usize>| {
        let of_home = |(at, item): &(usize, ScriptCall)| {
            home.is_none_or(|home| home == *at).then(|| item.clone())
        };
        let items: Vec<ScriptCall> = items.iter().filter_map(of_home).collect();
        send(&connections, items)
    };
    assert!((0..3).all(|home| items.iter().any(|(at, _)| *at == home)), "all are touched");
    let replies = call(None).await;
    assert!(replies.len() == 12 && replies.iter().all(Result::is_ok), "{replies:?}");
    assert_eq!(total(&connections, |node| &node.writes), 3);
    let replies = call(Some(1)).await;
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    assert_eq!(total(&connections, |node| &node.writes), 4);
    assert_eq!(total(&connections, |node| &node.moved), 0, "the table was right");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_and_a_full_reshard_lose_and_repeat_no_charge() {
    lose_and_repeat_no_charge(Load::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_node_scripts_a_failover_and_a_reshard_lose_and_repeat_no_charge() {
    lose_and_repeat_no_charge(Load::start_without_node_scripts).await;
}

async fn lose_and_repeat_no_charge(start: fn(RedisClient, Vec<CounterRecord>) -> Load) {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let load = start(connections, spread(&cluster));
    load.progress("every key is charged", |_| true, 40).await;

    assert_eq!(load.connections().counter_losses(), 0);
    let heir = cluster.replica_of(0);
    cluster.nodes[heir].ask(&["CLUSTER", "FAILOVER"]);
    let slot = slot_of_the_first(&load);
    until("the replica is master", || (0..6).all(|asked| cluster.owner(asked, slot) == heir)).await;
    load.progress("every key is charged by the new master too", |_| true, 5).await;
    let losses = load.connections().counter_losses();
    assert!(losses >= 1, "a promoted replica may lack charges");

    let unanswered = || load.book.iter().map(CounterRecord::unanswered).sum::<u64>();
    let before = unanswered();
    let nodes = load.connections().report();
    // Every slot of the second master moves to the third, with the keys, while both serve.
    cluster.reshard(1, 2).await;
    load.progress("every key is charged in its new place", |_| true, 5).await;
    assert!(redirects(&nodes) > 0, "nothing was redirected");
    assert_eq!(unanswered(), before, "a moving slot cost an answer");
    assert_eq!(load.connections().counter_losses(), losses, "slots move with their counters");

    load.stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_affects_only_its_own_keys_until_its_replica_takes_over() {
    let Bench { mut cluster, connections, _turn } = bench(false).await;
    let load = Load::start(connections, spread(&cluster));
    load.progress("every key is charged", |_| true, 40).await;
    let slot = slot_of_the_first(&load);
    load.record("before a master is killed", |record| record.home != 0);
    cluster.nodes[0].kill();
    load.progress("the others go on", |record| record.home != 0, 20).await;
    until("the replica is master", || cluster.owner(1, slot) != 0).await;
    load.record("while its replica takes over", |record| record.home != 0);
    load.progress("the replica charges", |_| true, 5).await;
    // Replication is asynchronous: what the dead master alone had seen is lost, by design.
    let book = load.stop(false).await;
    for record in book.iter().filter(|record| record.home != 0) {
        assert_eq!(record.unanswered(), 0, "{record:?} lies on a healthy shard");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_affects_no_other_shard_and_is_replaced() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let load = Load::start(connections, spread(&cluster));
    load.progress("every key is charged", |_| true, 40).await;
    let slot = slot_of_the_first(&load);
    load.record("before a master is frozen", |record| record.home != 0);
    cluster.nodes[0].freeze();
    load.progress("the others go on", |record| record.home != 0, 20).await;
    until("the replica is master", || cluster.owner(1, slot) != 0).await;
    load.record("while it is frozen", |record| record.home != 0);
    load.progress("the replica charges", |_| true, 5).await;
    cluster.nodes[0].thaw();
    until("the old master follows", || cluster.owner(0, slot) != 0).await;
    load.progress("all goes on", |_| true, 5).await;
    let book = load.stop(false).await;
    for record in book.iter().filter(|record| record.home != 0) {
        assert_eq!(record.unanswered(), 0, "{record:?} lies on a healthy shard");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_in_front_of_a_master_affects_no_other_shard() {
    let Bench { cluster, connections, _turn } = bench(true).await;
    let load = Load::start(connections, spread(&cluster));
    load.progress("every key is charged", |_| true, 40).await;
    let proxy = cluster.proxy.as_ref().unwrap();
    load.record("before a black hole", |record| record.home != 0);
    proxy.both(Fault::Swallow);
    until("its connections are dropped", || total(load.connections(), |node| &node.timeouts) > 0)
        .await;
    load.progress("the others go on", |record| record.home != 0, 50).await;
    // Long enough for dials to vanish in the hole too.
    until("it is dialled in vain", || total(load.connections(), |node| &node.connect_failures) > 2)
        .await;
    load.progress("the others still go on", |record| record.home != 0, 20).await;
    load.record("beside a black hole", |record| record.home != 0);
    proxy.heal();
    load.progress("it is met again", |_| true, 5).await;
    // The master itself never failed: what it acknowledged, it holds.
    let book = load.stop(true).await;
    for record in book.iter().filter(|record| record.home != 0) {
        assert_eq!(record.unanswered(), 0, "{record:?} lies on a healthy shard");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_slots_of_a_frozen_node_all_fail_within_the_budget() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let book = spread(&cluster);
    let silent: Vec<&CounterRecord> = book.iter().filter(|record| record.home == 0).collect();
    let (store, limit) = counted(connections, Duration::from_millis(100));
    let take = Op::Take { cost: Hits(3) };
    let before = apply(&store, &limit, &silent, take).await;
    assert!(before.iter().all(|answer| answer.outcome().is_some()), "{before:?}");
    cluster.nodes[0].freeze();
    for _ in 0..3 {
        let answers = apply(&store, &limit, &silent, take).await;
        let unanswered = |answer: &Answer| matches!(answer, Answer::Unanswered { .. });
        assert!(answers.iter().all(unanswered), "{answers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_beside_an_unanswered_slot_is_kept_and_can_be_refunded() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let book = spread(&cluster);
    let of_home = |home| book.iter().filter(move |record| record.home == home);
    let (silent, sound) = (of_home(0).next().unwrap(), of_home(1).next().unwrap());
    let (store, limit) = counted(connections, Duration::from_millis(100));
    let take = Op::Take { cost: Hits(3) };
    let both = apply(&store, &limit, &[silent, sound], take).await;
    assert!(both.iter().all(|answer| answer.outcome().is_some()), "{both:?}");

    cluster.nodes[0].freeze();
    let mut receipts = Vec::new();
    for _ in 0..3 {
        let answers = apply(&store, &limit, &[silent, sound], take).await;
        assert!(matches!(answers[0], Answer::Unanswered { .. }), "{answers:?}");
        let outcome = answers[1].outcome().expect("the sound shard's answer is there in time");
        assert_eq!(outcome.charged, Hits(3));
        let taken = outcome.taken.expect("it can be refunded");
        receipts.push(Receipt { key: sound.key(), limit: Arc::clone(&limit), taken });
    }
    assert_eq!(hits(&store, &limit, sound).await, Some(12));
    store.refund(&receipts).await;
    assert_eq!(hits(&store, &limit, sound).await, Some(3));
    cluster.nodes[0].thaw();
}

/// Hands an empty slot from one master to another. The client learns of it by MOVED only.
pub(super) fn hand_over(cluster: &Cluster, slot: u16, from: usize, to: usize) {
    let (slot, id) = (slot.to_string(), cluster.id(to));
    for node in [to, from] {
        cluster.nodes[node].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    }
}

/// A counting call for a key that is in one of a master's slots.
fn item_on(cluster: &Cluster, home: usize) -> ScriptCall {
    let keys = (0..).map(|at| format!("tg1z:{{{at}}}"));
    let mut items = keys.map(|key| {
        let slot = keys::key_slot(key.as_bytes());
        (cluster.owner(0, slot), ScriptCall { slot: Some(slot), ..item(&COUNT, &key) })
    });
    items.find(|(at, _)| *at == home).unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirected_call_does_not_wait_for_a_frozen_node() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let (frozen, moved) = (item_on(&cluster, 0), item_on(&cluster, 1));
    hand_over(&cluster, moved.slot.unwrap(), 1, 2);
    cluster.nodes[0].freeze();
    let deadline = std::time::Instant::now() + Duration::from_millis(200);
    let requests = [frozen, moved].map(NodeRequest::from);
    let mut pending = connections.submit(requests.into_iter().collect());
    let moved = pending.pop().unwrap();
    let moved = moved.await.map(value);
    assert_eq!(moved, Ok(Value::Int(1)), "the redirect is followed beside the frozen node");
    let frozen = tokio::time::timeout_at(deadline.into(), &mut pending[0]).await;
    cluster.nodes[0].thaw();
    assert!(frozen.is_err(), "{frozen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_on_a_half_moved_slot_is_retried_once_and_then_not_executed() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let call = item_on(&cluster, 1);
    let slot = call.slot.unwrap();
    let key = (0..).map(|at| format!("tg1z:{{{at}}}"));
    let tag = key.into_iter().find(|key| keys::key_slot(key.as_bytes()) == slot).unwrap();
    let both = [format!("{tag}:a"), format!("{tag}:b")];
    for key in &both {
        cluster.nodes[1].ask(&["SET", key, "0"]);
    }
    let (from, to, text) = (cluster.id(1), cluster.id(2), slot.to_string());
    cluster.nodes[2].ask(&["CLUSTER", "SETSLOT", &text, "IMPORTING", &from]);
    cluster.nodes[1].ask(&["CLUSTER", "SETSLOT", &text, "MIGRATING", &to]);
    let port = cluster.nodes[2].port.to_string();
    cluster.nodes[1].ask(&["MIGRATE", "127.0.0.1", &port, &both[0], "0", "5000"]);

    let mut command = redis::cmd("EVALSHA");
    command.arg(&COUNT.sha).arg(2).arg(&both);
    let half = ScriptCall { slot: Some(slot), command, ..call.clone() };
    let replies = send(&connections, [half]).await;
    let moving = SendError { kind: FailureKind::Moving, executed: ExecutionStatus::NotExecuted };
    assert_eq!(replies.as_slice(), [Err(moving)]);
    assert_eq!(total(&connections, |node| &node.tryagain), 2, "sent once and retried once");
}

/// A server with the configuration that a master had when it was copied, cut off from all others.
fn stale_copy(cluster: &Cluster, node: usize) -> Server {
    let nodes = std::fs::read_to_string(cluster.nodes[node].dir.path().join("nodes.conf")).unwrap();
    // Nothing listens on bus port 1.
    let words = nodes.split(' ').map(|word| match word.split_once('@') {
        Some((address, rest)) => {
            let rest = rest.split_once(',').map_or(String::new(), |(_, rest)| format!(",{rest}"));
            format!("{address}@1{rest}")
        }
        None => word.to_owned(),
    });
    let nodes = words.collect::<Vec<_>>().join(" ");
    let dir = tempfile::tempdir().unwrap().keep();
    let file = dir.join("nodes.conf");
    std::fs::write(&file, nodes).unwrap();
    let file = format!("cluster-config-file {}", file.display());
    let announced = format!("cluster-announce-port {}", cluster.nodes[node].port);
    let lines = ["cluster-enabled yes", &file, &announced, &acl::line(acl::CLUSTER)];
    Server::start(&lines)
}

/// How often a server was asked for its slot table.
fn queries_for_slots(server: &Server) -> u64 {
    let stats = text(server.ask(&["INFO", "commandstats"]));
    let calls = stats.split_once("cmdstat_cluster|shards:calls=").map_or("0", |(_, rest)| rest);
    calls.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_slot_table_never_replaces_a_newer_one() {
    let turn = heavy::turn().await;
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let call = item_on(&cluster, 0);
    let stale = stale_copy(&cluster, 2);
    let heir = cluster.replica_of(0);
    cluster.nodes[heir].ask(&["CLUSTER", "FAILOVER"]);
    let slot = call.slot.unwrap();
    until("the replica is master", || (0..6).all(|asked| cluster.owner(asked, slot) == heir)).await;

    // The stale server is asked first whenever no node is connected, and so at the start.
    let addresses = config(TopologyConfig::Cluster, &[&stale, &cluster.nodes[1]]);
    let connections = open(addresses).await;
    let count = async || send(&connections, [call.clone()]).await;
    let end = std::time::Instant::now() + PATIENCE;
    // Once the table is right, the node that answered MOVED is dropped with its count.
    while count().await[0].is_err() || total(&connections, |node| &node.moved) > 0 {
        assert!(std::time::Instant::now() < end, "the stale table stays");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // With every other node silent, the stale one is the only one that answers.
    cluster.nodes.iter().for_each(Server::freeze);
    let lost = total(&connections, |node| &node.losses);
    until("a connection is lost", || {
        connections.send_in_background(call.clone());
        total(&connections, |node| &node.losses) > lost
    })
    .await;
    // The answer to a query is judged before the next one is made.
    let queries = queries_for_slots(&stale);
    until("the stale server answers", || queries_for_slots(&stale) >= queries + 2).await;
    let heir = format!("127.0.0.1:{}", cluster.nodes[heir].port);
    let is_known = connections.report().iter().any(|node| node.address == heir);
    cluster.nodes.iter().for_each(Server::thaw);
    assert!(is_known, "an older table replaced the newer one");
    until("all are connected again", || connections.is_connected()).await;
    while count().await[0].is_err() {
        assert!(std::time::Instant::now() < end, "it is not counted again");
    }
    assert_eq!(total(&connections, |node| &node.moved), 0, "the newer table stayed");
    drop((stale, turn));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_table_of_another_cluster_is_not_taken_while_a_node_is_connected() {
    let turn = heavy::turn().await;
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let other = Server::start(&["cluster-enabled yes", &acl::line(acl::CLUSTER)]);
    other.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let addresses = config(TopologyConfig::Cluster, &[&cluster.nodes[1], &other]);
    let (call, connections) = (item_on(&cluster, 0), open(addresses).await);
    cluster.nodes.iter().for_each(Server::freeze);
    // A broken connection leads to a refresh. The other masters owe no reply, so theirs stay open.
    let lost = total(&connections, |node| &node.losses);
    connections.send_in_background(call.clone());
    until("a connection is lost", || total(&connections, |node| &node.losses) > lost).await;
    // The answer to a query is judged before the next one is made.
    let queries = queries_for_slots(&other);
    until("the other cluster answers", || queries_for_slots(&other) >= queries + 2).await;
    let address = format!("127.0.0.1:{}", other.port);
    let is_taken = connections.report().iter().any(|node| node.address == address);
    cluster.nodes.iter().for_each(Server::thaw);
    assert!(!is_taken, "every counter would start afresh");
    until("all are connected again", || connections.is_connected()).await;
    drop((other, turn));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_slot_is_redirected_until_the_slot_table_is_refreshed_at_once() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let call = item_on(&cluster, 1);
    hand_over(&cluster, call.slot.unwrap(), 1, 2);
    let count = async || send(&connections, [call.clone()]).await;
    assert!(count().await[0].is_ok());
    assert_eq!(total(&connections, |node| &node.moved), 1);
    // Long before the periodic refresh after 30 s.
    let end = std::time::Instant::now() + Duration::from_secs(25);
    let mut moved = 1;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(count().await[0].is_ok());
        let now = total(&connections, |node| &node.moved);
        if now == moved {
            break;
        }
        moved = now;
        assert!(std::time::Instant::now() < end, "no new slot table");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_two_nodes_redirect_to_each_other_is_given_up_after_three_redirects() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let call = item_on(&cluster, 1);
    let (slot, id) = (call.slot.unwrap().to_string(), cluster.id(2));
    // The other master still takes the slot for this one's.
    cluster.nodes[1].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    let replies = send(&connections, [call]).await;
    let circling = SendError { kind: FailureKind::Moving, executed: ExecutionStatus::NotExecuted };
    assert_eq!(replies.as_slice(), [Err(circling)]);
    assert_eq!(total(&connections, |node| &node.moved), 4, "sent once and redirected thrice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_asks_still_asks_when_its_script_had_to_be_loaded() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    // A connection that opens later would load the scripts.
    until("every connection is open", || {
        connections.report().iter().all(|node| node.stats.connected.get() == 2)
    })
    .await;
    let call = item_on(&cluster, 1);
    let (from, to, slot) = (cluster.id(1), cluster.id(2), call.slot.unwrap().to_string());
    cluster.nodes[2].ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]);
    cluster.nodes[1].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    cluster.nodes[2].ask(&["SCRIPT", "FLUSH"]);
    let replies = send(&connections, [call]).await;
    assert_eq!(replies.as_slice(), [Ok(Value::Int(1))]);
    let (ask, noscript) =
        (total(&connections, |node| &node.ask), total(&connections, |node| &node.noscript));
    assert_eq!((ask, noscript), (1, 1), "redirected once, and sent again there");
}

/// The number of calls that one master was sent.
fn calls_to(cluster: &Cluster, nodes: &[NodeReport], home: usize) -> u64 {
    let address = format!("127.0.0.1:{}", cluster.nodes[home].port);
    nodes.iter().find(|node| node.address == address).unwrap().stats.calls.get()
}

/// How many script calls a server was sent.
fn scripts_run(server: &Server) -> u64 {
    let stats = text(server.ask(&["INFO", "commandstats"]));
    let calls = stats.split_once("cmdstat_evalsha:calls=").map_or("0", |(_, rest)| rest);
    calls.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_calls_over_two_nodes_cost_four_commands_per_limit_and_second() {
    let Bench { cluster, connections, _turn } = bench(false).await;
    let store = RedisStore::new(connections, Prefix::default(), TimeSource::Server);
    let config = StackConfig { budget: PATIENCE, ..StackConfig::default() };
    let store = Stack::new(store, MemoryStore::new(1_000), config, Clock::System);
    let (wide, narrow) = (limits::bucket(100_000, SECOND), limits::bucket(5, HOUR));
    let year = 365 * 24 * HOUR;
    let windows = (limits::window(100_000, year), limits::window(5, year));
    for ((wide, narrow), identity) in [((wide, narrow), 1_000), (windows, 2_000)] {
        let on = |home| {
            let mut keys = (identity..).map(|identity| CounterRecord::new(identity, home).key());
            keys.find(|key| cluster.owner(0, keys::counter_slot(key)) == home).unwrap()
        };
        let take = |home, limit| limits::take(on(home), limit, 1);
        let checks: [Check<'_>; 2] = [take(0, &wide), take(1, &narrow)];
        let first = limits::call(&checks, START);
        let call = async |now: Micros| store.apply(&Call { now, ..first }).await;
        for _ in 0..5 {
            let answers = call(START).await.each;
            assert!(answers.iter().all(|answer| answer.verdict() == Some(Verdict::Pass)));
        }
        let alone = Call { checks: &checks[..1], ..first };
        let left = store.apply(&alone).await.each[0].outcome().unwrap().available;
        let sent = || [0, 1].map(|home| calls_to(&cluster, &store.remote().nodes(), home));
        let (before, ran) = (sent(), scripts_run(&cluster.nodes[0]));
        let (mut cached, mut asked) = (0, 0);
        for millis in 0..1_000 {
            let answers = call(START.saturating_add(Micros(millis * 1_000))).await;
            assert_eq!(answers.each[1].verdict(), Some(Verdict::Refuse));
            if answers.source == Source::Cached {
                let known = answers.each[0];
                let Answer::LastKnown { available, .. } = known else { panic!("{known:?}") };
                assert!(available >= left, "{available:?} after {left:?}");
            } else {
                // The next call that asks finds this one's charge refunded.
                asked += 1;
                until("the refund", || scripts_run(&cluster.nodes[0]) == ran + 2 * asked).await;
            }
            cached += u32::from(answers.source == Source::Cached);
        }
        let calls = sent().into_iter().zip(before).map(|(after, before)| after - before);
        let calls: Vec<u64> = calls.collect();
        // A charge and its refund for each call that asked.
        assert!(calls.iter().all(|calls| *calls <= 4), "{calls:?}");
        assert_eq!(cached, 998, "two calls asked: the first one, and one after 50 ms");
    }
}

/// What one node holds is undone if another node refuses, also if it renewed a hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_holds_on_all_its_nodes_or_on_none() {
    let Bench { cluster: _cluster, connections, _turn } = bench(false).await;
    let store = RedisStore::new(connections, Prefix::default(), TimeSource::Server);
    let limit = limits::reserved(&limits::window(100, 87_600 * HOUR), 600);
    for (first, accounting) in [(0, Accounting::AllOrNothing), (8, Accounting::Independent)] {
        let keys: Vec<_> = (first..first + 8).map(limits::key).collect();
        let ask = async |checks: Vec<Check<'_>>| {
            let call = Call { accounting, ..limits::call(&checks, Clock::default().now()) };
            let answers = store.apply(&call).await;
            let outcomes = answers.each.iter().map(|answer| *answer.outcome().expect("decided"));
            outcomes.collect::<Vec<_>>()
        };
        // The last limit decides.
        let holds = |hits: u64, last: u64| {
            let hits_of = |at: usize| if at == 7 { last } else { hits };
            let each = keys.iter().enumerate();
            each.map(|(at, key)| limits::hold(*key, &limit, 5, hits_of(at))).collect::<Vec<_>>()
        };
        let left = async || {
            let peeks = keys.iter().map(|key| limits::peek(*key, &limit)).collect();
            ask(peeks).await.iter().map(|outcome| outcome.available.0).collect::<Vec<_>>()
        };
        let passes = |outcomes: &[tidegate::domain::Outcome]| {
            outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Pass).count()
        };
        assert_eq!(passes(&ask(holds(40, 101)).await), 7, "{accounting:?}");
        // Refunds follow in the background.
        while left().await != [100; 8] {
            tokio::task::yield_now().await;
        }
        assert_eq!(passes(&ask(holds(40, 50)).await), 8, "{accounting:?}");
        assert_eq!(passes(&ask(holds(90, 101)).await), 7, "{accounting:?}");
        while left().await != [60, 60, 60, 60, 60, 60, 60, 50] {
            tokio::task::yield_now().await;
        }
    }
}
