//! Floods of requests that never arrive completely: memory stays under its bound, every call ends,
//! and other callers are served.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};

use super::target::{asked, client, descriptor, question, soon, target};
use crate::support::raw_http2::{call, connect};
use crate::support::tidegate_process::{Tidegate, metric};

/// Room for a call of a flood of 12,000. It took 10 KiB more than one of a flood of 1,200, of which
/// 3 KiB are held for it.
const CALL_KIB: usize = 12;
/// Four times the default, so that few connections can begin many calls.
const MANY_STREAMS: &[&str] = &["--streams", "1000"];
/// The budget of the HTTP port, and as much for its buffers.
const JSON_GROWTH_MAX_KIB: usize = 64 << 10;
/// The budget of a process, and as much for the allocator and for what HTTP/2 has not passed on.
const GROWTH_MAX_KIB: usize = 256 << 10;

/// Calls that were rejected while their request was incomplete.
fn ended(serving: &Tidegate) -> u64 {
    metric(serving, "receive_timeouts_total") + metric(serving, "calls_over_budget_total")
}

/// Calls that were begun: their answers, and the streams that keep them open.
pub(crate) type BegunCalls = Vec<(ResponseFuture, SendStream<Bytes>)>;

/// Sends messages of 1 MiB without their last byte, as far as the server lets us.
pub(crate) async fn begin_half_messages(
    address: SocketAddr,
    connections: usize,
    streams: usize,
) -> Vec<(SendRequest<Bytes>, BegunCalls)> {
    let half = Bytes::from([&[0, 0, 16, 0, 0][..], &vec![0x5a; (1 << 20) - 1]].concat());
    let mut begun = Vec::new();
    for _ in 0..connections {
        let connection = connect(address).await;
        let mut calls = Vec::new();
        for _ in 0..streams {
            let mut send = connection.clone().ready().await.unwrap();
            let (response, mut stream) =
                send.send_request(call().body(()).unwrap(), false).unwrap();
            // The server may have answered already.
            let _ = stream.send_data(half.clone(), false);
            calls.push((response, stream));
        }
        begun.push((connection, calls));
    }
    begun
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_received_messages_stay_under_the_budget_and_end() {
    // Each frame that follows the rejection of its call is a local error reset. The window of a
    // call holds 4 frames, so these are at most 400 for a connection, however slow the client is.
    let few = flood(12, 100, &[], GROWTH_MAX_KIB);
    // Connections with many calls reach the 1,024 local error resets of a connection and are closed.
    let one = flood(1, 1_000, MANY_STREAMS, GROWTH_MAX_KIB);
    let (few, one) = tokio::join!(few, one);
    assert_eq!((few.ended, few.closed), (few.calls, 0));
    let twelve = flood(12, 1_000, MANY_STREAMS, GROWTH_MAX_KIB + 12_000 * CALL_KIB).await;
    for many in [one, twelve] {
        assert!(many.ended + many.closed >= many.calls, "{many:?}");
    }
}

/// What became of the calls of a flood.
#[derive(Debug)]
struct Flood {
    calls: u64,
    /// Calls that the server rejected.
    ended: u64,
    /// Calls that ended with their connection.
    closed: u64,
}

async fn flood(connections: usize, streams: usize, flags: &[&str], growth_max_kib: usize) -> Flood {
    let (serving, address) = target(flags);
    let mut bystander = client(address).await;
    asked(&mut bystander, &question(vec![descriptor(b"ann")])).await;
    let before = serving.proc_status("VmRSS");
    let begun = begin_half_messages(address, connections, streams).await;
    let told = asked(&mut bystander, &question(vec![descriptor(b"bob")])).await;
    assert!(!told.refused);
    let (mut rejected, mut closed) = (0, 0);
    for (_, calls) in begun {
        for (response, _stream) in calls {
            match soon("every call to end", response).await {
                Ok(response) => assert_eq!(response.headers()["grpc-status"], "4"),
                Err(error) if error.reason() == Some(h2::Reason::CANCEL) => rejected += 1,
                Err(_) => closed += 1,
            }
        }
    }
    assert!(rejected > 0, "the budget was reached");
    assert!(metric(&serving, "connections_broken_total") <= connections as u64);
    let calls = (connections * streams) as u64;
    let peak = serving.proc_status("VmHWM");
    println!("{calls} half messages: {before} KiB before, {peak} KiB at the peak");
    assert!(peak <= before + growth_max_kib, "{before} KiB, then {peak} KiB");
    Flood { calls, ended: ended(&serving), closed }
}

/// Begins calls without a body on each connection, and waits until all have ended. Returns their number.
async fn end_bare_calls(address: SocketAddr, connections: usize, streams: usize) -> usize {
    let mut calls = Vec::new();
    for _ in 0..connections {
        let connection = connect(address).await;
        for _ in 0..streams {
            let mut send = connection.clone().ready().await.unwrap();
            calls.push(send.send_request(call().body(()).unwrap(), false).unwrap());
        }
    }
    let number = calls.len();
    for (response, _stream) in calls {
        let response = soon("every call to end", response).await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "4");
    }
    number
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_calls_without_a_body_cost_as_much_as_they_are_charged() {
    const GROWTH_MAX_KIB: usize = 20_000 * 3 + 8 * 1_024;
    let mut growths = Vec::new();
    // A busy machine adds to the growth, by up to a sixth, and never takes from it.
    while growths.len() < 3 && growths.iter().all(|growth| *growth > GROWTH_MAX_KIB) {
        let (serving, address) = target(MANY_STREAMS);
        asked(&mut client(address).await, &question(vec![descriptor(b"ann")])).await;
        // The code of such calls is in memory once, not for each call.
        end_bare_calls(address, 1, 10).await;
        let before = serving.proc_status("VmRSS");
        assert_eq!(end_bare_calls(address, 20, 1_000).await, 20_000);
        growths.push(serving.proc_status("VmHWM") - before);
    }
    println!("20,000 bare calls: {growths:?} KiB");
    assert!(growths.iter().any(|growth| *growth <= GROWTH_MAX_KIB), "{growths:?} KiB");
}

#[test]
fn half_received_json_bodies_stay_under_32_mib_and_end() {
    let (serving, _) = target(&[]);
    let http = serving.port("http");
    let before = serving.proc_status("VmRSS");
    let half = vec![b' '; 900_000];
    let mut sockets = Vec::new();
    for _ in 0..100 {
        let mut socket = TcpStream::connect(http).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = "POST /json HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
                    Content-Length: 1000000\r\n\r\n";
        socket.write_all(head.as_bytes()).unwrap();
        // Fails if the server has answered already.
        let _ = socket.write_all(&half);
        sockets.push(socket);
    }
    let (mut late, mut rejected) = (0, 0);
    for socket in &mut sockets {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut head = [0; 12];
        match socket.read_exact(&mut head).map(|()| &head[9..]) {
            Ok(b"408") => late += 1,
            // A connection that is closed with unread bytes is reset.
            Ok(b"503") | Err(_) => rejected += 1,
            Ok(other) => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
    println!("{late} late, {rejected} rejected");
    assert!(late > 0 && rejected > 0, "{late} late, {rejected} rejected");
    let peak = serving.proc_status("VmHWM");
    println!("100 half bodies: {before} KiB before, {peak} KiB at the peak");
    assert!(peak <= before + JSON_GROWTH_MAX_KIB, "{before} KiB, then {peak} KiB");
}
