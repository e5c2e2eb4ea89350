//! A master behind Sentinel.

use tidegate::store::redis::client::config::{Address, RedisConfig, TopologyConfig};

use super::counting_load::{Load, auth, config, open, records};
use crate::support::acl;
use crate::support::heavy;
use crate::support::redis_sentinel::{Group, NAME};
use crate::support::redis_server::until;

fn group() -> Group {
    Group::start(&[&acl::line(acl::SENTINEL_MASTER)], &[&acl::line(acl::SENTINEL)])
}

fn watched(group: &Group) -> RedisConfig {
    let topology = TopologyConfig::Sentinel { master: NAME.into(), auth: auth() };
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

    // The old master lives, and becomes a replica.
    group.sentinels[0].ask(&["SENTINEL", "FAILOVER", NAME]);
    until("there is a new master", || group.master() != 0).await;
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
