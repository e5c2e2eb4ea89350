//! What each algorithm costs, and a rule of several limits: CPU per decision over gRPC, counting in
//! memory and in Redis; and the embedded store alone, in nanoseconds.
//!
//! Not here: one algorithm in depth (`table`, `scripts`), how exact they are (the tests).

use std::path::Path;
use std::sync::Arc;

use tidegate::domain::{
    Algorithm, Concurrency, Hits, Hybrid, Limit, Micros, SlidingLog, SlidingWindow,
};

use super::drive::Bodies;
use super::redis_server::RedisServer;
use super::servers::{self, Server};
use super::{Scale, calls, cpu, memory};

const DOMAIN: &str = "bench";
/// Calls per second and key are far below these in any run, so nothing is ever refused. A log and
/// slots are as long as the policy lets them be: what they cost grows with what they hold.
const ENTRIES: u64 = 10_000;

/// The name, and the rule's own words.
const ALGORITHMS: [(&str, &str); 8] = [
    ("fixed_window", "algorithm: fixed_window, unit: hour, requests_per_unit: 4000000"),
    ("token_bucket", "algorithm: token_bucket, unit: second, requests_per_unit: 100000"),
    (
        "leaky_bucket",
        "algorithm: leaky_bucket, unit: second, requests_per_unit: 100000, burst: 100000",
    ),
    ("sliding_window", "algorithm: sliding_window, unit: hour, requests_per_unit: 1000000"),
    ("sliding_log", "algorithm: sliding_log, unit: second, requests_per_unit: 10000"),
    ("concurrency", "algorithm: concurrency, requests_per_unit: 10000, lease: 1"),
    (
        "calendar day",
        "unit: day, requests_per_unit: 4000000, align: calendar, time_zone: Europe/Berlin",
    ),
    (
        "hybrid classes",
        "algorithm: token_bucket, unit: second, requests_per_unit: 100000, burst: 200000, tiers: TIERS",
    ),
];

const TIERS: &str = "{method: hybrid, default: free, classes: {gold: {share: 30%, floor: 0%}, \
                     free: {share: 20%, floor: 20%}}}";

/// One descriptor with one rule of `limits` limits of an algorithm. Classes take the address for the
/// class, so that all calls meet on one counter.
fn policy(words: &str, limits: usize) -> String {
    let words = words.replace("TIERS", TIERS);
    let head = format!(
        "domain: {DOMAIN}\ndescriptors:\n  - key: dimension_0\n    value: default\n    \
         descriptors:\n      - key: remote_address\n"
    );
    if limits == 1 {
        return format!("{head}        rate_limit: {{{words}}}\n");
    }
    let each = (0..limits).map(|nth| format!("          - {{name: limit-{nth}, {words}}}\n"));
    format!("{head}        rate_limits:\n{}", each.collect::<String>())
}

fn bodies() -> Bodies {
    (0..1_000).map(|client| calls::framed(&calls::request(DOMAIN, 1, client))).collect()
}

/// Both stores under one policy.
struct Both {
    memory: Server,
    redis: Server,
}

impl Both {
    fn start(dir: &Path, redis: &RedisServer, text: &str) -> Both {
        let path = dir.join("policy.yaml");
        std::fs::write(&path, text).unwrap();
        let url = redis.address();
        let store = [("REDIS_URL", url.as_str()), ("TIDEGATE_REDIS_BUDGET", "2s")];
        Both { memory: Server::tidegate(&path, &[]), redis: Server::tidegate(&path, &store) }
    }

    fn cost(&self, bodies: &Bodies, calls: usize) -> [f64; 2] {
        [&self.memory, &self.redis].map(|server| servers::cost(server, bodies, calls))
    }
}

pub fn run(scale: Scale) {
    alone();
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    println!(
        "\nCPU per decision, microseconds, 64 callers (median of {} pairs with fixed_window)",
        scale.pairs
    );
    println!(
        "{:<16} {:>10} {:>14} {:>10} {:>14}",
        "algorithm", "memory", "beyond window", "redis", "beyond window"
    );
    let window = policy(ALGORITHMS[0].1, 1);
    for (name, words) in ALGORITHMS {
        table_row(&dir, &redis, scale, name, &window, &policy(words, 1));
    }
    println!("\nThe same for a rule of several limits (beyond a rule of one)");
    for limits in [1, 3, 10] {
        let text = policy(ALGORITHMS[0].1, limits);
        table_row(&dir, &redis, scale, &format!("{limits} limits"), &window, &text);
    }
}

fn table_row(
    dir: &tempfile::TempDir,
    redis: &RedisServer,
    scale: Scale,
    name: &str,
    window: &str,
    text: &str,
) {
    let bodies = bodies();
    let base = Both::start(dir.path(), redis, window);
    let ours = Both::start(dir.path(), redis, text);
    for both in [&base, &ours] {
        both.cost(&bodies, scale.calls / 4);
    }
    let (mut costs, mut beyond) = ([vec![], vec![]], [vec![], vec![]]);
    for _ in 0..scale.pairs {
        std::thread::sleep(scale.settle);
        let pair = [base.cost(&bodies, scale.calls), ours.cost(&bodies, scale.calls)];
        for at in 0..2 {
            costs[at].push(pair[1][at]);
            beyond[at].push(pair[1][at] - pair[0][at]);
        }
    }
    let [memory, in_redis] = costs.map(cpu::median);
    let [more, more_in_redis] = beyond.map(cpu::median);
    println!("{name:<16} {memory:>10.2} {more:>14.2} {in_redis:>10.2} {more_in_redis:>14.2}");
}

/// The embedded store without a wire: one check a call, a thousand hot keys, each with few hits.
fn alone() {
    println!("\nThe embedded store alone: one check a call, 1,000 hot keys");
    println!("{:<16} {:>8}", "algorithm", "ns");
    let window = Micros::from_secs(60);
    let more = [
        (
            "sliding_window",
            Algorithm::SlidingWindow(SlidingWindow { hits: Hits(1_000_000), length: window }),
        ),
        (
            "sliding_log",
            Algorithm::SlidingLog(SlidingLog { hits: Hits(ENTRIES), length: Micros::SECOND }),
        ),
        (
            "concurrency",
            Algorithm::Concurrency(Concurrency { slots: Hits(ENTRIES), lease: Micros::SECOND }),
        ),
        (
            "hybrid classes",
            Algorithm::Hybrid(Hybrid {
                burst: Hits(1_000_000),
                expiry_burst: Hits(1_000_000),
                hits: Hits(1_000_000),
                window,
                shares: [30, 20].into(),
                class: 0,
                floor_percent: 0,
            }),
        ),
    ];
    let more = more.map(|(name, algorithm)| (name, memory::limit(algorithm)));
    for (name, limit) in memory::algorithms().into_iter().chain(more) {
        println!("{name:<16} {:>8.0}", nanoseconds(&limit));
    }
}

fn nanoseconds(limit: &Arc<Limit>) -> f64 {
    memory::hot(&memory::store(2_000, limit, 1_000), limit)
}
