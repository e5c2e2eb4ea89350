//! SIGTERM and SIGINT: probes fail, calls are served for the drain delay (SIGTERM only), the exit code
//! is 0, and nobody can hold the process past the hard limit. Calls in flight are answered by Redis.

use std::future::poll_fn;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::task::Poll;
use std::time::Duration;

use rustix::process::Signal;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::task::spawn_blocking;

use crate::support::acl;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::http::get;
use crate::support::raw_http2::{call, connect, exchange, framed};
use crate::support::redis_server::{Server, free_port};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, metric, tidegate};
use crate::support::wait::until;

#[test]
fn during_the_drain_probes_fail_and_calls_are_answered() {
    let mut serving = Tidegate::policy(FIVE_A_DAY, &["--drain-delay", "4s", "--hard-limit", "30s"]);
    let http = serving.port("http");
    serving.signal(Signal::TERM);
    until("readiness to say no", || (get(http, "/readyz").status == 503).then_some(()));
    assert_eq!(get(http, "/healthcheck").status, 500);
    assert_eq!(get(http, "/healthz").status, 200, "it is not ill, it is leaving");
    assert!(serving.ask("ann").contains("4 left"));
    assert_eq!(serving.exit_code(), Some(0));
    assert!(serving.logged("stopped").is_some(), "{}", serving.log());
}

/// Long beyond the patience of a test: whoever waits for it fails.
const LONG: [&str; 4] = ["--drain-delay", "9m", "--hard-limit", "10m"];

#[test]
fn sigint_shuts_down_without_the_drain_delay() {
    let mut serving = Tidegate::policy(FIVE_A_DAY, &LONG);
    serving.signal(Signal::INT);
    assert_eq!(serving.exit_code(), Some(0));
    assert!(serving.logged("stopped").is_some(), "{}", serving.log());
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    for second in [Signal::TERM, Signal::INT] {
        let mut serving = Tidegate::policy(FIVE_A_DAY, &LONG);
        serving.signal(Signal::TERM);
        serving.logged_in_time("stopping");
        serving.signal(second);
        assert_eq!(serving.exit_code(), Some(0), "{second:?}");
        assert!(
            serving.logged("second signal, exiting immediately").is_some(),
            "{}",
            serving.log()
        );
    }
}

#[test]
fn sigterm_ends_the_wait_for_a_required_store() {
    let url = format!("127.0.0.1:{}", free_port());
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--require-redis", "true", "--redis-url", &url, "--policy"]);
    command.arg(files.path().join("policy.yaml"));
    let mut serving = Tidegate::start_listening(&mut command, files);
    serving.signal(Signal::TERM);
    assert_eq!(serving.exit_code(), Some(0), "69 is the code of a store that was not reached");
    let message = "stopped before Redis was connected";
    assert!(serving.logged(message).is_some(), "{}", serving.log());
}

/// Signals that other servers use to reopen logs or to dump their state.
const UNUSED: [(Signal, &str); 4] = [
    (Signal::USR1, "SIGUSR1"),
    (Signal::USR2, "SIGUSR2"),
    (Signal::ALARM, "SIGALRM"),
    (Signal::IO, "SIGIO"),
];

#[test]
fn a_signal_without_a_meaning_is_logged_and_does_not_end_the_process() {
    let mut serving = Tidegate::policy(FIVE_A_DAY, &[]);
    for (signal, name) in UNUSED {
        serving.signal(signal);
        until("the signal in the log", || {
            serving.log().contains(&format!("\"signal\":\"{name}\"")).then_some(())
        });
        let line = serving.logged("signal ignored").expect("it is logged");
        assert!(line["advice"].as_str().is_some_and(|advice| advice.contains("SIGHUP")), "{line}");
    }
    assert!(serving.ask("ann").contains("4 left"));
    serving.signal(Signal::TERM);
    assert_eq!(serving.exit_code(), Some(0));
}

