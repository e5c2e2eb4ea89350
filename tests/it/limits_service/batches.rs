//! Batches: each request is decided on its own, in order, within bounds; on Redis, the commands of
//! 32 requests leave in one write.

use std::fs;

use bytes::Bytes;
use prost::Message as _;
use tonic::{Code, Status};

use super::messages::{
    CheckRequest, CheckResult, RateLimitRequest, all, check_result, client, encoded, request,
};
use crate::grpc::test_server::{Server, soon};
use crate::support::http;
use crate::support::redis_server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, run};

async fn check(server: &Tidegate, requests: Vec<Bytes>) -> Result<Vec<String>, Status> {
    let mut client = client(server.port("grpc")).await;
    let answer = soon("a batch", client.check(CheckRequest { requests })).await;
    answer.map(|answer| all(&answer.into_inner().results))
}

#[tokio::test]
async fn every_request_of_a_batch_is_decided_on_its_own() {
    let server = Tidegate::policy(FIVE_A_DAY, &[]);
    let mut requests = vec![encoded("edge", "ann"); 6];
    requests.insert(3, encoded("", "ann"));
    requests.insert(4, Bytes::from_static(b"\xff nonsense"));
    requests.insert(5, encoded("edge", "bob"));
    requests.push(encoded("unknown", "ann"));
    let said = check(&server, requests).await.unwrap();
    let [ok, over, invalid] = ["OK", "OVER_LIMIT", "InvalidArgument"];
    assert_eq!(said, [ok, ok, ok, invalid, invalid, ok, ok, ok, over, ok]);

    let metrics = http::get(server.port("http"), "/metrics").body;
    let counted = |line: &str| assert!(metrics.lines().any(|it| it == line), "{line}\n{metrics}");
    counted("tidegate_decisions_total{code=\"ok\",source=\"memory\"} 6");
    counted("tidegate_decisions_total{code=\"over_limit\",source=\"memory\"} 1");
    counted("tidegate_decision_seconds_count 10");
    counted("tidegate_invalid_calls_total{reason=\"domain\"} 1");
    counted("tidegate_invalid_calls_total{reason=\"malformed\"} 1");
}

#[tokio::test]
async fn results_of_a_batch_carry_the_marks_of_soft_limits() {
    let policy = "domain: edge\ndescriptors: [{key: client, rate_limit: {unit: year, requests_per_unit: \
                  2, mark: {near: {q: near}, over: {q: over}, near_at: 50%}}}]";
    let server = Tidegate::policy(policy, &[]);
    let mut client = client(server.port("grpc")).await;
    let requests = vec![encoded("edge", "ann"); 3];
    let answer = soon("a batch", client.check(CheckRequest { requests })).await.unwrap();
    let marks = |result: &CheckResult| match result.result.as_ref().expect("a result") {
        check_result::Result::Response(response) => {
            let marks = response.request_headers_to_add.iter();
            marks.map(|mark| format!("{}: {}", mark.key, mark.value)).collect::<Vec<_>>().join(",")
        }
        check_result::Result::Error(error) => error.message.clone(),
    };
    let marks: Vec<_> = answer.into_inner().results.iter().map(marks).collect();
    assert_eq!(marks, ["q: near", "q: over", ""]);
}

#[tokio::test]
async fn a_request_of_a_batch_that_fails_has_the_status_of_a_single_call() {
    let server = Server::start();
    let requests = ["edge", "unavailable", "refuse", "edge"].map(|it| encoded(it, "ann")).to_vec();
    let mut client = client(server.address).await;
    let answer = soon("a batch", client.check(CheckRequest { requests })).await.unwrap();
    let said = all(&answer.into_inner().results);
    assert_eq!(said, ["OK", "Unavailable", "OVER_LIMIT", "OK"]);
    server.left().await;
}

#[tokio::test]
async fn the_requests_of_a_batch_do_not_wait_for_each_other() {
    let server = Server::start();
    let mut client = client(server.address).await;
    let requests = vec![encoded("wait", "ann"); 100];
    let call = tokio::spawn(async move { client.check(CheckRequest { requests }).await });
    crate::grpc::test_server::until("all are asked", || server.judged() == 100).await;
    server.bench.gate.add_permits(100);
    let answer = soon("a batch", call).await.unwrap().unwrap().into_inner();
    assert!(all(&answer.results).iter().all(|said| said == "OK"));
    assert_eq!(server.bench.moments.lock().unwrap().len(), 1, "one instant for all");
    server.left().await;
}

