//! A single Redis server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use redis::Value;
use tidegate::clock::Clock;
use tidegate::domain::{ExecutionStatus, FailureKind};
use tidegate::store::redis::client::config::{
    Address, MonotonicClock, RedisConfig, TopologyConfig,
};
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::client::transport::Transport;
use tidegate::store::redis::script::library::ScriptCall;

use super::counting_load::{COUNT, FAIL, Load, config, count_one, item, open, records, total};
use crate::support::acl;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::redis_cluster::text;
use crate::support::redis_server::{Server, until};
use crate::support::requests::send;

fn server() -> Server {
    Server::start(&[&acl::line(acl::SINGLE)])
}

fn single(server: &Server) -> RedisConfig {
    config(TopologyConfig::Single, &[server])
}

fn not_executed(kind: FailureKind) -> Result<Value, SendError> {
    Err(SendError { executed: ExecutionStatus::NotExecuted, kind })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_script_call_is_answered_separately_and_in_order() {
    let server = server();
    let connections = open(single(&server)).await;
    let items = [
        item(&COUNT, "tg1z:{a}"),
        item(&FAIL, "tg1z:{a}"),
        item(&COUNT, "tg1z:{a}"),
        item(&COUNT, "forbidden"),
        item(&COUNT, "tg1z:{b}"),
    ];
    let replies = send(&connections, items).await;
    let failed = SendError { executed: ExecutionStatus::Unknown, kind: FailureKind::Script };
    assert_eq!(
        replies.as_slice(),
        [
            Ok(Value::Int(1)),
            Err(failed),
            Ok(Value::Int(2)),
            not_executed(FailureKind::Denied),
            Ok(Value::Int(1))
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_sent_in_one_write() {
    let server = server();
    let connections = open(single(&server)).await;
    let ten = (0..10).map(|at| item(&COUNT, &format!("tg1z:{{{at}}}")));
    let replies = send(&connections, ten).await;
    assert!(replies.iter().all(|reply| *reply == Ok(Value::Int(1))), "{replies:?}");
    assert_eq!(total(&connections, |node| &node.writes), 1);
    assert_eq!(total(&connections, |node| &node.calls), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_posted_script_call_runs_without_a_waiting_caller() {
    let server = server();
    let connections = open(single(&server)).await;
    connections.send_in_background(item(&COUNT, "tg1z:{a}"));
    until("it is counted", || server.count("tg1z:{a}") == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_script_flushes_cost_no_answer_and_no_double_charge() {
    let server = server();
    let connections = open(single(&server)).await;
    let load = Load::start(connections, records(4));
    for _ in 0..20 {
        server.ask(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(total(load.connections(), |node| &node.noscript) > 0, "no script was missed");
    for record in load.stop(true).await.iter() {
        assert_eq!(record.unanswered(), 0, "{record:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_lost_server_fail_at_once_until_it_is_reconnected() {
    let mut server = server();
    let port = server.port;
    let connections = open(single(&server)).await;
    let load = Load::start(connections, records(4));
    let connections = load.connections();
    load.progress("every key is charged", |_| true, 5).await;
    server.kill();
    until("the loss is noticed", || !connections.is_connected()).await;
    assert_eq!(count_one(connections, "tg1z:{x}").await, not_executed(FailureKind::NotConnected));
    let again = Server::try_start(port, &[&acl::line(acl::SINGLE)], &[]);
    let again = again.expect("the port is still free");
    load.progress("every key is charged again", |_| true, 5).await;
    // The new server began with nothing, so that only the upper bound can be checked.
    load.stop(false).await;
    drop(again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_that_the_server_closes_costs_no_call() {
    let server = server();
    let connections = open(single(&server)).await;
    for _ in 0..5 {
        let before = total(&connections, |node| &node.connects);
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        until("both connections are back", || {
            total(&connections, |node| &node.connects) >= before + 2
                && total(&connections, |node| &node.connected) == 2
        })
        .await;
        assert!(count_one(&connections, "tg1z:{a}").await.is_ok());
    }
    assert_eq!(server.count("tg1z:{a}"), 5);
    assert_eq!(total(&connections, |node| &node.unknown), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_counters_is_noticed_before_it_is_used() {
    for rules in [acl::SINGLE.to_owned(), format!("{} -info", acl::SINGLE)] {
        let mut server = Server::start(&[&acl::line(&rules)]);
        let connections = open(RedisConfig { meta: "1".into(), ..single(&server) }).await;
        let reconnected = async |server: &Server| {
            let before = total(&connections, |node| &node.connects);
            server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            until("both connections are back", || {
                total(&connections, |node| &node.connects) >= before + 2
                    && total(&connections, |node| &node.connected) == 2
            })
            .await;
        };
        reconnected(&server).await;
        assert_eq!(connections.counter_losses(), 0, "a new connection alone loses nothing");
        server.ask(&["FLUSHALL"]);
        reconnected(&server).await;
        assert_eq!(connections.counter_losses(), 1, "the key is gone");
        server.restart();
        until("it is used again", || connections.is_connected()).await;
        assert_eq!(connections.counter_losses(), 2, "restarted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_call_whose_caller_gave_up_is_not_written() {
    let server = server();
    let patient = RedisConfig {
        connections_per_node: 1,
        reply_timeout: Duration::from_secs(20),
        ..single(&server)
    };
    let connections = open(patient).await;
    server.ask(&["CLIENT", "PAUSE", "20000", "WRITE"]);
    // A call that is polled once has entered the queue.
    let call = || {
        let mut call = Box::pin(count_one(&connections, "tg1z:{a}"));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        call
    };
    // Two writes may be under way, so that what follows them has to queue.
    let first = call();
    until("the first lies at the server", || total(&connections, |node| &node.calls) == 1).await;
    let second = call();
    until("the second too", || total(&connections, |node| &node.calls) == 2).await;
    let gone: Vec<_> = (0..5).map(|_| call()).collect();
    drop(gone);
    server.ask(&["CLIENT", "UNPAUSE"]);
    assert_eq!(first.await, Ok(Value::Int(1)));
    assert_eq!(second.await, Ok(Value::Int(2)));
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(3)));
    assert_eq!(total(&connections, |node| &node.calls), 3);
    assert_eq!(total(&connections, |node| &node.abandoned), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_a_frozen_server_are_dropped_and_reopened() {
    let server = server();
    let connections = open(single(&server)).await;
    let load = Load::start(connections, records(4));
    let connections = load.connections();
    load.progress("every key is charged", |_| true, 5).await;
    server.freeze();
    until("its connections are dropped", || {
        total(connections, |node| &node.timeouts) > 0 && !connections.is_connected()
    })
    .await;
    assert_eq!(count_one(connections, "tg1z:{x}").await, not_executed(FailureKind::NotConnected));
    server.thaw();
    load.progress("every key is charged again", |_| true, 5).await;
    load.stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_a_full_server_and_of_a_replica_mean_not_executed() {
    let server = server();
    let connections = open(single(&server)).await;
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(1)));
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(count_one(&connections, "tg1z:{a}").await, not_executed(FailureKind::OutOfMemory));
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(count_one(&connections, "tg1z:{a}").await, not_executed(FailureKind::ReadOnly));
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    until("it is a master again", || connections.is_connected()).await;
    let again = count_one(&connections, "tg1z:{a}").await;
    assert_eq!(again, Ok(Value::Int(2)), "neither of the two had run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_and_a_database_number_work() {
    let rules = format!("{} +select", acl::SINGLE);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock");
    let socket = format!("unixsocket {}", path.display());
    let server = Server::start(&[&acl::line(&rules), &socket]);
    let addresses = vec![Address::Unix(path)];
    let connections = open(RedisConfig { addresses, db: 3, ..single(&server) }).await;
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(1)));
    until("only the counter and tg1meta are left", || {
        let info: String = redis::from_redis_value(server.ask(&["INFO", "keyspace"])).unwrap();
        info.contains("db3:keys=2,expires=2")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_different_secrets_are_detected() {
    let server = server();
    let one = open(single(&server)).await;
    let same = open(single(&server)).await;
    assert_eq!(total(&one, |node| &node.meta_mismatches), 0);
    assert_eq!(total(&same, |node| &node.meta_mismatches), 0);
    let other = open(RedisConfig { meta: "secret 2, format 1".into(), ..single(&server) }).await;
    assert!(total(&other, |node| &node.meta_mismatches) > 0);
    let lasts: i64 = redis::from_redis_value(server.ask(&["TTL", "tg1meta"])).unwrap();
    assert!((604_000..=604_800).contains(&lasts), "it expires in a week: {lasts} s");
}

/// Both connections to the server, with a circuit breaker.
async fn open_with_breaker(server: &Server) -> RedisClient {
    let clock = MonotonicClock::new(|| Clock::default().monotonic_now());
    let connections = open(RedisConfig { breaker_clock: Some(clock), ..single(server) }).await;
    until("both connections are there", || total(&connections, |node| &node.connected) == 2).await;
    connections
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_connects_open_no_breaker_while_another_connection_serves() {
    let server = server();
    let connections = open_with_breaker(&server).await;
    let mut operator = server.connect().await;
    let clients: String =
        redis::cmd("CLIENT").arg("LIST").query_async(&mut operator).await.unwrap();
    let ours = clients.lines().find(|line| line.contains(&format!(" user={} ", acl::USER)));
    let id = ours.unwrap().split(' ').next().unwrap().strip_prefix("id=").unwrap();
    let admin = operator.clone();
    let set_clients_max = async |most: u32| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxclients").arg(most);
        set.exec_async(&mut admin.clone()).await.unwrap();
    };
    set_clients_max(1).await;
    redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).exec_async(&mut operator).await.unwrap();
    until("connecting has failed", || total(&connections, |node| &node.connect_failures) >= 4)
        .await;
    assert_eq!(count_one(&connections, "tg1z:{a}").await, Ok(Value::Int(1)));
    assert_eq!(total(&connections, |node| &node.breaker_opened), 0);
    set_clients_max(100).await;
    until("both connections are back", || total(&connections, |node| &node.connected) == 2).await;
}

/// Milliseconds of a clock that a test sets, and how many more pass at each look at it.
#[derive(Clone, Default)]
struct TestClock {
    now_ms: Arc<AtomicU64>,
    step_ms: Arc<AtomicU64>,
}

impl TestClock {
    fn monotonic(&self) -> MonotonicClock {
        let (clock, began) = (self.clone(), Clock::default().monotonic_now());
        MonotonicClock::new(move || {
            let step = clock.step_ms.load(Ordering::SeqCst);
            began + Duration::from_millis(clock.now_ms.fetch_add(step, Ordering::SeqCst))
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_connection_opens_no_breaker_while_another_one_is_answered() {
    let server = server();
    let proxy = Proxy::start(server.port);
    let clock = TestClock::default();
    let connections = open(RedisConfig {
        addresses: vec![Address::Tcp("127.0.0.1".into(), proxy.port)],
        breaker_clock: Some(clock.monotonic()),
        reply_timeout: Duration::from_millis(500),
        ..single(&server)
    })
    .await;
    until("both connections are there", || total(&connections, |node| &node.connected) == 2).await;
    proxy.both(Fault::Swallow);
    connections.send_in_background(item(&COUNT, "tg1z:{a}"));
    until("its bytes are lost", || proxy.holed() == 1).await;
    proxy.heal();
    clock.now_ms.store(40, Ordering::SeqCst);
    until("the other one answers", || {
        connections.send_in_background(item(&COUNT, "tg1z:{b}"));
        server.count("tg1z:{b}") > 0
    })
    .await;
    // The stalled command is 60 ms old, and the last answer 20 ms.
    clock.now_ms.store(60, Ordering::SeqCst);
    until("the stalled one is given up", || total(&connections, |node| &node.losses) > 0).await;
    assert_eq!(total(&connections, |node| &node.breaker_opened), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_breaker_stays_open_while_every_ping_is_answered_late() {
    let server = server();
    let clock = TestClock::default();
    let patient = Duration::from_secs(60);
    // One connection, so that nothing else looks at the clock during a PING.
    let connections = open(RedisConfig {
        breaker_clock: Some(clock.monotonic()),
        connections_per_node: 1,
        reply_timeout: patient,
        ..single(&server)
    })
    .await;
    let is_open = || connections.report()[0].stats.breaker_open.get() > 0;
    server.freeze();
    connections.send_in_background(item(&COUNT, "tg1z:{a}"));
    until("it is written", || total(&connections, |node| &node.writes) == 1).await;
    clock.now_ms.store(60, Ordering::SeqCst);
    until("the breaker opens", is_open).await;
    // From now on a PING takes 21 ms at least.
    clock.step_ms.store(21, Ordering::SeqCst);
    server.thaw();
    let pings = || {
        let stats = text(server.ask(&["INFO", "commandstats"]));
        let calls = stats.split_once("cmdstat_ping:calls=").map_or("0", |(_, rest)| rest);
        calls.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    let before = pings();
    until("PINGs are answered", || pings() >= before + 6).await;
    assert!(is_open());
    // 20 ms are in time.
    clock.step_ms.store(20, Ordering::SeqCst);
    until("the breaker closes", || !is_open()).await;
}

/// A server whose writes are paused replies to a PING as if nothing were wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_breaker_opens_once_while_writes_are_paused() {
    let server = server();
    let connections = open_with_breaker(&server).await;
    let is_open = || connections.report()[0].stats.breaker_open.get() > 0;
    server.ask(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    connections.send_in_background(item(&COUNT, "tg1z:{a}"));
    until("the breaker opens", is_open).await;
    for _ in 0..100 {
        connections.send_in_background(item(&COUNT, "tg1z:{a}"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(total(&connections, |node| &node.breaker_opened), 1);
    server.ask(&["CLIENT", "UNPAUSE"]);
    until("the breaker closes", || !is_open()).await;
    // On a busy machine, the breaker may open and close once more.
    let answered = async { while count_one(&connections, "tg1z:{b}").await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(30), answered).await.expect("a call is answered");
}

/// Otherwise each opening of a breaker would leave some load behind, until all calls are shed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_when_a_breaker_opens_are_no_load_once_it_closes() {
    let server = server();
    let (clock, began) = (TestClock::default(), Clock::default().monotonic_now());
    let connections = open(RedisConfig {
        breaker_clock: Some(clock.monotonic()),
        connections_per_node: 1,
        reply_timeout: Duration::from_secs(60),
        ..single(&server)
    })
    .await;
    let is_open = || connections.report()[0].stats.breaker_open.get() > 0;
    let written = || total(&connections, |node| &node.calls);
    server.freeze();
    let hundred = (0..100).map(|_| item(&COUNT, "tg1z:{a}"));
    let opens = async {
        until("they are written", || written() == 100).await;
        clock.now_ms.store(60, Ordering::SeqCst);
    };
    let (replies, ()) = tokio::join!(send(&connections, hundred), opens);
    for reply in replies {
        assert_eq!(reply.map_err(|error| error.executed), Err(ExecutionStatus::Unknown));
    }
    assert_eq!(total(&connections, |node| &node.unknown), 100);
    server.thaw();
    until("the breaker closes", || !is_open()).await;
    // A round trip of 1 ms, then one of 14 ms: a command takes several milliseconds of service.
    for (calls, now_ms) in [(101, 61), (102, 75)] {
        server.freeze();
        let replied = async {
            until("it is written", || written() == calls).await;
            clock.now_ms.store(now_ms, Ordering::SeqCst);
            server.thaw();
        };
        let (reply, ()) = tokio::join!(count_one(&connections, "tg1z:{b}"), replied);
        assert!(reply.is_ok(), "{reply:?}");
    }
    // The first would be sent in any case, as a probe.
    for _ in 0..3 {
        let deadline = Some(began + Duration::from_millis(250));
        let call = ScriptCall { deadline, ..item(&COUNT, "tg1z:{c}") };
        let replies = send(&connections, [call]).await;
        assert!(replies[0].is_ok(), "{replies:?}");
    }
    assert_eq!(total(&connections, |node| &node.shed), 0);
}
