//! Replicas that answer for each other: `/top` over all of them, and peers that are frozen, hostile, or
//! listed twice.

#![allow(clippy::disallowed_methods, reason = "a frozen replica must not hold up the answer")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use serde_json::Value;

use crate::support::heavy;
use crate::support::http;
use crate::support::redis_server::{Server, free_port};
use crate::support::tidegate_process::{Tidegate, asked, run};
use crate::support::wait::until;

const TWENTY: &str = "
domain: edge
descriptors:
  - key: client
    rate_limit: {name: twenty, unit: year, requests_per_unit: 20}
";

/// Calls that the limit admits, and the first of them that is near it.
const LIMIT: u64 = 20;
const NEAR_FROM: u64 = 16;

fn top(replica: &Tidegate, query: &str) -> Value {
    let reply = http::get(replica.port("debug"), &format!("/top{query}"));
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).expect("JSON")
}

/// The replicas that did not answer, each with the reason.
fn failures(answer: &Value) -> Vec<(String, String)> {
    let replicas = answer["replicas"].as_array().unwrap().iter();
    let failed = replicas.filter(|replica| replica["answered"] == false);
    failed.map(|it| (string(&it["name"]), string(&it["reason"]))).collect()
}

fn string(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// Waits until a replica has asked all of its peers, of which this many are others.
fn wait_for_peers(replica: &Tidegate, count: usize) -> Value {
    until("all peers to answer", || {
        let answer = top(replica, "");
        let replicas = answer["replicas"].as_array().unwrap().len();
        (replicas == count + 1 && failures(&answer).is_empty()).then_some(answer)
    })
}

/// Three replicas that know each other by one list, which names each of them, and the first twice.
fn fleet(start: impl Fn(&[&str]) -> Tidegate) -> [Tidegate; 3] {
    let ports: [String; 3] = std::array::from_fn(|_| free_port().to_string());
    let [first, second, third] = &ports;
    let peers = format!(
        "127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third},127.0.0.1:{first},[::ffff:127.0.0.1]:{second}"
    );
    ports.each_ref().map(|port| {
        start(&[
            "--debug-port",
            port,
            "--peers",
            &peers,
            "--top-values",
            "shortened",
            "--key-secret",
            "a-secret-that-all-replicas-share",
        ])
    })
}

/// Skewed traffic: the client by Zipf's law, the replica at random. Returns the calls of each client on
/// each replica.
fn send_skewed(fleet: &[Tidegate; 3]) -> HashMap<String, [u64; 3]> {
    let mut calls: HashMap<String, [u64; 3]> = HashMap::new();
    let mut random = 7_u64;
    for _ in 0..3_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        let uniform = (random >> 33) as f64 / (1_u64 << 31) as f64;
        let client = format!("c{}", 400_f64.powf(uniform) as u64);
        let replica = (random >> 20) as usize % 3;
        asked(&fleet[replica], &client);
        calls.entry(client).or_default()[replica] += 1;
    }
    calls
}

/// Asserts that the merged list holds the first 20 of the exact numbers, within their bounds.
fn assert_merged(answer: &Value, exact: &HashMap<String, u64>) {
    let limits = answer["last_hour"]["limits"].as_array().unwrap();
    let [limit] = &limits[..] else { panic!("{answer}") };
    let total: u64 = exact.values().sum();
    // Passed checks are sampled if a slow machine delays the drain.
    let slack = |exact: u64| match answer["one_in"].as_u64().unwrap() {
        _ if answer["by"] == "rejected" => 0,
        _ => (4.0 * (exact as f64 * 4.0).sqrt()) as u64,
    };
    assert!(limit["count"].as_u64().unwrap().abs_diff(total) <= slack(total), "{limit} {total}");
    let mut left_out = exact.clone();
    let keys = limit["keys"].as_array().unwrap();
    for key in keys {
        let client = string(&key["key"]).replace("client=", "");
        let exact = left_out.remove(&client).unwrap_or_default();
        let [low, high] = ["count", "count_at_most"].map(|bound| key[bound].as_u64().unwrap());
        let slack = slack(exact);
        assert!(low <= exact + slack && exact <= high + slack, "{exact} of {key}");
    }
    assert_eq!(keys.len(), exact.values().filter(|count| **count > 0).count().min(20));
    let most = left_out.values().copied().max().unwrap_or_default();
    assert!(most <= limit["absent_at_most"].as_u64().unwrap() + slack(most), "{most} {limit}");
}

