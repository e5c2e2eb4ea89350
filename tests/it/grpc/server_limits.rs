//! The server's limits: each holds, and reaching one disturbs no other connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::server::{Address, ListenSettings, Listener, ServerLimits};
use tidegate::wire::WireError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::test_server::{Server, Wanted, encoded, question, soon, until};
use crate::support::raw_http2::{
    GOAWAY, PREFACE, SETTINGS, begun, call, connect, exchange, framed, next_frame,
    read_until_closed, socket,
};

/// The settings that the server advertises, by identifier.
async fn advertised(server: &Server) -> Vec<(u16, u32)> {
    let mut socket = begun(server.address).await;
    loop {
        let (kind, payload) = next_frame(&mut socket).await.unwrap();
        if kind == SETTINGS {
            let pair = |c: &[u8]| {
                (u16::from_be_bytes([c[0], c[1]]), u32::from_be_bytes([c[2], c[3], c[4], c[5]]))
            };
            return payload.chunks(6).map(pair).collect();
        }
    }
}

#[tokio::test]
async fn two_hundred_and_fifty_streams_and_64_kibibytes_of_headers_are_advertised() {
    let server = Server::start();
    let settings = advertised(&server).await;
    assert!(settings.contains(&(3, 250)), "{settings:?}");
    assert!(settings.contains(&(6, 65_536)), "{settings:?}");
    server.left().await;
    let fewer = Server::with(|limits| limits.streams_max = 7);
    assert!(advertised(&fewer).await.contains(&(3, 7)));
    fewer.left().await;
}

#[tokio::test]
async fn headers_beyond_their_bound_fail_one_call_and_no_other() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let request = call().header("x-long", "x".repeat(100_000));
    let answer = exchange(&connection, request, framed(&encoded("edge"))).await;
    assert!(answer.is_err() || answer.unwrap().http_status == 431);
    let answer = exchange(&connection, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    server.left().await;
}

#[tokio::test]
async fn the_longest_trace_state_that_envoy_passes_on_fails_no_call() {
    let server = Server::start();
    let connection = connect(server.address).await;
    let request = call().header("tracestate", "x".repeat(60 * 1024));
    let answer = exchange(&connection, request, framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    server.left().await;
}

#[tokio::test]
async fn thousands_of_calls_at_once_on_one_connection_are_all_answered() {
    let server = Server::start();
    let client = server.client().await;
    let calls = (0..6_000).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move { client.send(&question("edge")).await.map(|told| told.refused) })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        assert!(!soon("an answer", call).await.unwrap().unwrap());
    }
    server.left().await;
}

/// Longer than the resolution of the time of a connection's last call.
async fn a_tick() {
    tokio::time::sleep(Duration::from_millis(250)).await;
}

#[tokio::test]
async fn a_connection_beyond_the_bound_closes_the_longest_idle_one() {
    let server = Server::with(|limits| limits.connections_max = 2);
    let mut first = begun(server.address).await;
    let second = connect(server.address).await;
    let ask = async |connection| {
        exchange(connection, call(), framed(&encoded("edge"))).await.map(|a| a.grpc_status)
    };
    assert_eq!(ask(&second).await.unwrap(), 0);
    a_tick().await;
    let third = connect(server.address).await;
    assert_eq!(ask(&third).await.unwrap(), 0, "the newcomer is served");
    soon("GOAWAY to the first", async {
        while next_frame(&mut first).await.expect("GOAWAY before the end").0 != GOAWAY {}
    })
    .await;
    read_until_closed(&mut first).await;
    a_tick().await;
    assert_eq!(ask(&second).await.unwrap(), 0);
    // A socket that sends nothing makes room like any other.
    let mut fourth = socket(server.address).await;
    a_tick().await;
    assert_eq!(ask(&second).await.unwrap(), 0, "its last call is later than that of the third");
    let fifth = connect(server.address).await;
    assert_eq!(ask(&fifth).await.unwrap(), 0);
    assert_eq!(soon("the end", fourth.read(&mut [0; 64])).await.unwrap_or(0), 0);
    assert!(ask(&third).await.is_err());
    until("three are closed", || server.open() == 2).await;
    assert_eq!(server.traffic.evicted.load(Ordering::SeqCst), 3);
    assert_eq!(server.traffic.refused.load(Ordering::SeqCst), 0);
    until("five are counted", || server.traffic.accepted.load(Ordering::SeqCst) == 5).await;
    drop((second, fifth));
    server.left().await;
}