#[tokio::test]
async fn a_batch_beyond_its_bounds_is_rejected_as_a_whole() {
    let server = Tidegate::policy(FIVE_A_DAY, &[]);
    let rejected = async |requests| {
        let status = check(&server, requests).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        status.message().to_owned()
    };
    let of = |count: usize| vec![encoded("edge", "ann"); count];
    assert_eq!(rejected(Vec::new()).await, "requests: a batch must have 1 to 1024 requests");
    assert_eq!(rejected(of(1_025)).await, "requests: a batch must have 1 to 1024 requests");
    assert_eq!(
        rejected(vec![Bytes::new(); 300_000]).await,
        "requests: a batch must have 1 to 1024 requests"
    );
    let long = encoded("edge", &"x".repeat(2 << 20));
    assert_eq!(rejected(vec![long]).await, "the message is longer than 1048576 bytes");
    // 1,024 requests of 70 fields each.
    let mut wide = request("edge", "client", "ann");
    wide.descriptors = vec![wide.descriptors[0].clone(); 17];
    let wide = vec![Bytes::from(wide.encode_to_vec()); 1_024];
    assert_eq!(rejected(wide).await, "the message has more than 65536 fields");
    let said = check(&server, of(1_024)).await.unwrap();
    assert_eq!(said.iter().filter(|said| *said == "OK").count(), 5, "nothing was charged before");
}

#[tokio::test]
async fn a_malformed_request_in_a_long_batch_is_an_error_of_its_own() {
    let server = Tidegate::policy(FIVE_A_DAY, &[]);
    let malformed = Bytes::from_static(b"\x12\xff\xff\xff\xff\x0f");
    let long = encoded("edge", &"x".repeat(20_000));
    let said = check(&server, vec![malformed, long]).await.unwrap();
    assert_eq!(said, ["InvalidArgument", "OK"]);
}

fn on_redis() -> (redis_server::Server, Tidegate) {
    let redis = redis_server::Server::start(&[]);
    let address = format!("127.0.0.1:{}", redis.port);
    // The budget of a call: longer than a busy machine may stop the test.
    let arguments = ["--redis-url", &address, "--redis-budget", "20s"];
    let server = Tidegate::policy(FIVE_A_DAY, &arguments);
    (redis, server)
}

#[tokio::test]
async fn a_batch_of_32_leaves_for_redis_in_one_write() {
    let (redis, server) = on_redis();
    check(&server, vec![encoded("edge", "first")]).await.unwrap();
    let reads = || {
        let redis::Value::BulkString(info) = redis.ask(&["INFO", "stats"]) else {
            panic!("INFO is text")
        };
        let info = String::from_utf8(info).expect("text");
        let line = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        line.expect("INFO").trim().parse::<u64>().expect("a number")
    };
    let before = reads();
    let requests = (0..32).map(|client| encoded("edge", &client.to_string())).collect();
    let said = check(&server, requests).await.unwrap();
    assert!(said.iter().all(|said| said == "OK"));
    // 32 calls in one or two reads; the rest are this test's own INFO and the service's polls.
    let reads = reads() - before;
    assert!(reads < 20, "{reads} reads for a batch of 32");
    let metrics = http::get(server.port("http"), "/metrics").body;
    let of = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).expect("the metric");
        line.split(' ').nth(1).expect("a value").to_owned()
    };
    // One call before the batch.
    assert_eq!(of("tidegate_redis_write_items_sum"), "33.0");
    assert_eq!(of("tidegate_redis_write_items_count"), "2");
}

