//! One override, set once, on all replicas: how it spreads, ends, and is merged.

use super::*;
use crate::support::tidegate_process::metric;

#[test]
fn an_override_set_once_holds_on_all_replicas_until_its_end_and_keeps_the_counter() {
    let server = Server::start(&[]);
    let replicas = three_on(&server);
    for replica in &replicas {
        assert_eq!(asked(replica, "ann"), 200);
    }
    let path = "/override?target=edge.client&scale=60%25&for=4&reason=T-1&by=ann";
    let said = order(&replicas[0], path);
    assert!(said.ends_with("in force on all replicas within a second\n"), "{said}");
    await_reasons(&replicas, &["T-1"]);
    // Three of three hits were used before.
    assert!(replicas.iter().all(|replica| asked(replica, "ann") == 429));
    await_reasons(&replicas, &[]);
    assert_eq!([asked(&replicas[1], "ann"), asked(&replicas[2], "ann")], [200, 200]);
    until("the fifth hit to be known", || (asked(&replicas[0], "ann") == 429).then_some(()));
    for replica in &replicas {
        let log = replica.log();
        assert_eq!(log.matches("\"override changed\"").count(), 2, "{log}");
        let metrics = http::get(replica.port("http"), "/metrics").body;
        for kind in ["set", "ended"] {
            let line = format!("tidegate_override_changes_total{{kind=\"{kind}\"}} 1\n");
            assert!(metrics.contains(&line), "{metrics}");
        }
        assert_eq!(metric(replica, "overrides"), 0);
    }
}

#[test]
fn of_two_operators_the_later_one_wins_everywhere() {
    let server = Server::start(&[]);
    let replicas = three_on(&server);
    for round in 0..5 {
        std::thread::scope(|scope| {
            for (at, replica) in replicas.iter().enumerate() {
                let change = ["mode=deny", "mode=shadow", "mode=unlimited"][at];
                let path =
                    format!("/override?target=edge&{change}&permanent=true&reason=R{round}-{at}");
                scope.spawn(move || order(replica, &path));
            }
        });
        let last = format!("L{round}");
        order(
            &replicas[round % 3],
            &format!("/override?target=edge&mode=shadow&permanent=true&reason={last}"),
        );
        await_reasons(&replicas, &[&*last]);
    }
    let said = order(&replicas[1], "/override/delete?target=edge");
    assert!(said.starts_with("1 deleted; in force on all replicas"), "{said}");
    await_reasons(&replicas, &[]);
}

#[test]
fn a_deletion_wins_over_a_replica_that_was_cut_off() {
    let server = Server::start(&[]);
    let replicas = three_on(&server);
    order(&replicas[0], "/override?target=edge&mode=deny&permanent=true&reason=old");
    await_reasons(&replicas, &["old"]);
    order(&replicas[2], "/leave-redis");
    order(&replicas[0], "/override/delete?target=edge");
    await_reasons(&replicas[..2], &[]);
    // A change on the replica that is cut off, and of another target.
    let said =
        order(&replicas[2], "/override?target=edge.client&mode=shadow&permanent=true&reason=own");
    assert!(
        said.contains("in force on this replica only, until Redis is available again"),
        "{said}"
    );
    await_reasons(&replicas[2..], &["old", "own"]);
    server.ask(&["FLUSHALL"]);
    order(&replicas[2], "/return-to-redis");
    await_reasons(&replicas, &["own"]);
}

#[test]
fn without_redis_an_override_holds_on_the_replica_that_took_it_ends_and_is_sent_later() {
    let mut server = Server::start(&[]);
    let replicas = three_on(&server);
    let path = "/override?target=edge&mode=deny&permanent=true&reason=known";
    order(&replicas[1], path);
    await_reasons(&replicas, &["known"]);
    let port = server.port;
    drop(server);
    let said = order(&replicas[0], "/override?target=edge.client&scale=20%25&for=3&reason=short");
    assert!(said.contains("in force on this replica only"), "{said}");
    let said =
        order(&replicas[0], "/override?target=edge.client&mode=shadow&permanent=true&reason=own");
    assert!(said.contains("in force on this replica only"), "{said}");
    order(&replicas[1], "/override/delete?target=edge");
    await_reasons(&replicas[..1], &["known", "own"]);
    await_reasons(&replicas[1..2], &[]);
    until("the age to grow", || {
        (listed(&replicas[2])["known_seconds_ago"].as_u64()? > 1).then_some(())
    });
    server = until("the port", || Server::try_start(port, &[], &[]));
    await_reasons(&replicas, &["own"]);
    until("the age", || (metric(&replicas[2], "overrides_age_seconds") <= 1).then_some(()));
    drop(server);
}

#[test]
fn replicas_count_each_other_so_that_an_outage_admits_no_more_than_the_limit() {
    let server = Server::start(&[]);
    let replicas = three_on(&server);
    for replica in &replicas {
        until("three replicas", || (metric(replica, "degraded_replicas") == 3).then_some(()));
    }
    drop(server);
    let mut admitted = 0;
    for replica in &replicas {
        until("an outage", || {
            replica.logged("degraded: deciding without Redis").or_else(|| {
                asked(replica, "somebody");
                None
            })
        });
        admitted += (0..10).filter(|_| asked(replica, "ann") == 200).count();
    }
    // A third of five, rounded up, on each.
    assert!((3..=6).contains(&admitted), "{admitted}");
}

#[test]
fn a_set_number_of_replicas_is_not_counted() {
    let server = Server::start(&[]);
    let replicas = [(); 2].map(|()| replica_on(&server, &["--replicas", "5"]));
    await_reasons(&replicas, &[]);
    order(&replicas[0], "/override?target=edge&mode=deny&permanent=true&reason=x");
    await_reasons(&replicas, &["x"]);
    assert_eq!(metric(&replicas[1], "degraded_replicas"), 5);
}

#[test]
fn nobody_without_the_token_changes_anything() {
    let server = Server::start(&[]);
    let replica = replica_on(&server, &[]);
    let debug = replica.port("debug");
    let paths = ["/override?target=edge&mode=deny&permanent=true", "/override/delete?target=edge"];
    for path in paths {
        assert_eq!(http::post(debug, path, "").status, 401, "{path}");
        assert_eq!(http::order(debug, path, "wrong").status, 401, "{path}");
        assert_eq!(http::get(debug, path).status, 405, "{path}");
    }
    assert_eq!(listed(&replica)["total"], 0);
    let keys = server.ask(&["EXISTS", "tg1o:{overrides}:records"]);
    assert_eq!(redis::from_redis_value::<u64>(keys).unwrap(), 0);
}