/// Each list of one replica against the exact numbers, of which `count` turns the calls of a client on
/// each replica into those that were rejected, admitted, and near.
fn assert_all_lists(fleet: &[Tidegate; 3], calls: &HashMap<String, [u64; 3]>, shared: bool) {
    let split = |calls: u64| {
        let used = calls.min(LIMIT);
        HashMap::from([
            ("rejected", calls - used),
            ("used", used),
            ("near", (used + 1).saturating_sub(NEAR_FROM)),
        ])
    };
    for (replica, by) in fleet.iter().zip(["rejected", "used", "near"]) {
        let exact = calls.iter().map(|(client, calls)| {
            let count = match shared {
                true => split(calls.iter().sum())[by],
                false => calls.iter().map(|calls| split(*calls)[by]).sum(),
            };
            (client.clone(), count)
        });
        let exact: HashMap<String, u64> = exact.filter(|(_, count)| *count > 0).collect();
        assert!(exact.len() > 2, "{by}: {exact:?}");
        let answer = until("the peers' shared answers to pass", || {
            let answer = top(replica, &format!("?by={by}"));
            let limits = answer["last_hour"]["limits"].as_array().unwrap();
            (failures(&answer).is_empty() && !limits.is_empty()).then_some(answer)
        });
        assert_eq!(answer["replicas"].as_array().unwrap().len(), 3, "{answer}");
        assert_merged(&answer, &exact);
        if by == "near" {
            let keys = answer["last_hour"]["limits"][0]["keys"].as_array().unwrap();
            let used: Vec<u64> =
                keys.iter().map(|key| key["used_percent"].as_u64().unwrap()).collect();
            assert!(used.is_sorted_by(|a, b| a >= b) && used.iter().all(|used| *used >= 80));
        }
    }
}

#[test]
fn any_replica_lists_the_keys_of_all_with_counters_in_memory() {
    let _turn = heavy::blocking_turn();
    let fleet = fleet(|arguments| Tidegate::policy(TWENTY, arguments));
    fleet.iter().for_each(|replica| drop(wait_for_peers(replica, 2)));
    let calls = send_skewed(&fleet);
    assert_all_lists(&fleet, &calls, false);
    let ran = run(&["top", "--by", "used", "--debug", &fleet[0].port("debug").to_string()]);
    let out = ran.with_code(0).out;
    assert!(out.starts_with("used in the last 10 s, 3 of 3 replicas\n"), "{out}");
    let debug = fleet[0].port("debug").to_string();
    let out = run(&["top", "--window", "last_day", "--debug", &debug]).with_code(0).out;
    assert!(out.contains("\nedge.client twenty: ") && out.contains("client=c1 "), "{out}");
    let json = run(&["top", "--by", "near", "--json", "--debug", &debug]).with_code(0).out;
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON")["by"], "near");
}

#[test]
fn any_replica_lists_the_keys_of_all_with_counters_in_redis() {
    let _turn = heavy::blocking_turn();
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    let redis = ["--redis-url", &url, "--redis-budget", "5s"];
    let fleet = fleet(|arguments| Tidegate::policy(TWENTY, &[arguments, &redis].concat()));
    fleet.iter().for_each(|replica| drop(wait_for_peers(replica, 2)));
    let calls = send_skewed(&fleet);
    assert_all_lists(&fleet, &calls, true);
}

