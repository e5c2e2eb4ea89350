//! A master behind Sentinel.

use tidegate::store::redis::client::config::{Address, RedisConfig, TopologyConfig};
use tidegate::store::redis::client::transport::Transport;

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::counting_load::{COUNT, Load, config, count_one, item, open, records, total};
use crate::support::acl;
use crate::support::heavy;
use crate::support::real_store::login;
use crate::support::redis_sentinel::{Group, NAME};
use crate::support::redis_server::{Server, until};

fn group() -> Group {
    Group::start(&[&acl::line(acl::SENTINEL_MASTER)], &[&acl::line(acl::SENTINEL)])
}

fn watched(group: &Group) -> RedisConfig {
    let topology = TopologyConfig::Sentinel { master: NAME.into(), auth: login() };
    let sentinels: Vec<_> = group.sentinels.iter().collect();
    config(topology, &sentinels)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_without_a_restart_and_without_a_double_charge() {
    let _turn = heavy::turn().await;
    let mut group = group();
    let mut watched = watched(&group);
    // One that is not there is passed over.
    watched.addresses.insert(0, Address::Tcp("127.0.0.1".into(), 1));
    let connections = open(watched).await;
    let load = Load::start(connections, records(4));
    load.progress("every key is charged", |_| true, 5).await;

    assert_eq!(load.connections().counter_losses(), 0);
    // The old master lives, and becomes a replica.
    group.sentinels[0].ask(&["SENTINEL", "FAILOVER", NAME]);
    until("there is a new master", || group.master() != 0).await;
    let losses = || load.connections().counter_losses();
    until("the new master is used, which may lack charges", || losses() == 1).await;
    load.progress("the new master charges", |_| true, 5).await;

    // The new one dies.
    let second = group.master();
    until("all replicate it", || {
        let info = group.servers[second].ask(&["INFO", "replication"]);
        crate::support::redis_cluster::text(info).matches("state=online").count() == 2
    })
    .await;
    group.servers[second].kill();
    until("there is a third master", || group.master() != second).await;
    load.progress("the third master charges", |_| true, 5).await;

    // Replication is asynchronous: what a dead master alone had seen is lost, by design.
    load.stop(false).await;
}

/// Connections that a server has accepted since it was started.
async fn connections_received(connection: &mut MultiplexedConnection) -> u64 {
    let mut info = redis::cmd("INFO");
    let stats: String = info.arg("stats").query_async(connection).await.unwrap();
    let (_, rest) = stats.split_once("total_connections_received:").unwrap();
    rest.split_once('\r').unwrap().0.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_of_the_sentinels_does_not_replace_a_connected_master() {
    let _turn = heavy::turn().await;
    let mut group = group();
    let connections = open(watched(&group)).await;
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(1)));
    // The others are away, and this one is stale: it names another server, which is a master.
    let other = Server::start(&[&acl::line(acl::SENTINEL_MASTER)]);
    group.sentinels[1].kill();
    group.sentinels[2].kill();
    group.sentinels[0].ask(&["SENTINEL", "REMOVE", NAME]);
    let port = other.port.to_string();
    group.sentinels[0].ask(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "1"]);
    let mut stale = group.sentinels[0].connect().await;
    let queries = connections_received(&mut stale).await;
    let mut count = 1;
    // Every lost connection makes the client query the sentinels, while the master is away for a
    // moment.
    while connections_received(&mut stale).await < queries + 10 {
        count += 1;
        let before = total(&connections, |node| &node.connects);
        group.servers[0].ask(&["CLIENT", "KILL", "USER", acl::USER]);
        until("both connections are back", || {
            total(&connections, |node| &node.connects) >= before + 2
                && total(&connections, |node| &node.connected) == 2
        })
        .await;
        assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(count)));
    }
    assert_eq!(other.count("tg1z:{a}"), 0);
    // Once the master is lost, the only sentinel that answers is better than none.
    group.servers[0].kill();
    until("the named master is connected", || connections.is_connected()).await;
    until("it counts", || {
        connections.send_in_background(item(&COUNT, "tg1z:{a}"));
        other.count("tg1z:{a}") > 0
    })
    .await;
}
