//! What counting in Redis costs: the service's CPU and Redis' own per decision, the scripts beside
//! hand-written ones that decide nothing, waits at half load, a refused hot key, bytes per key.
//!
//! Starts a redis-server of its own. Not here: topologies, faults.

use std::time::{Duration, Instant};

use super::redis_server::RedisServer;
use super::scripts;
use super::{
    Scale, calls, cpu, drive,
    grpc::{Server, fewer},
    paced,
};

const DOMAIN: &str = "bench";
/// Callers in flight, as connections and streams.
const CALLERS: [(usize, usize); 3] = [(1, 1), (4, 16), (8, 64)];
/// How long a refused key is asked for.
const HOT: Duration = Duration::from_secs(3);

pub fn run(scale: Scale) {
    per_decision(scale);
    scripts::run(scale);
    waits(scale);
    hot_key(scale);
    scripts::bytes_per_key(scale);
}

fn in_redis(dir: &std::path::Path, redis: &RedisServer, descriptors: usize) -> Server {
    let policy =
        write(dir, &format!("redis{descriptors}.yaml"), &calls::policy(DOMAIN, descriptors));
    // The budget must not be what ends a call while 512 callers queue on a small machine.
    let url = redis.address();
    Server::tidegate(&policy, &[("REDIS_URL", &url), ("TIDEGATE_STORE_BUDGET", "2s")])
}