#[test]
fn a_frozen_replica_is_named_and_the_others_answer() {
    let _turn = heavy::blocking_turn();
    let fleet = fleet(|arguments| Tidegate::policy(TWENTY, arguments));
    wait_for_peers(&fleet[0], 2);
    for _ in 0..=LIMIT {
        asked(&fleet[1], "ann");
    }
    fleet[2].signal(Signal::STOP);
    let frozen = fleet[2].port("debug").to_string();
    let asked = Instant::now();
    let answer = until("the answer without the frozen replica", || {
        let answer = top(&fleet[0], "");
        (!failures(&answer).is_empty()).then_some(answer)
    });
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_eq!(failures(&answer), [(frozen.clone(), "no answer within 200 ms".to_owned())]);
    let answer = until("the rejected call on the other replica", || {
        let answer = top(&fleet[0], "");
        (answer["now"]["limits"] != serde_json::json!([])
            || answer["last_hour"]["limits"] != serde_json::json!([]))
        .then_some(answer)
    });
    assert_eq!(answer["last_hour"]["limits"][0]["keys"][0]["key"], "client=ann");
    let debug = fleet[0].port("debug").to_string();
    let out = run(&["top", "--debug", &debug]).with_code(0).out;
    assert!(out.contains(&format!("no answer from {frozen}: no answer within 200 ms\n")), "{out}");
    fleet[2].signal(Signal::CONT);
    wait_for_peers(&fleet[0], 2);
}

/// A peer that does what `answer` says with each connection, and the heads of its requests.
fn fake_peer(answer: fn(&mut TcpStream)) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, seen) = (stream.unwrap(), Arc::clone(&seen));
            thread::spawn(move || {
                let mut head = [0; 4_096];
                let length = stream.read(&mut head).unwrap_or(0);
                seen.lock().unwrap().push(String::from_utf8_lossy(&head[..length]).into_owned());
                answer(&mut stream);
            });
        }
    });
    (address, heads)
}