#[tokio::test]
async fn a_caller_that_says_nothing_or_half_a_preface_is_closed() {
    let server = Server::with(|limits| limits.preface_timeout = Duration::from_millis(50));
    let mut silent = socket(server.address).await;
    let mut slow = socket(server.address).await;
    slow.write_all(&PREFACE[..20]).await.unwrap();
    for socket in [&mut silent, &mut slow] {
        assert_eq!(soon("the end", socket.read(&mut [0; 64])).await.unwrap_or(0), 0);
    }
    until("both are counted", || server.traffic.prefaces_failed.load(Ordering::SeqCst) == 2).await;
    until("both are gone", || server.open() == 0).await;
    server.left().await;
}

#[tokio::test]
async fn a_caller_that_answers_no_ping_is_closed() {
    let server = Server::with(|limits| {
        limits.keepalive_interval = Some(Duration::from_millis(30));
        limits.keepalive_timeout = Duration::from_millis(30);
    });
    let mut frozen = begun(server.address).await;
    read_until_closed(&mut frozen).await;
    until("it is gone", || server.open() == 0).await;
    server.left().await;
}

#[tokio::test]
async fn a_connection_of_age_is_asked_to_leave_and_finishes_its_calls() {
    let server = Server::with(|limits| limits.connection_age_max = Some(Duration::from_millis(50)));
    let connection = connect(server.address).await;
    let waiting = tokio::spawn(async move {
        exchange(&connection, call(), framed(&encoded("wait"))).await.map(|a| a.grpc_status)
    });
    until("the call is judged", || server.judged() == 1).await;
    let mut idle = begun(server.address).await;
    loop {
        let (kind, _) = next_frame(&mut idle).await.expect("GOAWAY before the end");
        if kind == GOAWAY {
            break;
        }
    }
    drop(idle);
    server.bench.gate.add_permits(1);
    assert_eq!(soon("the call", waiting).await.unwrap().unwrap(), 0);
    server.left().await;
}

#[tokio::test]
async fn connections_are_spread_evenly_over_the_cores() {
    let server = Wanted { threads: 4, ..Wanted::default() }.start();
    let mut connections = Vec::new();
    for _ in 0..4 {
        let connection = connect(server.address).await;
        exchange(&connection, call(), framed(&encoded("edge"))).await.unwrap();
        connections.push(connection);
    }
    let threads = server.bench.threads.lock().unwrap().clone();
    let cores: Vec<_> = (0..4).map(|at| format!("tidegate-core-{at}")).collect();
    assert_eq!(threads.into_iter().collect::<Vec<_>>(), cores);
    server.left().await;
}

#[tokio::test]
async fn a_unix_socket_is_served_and_one_that_was_left_behind_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tidegate.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Wanted { address: Address::Unix(path.clone()), ..Wanted::default() }.start();
    let socket = UnixStream::connect(&path).await.unwrap();
    let (connection, driver) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(driver);
    let answer = exchange(&connection, call(), framed(&encoded("edge"))).await.unwrap();
    assert_eq!(answer.grpc_status, 0);
    drop(connection);
    server.left().await;
    assert!(!path.exists());
}

fn bind(address: Address) -> Result<Listener, WireError> {
    Listener::bind(ListenSettings {
        address,
        threads: std::num::NonZeroUsize::MIN,
        limits: ServerLimits::default(),
        tls: None,
    })
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let server = Server::start();
    let error = bind(Address::Tcp(server.address)).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot listen on {}", server.address)));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a-file");
    std::fs::write(&path, "not a socket").unwrap();
    assert!(matches!(bind(Address::Unix(path.clone())), Err(WireError::Bind { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "not a socket");
    server.left().await;
}