/// While it waits for Redis, and while it drains, no signal but those that stop it ends it.
#[test]
fn signals_during_the_start_and_the_drain_do_not_end_the_process() {
    let url = format!("127.0.0.1:{}", free_port());
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--require-redis", "true", "--redis-url", &url, "--policy"]);
    command.arg(files.path().join("policy.yaml"));
    let mut starting = Tidegate::start_listening(&mut command, files);
    let mut draining = Tidegate::policy(FIVE_A_DAY, &LONG);
    draining.signal(Signal::TERM);
    draining.logged_in_time("stopping");
    for signal in UNUSED.map(|(signal, _)| signal).into_iter().chain([Signal::HUP; 2]) {
        starting.signal(signal);
        draining.signal(signal);
    }
    assert_eq!(get(draining.port("http"), "/healthz").status, 200);
    assert_eq!(get(starting.port("http"), "/healthz").status, 200);
    for serving in [&mut starting, &mut draining] {
        serving.signal(Signal::TERM);
        assert_eq!(serving.exit_code(), Some(0), "{}", serving.log());
    }
}

#[test]
fn silent_connections_cannot_delay_the_exit() {
    let flags = ["--drain-delay", "0s", "--hard-limit", "1s"];
    let mut serving = Tidegate::policy(FIVE_A_DAY, &flags);
    let _silent: Vec<TcpStream> = ["grpc", "http", "debug"]
        .into_iter()
        .map(|port| TcpStream::connect(serving.port(port)).expect("it listens"))
        .collect();
    serving.signal(Signal::TERM);
    assert_eq!(serving.exit_code(), Some(0));
}

/// So many that no test comes near it, and an error where Redis does not answer.
const REDIS_OR_ERROR: &str = "
domain: edge
descriptors:
  - key: client
    rate_limit: {unit: year, requests_per_unit: 1000000, on_store_failure: error}
";

const JSON_QUESTION: &str =
    r#"{"domain":"edge","descriptors":[{"entries":[{"key":"client","value":"http"}]}]}"#;

/// A call of /json whose head the server is known to have read: it has asked for the body.
fn half_sent_json_call(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = JSON_QUESTION.len();
    let head = "POST /json HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
                Expect: 100-continue\r\nContent-Length: ";
    stream.write_all(format!("{head}{length}\r\n\r\n").as_bytes()).expect("writable");
    let mut reply = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut reply).expect("it asks for the body");
    assert!(reply.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&reply));
    stream
}

