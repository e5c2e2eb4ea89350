//! Answers that nobody reads: memory stays under its bound, the connections are closed, and other
//! callers are answered.

use std::net::SocketAddr;

use bytes::Bytes;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::target::{asked, client, descriptor, question, soon};
use crate::limits_service::messages::{CheckRequest, RateLimitRequest, encoded, request};
use crate::support::memory_cgroup::MemoryCgroup;
use crate::support::raw_http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, METHOD, PING, PREFACE, SETTINGS, call, connect, frame,
    framed, headers_for, next_frame, socket,
};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, metric};

const CONNECTIONS: usize = 50;
/// Memory that unread answers may take, beyond an idle process.
const GROWTH_MAX_KIB: usize = 256 << 10;

const CHECK: &str = "/tidegate.v1.Limits/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// `SETTINGS_INITIAL_WINDOW_SIZE` with a value of 0: no byte of an answer may be sent.
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// A kind of call: its path, its body, and how often each connection makes it.
struct Kind(&'static str, Vec<u8>, u32);

fn kinds() -> Vec<Kind> {
    let batch = |requests| framed(&CheckRequest { requests }.encode_to_vec()).to_vec();
    let refused = RateLimitRequest { hits_addend: 1_000_000, ..request("edge", "client", "ann") };
    let refused = Bytes::from(refused.encode_to_vec());
    let metadata = Bytes::from(request("edge", "long", "ann").encode_to_vec());
    let mut wide = request("edge", "client", "ann");
    wide.descriptors = vec![wide.descriptors[0].clone(); 2_000];
    // file_containing_symbol = 4
    let symbol = b"envoy.service.ratelimit.v3.RateLimitService";
    let symbol = [&[0x22, symbol.len() as u8][..], symbol].concat();
    vec![
        Kind(CHECK, batch(vec![refused; 1_024]), 1),
        Kind(CHECK, batch(vec![metadata; 1_024]), 1),
        Kind(METHOD, framed(&wide.encode_to_vec()).to_vec(), 5),
        Kind(METHOD, framed(&encoded("edge", "ann")).to_vec(), 200),
        Kind(REFLECTION, framed(&symbol).repeat(3), 60),
        Kind(HEALTH_CHECK, framed(&[]).to_vec(), 50),
        Kind(HEALTH_WATCH, framed(&[]).to_vec(), 50),
    ]
}

/// Makes calls of every kind without a window for their answers. Ends when the server closes.
async fn never_read(address: SocketAddr) {
    let mut attacker = socket(address).await;
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &NO_WINDOW), &frame(PING, 0, 0, &[7; 8])];
    attacker.write_all(&hello.concat()).await.unwrap();
    // By then, the server has opened its own window.
    while next_frame(&mut attacker).await.expect("an answer to a ping").0 != PING {}
    let (mut reading, mut writing) = attacker.split();
    let write = async {
        let mut sent = Ok(());
        let mut stream = 1;
        for Kind(path, body, count) in kinds() {
            for _ in 0..count {
                let mut bytes = frame(HEADERS, END_HEADERS, stream, &headers_for(path));
                for chunk in body.chunks(16_384) {
                    bytes.extend(frame(DATA, 0, stream, chunk));
                }
                bytes.extend(frame(DATA, END_STREAM, stream, &[]));
                // Fails once the server has closed.
                sent = sent.and(writing.write_all(&bytes).await);
                stream += 2;
            }
        }
    };
    let read = async {
        let mut buffer = vec![0; 65_536];
        while matches!(reading.read(&mut buffer).await, Ok(1..)) {}
    };
    tokio::join!(write, read);
}

/// A policy with a rule whose responses have 15 KB of metadata.
fn with_metadata() -> Tidegate {
    let text = "m".repeat(15_000);
    let rule = format!(
        "  - key: long\n    rate_limit: {{unit: year, requests_per_unit: 1000000}}\n    \
         metadata: {{text: {text}}}\n"
    );
    let flags =
        ["--rejection-body", "true", "--response-dynamic-metadata", "true", "--headers", "both"];
    Tidegate::policy(&format!("{FIVE_A_DAY}{rule}"), &flags)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_of_every_kind_stay_under_256_mib_and_end_their_connections() {
    let serving = with_metadata();
    // The kernel would end the process beyond the limit of the chart, where cgroups can be made.
    let _cgroup = MemoryCgroup::of(&serving);
    let address = serving.port("grpc");
    let mut bystander = client(address).await;
    asked(&mut bystander, &question(vec![descriptor(b"bob")])).await;
    // A watch that stays silent is not blocked.
    let watching = connect(address).await;
    let mut send = watching.clone().ready().await.unwrap();
    let watch = call().uri(format!("http://tidegate{HEALTH_WATCH}")).body(()).unwrap();
    let (answer, mut stream) = send.send_request(watch, false).unwrap();
    stream.send_data(framed(&[]), true).unwrap();
    let mut watched = soon("a watch", answer).await.unwrap().into_body();
    soon("its first status", watched.data()).await.unwrap().unwrap();

    let idle = serving.proc_status("VmRSS");
    let attack: Vec<_> = (0..CONNECTIONS).map(|_| tokio::spawn(never_read(address))).collect();
    let mut answers = 0;
    for attacker in attack {
        while !attacker.is_finished() {
            asked(&mut bystander, &question(vec![descriptor(b"bob")])).await;
            answers += 1;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        attacker.await.unwrap();
    }
    let peak = serving.proc_status("VmHWM");
    println!("{idle} KiB idle, {peak} KiB at the peak, {answers} answers beside");
    assert!(peak <= idle + GROWTH_MAX_KIB, "{idle} KiB, then {peak} KiB");
    assert_eq!(metric(&serving, "connections_blocked_total"), CONNECTIONS as u64);
    let mut send = watching.clone().ready().await.expect("the watch is open");
    let (answer, _) = send.send_request(call().body(()).unwrap(), true).unwrap();
    soon("an answer beside the watch", answer).await.unwrap();
    drop(watched);
}
