//! What overrides survive: a Redis that has lost everything, a failover, restarts, and reloads.

use std::fs;

use super::*;
use crate::support::acl;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_sentinel::{Group, NAME};

#[test]
fn overrides_survive_an_emptied_redis_a_rolling_restart_and_a_reload() {
    let server = Server::start(&[]);
    let mut replicas = three_on(&server);
    order(&replicas[0], "/override?target=edge&scale=20%25&permanent=true&reason=kept");
    order(&replicas[1], "/override?target=edge&mode=deny&permanent=true&reason=deleted");
    await_reasons(&replicas, &["deleted", "kept"]);
    order(&replicas[2], "/override/delete?target=edge&kind=mode");
    await_reasons(&replicas, &["kept"]);
    let records = || {
        let text = redis::from_redis_value::<Vec<String>>(
            server.ask(&["HVALS", "tg1o:{overrides}:records"]),
        );
        let mut text = text.unwrap();
        text.sort();
        text
    };
    let before = records();
    assert_eq!(before.len(), 3, "an override, a tombstone, and their sums: {before:?}");
    for key in ["records", "versions"] {
        let life = server.ask(&["PTTL", &format!("tg1o:{{overrides}}:{key}")]);
        let life = redis::from_redis_value::<i64>(life).unwrap();
        assert!(life > 7 * 86_400_000, "longer than tombstones live: {life} ms");
    }
    server.ask(&["FLUSHALL"]);
    until("the records to be back", || (records() == before).then_some(()));
    let set_at = |replica: &Tidegate| {
        let reply = http::get(replica.port("debug"), "/now");
        let now: Value = serde_json::from_str(&reply.body).expect("JSON");
        let changes = now["override_changes"].as_array().expect("a list").clone();
        let change = changes.into_iter().find(|change| change["reason"] == "kept");
        change.expect("the change")["at_ms"].clone()
    };
    let kept_at = set_at(&replicas[0]);
    for replica in &mut replicas {
        *replica = replica_on(&server, &[]);
        assert_eq!(reasons(replica), ["kept"], "before its first call");
        assert_eq!(set_at(replica), kept_at, "when it was set, not when the process learned of it");
    }
    let policy = replicas[0].directory().join("policy.yaml");
    fs::write(&policy, FIVE_A_DAY.replace("domain: edge", "domain: other")).unwrap();
    until("the target to be gone", || {
        (listed(&replicas[0])["overrides"][0]["matched"] == false).then_some(())
    });
    fs::write(&policy, FIVE_A_DAY).unwrap();
    until("the target to be back", || {
        (listed(&replicas[0])["overrides"][0]["matched"] == true).then_some(())
    });
    assert_eq!([asked(&replicas[0], "ann"), asked(&replicas[0], "ann")], [200, 429]);
}

#[test]
fn overrides_survive_a_failover() {
    let group = Group::start(&[], &[]);
    let sentinels: Vec<String> =
        group.sentinels.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let url = format!("{NAME},{}", sentinels.join(","));
    let arguments = ["--redis-type", "sentinel", "--redis-url", &url];
    let replicas = [(); 2].map(|()| replica(&arguments));
    order(&replicas[0], "/override?target=edge&mode=deny&permanent=true&reason=kept");
    await_reasons(&replicas, &["kept"]);
    let before = group.master();
    group.servers[before].freeze();
    until("a new master", || (group.master() != before).then_some(()));
    until("an override that Redis takes", || {
        let path = "/override?target=edge.client&mode=shadow&permanent=true&reason=new";
        order(&replicas[0], path).contains("on all replicas").then_some(())
    });
    await_reasons(&replicas, &["kept", "new"]);
    group.servers[before].thaw();
}

#[test]
fn overrides_spread_over_a_cluster() {
    let cluster = Cluster::start(&[]);
    let url = format!("127.0.0.1:{}", cluster.nodes[0].port);
    let arguments = ["--redis-type", "cluster", "--redis-url", &url];
    let replicas = [(); 2].map(|()| replica(&arguments));
    let said = order(&replicas[0], "/override?target=edge&mode=deny&permanent=true&reason=kept");
    assert!(said.contains("on all replicas"), "{said}");
    await_reasons(&replicas, &["kept"]);
    assert_eq!(asked(&replicas[1], "ann"), 429);
}

#[test]
fn the_documented_permissions_are_enough() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let url = format!("redis://{}:{}@127.0.0.1:{}", acl::USER, acl::PASSWORD, server.port);
    let replicas = [(); 2].map(|()| replica(&["--redis-url", &url]));
    order(&replicas[0], "/override?target=edge&mode=deny&permanent=true&reason=kept");
    await_reasons(&replicas, &["kept"]);
    server.ask(&["FLUSHALL"]);
    until("the records to be back", || {
        let held = server.ask(&["HLEN", "tg1o:{overrides}:records"]);
        (redis::from_redis_value::<u64>(held).unwrap() == 2).then_some(())
    });
    assert!(!replicas[0].log().contains("cannot follow overrides"), "{}", replicas[0].log());
}
