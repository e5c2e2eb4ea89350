//! Bounds on the work of batches: decisions in flight, checks, memory; other calls are answered.

use bytes::Bytes;
use prost::Message as _;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::messages::{CheckRequest, CheckResponse, LimitsClient, all, client, encoded, request};
use crate::grpc::test_server::{Server, question, soon, until};
use crate::hostile::target;
use crate::support::memory_cgroup::MemoryCgroup;
use crate::support::redis_server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, metric};
use crate::support::wait;

/// Requests of the largest batch.
const FULL: usize = 1_024;
/// Decisions of batches in flight in the process.
const IN_FLIGHT_MAX: usize = 8_192;
/// Decisions of batches that wait for the store.
const AT_STORE_MAX: u64 = 512;
/// What a flood of batches may add to the memory of an idle process.
const GROWTH_MAX_KIB: usize = 256 * 1_024;

fn batch(domain: &str, count: usize) -> CheckRequest {
    let requests = (0..count).map(|client| encoded(domain, &client.to_string())).collect();
    CheckRequest { requests }
}

/// Sends eight batches of the largest size, and waits until all of their decisions are in flight
/// and as many as may wait for the store do.
async fn fill(
    server: &Server,
    connection: &LimitsClient<Channel>,
) -> Vec<JoinHandle<Result<Response<CheckResponse>, Status>>> {
    let mut calls = Vec::new();
    for _ in 0..8 {
        let mut client = connection.clone();
        calls.push(tokio::spawn(async move { client.check(batch("wait", FULL)).await }));
    }
    let in_flight = || server.service.batch_decisions_in_flight();
    until("all are in flight", || (in_flight(), server.judged()) == (IN_FLIGHT_MAX, AT_STORE_MAX))
        .await;
    calls
}

#[tokio::test]
async fn at_most_8192_decisions_of_batches_are_in_flight_and_other_calls_are_answered() {
    let server = Server::start();
    let connection = client(server.address).await;
    let calls = fill(&server, &connection).await;
    let beyond = soon("a rejection", connection.clone().check(batch("wait", 1))).await;
    let beyond = beyond.unwrap_err();
    assert_eq!(beyond.code(), Code::ResourceExhausted);
    assert_eq!(
        beyond.message(),
        "more than 8192 decisions of batches would be in flight; retry after a pause, with fewer or \
         smaller batches at a time"
    );
    assert_eq!(server.judged(), AT_STORE_MAX);
    let mut bystander = server.client().await;
    assert!(!soon("an answer", bystander.send(&question("edge"))).await.unwrap().refused);
    server.bench.gate.add_permits(8 * FULL);
    for call in calls {
        let answer = soon("a batch", call).await.unwrap().unwrap().into_inner();
        assert!(all(&answer.results).iter().all(|said| said == "OK"));
    }
    let after = soon("a batch", connection.clone().check(batch("edge", FULL))).await;
    assert_eq!(after.unwrap().into_inner().results.len(), FULL);
    server.left().await;
}