fn reply(stream: &mut TcpStream, head: &str, body: &str) {
    let _ = write!(stream, "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
}

const REPLICA: &str = "200 OK\r\ntidegate-instance: 1";

#[test]
fn a_hostile_peer_costs_only_its_own_answer() {
    let (trap, trapped) = fake_peer(|_| {});
    static TRAP: Mutex<Option<SocketAddr>> = Mutex::new(None);
    *TRAP.lock().unwrap() = Some(trap);
    type Answers = fn(&mut TcpStream);
    let hostile: [(Answers, &str); 8] = [
        (
            |stream| {
                let _ = stream.write_all(format!("HTTP/1.1 {REPLICA}\r\n\r\n").as_bytes());
                while stream.write_all(&[b' '; 65_536]).is_ok() {}
            },
            "answer longer than 1 MiB",
        ),
        (|stream| reply(stream, REPLICA, &" ".repeat(2 << 20)), "answer longer than 1 MiB"),
        (
            |stream| {
                let trap = TRAP.lock().unwrap().unwrap();
                reply(stream, &format!("302 Found\r\nlocation: http://{trap}/top"), "");
            },
            "status 302",
        ),
        (|_| thread::park(), "no answer within 200 ms"),
        (|stream| reply(stream, REPLICA, "{"), "answer is not JSON"),
        (|stream| reply(stream, REPLICA, "{}"), "answer of another version"),
        (|stream| reply(stream, "200 OK", "{}"), "not a debug port of Tidegate"),
        (
            |stream| {
                let deep = "[".repeat(500_000);
                reply(stream, "200 OK\r\ntidegate-instance: 2", &deep);
            },
            "answer is not JSON",
        ),
    ];
    let (peers, reasons): (Vec<_>, Vec<_>) = hostile
        .into_iter()
        .map(|(answer, reason)| (fake_peer(answer).0.to_string(), reason.to_owned()))
        .unzip();
    let serving =
        Tidegate::policy(TWENTY, &["--peers", &format!("{},no.such.invalid:1", peers.join(","))]);
    let expected: HashMap<_, _> = peers.into_iter().zip(reasons).collect();
    // A busy machine may not send a mebibyte in time; the next round asks again.
    until("each peer's own reason", || {
        let mut failures: HashMap<_, _> = failures(&top(&serving, "")).into_iter().collect();
        let unresolved = failures.remove("no.such.invalid:1");
        let is_unresolved = |reason: String| reason.contains("lookup");
        (failures == expected && unresolved.is_some_and(is_unresolved)).then_some(())
    });
    assert_eq!(trapped.lock().unwrap().len(), 0, "redirects are not followed");
}

#[test]
fn a_question_is_not_passed_on_and_its_answer_is_shared() {
    let empty: fn(&mut TcpStream) = |stream| reply(stream, REPLICA, "{}");
    let (fake, heads) = fake_peer(empty);
    let [first, second] = [free_port(), free_port()];
    let peers = format!("127.0.0.1:{first},127.0.0.1:{second},{fake}");
    let replicas = [first, second].map(|port| {
        Tidegate::policy(TWENTY, &["--debug-port", &port.to_string(), "--peers", &peers])
    });
    until("the second replica to know its peers", || {
        (top(&replicas[1], "?by=used")["replicas"].as_array().unwrap().len() == 3).then_some(())
    });
    until("the first replica to know its peers", || {
        (top(&replicas[0], "?by=used")["replicas"].as_array().unwrap().len() == 3).then_some(())
    });
    heads.lock().unwrap().clear();
    let viewers: Vec<_> = (0..20)
        .map(|_| {
            let debug = replicas[0].port("debug");
            thread::spawn(move || http::get(debug, "/top?by=near").status)
        })
        .collect();
    viewers.into_iter().for_each(|viewer| assert_eq!(viewer.join().unwrap(), 200));
    let heads = heads.lock().unwrap();
    assert!((1..10).contains(&heads.len()), "one round per second: {heads:?}");
    for head in &*heads {
        assert!(head.starts_with("GET /top?by=near&scope=replica HTTP/1.1\r\n"), "{head}");
        assert!(!head.to_lowercase().contains("authorization"), "{head}");
    }
    let alone = top(&replicas[0], "?by=used&scope=replica");
    assert_eq!(alone["replicas"].as_array().unwrap().len(), 1, "{alone}");
}

#[test]
fn a_request_cannot_choose_whom_the_replica_asks() {
    let (trap, trapped) = fake_peer(|_| {});
    let serving = Tidegate::policy(TWENTY, &["--debug-host", "0.0.0.0"]);
    let debug = SocketAddr::from(([127, 0, 0, 1], serving.port("debug").port()));
    for query in ["peers=", "scope=", "by=", "host=", "replica="] {
        assert_eq!(http::get(debug, &format!("/top?{query}{trap}")).status, 400, "{query}");
    }
    for line in [
        format!("GET http://{trap}/top HTTP/1.1\r\nHost: {trap}"),
        format!("GET /top HTTP/1.1\r\nHost: {trap}\r\nForwarded: for={trap}"),
    ] {
        http::send(debug, &format!("{line}\r\nConnection: close\r\n\r\n"));
    }
    assert_eq!(trapped.lock().unwrap().len(), 0);
}

#[test]
fn hashed_values_leak_in_no_list_of_any_replica() {
    let [first, second] = [free_port(), free_port()];
    let peers = format!("127.0.0.1:{first},127.0.0.1:{second}");
    let replicas = [first, second].map(|port| {
        Tidegate::policy(TWENTY, &["--debug-port", &port.to_string(), "--peers", &peers])
    });
    wait_for_peers(&replicas[0], 1);
    for _ in 0..=LIMIT {
        asked(&replicas[1], "secret-name");
    }
    for by in ["rejected", "used", "near"] {
        let body = until("the other replica's keys", || {
            let body = http::get(replicas[0].port("debug"), &format!("/top?by={by}")).body;
            body.contains(r#""key":"client""#).then_some(body)
        });
        assert!(!body.contains("secret"), "{body}");
    }
}