fn write(dir: &std::path::Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn bodies(descriptors: usize) -> Vec<bytes::Bytes> {
    (0..fewer(1_000, descriptors))
        .map(|client| calls::framed(&calls::request(DOMAIN, descriptors, client)))
        .collect()
}

/// CPU microseconds per call of one run: the service's, and Redis'.
fn cost(
    server: &Server,
    redis: Option<&RedisServer>,
    bodies: &[bytes::Bytes],
    calls: usize,
    (connections, streams): (usize, usize),
) -> (f64, f64) {
    let pids = (server.pid(), redis.map(RedisServer::pid));
    let before = (cpu::of_process(pids.0), pids.1.map(cpu::of_process));
    let seen = drive::run(server.port, bodies, calls, connections, streams);
    assert_eq!(seen.failed, 0, "every call is answered");
    let each = |spent: Duration| spent.as_secs_f64() * 1e6 / seen.answered as f64;
    let of_redis = pids.1.zip(before.1).map(|(pid, before)| each(cpu::of_process(pid) - before));
    (each(cpu::of_process(pids.0) - before.0), of_redis.unwrap_or(0.0))
}

fn per_decision(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    println!(
        "\nCPU per decision, microseconds: counting in memory, in Redis (median of {} pairs)",
        scale.pairs
    );
    println!(
        "{:>7} {:>8} {:>10} {:>10} {:>10} {:>10} {:>12}",
        "checks", "callers", "memory", "redis", "beyond", "Redis' own", "its/check"
    );
    for descriptors in [1, 2, 10, 256, 1_024] {
        let policy =
            write(dir.path(), &format!("{descriptors}.yaml"), &calls::policy(DOMAIN, descriptors));
        let memory = Server::tidegate(&policy, &[]);
        let ours = in_redis(dir.path(), &redis, descriptors);
        let bodies = bodies(descriptors);
        for callers in CALLERS {
            let in_flight = callers.0 * callers.1;
            // One caller alone waits for every reply: a tenth of the calls takes as long.
            let calls = fewer(scale.calls, descriptors);
            let calls = if in_flight == 1 { calls / 10 } else { calls };
            // Many large calls at once would measure the queue.
            if descriptors > 10 && in_flight > 1 {
                continue;
            }
            cost(&memory, None, &bodies, calls / 4, callers);
            cost(&ours, Some(&redis), &bodies, calls / 4, callers);
            let (mut alone, mut shared, mut beyond, mut own) = (vec![], vec![], vec![], vec![]);
            for _ in 0..scale.pairs {
                std::thread::sleep(scale.settle);
                let (embedded, _) = cost(&memory, None, &bodies, calls, callers);
                let (service, of_redis) = cost(&ours, Some(&redis), &bodies, calls, callers);
                alone.push(embedded);
                shared.push(service);
                beyond.push(service - embedded);
                own.push(of_redis);
            }
            let own = cpu::median(own);
            println!(
                "{descriptors:>7} {in_flight:>8} {:>10.2} {:>10.2} {:>10.2} {own:>10.2} {:>12.2}",
                cpu::median(alone),
                cpu::median(shared),
                cpu::median(beyond),
                own / descriptors as f64,
            );
        }
    }
}

/// Shares of what ten descriptors' calls reach at most, at which one and ten are compared.
const SAME_LOADS: [f64; 3] = [0.05, 0.1, 0.25];

/// Waits at half of what the service carries, and of ten descriptors beside one at the same load.
pub fn waits(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    let servers = [1, 10].map(|descriptors| in_redis(dir.path(), &redis, descriptors));
    let both = [1, 10].map(bodies);
    let peak = |at: usize| {
        let began = Instant::now();
        let seen = drive::run(servers[at].port, &both[at], scale.calls, 4, 16);
        seen.answered as f64 / began.elapsed().as_secs_f64()
    };
    let peaks = [peak(0), peak(1)];
    let waits = |at: usize, rate| paced::run(servers[at].port, &both[at], rate, scale.lasts);
    println!("\nWaits, microseconds, at most 64 callers at a fixed rate");
    println!(
        "{:>7} {:>12} {:>12} {:>8} {:>8} {:>8}",
        "checks", "calls/s", "of peak", "p50", "p99", "p99.9"
    );
    for (at, peak) in peaks.iter().enumerate() {
        let seen = waits(at, peak / 2.0);
        println!(
            "{:>7} {:>12.0} {:>11.0}% {:>8} {:>8} {:>8}",
            [1, 10][at],
            peak / 2.0,
            50.0,
            seen.at(0.5),
            seen.at(0.99),
            seen.at(0.999)
        );
    }
    println!(
        "\nTen descriptors beside one at the same load, p50 in microseconds (median of {} pairs)",
        scale.pairs
    );
    println!("{:>12} {:>14} {:>8} {:>8} {:>8}", "calls/s", "of ten's peak", "one", "ten", "ratio");
    for share in SAME_LOADS {
        let rate = peaks[1] * share;
        let (mut one, mut ten, mut ratio) = (vec![], vec![], vec![]);
        for _ in 0..scale.pairs {
            let [a, b] = [0, 1].map(|at| waits(at, rate).at(0.5) as f64);
            one.push(a);
            ten.push(b);
            ratio.push(b / a.max(1.0));
        }
        println!(
            "{rate:>12.0} {:>13.0}% {:>8.0} {:>8.0} {:>8.2}",
            share * 100.0,
            cpu::median(one),
            cpu::median(ten),
            cpu::median(ratio)
        );
    }
}

/// How many commands a second a key costs that is refused all the time.
fn hot_key(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    let policy = calls::policy(DOMAIN, 1).replace("4000000000", "1").replace("hour", "year");
    let path = write(dir.path(), "hot.yaml", &policy);
    let url = redis.address();
    let ours = Server::tidegate(&path, &[("REDIS_URL", &url), ("TIDEGATE_STORE_BUDGET", "2s")]);
    let body = [calls::framed(&calls::request(DOMAIN, 1, 1))];
    drive::run(ours.port, &body, 1_000, 4, 16);
    let (before, began) = (redis.evalshas(), Instant::now());
    let mut answered = 0;
    while began.elapsed() < HOT {
        answered += drive::run(ours.port, &body, scale.calls / 4, 4, 16).answered;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "\nA refused hot key: {:.0} calls/s refused, {:.2} commands/s to Redis",
        answered as f64 / seconds,
        (redis.evalshas() - before) as f64 / seconds
    );
}