/// The same call in protobuf, framed for gRPC.
fn question() -> Bytes {
    let entry = [&[0x0a, 6][..], b"client", &[0x12, 4], b"grpc"].concat();
    let descriptor = [&[0x0a, entry.len() as u8][..], &entry].concat();
    framed(&[&[0x0a, 4][..], b"edge", &[0x12, descriptor.len() as u8], &descriptor].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_are_answered_by_redis_whichever_thread_it_is_connected_on() {
    let redis = Server::start(&[&acl::line(acl::SINGLE)]);
    // The budget is so long that no call gives Redis up while it is frozen.
    let flags = ["--threads", "8", "--redis-pool-size", "2"];
    let times = ["--redis-budget", "60s", "--drain-delay", "0s", "--hard-limit", "50s"];
    let mut serving = Tidegate::on_redis(&redis, REDIS_OR_ERROR, &[&flags[..], &times].concat());
    let (grpc, http) = (serving.port("grpc"), serving.port("http"));
    // A connection goes to the thread with the fewest, so each thread gets one. The first two,
    // whose threads run the connections to Redis, close.
    let mut connections = Vec::new();
    for _ in 0..8 {
        let connection = connect(grpc).await;
        let answer = exchange(&connection, call(), question()).await.expect("an answer");
        assert_eq!(answer.grpc_status, 0);
        connections.push(connection);
    }
    connections.drain(..2);
    until("two to have closed", || (metric(&serving, "connections") == 6).then_some(()));
    redis.freeze();
    let json: Vec<TcpStream> = (0..8).map(|_| half_sent_json_call(http)).collect();
    let mut asked = Vec::new();
    for connection in connections {
        let sender = connection.clone();
        let mut call_in_flight =
            Box::pin(async move { exchange(&sender, call(), question()).await });
        let polled = poll_fn(|cx| Poll::Ready(call_in_flight.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        asked.push(tokio::spawn(call_in_flight));
        // Sent behind the call and answered without Redis, so the server has the call, too.
        let check = call().uri("http://tidegate/grpc.health.v1.Health/Check");
        let answer = exchange(&connection, check, framed(&[])).await.expect("an answer");
        assert_eq!(answer.grpc_status, 0);
    }
    serving.signal(Signal::TERM);
    let refused = |address| TcpStream::connect(address).is_err().then_some(());
    until("gRPC to be drained", || refused(grpc));
    let answers = json.into_iter().map(|mut stream| {
        stream.write_all(JSON_QUESTION.as_bytes()).expect("writable");
        stream
    });
    let json: Vec<TcpStream> = answers.collect();
    until("HTTP to be drained alongside", || refused(http));
    redis.thaw();
    for answer in asked {
        let answer = answer.await.expect("no panic").expect("an answer");
        assert_eq!(answer.grpc_status, 0, "{answer:?}\n{}", serving.log());
    }
    for mut stream in json {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}\n{}", serving.log());
    }
    assert_eq!(serving.exit_code(), Some(0));
    let stopped = serving.logged("stopped").unwrap_or_else(|| panic!("{}", serving.log()));
    assert_eq!(stopped["cut_off"], 0);
}

/// Calls until the server closes the connection or says that it will. Returns the number of calls.
async fn call_until_goaway(connection: SendRequest<Bytes>) -> usize {
    let mut answered = 0;
    loop {
        let Ok(ready) = connection.clone().ready().await else { return answered };
        match exchange(&ready, call(), question()).await {
            Ok(answer) => assert_eq!(answer.grpc_status, 0, "{answer:?}"),
            // Not processed, so a client sends it again elsewhere.
            Err(error) if error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR) => {
                return answered;
            }
            Err(error) => panic!("a call fails: {error}"),
        }
        answered += 1;
    }
}

/// The same over HTTP.
fn call_json_until_close(address: SocketAddr) -> usize {
    let mut stream = BufReader::new(TcpStream::connect(address).expect("it listens"));
    let length = JSON_QUESTION.len();
    let head = "POST /json HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let request = format!("{head}Content-Length: {length}\r\n\r\n{JSON_QUESTION}");
    for answered in 1.. {
        stream.get_mut().write_all(request.as_bytes()).expect("writable");
        let (mut closes, mut body) = (false, 0);
        for row in 0.. {
            let mut line = String::new();
            stream.read_line(&mut line).expect("an answer");
            assert!(row > 0 || line == "HTTP/1.1 200 OK\r\n", "{line:?}");
            closes |= line == "connection: close\r\n";
            if let Some(length) = line.strip_prefix("content-length: ") {
                body = length.trim().parse().expect("a number");
            }
            if line == "\r\n" {
                break;
            }
        }
        stream.read_exact(&mut vec![0; body]).expect("a body");
        if closes {
            return answered;
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_and_with_a_slow_redis_a_shutdown_fails_no_call() {
    let redis = Server::start(&[]);
    let slow = Proxy::start(redis.port);
    slow.replies(Fault::Delay { by: Duration::from_millis(200), jitter: Duration::ZERO });
    let url = slow.address().to_string();
    let redis = ["--redis-url", &url, "--redis-timeout", "20s", "--require-redis", "true"];
    let threads = ["--threads", "8", "--redis-pool-size", "2"];
    // The budget is so long that no call is shed. The delay is long beside a call, so that each
    // connection has one while the server leaves.
    let times = ["--redis-budget", "60s", "--drain-delay", "3s", "--hard-limit", "28s"];
    let arguments = [&redis[..], &threads, &times].concat();
    let mut serving = Tidegate::policy(REDIS_OR_ERROR, &arguments);
    let (grpc, http) = (serving.port("grpc"), serving.port("http"));
    let mut callers = Vec::new();
    for _ in 0..6 {
        let connection = connect(grpc).await;
        callers.extend((0..8).map(|_| tokio::spawn(call_until_goaway(connection.clone()))));
    }
    let json = (0..16).map(|_| spawn_blocking(move || call_json_until_close(http)));
    callers.extend(json);
    let decided = || metric(&serving, "redis_script_decisions_total");
    until("every caller to be busy", || (decided() > 200).then_some(()));
    serving.signal(Signal::TERM);
    for caller in callers {
        assert!(caller.await.unwrap_or_else(|error| panic!("{error}\n{}", serving.log())) > 0);
    }
    assert_eq!(serving.exit_code(), Some(0));
    let stopped = serving.logged("stopped").unwrap_or_else(|| panic!("{}", serving.log()));
    assert_eq!(stopped["cut_off"], 0);
}