#[tokio::test]
async fn full_batches_at_once_are_all_decided_by_redis() {
    let (_redis, server) = on_redis();
    let full = || (0..1_024).map(|client| encoded("edge", &client.to_string())).collect();
    let batches = [(); 4].map(|()| check(&server, full()));
    for said in futures_util::future::join_all(batches).await {
        let said = said.unwrap();
        assert!(said.len() == 1_024 && said.iter().all(|said| said == "OK"));
    }
    let metrics = http::get(server.port("http"), "/metrics").body;
    let decided = |source: &str| {
        let of_source = format!("source=\"{source}\"");
        let is_decision = |line: &&str| {
            line.starts_with("tidegate_decisions_total{") && line.contains(&of_source)
        };
        let values = metrics.lines().filter(is_decision).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<u64>().expect("a number")).sum::<u64>()
    };
    assert_eq!((decided("redis"), decided("shed")), (4 * 1_024, 0));
}

#[test]
fn ask_sends_the_requests_of_a_file_in_batches() {
    let server = Tidegate::policy(FIVE_A_DAY, &[]);
    let line =
        r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "client", "value": "ann"}]}]}"#;
    let text = format!("{}\n{{\"domain\": \"edge\"}}\n", [line; 6].join("\n"));
    let files = directory(&[("requests.jsonl", &text), ("bad.jsonl", "\n{\"domian\": 1}\n")]);
    let path = |name: &str| files.path().join(name).display().to_string();
    let (target, file) = (server.port("grpc").to_string(), path("requests.jsonl"));
    let out = run(&["ask", &target, "--batch", &file]).with_code(0).out;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..5], ["OK"; 5]);
    assert!(lines[5].starts_with("OVER_LIMIT, retry after "), "{out}");
    assert_eq!(lines[6], "InvalidArgument: descriptors must not be empty");
    let json = run(&["ask", &target, "--batch", &file, "--json"]).with_code(0).out;
    let line: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(line["overallCode"], "OVER_LIMIT");
    let last: serde_json::Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "InvalidArgument");
    let bad = run(&["ask", &target, "--batch", &path("bad.jsonl")]).with_code(64).err;
    assert!(bad.contains("bad.jsonl:2: unknown field \"domian\""), "{bad}");
    fs::write(path("bad.jsonl"), "\n").unwrap();
    let none = run(&["ask", &target, "--batch", &path("bad.jsonl")]).with_code(64).err;
    assert!(none.contains("bad.jsonl has no requests"), "{none}");
}

/// A policy whose rule adds 15 KB of metadata to each response that is OK.
fn policy_with_metadata() -> String {
    let text = "m".repeat(15_000);
    let policy = FIVE_A_DAY.replace("requests_per_unit: 5", "requests_per_unit: 100000");
    format!("{policy}    metadata: {{text: {text}}}\n")
}

#[tokio::test]
async fn the_answer_to_a_batch_stays_below_4_mib_and_has_every_code() {
    let flags =
        ["--rejection-body", "true", "--response-dynamic-metadata", "true", "--headers", "both"];
    let server = Tidegate::policy(&policy_with_metadata(), &flags);
    let mut client = client(server.port("grpc")).await.max_decoding_message_size(1 << 30);
    for (hits, code) in [(1, "OK"), (200_000, "OVER_LIMIT")] {
        let request = RateLimitRequest { hits_addend: hits, ..request("edge", "client", "ann") };
        let requests = vec![request.encode_to_vec().into(); 1_024];
        let answer = soon("a batch", client.check(CheckRequest { requests })).await.unwrap();
        let results = answer.into_inner().results;
        assert!(all(&results).iter().all(|said| said == code), "{code}");
        let bytes: usize = results.iter().map(CheckResult::encoded_len).sum();
        println!("{code}: {bytes} bytes");
        // The optional parts, and at most 100 bytes for the rest of each result.
        assert!(bytes <= (1 << 20) + 1_024 * 100, "{code}: {bytes} bytes");
        let Some(check_result::Result::Response(first)) = &results[0].result else { panic!() };
        assert!(first.dynamic_metadata.is_some() && !first.response_headers_to_add.is_empty());
    }
    // The most descriptors of a request, whose answer is as long as that of a call of its own.
    let mut request = request("edge", "client", "ann");
    request.descriptors = vec![request.descriptors[0].clone(); 2_048];
    let requests = vec![request.encode_to_vec().into()];
    let answer = soon("a batch", client.check(CheckRequest { requests })).await.unwrap();
    let results = answer.into_inner().results;
    assert_eq!(all(&results), ["OK"]);
    assert!(results[0].encoded_len() < 4 << 20, "{} bytes", results[0].encoded_len());
}
