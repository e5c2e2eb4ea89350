//! Redis Cluster of three masters, each with a replica.

use std::sync::Arc;
use std::time::Duration;

use tidegate::domain::{Answer, Hits, Op, Receipt};
use tidegate::store::Store;
use tidegate::store::redis::client::config::TopologyConfig;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::client::transport::{ScriptCall, ScriptCalls, Transport};
use tidegate::store::redis::keys;
use tokio::sync::MutexGuard;

use super::counting_load::{
    COUNT, CounterRecord, Load, apply, config, counted, hits, item, open, total,
};
use crate::support::acl;
use crate::support::heavy;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_server::until;

/// How many keys each master holds.
const KEYS_EACH: usize = 4;

struct Bench {
    cluster: Cluster,
    connections: RedisClient,
    _turn: MutexGuard<'static, ()>,
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
        connections.send(items.iter().filter_map(of_home).collect::<ScriptCalls>())
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
    let Bench { cluster, connections, _turn } = bench(false).await;
    let load = Load::start(connections, spread(&cluster));
    load.progress("every key is charged", |_| true, 40).await;

    let heir = cluster.replica_of(0);
    cluster.nodes[heir].ask(&["CLUSTER", "FAILOVER"]);
    let slot = slot_of_the_first(&load);
    until("the replica is master", || (0..6).all(|asked| cluster.owner(asked, slot) == heir)).await;
    load.progress("every key is charged by the new master too", |_| true, 5).await;

    let unanswered = || load.book.iter().map(CounterRecord::unanswered).sum::<u64>();
    let before = unanswered();
    // Every slot of the second master moves to the third, with the keys, while both serve.
    cluster.reshard(1, 2).await;
    load.progress("every key is charged in its new place", |_| true, 5).await;
    let redirected =
        total(load.connections(), |node| &node.moved) + total(load.connections(), |node| &node.ask);
    assert!(redirected > 0, "nothing was redirected");
    assert_eq!(unanswered(), before, "a moving slot cost an answer");

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
    proxy.swallow(true);
    until("its connections are dropped", || total(load.connections(), |node| &node.timeouts) > 0)
        .await;
    load.progress("the others go on", |record| record.home != 0, 50).await;
    // Long enough for dials to vanish in the hole too.
    until("it is dialled in vain", || total(load.connections(), |node| &node.connect_failures) > 2)
        .await;
    load.progress("the others still go on", |record| record.home != 0, 20).await;
    load.record("beside a black hole", |record| record.home != 0);
    proxy.swallow(false);
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
    assert_eq!(store.overruns(), 0, "it ended in order, before its budget did");
    assert_eq!(hits(&store, &limit, sound).await, Some(12));
    store.refund(&receipts).await;
    assert_eq!(hits(&store, &limit, sound).await, Some(3));
    cluster.nodes[0].thaw();
}