#[tokio::test]
async fn a_batch_whose_caller_has_left_makes_room_for_others() {
    let server = Server::start();
    let connection = client(server.address).await;
    let calls = fill(&server, &connection).await;
    calls.iter().for_each(JoinHandle::abort);
    soon("room for a batch", async {
        while connection.clone().check(batch("edge", FULL)).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    server.left().await;
}

#[tokio::test]
async fn a_batch_has_16_times_the_checks_of_a_call() {
    let server = Tidegate::policy(FIVE_A_DAY, &["--checks", "2"]);
    let mut client = client(server.port("grpc")).await;
    let answer = soon("a batch", client.check(batch("edge", 40))).await.unwrap().into_inner();
    let said = all(&answer.results);
    assert_eq!(said[..32], ["OK"; 32]);
    assert_eq!(said[32..], ["InvalidArgument"; 8]);
    // A request that does not fit charges nothing, and leaves room for one that does.
    let mut two = request("edge", "client", "ann");
    two.descriptors.push(request("edge", "client", "bob").descriptors.remove(0));
    let one = encoded("edge", "carl");
    let mut requests = vec![Bytes::from(two.encode_to_vec()); 16];
    requests[0] = one.clone();
    requests.extend([Bytes::from(two.encode_to_vec()), one]);
    let answer = soon("a batch", client.check(CheckRequest { requests })).await.unwrap();
    let said = all(&answer.into_inner().results);
    assert_eq!(said[16..], ["InvalidArgument", "OK"]);
}

#[tokio::test]
async fn without_batches_the_whole_service_is_unimplemented() {
    let server = Tidegate::policy(FIVE_A_DAY, &["--batches", "off"]);
    let mut limits = client(server.port("grpc")).await;
    let unimplemented = |result: Result<(), Status>| {
        assert_eq!(result.unwrap_err().code(), Code::Unimplemented);
    };
    unimplemented(limits.check(batch("edge", 1)).await.map(drop));
    unimplemented(limits.peek(request("edge", "client", "ann")).await.map(drop));
    let mut single = target::client(server.port("grpc")).await;
    let asked = target::question(vec![target::descriptor(b"ann")]);
    assert!(!target::asked(&mut single, &asked).await.refused);
}

/// Sends 400 full batches on 8 connections, beside a caller of single calls.
async fn flood(server: &Tidegate) {
    let address = server.port("grpc");
    // The kernel would end the process beyond the limit of the chart, where cgroups can be made.
    let _cgroup = MemoryCgroup::of(server);
    let mut bystander = target::client(address).await;
    let asked = target::question(vec![target::descriptor(b"bystander")]);
    target::asked(&mut bystander, &asked).await;
    let before = server.proc_status("VmRSS");
    let mut calls = Vec::new();
    for _ in 0..8 {
        let connection = client(address).await;
        for _ in 0..50 {
            let mut client = connection.clone().max_decoding_message_size(16 << 20);
            calls.push(tokio::spawn(async move { client.check(batch("edge", FULL)).await }));
        }
    }
    let mut answered = 0;
    let flood = async {
        let (mut decided, mut rejected) = (0, 0);
        for call in calls {
            match call.await.unwrap() {
                Ok(answer) => {
                    assert_eq!(answer.into_inner().results.len(), FULL);
                    decided += 1;
                }
                Err(status) if status.message().contains("decisions of batches") => {
                    assert_eq!(status.code(), Code::ResourceExhausted);
                    rejected += 1;
                }
                // On a slow machine, some requests are not read in time.
                Err(status) => assert_eq!(status.code(), Code::DeadlineExceeded, "{status}"),
            }
        }
        (decided, rejected)
    };
    let beside = async {
        loop {
            target::asked(&mut bystander, &asked).await;
            answered += 1;
        }
    };
    let (decided, rejected) = tokio::select! {
        counts = soon("the flood", flood) => counts,
        () = beside => unreachable!("it never ends"),
    };
    let peak = server.proc_status("VmHWM");
    println!("{decided} decided, {rejected} rejected, {answered} beside; {before}, {peak} KiB");
    assert!(answered > 0 && decided >= 8 && rejected > 0);
    assert_eq!(metric(server, "batches_rejected_total"), rejected);
    // A batch is still counted for a moment after its answer.
    wait::until("nothing to be reserved", || {
        (metric(server, "batch_decisions") == 0).then_some(())
    });
    assert!(peak <= before + GROWTH_MAX_KIB, "{before} KiB, then {peak} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_batches_takes_bounded_memory_with_counters_in_memory() {
    flood(&Tidegate::policy(FIVE_A_DAY, &[])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_batches_takes_bounded_memory_with_redis() {
    let redis = redis_server::Server::start(&[]);
    let address = format!("127.0.0.1:{}", redis.port);
    flood(&Tidegate::policy(FIVE_A_DAY, &["--redis-url", &address])).await;
}
